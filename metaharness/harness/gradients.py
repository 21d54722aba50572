"""Losses of a joint draw with their gradient in theta, part by part.

One backward pass gives what both learners need: the losses (phi's estimator turns them
into its gradient) and the gradient in theta of ``sum(coef * losses)``; through the gate
also that in the rows' weights. Forward and backward run chunk by chunk, so that memory
does not grow with tasks or rows.

Where theta learns through the gate, the encoded pool depends on theta too:
  exact: the pool is encoded and differentiated here; the full gradient.
  fixed keys: ``problem.cache`` is read as a constant. With keys of the present theta
    the value is right and the gradient lacks their part; with older keys both belong to
    the older keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaharness.harness.objective import Problem
from metaharness.harness.relaxed import (
    PoolCache,
    SoftBatch,
    encode_pools,
    measure_relaxed,
)
from metaharness.harness.sequential import Batch, measure
from metaharness.model.attention import Context
from metaharness.model.decoder import Decoder

Adapt = Callable[[Any], Decoder]
"""theta -> the decoder that carries it."""


class WithGradient(NamedTuple):
    """Losses of a draw and gradients of ``sum(coef * losses)``.

    loss: float32 ``[task, row]``, mean nats an item; tokens: int32 ``[task]``, of one
    forward pass; theta: of theta's structure; weights: float32 ``[task, row, pool]``,
    or None where there are none.
    """

    loss: jax.Array
    tokens: jax.Array
    theta: Any
    weights: jax.Array | None


def measured_gradient(
    problem: Problem,
    adapt: Adapt,
    theta: Any,
    template: jax.Array,
    exemplars: jax.Array,
    packs: jax.Array,
    coef: jax.Array,
    *,
    width: int,
    chunk: int,
    implementation: str,
) -> WithGradient:
    """Sequential likelihood of every row's harness, and its gradient in theta.

    Args:
        problem: arrays; its decoder is the frozen one.
        adapt: see ``Adapt``.
        theta: pytree of float arrays.
        template: int32 ``[task, row]``.
        exemplars: int32 ``[task, row, k]``, in prompt order.
        packs: int32 ``[task, pack]``, the items that all rows of a task read.
        coef: float32 ``[task, row]``, how losses are averaged.
        width: tokens of the longest prefix (static).
        chunk: rows run at once (static).
        implementation: of attention (static).
    """

    def one_task(total, task, template, exemplars, packs, coef):
        def part(total, rows):
            template, exemplars, coef = rows
            num = template.shape[0]

            def averaged(theta):
                batch = Batch(
                    jnp.full((num,), task),
                    template,
                    exemplars,
                    jnp.broadcast_to(packs, (num, *packs.shape)),
                )
                out = measure(
                    adapt(theta),
                    problem.table,
                    problem.packs,
                    batch,
                    width=width,
                    chunk=num,
                    implementation=implementation,
                )
                loss = out.loss()
                return (coef * loss).sum(), (loss, out.tokens)

            (_, out), grad = jax.value_and_grad(averaged, has_aux=True)(theta)
            return jax.tree.map(jnp.add, total, grad), out

        return _by_chunk(part, total, chunk, coef, template, exemplars)

    start = jax.tree.map(jnp.zeros_like, theta)
    total, (loss, tokens) = _over_tasks(
        one_task, start, template, exemplars, packs, coef
    )
    return WithGradient(loss, tokens.sum(-1), total, None)


def relaxed_gradient(
    problem: Problem,
    adapt: Adapt,
    theta: Any,
    template: jax.Array,
    weights: jax.Array,
    packs: jax.Array,
    coef: jax.Array,
    *,
    exact: bool,
    chunk: int,
    implementation: str,
) -> WithGradient:
    """Relaxed loss of every row, and its gradients in theta and in the weights.

    Args:
        weights: float32 ``[task, row, pool]``.
        exact: encode the pool here and differentiate it; otherwise ``problem.cache``
            is read as it is.

    The others are those of ``measured_gradient``.
    """
    cache = problem.cache
    if exact:

        @jax.checkpoint
        def encode(theta):
            pool = encode_pools(
                adapt(theta), problem.table, implementation=implementation
            )
            return pool.context, (pool.owner, pool.end)

        context, pull, (owner, end) = jax.vjp(encode, theta, has_aux=True)
        pool = cache.pool._replace(context=context, owner=owner, end=end)
        cache = PoolCache(pool, cache.index)

    def one_task(total, task, template, weights, packs, coef):
        def part(total, rows):
            template, weights, coef = rows
            num = template.shape[0]

            def averaged(theta, context, weights):
                spread = jnp.broadcast_to(packs, (num, *packs.shape))
                out = measure_relaxed(
                    adapt(theta),
                    cache._replace(pool=cache.pool._replace(context=context)),
                    problem.table,
                    problem.packs,
                    SoftBatch(jnp.full((num,), task), template, spread),
                    weights,
                    chunk=num,
                    implementation=implementation,
                )
                loss = out.loss()
                return (coef * loss).sum(), (loss, out.tokens)

            wanted = (0, 1, 2) if exact else (0, 2)
            (_, out), grads = jax.value_and_grad(averaged, wanted, has_aux=True)(
                theta, cache.pool.context, weights
            )
            total = jax.tree.map(jnp.add, total, grads[:-1])
            return total, (*out, grads[-1])

        return _by_chunk(part, total, chunk, coef, template, weights)

    start = (theta, cache.pool.context) if exact else (theta,)
    total, (loss, tokens, slopes) = _over_tasks(
        one_task, jax.tree.map(jnp.zeros_like, start), template, weights, packs, coef
    )
    grad = total[0]
    if exact:
        (through_keys,) = pull(Context(*total[1]))
        grad = jax.tree.map(jnp.add, grad, through_keys)
    return WithGradient(loss, tokens.sum(-1), grad, slopes)


def _over_tasks(run, total, *arrays):
    """``run(total, task, *slices)`` task after task: last total, stacked outputs."""

    def one(total, args):
        return run(total, *args)

    num = arrays[0].shape[0]
    return jax.lax.scan(one, total, (jnp.arange(num, dtype=jnp.int32), *arrays))


def _by_chunk(part, total, chunk, coef, *arrays):
    """``part(total, rows)`` over chunks of the rows ``(*arrays, coef)``.

    The last chunk is filled up with rows of coefficient 0, whose results are dropped.
    """
    num = coef.shape[0]
    parts = -(-num // chunk)
    at = jnp.arange(parts * chunk)
    coef = jnp.where(at < num, coef[jnp.minimum(at, num - 1)], 0.0)
    rows = (*(x[jnp.minimum(at, num - 1)] for x in arrays), coef)
    rows = jax.tree.map(lambda x: x.reshape(parts, chunk, *x.shape[1:]), rows)
    total, out = jax.lax.scan(part, total, rows)
    return total, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:num], out)
