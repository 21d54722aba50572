"""The gradient of a linear fit that reuses old evaluations."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from estimators.expectation import expected, free_outcomes
from estimators.family import Family
from estimators.interface import (
    PROBE_SLOPE,
    VALUES,
    Credit,
    Draw,
    Estimator,
    Spec,
    loss_of,
)
from estimators.rows import (
    at_least_float32,
    counted_losses,
    equal_coef,
    leave_one_out,
    sample_rows,
    sampled,
    score_term,
)
from estimators.window import Window, empty_window, fit, rows_kept, store


class LinearProxyState(NamedTuple):
    """Attributes: step, int32, credits so far; window, the old evaluations."""

    step: jax.Array
    window: Window


def linear_proxy(
    family: Family,
    *,
    samples: int = 8,
    window: int | None = None,
    ridge: float = 0.01,
    decay: float = 0.98,
    residual: float = 0.0,
    use_slope: bool = True,
    free_draws: int = 256,
) -> Estimator:
    """``C(logits) b + residual * mean_s LOO(f - b . z)_s grad log p(outcome_s)``.

    z is the k-hot vector (ranking: one one-hot per place), C its covariance under the
    current law, b the ridge fit of ``window.fit`` with prior mean beta * slope. C b is
    the gradient of the expected fit. For categorical and subset the best linear fit
    gives the exact gradient whatever the loss (compatible features: Sutton et al.
    2000); as control variate of the score function it is MuProp's idea (Gu et al. 2016)
    with a fit in place of a Taylor expansion.

    residual 0 (default): plug-in, *biased* by the fit, smallest error with few
      evaluations; this step's rows enter the fit.
    residual 1: unbiased, because b then comes from past steps only.
    between: both terms, b from past steps only; biased by (1 - residual) of the fit's
      error.

    The probe, where the relaxed objective's slope is wanted, is half the marginals and
    half the uniform point k / N over the allowed candidates (a ranking has
    softmax(logits) for marginals): the marginals alone near a vertex as the logits
    converge.

    Evaluations per step: ``samples``, and one relaxed pass with its backward when
    ``use_slope``.
    State: ``LinearProxyState``.

    Args:
      family: any kind. A ranking too large for ``expectation.EXPECT_LIMIT`` takes the
        expectation of the fit from ``free_draws`` extra draws that no model sees.
      samples: rows per step, at least 2.
      window: rows kept, a multiple of ``samples``; None takes about 64.
      ridge: penalty per row, > 0.
      decay: weight of a row per step of age, in (0, 1].
      residual: share of the leave-one-out residual, in [0, 1].
      use_slope: whether the relaxed objective's slope is asked for.
      free_draws: at least 2.

    Raises:
      ValueError: an argument out of range.
    """
    for ok, what in (
        (samples >= 2, f"{samples} samples; draw at least 2"),
        (ridge > 0, f"ridge {ridge}; give one above 0"),
        (0 < decay <= 1, f"decay {decay}; give one in (0, 1]"),
        (0 <= residual <= 1, f"residual {residual}; give one in [0, 1]"),
        (free_draws >= 2, f"{free_draws} free draws; use at least 2"),
    ):
        if not ok:
            raise ValueError(f"estimator linear_proxy: {what}.")
    window = rows_kept(window, samples, "linear_proxy")
    ranking = family.kind == "ranking"
    num_features = family.n * (family.k if ranking else 1)

    def features_of(outcomes: jax.Array, dtype: jnp.dtype) -> jax.Array:
        return family.weights(outcomes, dtype).reshape(len(outcomes), num_features)

    def profile_of(logits: jax.Array, mask: jax.Array) -> jax.Array:
        """Share of each candidate in the law, `[pool]`, sum 1."""
        if ranking:
            return (
                Family("categorical", family.n).distribution(logits, mask).marginals()
            )
        return family.distribution(logits, mask).marginals() / family.k

    def expected_fit(logits: jax.Array, draw: Draw, b: jax.Array) -> jax.Array:
        """Scalar whose gradient is that of E[b . z]."""
        if not ranking:
            return b @ family.distribution(logits, draw.memo.mask).marginals()

        def fitted(outcomes: jax.Array) -> jax.Array:
            return features_of(outcomes, b.dtype) @ b

        return expected(family, logits, draw, fitted, draw.memo.noise)

    def init(key: jax.Array, logits: jax.Array) -> LinearProxyState:
        del key
        dtype = at_least_float32(logits).dtype
        rows = empty_window(window, num_features, family.n, dtype)
        return LinearProxyState(jnp.zeros((), jnp.int32), rows)

    def draw(
        key: jax.Array, logits: jax.Array, state: LinearProxyState, mask: Any = None
    ) -> Draw:
        row_key, free_key = jax.random.split(key)
        outcomes = sample_rows(row_key, family, logits, mask, samples)
        free = None
        if ranking:
            free = free_outcomes(free_key, family, logits, mask, free_draws)
        return rebuild(logits, sampled(family, outcomes, mask, free), state)

    def rebuild(logits: jax.Array, draw: Draw, state: LinearProxyState) -> Draw:
        del state
        logits = at_least_float32(logits)
        weights = family.weights(draw.outcomes, logits.dtype)
        draw = draw._replace(weights=weights, coef=equal_coef(draw, logits.dtype))
        if not use_slope:
            return draw
        mask = draw.memo.mask
        inside = 0.5 * profile_of(jax.lax.stop_gradient(logits), mask)
        inside = inside + 0.5 * mask / jnp.maximum(mask.sum(), 1)
        if ranking:
            return draw._replace(probe=jnp.broadcast_to(inside, family.weights_shape))
        return draw._replace(probe=inside * family.k)

    def credit(
        logits: jax.Array,
        draw: Draw,
        losses: jax.Array | Mapping[str, jax.Array],
        slope: jax.Array | None,
        state: LinearProxyState,
    ) -> Credit:
        logits = at_least_float32(logits)
        losses = counted_losses(loss_of(losses, spec.learns_from), draw)
        losses = losses.astype(logits.dtype)
        if slope is not None:
            slope = jax.lax.stop_gradient(slope).astype(logits.dtype).reshape(-1)
        features = features_of(draw.outcomes, logits.dtype)
        profile = profile_of(jax.lax.stop_gradient(logits), draw.memo.mask)
        group = draw.memo.group
        kept = store(
            state.window, features, losses, draw.coef, group, profile, state.step
        )
        rows = kept if residual == 0 else state.window
        found = fit(rows, slope, profile, state.step, ridge=ridge, decay=decay)
        b = jax.lax.stop_gradient(found.coefficients)
        surrogate = expected_fit(logits, draw, b)
        if residual > 0:
            rest = leave_one_out(losses - features @ b, group)
            surrogate += residual * score_term(family, logits, draw, rest)
        metrics = {
            "beta": found.beta,
            "slope_r2": found.slope_r2,
            "ridge_r2": found.ridge_r2,
            "window_rows": found.rows,
        }
        return Credit(surrogate, LinearProxyState(state.step + 1, kept), metrics)

    needs = {VALUES, PROBE_SLOPE} if use_slope else {VALUES}
    spec = Spec(
        name="linear_proxy",
        family=family,
        needs=frozenset(needs),
        unbiased=residual == 1,
        hard_forward=True,
        rows=samples,
        min_rows=2,
        evaluations=lambda n, k: samples + use_slope,
    )
    return Estimator(init, draw, credit, spec, rebuild)
