"""Rows of a draw: hard outcomes, groups, leave-one-out means, score terms."""

import chex
import jax
import jax.numpy as jnp

from estimators.family import Family
from estimators.interface import Draw, Memo


def at_least_float32(x: jax.Array) -> jax.Array:
    """``x`` in float32, or in float64 if it is that."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def full_mask(family: Family, mask: jax.Array | None) -> jax.Array:
    """The mask, bool `[pool]`; None allows every candidate."""
    return jnp.ones((family.n,), bool) if mask is None else jnp.asarray(mask)


def shuffle_places(key: jax.Array, family: Family, outcomes: jax.Array) -> jax.Array:
    """Each row of a subset in uniformly random order; other families unchanged.

    A subset's order is part of the draw but carries no information about the logits:
    any order that depends on them (sorting by logit) would bias the score function.
    """
    if family.kind != "subset":
        return outcomes
    return jax.random.permutation(key, outcomes, axis=-1, independent=True)


def sample_rows(
    key: jax.Array, family: Family, logits: jax.Array, mask: jax.Array | None, rows: int
) -> jax.Array:
    """Independent outcomes of the family's own law, int32 `[rows, k]`."""
    choice_key, order_key = jax.random.split(key)
    law = family.distribution(jax.lax.stop_gradient(logits), mask)
    outcomes = law.sample(seed=choice_key, sample_shape=(rows,))
    return shuffle_places(order_key, family, outcomes)


def draw_gumbel(
    key: jax.Array, family: Family, logits: jax.Array, mask: jax.Array | None, rows: int
) -> tuple[jax.Array, jax.Array]:
    """Draws as the best choice under Gumbel noise, and the noise.

    Exact for a categorical and a ranking; not for a subset of more than one.

    Returns:
      int32 `[rows, k]` and float `[rows, pool]`.
    """
    noise = jax.random.gumbel(key, (rows, family.n), logits.dtype)
    return family.distribution(logits + noise, mask).mode(), noise


def sampled(
    family: Family,
    outcomes: jax.Array,
    mask: jax.Array | None,
    noise: object = None,
) -> Draw:
    """Outcomes as a draw in one group; ``rebuild`` adds the weights."""
    rows = outcomes.shape[0]
    memo = Memo(full_mask(family, mask), jnp.zeros((rows,), jnp.int32), noise)
    return Draw(outcomes, None, jnp.full((rows,), 1.0 / rows), memo)


def equal_coef(draw: Draw, dtype: jnp.dtype) -> jax.Array:
    """Coefficients 1 / rows, `[rows]`."""
    rows = draw.outcomes.shape[0]
    return jnp.full((rows,), 1.0 / rows, dtype)


def counted_losses(losses: jax.Array, draw: Draw) -> jax.Array:
    """Losses as constants, 0 in rows of coefficient 0 (an excluded stratum).

    Such a row may hold anything, even nan, and a mean taken as a matrix product would
    carry it into every other group.
    """
    losses, coef = jax.lax.stop_gradient((at_least_float32(losses), draw.coef))
    return jnp.where(coef > 0, losses, 0.0)


def group_mean(values: jax.Array, group: jax.Array) -> jax.Array:
    """Mean over the rows of each row's group: `[rows, ...]` as ``values``."""
    same = (group[:, None] == group[None, :]).astype(values.dtype)
    return (same / jnp.sum(same, axis=1, keepdims=True)) @ values


def leave_one_out(losses: jax.Array, group: jax.Array) -> jax.Array:
    """Loss less the mean of the *other* rows of its group, `[rows]`.

    Equals rows / (rows - 1) times the loss less the group's mean (Kool, van Hoof &
    Welling 2019; Mnih & Rezende 2016). A row alone in its group gets advantage 0.
    """
    chex.assert_rank([losses, group], 1)
    size = jnp.sum(group[:, None] == group[None, :], axis=1)
    scale = jnp.where(size > 1, size / jnp.maximum(size - 1, 1), 0.0)
    centred = losses - group_mean(losses, group)
    return centred * scale.astype(losses.dtype)


def score_term(
    family: Family, logits: jax.Array, draw: Draw, advantage: jax.Array
) -> jax.Array:
    """Scalar whose gradient in the logits is sum of coef * advantage * score."""
    coef, advantage = jax.lax.stop_gradient((draw.coef, advantage))
    log_prob = family.distribution(logits, draw.memo.mask).log_prob(draw.outcomes)
    return jnp.sum(coef * advantage * log_prob)
