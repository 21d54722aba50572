"""Ring buffer of old evaluations, for a network that is trained on them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Replay(NamedTuple):
    """Attributes (a row of weight 0 is empty):

    features: float `[window, feature]`, flat choice vectors.
    losses: float `[window]`.
    weight: float `[window]`, coefficient * rows when the row was stored.
    block: int32 `[window]`; rows of one block were evaluated under one condition (step,
      task, item batch, stratum), and losses are compared only within a block.
    """

    features: jax.Array
    losses: jax.Array
    weight: jax.Array
    block: jax.Array


def empty_replay(window: int, features: int, dtype: jnp.dtype) -> Replay:
    """A buffer without rows."""
    return Replay(
        jnp.zeros((window, features), dtype),
        jnp.zeros((window,), dtype),
        jnp.zeros((window,), dtype),
        jnp.zeros((window,), jnp.int32),
    )


def remember(
    replay: Replay,
    features: jax.Array,
    losses: jax.Array,
    coef: jax.Array,
    group: jax.Array,
    step: jax.Array,
) -> Replay:
    """Write this step's rows over the oldest ones.

    Args:
      replay: of a multiple of ``rows`` rows.
      features: float `[rows, feature]`.
      losses: float `[rows]`.
      coef: float `[rows]`.
      group: int32 `[rows]`, below ``rows``.
      step: int32 scalar.
    """
    rows = losses.shape[0]
    start = (step * rows) % replay.losses.shape[0]
    new = Replay(features, losses, coef * rows, step * rows + group)
    return jax.tree.map(
        lambda old, fresh: jax.lax.dynamic_update_slice_in_dim(
            old, fresh.astype(old.dtype), start, axis=0
        ),
        replay,
        new,
    )


def centred(values: jax.Array, weight: jax.Array, block: jax.Array) -> jax.Array:
    """Values less the weighted mean of their block, `[rows]`; 0 in empty rows."""
    same = (block[:, None] == block[None, :]) * weight[None, :]
    total = jnp.sum(same, axis=1)
    mean = (same @ values) / jnp.where(total > 0, total, 1.0)
    return jnp.where(weight > 0, values - mean, 0.0)


def unexplained(
    predicted: jax.Array, losses: jax.Array, weight: jax.Array, block: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Weighted sum of squares that a prediction leaves, and that there was.

    Both are about the means of the blocks: a constant in the losses changes neither.
    """
    rest = centred(losses - predicted, weight, block)
    whole = centred(losses, weight, block)
    return weight @ rest**2, weight @ whole**2
