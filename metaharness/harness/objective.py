"""Losses of a joint draw over tasks, for the estimators: measured and relaxed.

Both run task by task inside one jitted graph (``lax.map``), so that memory does not
grow with the number of tasks, and skip tasks that are not active.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaharness.harness.packing import Packs
from metaharness.harness.relaxed import (
    PoolCache,
    SoftBatch,
    attach_slope,
    loss_and_slope,
    measure_relaxed,
)
from metaharness.harness.sequential import Batch, measure
from metaharness.harness.tables import PromptTable
from metaharness.model.decoder import Decoder


class Problem(NamedTuple):
    """Arrays that every objective reads; see ``Space`` for their axes.

    decoder: frozen weights; table: tokens of the pools; packs: packed items;
    cache: encoded pools, or None where nothing relaxed is evaluated.
    """

    decoder: Decoder
    table: PromptTable
    packs: Packs
    cache: PoolCache | None


class Losses(NamedTuple):
    """loss: float32 ``[task, row]``, mean nats an item; tokens: int32 ``[task]``."""

    loss: jax.Array
    tokens: jax.Array


def measured_losses(
    problem: Problem,
    template: jax.Array,
    exemplars: jax.Array,
    packs: jax.Array,
    active: jax.Array,
    *,
    width: int,
    chunk: int,
    implementation: str,
) -> Losses:
    """Sequential likelihood of every row's harness.

    Args:
        problem: arrays.
        template: int32 ``[task, row]``.
        exemplars: int32 ``[task, row, k]``, in prompt order.
        packs: int32 ``[task, pack]``, the items that all rows of a task read.
        active: bool ``[task]``; the others get loss 0 at no cost.
        width: tokens of the longest prefix (static).
        chunk: rows run at once (static).
        implementation: of attention (static).
    """

    def one_task(task, template, exemplars, packs):
        rows = template.shape[0]
        batch = Batch(
            jnp.full((rows,), task),
            template,
            exemplars,
            jnp.broadcast_to(packs, (rows, *packs.shape)),
        )
        out = measure(
            problem.decoder,
            problem.table,
            problem.packs,
            batch,
            width=width,
            chunk=chunk,
            implementation=implementation,
        )
        return Losses(out.loss(), out.tokens.sum())

    return _over_tasks(one_task, active, template, exemplars, packs)


def gated_losses(
    problem: Problem,
    template: jax.Array,
    weights: jax.Array,
    packs: jax.Array,
    active: jax.Array,
    *,
    chunk: int,
    implementation: str,
) -> Losses:
    """Relaxed loss of every row, value alone; weights ``[task, row, pool]``."""

    def one_task(task, template, weights, packs):
        batch = _soft_batch(task, template, packs)
        out = measure_relaxed(
            problem.decoder,
            problem.cache,
            problem.table,
            problem.packs,
            batch,
            weights,
            chunk=chunk,
            implementation=implementation,
        )
        return Losses(out.loss(), out.tokens.sum())

    return _over_tasks(one_task, active, template, weights, packs)


def relaxed_losses(
    problem: Problem,
    template: jax.Array,
    weights: jax.Array,
    packs: jax.Array,
    active: jax.Array,
    *,
    chunk: int,
    implementation: str,
) -> tuple[Losses, jax.Array]:
    """Relaxed loss of every row, differentiable in weights, and its slopes.

    weights: float32 ``[task, row, pool]``. Returns losses and slopes ``[task, row,
    pool]``; the slopes are computed with the value, a backward pass only uses them.
    """

    def one_task(task, template, weights, packs):
        loss, slope, tokens = loss_and_slope(
            problem.decoder,
            problem.cache,
            problem.table,
            problem.packs,
            _soft_batch(task, template, packs),
            weights,
            chunk=chunk,
            implementation=implementation,
        )
        return Losses(loss, tokens.sum()), slope

    fixed = jax.lax.stop_gradient(weights)
    losses, slope = _over_tasks(one_task, active, template, fixed, packs)
    return losses._replace(loss=attach_slope(weights, losses.loss, slope)), slope


def _soft_batch(task, template, packs) -> SoftBatch:
    rows = template.shape[0]
    spread = jnp.broadcast_to(packs, (rows, *packs.shape))
    return SoftBatch(jnp.full((rows,), task), template, spread)


def _over_tasks(run, active, *arrays):
    """``run(task, *slices)`` for every active task, zeros for the others."""
    num = active.shape[0]
    first = (jnp.int32(0), *(x[0] for x in arrays))
    empty = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(run, *first)
    )

    def one(args):
        on, *rest = args
        return jax.lax.cond(on, lambda: run(*rest), lambda: empty)

    return jax.lax.map(one, (active, jnp.arange(num, dtype=jnp.int32), *arrays))
