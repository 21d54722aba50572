"""The expected value of a fitted function of the outcome, which costs no model call."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from estimators.family import Family
from estimators.interface import Draw
from estimators.rows import leave_one_out, sample_rows

EXPECT_LIMIT = 1000
"""An expectation is enumerated up to this many outcomes, else taken from free draws."""


def needs_free_draws(family: Family) -> bool:
    """Whether the family has too many outcomes to enumerate at every step."""
    return family.num_outcomes > EXPECT_LIMIT


def free_outcomes(
    key: jax.Array, family: Family, logits: jax.Array, mask: Any, rows: int
) -> jax.Array | None:
    """Draws that no model sees, int32 `[rows, k]`; None where all are enumerated."""
    if not needs_free_draws(family):
        return None
    return sample_rows(key, family, logits, mask, rows)


def expected(
    family: Family,
    logits: jax.Array,
    draw: Draw,
    value_of: Callable[[jax.Array], jax.Array],
    free: jax.Array | None,
) -> jax.Array:
    """Scalar whose gradient in the logits is that of E[value], or estimates it.

    Exact by enumeration up to ``EXPECT_LIMIT`` outcomes; above, the leave-one-out score
    estimate from the free draws, unbiased.

    Args:
      family: of the slot.
      logits: float `[pool]`.
      draw: for its mask.
      value_of: outcomes int32 `[rows, k]` -> float `[rows]`, a constant in the logits.
      free: from ``free_outcomes``.
    """
    law = family.distribution(logits, draw.memo.mask)
    if free is None:
        outcomes = jnp.asarray(family.enumerate())
        prob = jnp.exp(law.log_prob(outcomes))
        value = jax.lax.stop_gradient(value_of(outcomes))
        centre = jax.lax.stop_gradient(prob) @ value  # keeps digits of the gradient
        return prob @ (value - centre)
    value = jax.lax.stop_gradient(value_of(free))
    value = leave_one_out(value, jnp.zeros((len(value),), jnp.int32))
    return jnp.mean(value * law.log_prob(free))
