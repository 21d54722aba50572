"""Objectives that read losses from a table: no model runs, and the truth is known."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.harness.objective import Losses
from metaharness.harness.space import EXEMPLARS, Space
from metaharness.train import compiled, parts
from metaharness.train.compiled import Compiled, compile_updates
from metaharness.train.config import TrainConfig

Table = Callable[[jax.Array, jax.Array], jax.Array]
"""(template int32 ``[task, row]``, weights float32 ``[task, row, pool]``) -> loss
float32 ``[task, row]``, differentiable in the weights."""

SEQUENTIAL, GATED, AT_PROBE = 100, 10, 1  # tokens of each task


def additive(template: Any, exemplars: Any) -> Table:
    """A harness costs what its template and its exemplars cost, ``[task, pool]``."""
    by_template, by_exemplar = (
        np.asarray(x, np.float32) for x in (template, exemplars)
    )

    def table(template, weights):
        own = jnp.take_along_axis(jnp.asarray(by_template), template, axis=1)
        return own + jnp.einsum("trp,tp->tr", weights, by_exemplar)

    return table


def patch_objectives(
    patch: Any, space: Space, train: Table, validation: Table | None = None
) -> None:
    """Updates read ``train``, sequential or gated; validations read ``validation``."""
    pool = space.families[EXEMPLARS].n

    def tokens(active, number):
        return number * active.astype(jnp.int32)

    def measured(table):
        def losses(problem, template, shots, packs, active, *, width, **static):
            weights = jax.nn.one_hot(shots, pool).sum(axis=2)
            return Losses(table(template, weights), tokens(active, SEQUENTIAL))

        return losses

    def gated(problem, template, weights, packs, active, **static):
        return Losses(train(template, weights), tokens(active, GATED))

    def relaxed(problem, template, weights, packs, active, **static):
        on = active[:, None]
        loss = jnp.where(on, train(template, weights), 0.0)
        slope = jax.grad(lambda weights: train(template, weights).sum())(weights)
        return Losses(loss, tokens(active, AT_PROBE)), slope * on[..., None]

    patch.setattr(parts, "measured_losses", measured(train))
    patch.setattr(parts, "gated_losses", gated)
    patch.setattr(parts, "relaxed_losses", relaxed)
    patch.setattr(compiled, "measured_losses", measured(validation or train))


def compile_on_tables(space: Space, config: TrainConfig) -> Compiled:
    """Updates for the patched objectives, which read no encoded pool."""
    return compile_updates(space, config)._replace(encode=lambda decoder, theta: None)
