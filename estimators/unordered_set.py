"""The unordered set estimator: distinct outcomes, drawn without replacement."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
from estimators.rows import (
    at_least_float32,
    counted_losses,
    full_mask,
    sampled,
    score_term,
)
from estimators.without_replacement import draw_distinct, log_completions, log_masses

MOST = 12
"""Most samples: the ratios are a sum over all 2**samples parts of the set."""


def unordered_set(family: Family, *, samples: int = 8) -> Estimator:
    """``sum_s p_s R(B, s) (f_s - b_s) grad log p_s`` over a set B of distinct outcomes.

    Kool, van Hoof & Welling 2020, "Estimating Gradients for Discrete Random Variables
    by Sampling without Replacement", with the built-in baseline:

        R(B, s) = P(B | s first) / P(B)                   p_s R(B, s) = P(s first | B)
        b_s = sum_t p_t R(B - s, t) f_t                   R of the pool without s

    where the term t = s of b_s has R = 1; the weights of b_s sum to 1. Unbiased, and no
    evaluation is spent twice on one outcome: of the estimators that need only values it
    has the least variance at equal cost for a categorical; with as many samples as
    outcomes it is ``exact``. The ratios follow from ``log_completions``.

    ``coef`` is p_s R(B, s), a constant; its sum is 1. It is exactly 0 in surplus rows,
    where fewer outcomes than samples are allowed. Rows are drawn together, so a joint
    estimator cannot split them into strata.

    Evaluations per step: ``samples``. State: int32 step.

    Args:
      family: categorical or ranking. Rankings of more than
        ``without_replacement.ENUMERATED`` outcomes are drawn by stochastic beam search.
      samples: distinct rows, from 2 to ``MOST`` and to the number of outcomes.

    Raises:
      ValueError: another family, or samples out of range.
    """
    refuse_family("unordered_set", family, ("categorical", "ranking"))
    if not 2 <= samples <= MOST:
        raise ValueError(
            f"estimator unordered_set: {samples} samples; draw from 2 to {MOST}."
        )
    if samples > family.num_outcomes:
        raise ValueError(
            f"estimator unordered_set: {samples} distinct samples of "
            f"{family.num_outcomes} outcomes; draw fewer, or use exact."
        )

    def init(key: jax.Array, logits: jax.Array) -> jax.Array:
        del key, logits
        return jnp.zeros((), jnp.int32)

    def draw(
        key: jax.Array, logits: jax.Array, state: jax.Array, mask: Any = None
    ) -> Draw:
        allowed = full_mask(family, mask)
        fixed = jax.lax.stop_gradient(at_least_float32(logits))
        outcomes = draw_distinct(key, family, fixed, allowed, samples)
        return rebuild(logits, sampled(family, outcomes, mask), state)

    def completions(logits: jax.Array, draw: Draw) -> tuple[jax.Array, ...]:
        fixed = jax.lax.stop_gradient(at_least_float32(logits))
        log_prob, log_outside = log_masses(draw.outcomes, fixed, draw.memo.mask)
        return log_prob, log_outside, log_completions(log_prob, log_outside)

    single = 1 << np.arange(samples, dtype=np.int32)  # index of {s}
    pair = single[:, None] | single  # of {s, t}

    def rebuild(logits: jax.Array, draw: Draw, state: jax.Array) -> Draw:
        del state
        log_prob, _, value = completions(logits, draw)
        weights = family.weights(draw.outcomes, log_prob.dtype)
        coef = jnp.exp(log_prob + value[single] - value[0])
        return draw._replace(weights=weights, coef=coef)

    def credit(
        logits: jax.Array,
        draw: Draw,
        losses: jax.Array | Mapping[str, jax.Array],
        slope: Any,
        state: jax.Array,
    ) -> Credit:
        del slope
        losses = counted_losses(loss_of(losses, spec.learns_from), draw)
        log_prob, log_outside, value = completions(logits, draw)
        share = jnp.exp(log_prob + value[pair] - value[single][:, None])
        # differences: the shares of a row sum to 1, its own loss included
        advantage = jnp.sum(share * (losses[:, None] - losses), axis=1)
        surrogate = score_term(family, logits, draw, advantage)
        metrics = {
            "advantage_std": jnp.std(advantage),
            "covered": -jnp.expm1(jnp.minimum(log_outside, 0.0)),
        }
        return Credit(surrogate, state + 1, metrics)

    spec = Spec(
        name="unordered_set",
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
