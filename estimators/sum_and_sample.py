"""Sum over the likeliest candidates, sample the rest."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from estimators.categorical import Categorical
from estimators.family import Family
from estimators.interface import (
    VALUES,
    Credit,
    Draw,
    Estimator,
    Spec,
    loss_of,
    refuse_family,
)
from estimators.masking import EXCLUDED
from estimators.rows import at_least_float32, counted_losses, full_mask, sampled


def sum_and_sample(
    family: Family, *, samples: int = 8, enumerated: int | None = None
) -> Estimator:
    """The K likeliest candidates exactly, the rest by m draws of the renormalised law.

    Liu, Regier, Tripuraneni, Jordan & McAuliffe 2019, "Rao-Blackwellized Stochastic
    Gradients for Discrete Distributions". With P the probability of the K and q the law
    of the others, the estimate is the gradient of

        sum over the K of p_i f_i + (1 - P) / m * sum of the m draws' f_s

    (the coefficients carry a gradient) and, in the surrogate, of the score term
    ``(1 - P) / m * sum_s (f_s - b_s) grad log q(s)``. b_s is the mean of the other
    rows' losses, weighted by coefficient, so row s never sees its own. Unbiased, and
    exact where the K cover all allowed candidates.

    Half of the rows are enumerated by default: the variance is about (1 - P)^2 / m, so
    a peaked law wants many enumerated rows and a flat one in a large pool, where they
    hold little mass, few.

    ``coef`` sums to 1 and is exactly 0 in surplus rows, where fewer candidates than K
    are allowed. The first K rows are the enumerated ones. Rows are drawn together, so a
    joint estimator cannot split them into strata.

    Evaluations per step: ``samples``. State: int32 step.

    Args:
      family: categorical.
      samples: rows in all, at least 2.
      enumerated: K, from 1 to samples - 1 and to the pool size; None takes half of
        the samples.

    Raises:
      ValueError: another family, or an argument out of range.
    """
    refuse_family("sum_and_sample", family, ("categorical",))
    if samples < 2:
        raise ValueError(
            f"estimator sum_and_sample: {samples} samples; draw at least 2."
        )
    most = min(samples - 1, family.n)
    first = min(samples // 2, most) if enumerated is None else enumerated
    if not 1 <= first <= most:
        raise ValueError(
            f"estimator sum_and_sample: enumerated {first} of {samples} samples and "
            f"{family.n} candidates; give from 1 to {most}."
        )
    drawn = samples - first

    def others(draw: Draw) -> jax.Array:
        """Allowed candidates that are not enumerated, bool `[pool]`."""
        hot = jax.nn.one_hot(draw.outcomes[:first, 0], family.n, dtype=bool)
        return draw.memo.mask & ~jnp.any(hot, axis=0)

    def init(key: jax.Array, logits: jax.Array) -> jax.Array:
        del key, logits
        return jnp.zeros((), jnp.int32)

    def draw(
        key: jax.Array, logits: jax.Array, state: jax.Array, mask: Any = None
    ) -> Draw:
        allowed = full_mask(family, mask)
        fixed = jnp.where(allowed, at_least_float32(logits), EXCLUDED)
        fixed = jax.lax.stop_gradient(fixed)
        top = jax.lax.top_k(fixed, first)[1]
        rest = fixed.at[top].set(EXCLUDED)
        picked = jax.random.categorical(key, rest, shape=(drawn,))
        outcomes = jnp.concatenate([top, picked])[:, None].astype(jnp.int32)
        return rebuild(logits, sampled(family, outcomes, mask), state)

    def rebuild(logits: jax.Array, draw: Draw, state: jax.Array) -> Draw:
        del state
        logits = at_least_float32(logits)
        prob = Categorical(logits, draw.memo.mask).marginals()
        rest = jnp.sum(jnp.where(others(draw), prob, 0.0))
        coef = jnp.concatenate(
            [prob[draw.outcomes[:first, 0]], jnp.full((drawn,), rest / drawn)]
        )
        return draw._replace(
            weights=family.weights(draw.outcomes, logits.dtype), coef=coef
        )

    def credit(
        logits: jax.Array,
        draw: Draw,
        losses: jax.Array | Mapping[str, jax.Array],
        slope: Any,
        state: jax.Array,
    ) -> Credit:
        del slope
        losses = counted_losses(loss_of(losses, spec.learns_from), draw)
        coef = jax.lax.stop_gradient(draw.coef)
        other = coef * (1 - jnp.eye(samples, dtype=coef.dtype))
        total = jnp.sum(other, axis=1)
        advantage = (losses[:, None] - losses) * other
        advantage = jnp.sum(advantage, axis=1) / jnp.where(total > 0, total, 1.0)
        left = jnp.where(others(draw), at_least_float32(logits), EXCLUDED)
        log_q = jax.nn.log_softmax(left)[draw.outcomes[first:, 0]]
        surrogate = jnp.sum((coef * advantage)[first:] * log_q)
        metrics = {
            "advantage_std": jnp.std(advantage[first:]),
            "enumerated_mass": jnp.sum(coef[:first]),
        }
        return Credit(surrogate, state + 1, metrics)

    spec = Spec(
        name="sum_and_sample",
        family=family,
        needs=frozenset({VALUES}),
        unbiased=True,
        hard_forward=True,
        rows=samples,
        min_rows=samples,
        evaluations=lambda n, k: samples,
        weighted=True,
    )
    return Estimator(init, draw, credit, spec, rebuild)
