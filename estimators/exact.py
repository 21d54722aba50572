"""Exact enumeration: every outcome once, averaged by its probability."""

from typing import Any

import jax
import jax.numpy as jnp

from estimators.family import Family
from estimators.interface import VALUES, Credit, Draw, Estimator, Spec
from estimators.outcomes import check_countable
from estimators.rows import at_least_float32, sampled, shuffle_places


def exact(family: Family) -> Estimator:
    """Gradient of ``sum_r p_r(logits) f_r`` over all outcomes r: no variance, no bias.

    The coefficients carry the gradient; the surrogate is 0. The best choice for small
    pools (templates): a pool of 8 costs as much as 8 samples. A subset is evaluated in
    one uniformly random order, which is the only randomness.

    Evaluations per step: the number of outcomes. State: int32 step.

    Args:
      family: any kind with at most ``outcomes.LIMIT`` outcomes.

    Raises:
      ValueError: too many outcomes.
    """
    check_countable(family.num_outcomes, f"estimator exact, family {family.kind}")
    table = family.enumerate()

    def init(key: jax.Array, logits: jax.Array) -> jax.Array:
        del key, logits
        return jnp.zeros((), jnp.int32)

    def draw(
        key: jax.Array, logits: jax.Array, state: jax.Array, mask: Any = None
    ) -> Draw:
        outcomes = shuffle_places(key, family, jnp.asarray(table))
        return rebuild(logits, sampled(family, outcomes, mask), state)

    def rebuild(logits: jax.Array, draw: Draw, state: jax.Array) -> Draw:
        del state
        logits = at_least_float32(logits)
        law = family.distribution(logits, draw.memo.mask)
        weights = family.weights(draw.outcomes, logits.dtype)
        return draw._replace(weights=weights, coef=jnp.exp(law.log_prob(draw.outcomes)))

    def credit(
        logits: jax.Array, draw: Draw, losses: jax.Array, slope: Any, state: jax.Array
    ) -> Credit:
        del slope
        surrogate = jnp.zeros((), at_least_float32(logits).dtype)
        return Credit(surrogate, state + 1, {})

    spec = Spec(
        name="exact",
        family=family,
        needs=frozenset({VALUES}),
        unbiased=True,
        hard_forward=True,
        rows=family.num_outcomes,
        min_rows=1,
        evaluations=lambda n, k: Family(family.kind, n, k).num_outcomes,
        enumerates=True,
    )
    return Estimator(init, draw, credit, spec, rebuild)
