"""The score function, with a choice of baselines."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from estimators.family import Family
from estimators.interface import VALUES, Credit, Draw, Estimator, Spec, loss_of
from estimators.rows import (
    at_least_float32,
    counted_losses,
    equal_coef,
    group_mean,
    leave_one_out,
    sample_rows,
    sampled,
    score_term,
)

BASELINES = ("none", "running_mean", "leave_one_out", "group_normalised")
STD_EPSILON = 1e-4


class ReinforceState(NamedTuple):
    """Attributes: step, int32; total, decayed sum of losses; weight, sum of weights."""

    step: jax.Array
    total: jax.Array
    weight: jax.Array


def reinforce(
    family: Family,
    *,
    samples: int = 8,
    baseline: str = "leave_one_out",
    decay: float = 0.9,
) -> Estimator:
    """``mean_s (f_s - b_s) grad log p(outcome_s)`` (Williams 1992).

    Baselines b_s:
      none: 0. Unbiased.
      running_mean: decayed mean of the losses of past steps (0 at the first). Unbiased.
      leave_one_out: mean of the other samples' losses (Mnih & Rezende 2016; Kool, van
        Hoof & Welling 2019). Unbiased; with 2 samples its variance can exceed that of
        none.
      group_normalised: mean of all samples, and divided by their deviation + 1e-4 (Shao
        et al. 2024, GRPO). *Biased* in size: no constant makes it the gradient.

    Evaluations per step: ``samples``. State: ``ReinforceState``.

    Args:
      family: any kind.
      samples: rows, at least 1; at least 2 for the last two baselines, 4 advised.
      baseline: one of ``BASELINES``.
      decay: of the running mean per step, in [0, 1).

    Raises:
      ValueError: an argument out of range.
    """
    if baseline not in BASELINES:
        raise ValueError(
            f"estimator reinforce: baseline {baseline!r} is unknown; "
            f"use one of {', '.join(BASELINES)}."
        )
    min_rows = 2 if baseline in ("leave_one_out", "group_normalised") else 1
    if samples < min_rows:
        raise ValueError(
            f"estimator reinforce: {samples} samples with baseline {baseline}; "
            f"draw at least {min_rows}."
        )
    if not 0 <= decay < 1:
        raise ValueError(f"estimator reinforce: decay {decay}; give one in [0, 1).")

    def init(key: jax.Array, logits: jax.Array) -> ReinforceState:
        del key
        zero = jnp.zeros((), at_least_float32(logits).dtype)
        return ReinforceState(jnp.zeros((), jnp.int32), zero, zero)

    def draw(
        key: jax.Array, logits: jax.Array, state: ReinforceState, mask: Any = None
    ) -> Draw:
        outcomes = sample_rows(key, family, logits, mask, samples)
        return rebuild(logits, sampled(family, outcomes, mask), state)

    def rebuild(logits: jax.Array, draw: Draw, state: ReinforceState) -> Draw:
        del state
        dtype = at_least_float32(logits).dtype
        weights = family.weights(draw.outcomes, dtype)
        return draw._replace(weights=weights, coef=equal_coef(draw, dtype))

    def credit(
        logits: jax.Array,
        draw: Draw,
        losses: jax.Array | Mapping[str, jax.Array],
        slope: Any,
        state: ReinforceState,
    ) -> Credit:
        del slope
        losses = counted_losses(loss_of(losses, spec.learns_from), draw)
        group = draw.memo.group
        running = state.total / jnp.where(state.weight > 0, state.weight, 1.0)
        if baseline == "leave_one_out":
            advantage = leave_one_out(losses, group)
        elif baseline == "group_normalised":
            centred = losses - group_mean(losses, group)
            advantage = centred / (
                jnp.sqrt(group_mean(centred**2, group)) + STD_EPSILON
            )
        elif baseline == "running_mean":
            advantage = losses - running
        else:
            advantage = losses
        surrogate = score_term(family, logits, draw, advantage)
        mean = jax.lax.stop_gradient(draw.coef) @ losses
        new = ReinforceState(
            state.step + 1,
            decay * state.total + (1 - decay) * mean,
            decay * state.weight + (1 - decay),
        )
        return Credit(surrogate, new, {"advantage_std": jnp.std(advantage)})

    spec = Spec(
        name="reinforce",
        family=family,
        needs=frozenset({VALUES}),
        unbiased=baseline != "group_normalised",
        hard_forward=True,
        rows=samples,
        min_rows=min_rows,
        evaluations=lambda n, k: samples,
    )
    return Estimator(init, draw, credit, spec, rebuild)
