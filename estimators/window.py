"""Replay window of old evaluations, and the ridge fit of losses on choices.

For a categorical or a subset the best linear fit of the loss on the k-hot vector z
under the current law gives the exact gradient, whatever the loss: Cov(z) b = Cov(z, f).
Fitted from a window of old evaluations it is approximate.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve

from estimators.rows import group_mean


class Window(NamedTuple):
    """Ring buffer; a row of weight 0 is empty.

    Attributes:
      features: float `[window, feature]`, flat choice vectors less their group's mean.
      losses: float `[window]`, less the mean of the same group (one step, task, item
        batch and stratum), so that nothing but the choice explains them.
      weight: float `[window]`, coefficient * rows when the row was stored.
      profile: float `[window, pool]`, share of each candidate in the law that drew the
        row.
      step: int32 `[window]`, when the row was stored.
      fold: int32 `[window]`, half (0 or 1) for held-out checks; a group is never split.
    """

    features: jax.Array
    losses: jax.Array
    weight: jax.Array
    profile: jax.Array
    step: jax.Array
    fold: jax.Array


class Fit(NamedTuple):
    """A linear fit of the loss.

    Attributes:
      coefficients: float `[feature]`, loss units per unit of weight.
      beta: scalar >= 0, multiple of the slope that served as prior mean; 0 when it did
        not help on held-out rows.
      slope_r2: scalar, share of held-out loss variance that beta * slope alone
        explains.
      ridge_r2: scalar, the same for the ridge fit without a slope.
      rows: scalar, effective number of rows after down-weighting.
    """

    coefficients: jax.Array
    beta: jax.Array
    slope_r2: jax.Array
    ridge_r2: jax.Array
    rows: jax.Array


def rows_kept(window: int | None, samples: int, name: str) -> int:
    """How many rows a window keeps: as asked, or about 64.

    Raises:
      ValueError: ``window`` is not a multiple of ``samples``.
    """
    samples = max(samples, 1)
    if window is None:
        return max(samples, 64 // samples * samples)
    if window < samples or window % samples:
        near = samples * max(1, round(window / samples))
        raise ValueError(
            f"estimator {name}: window {window} is not a multiple of {samples} "
            f"samples; use {near}."
        )
    return window


def empty_window(window: int, features: int, pool: int, dtype: jnp.dtype) -> Window:
    """A window without rows."""
    return Window(
        jnp.zeros((window, features), dtype),
        jnp.zeros((window,), dtype),
        jnp.zeros((window,), dtype),
        jnp.zeros((window, pool), dtype),
        jnp.zeros((window,), jnp.int32),
        jnp.zeros((window,), jnp.int32),
    )


def store(
    window: Window,
    features: jax.Array,
    losses: jax.Array,
    coef: jax.Array,
    group: jax.Array,
    profile: jax.Array,
    step: jax.Array,
) -> Window:
    """Write this step's rows over the oldest ones.

    Features and losses are both centred within their group: centring only the losses
    would shrink the fit by (size - 1) / size.

    Args:
      window: of a multiple of ``rows`` rows.
      features: float `[rows, feature]`.
      losses: float `[rows]`.
      coef: float `[rows]`.
      group: int32 `[rows]`.
      profile: float `[pool]` of the law at this step.
      step: int32 scalar.
    """
    chex.assert_rank([features, losses, coef, group, profile], [2, 1, 1, 1, 1])
    rows = losses.shape[0]
    start = (step * rows) % window.losses.shape[0]
    new = Window(
        features - group_mean(features, group),
        losses - group_mean(losses, group),
        coef * rows,
        jnp.broadcast_to(profile, (rows, *profile.shape)),
        jnp.broadcast_to(step, (rows,)),
        (step + group) % 2,
    )
    return jax.tree.map(
        lambda old, fresh: jax.lax.dynamic_update_slice_in_dim(
            old, fresh.astype(old.dtype), start, axis=0
        ),
        window,
        new,
    )


def fit(
    window: Window,
    slope: jax.Array | None,
    profile: jax.Array,
    step: jax.Array,
    *,
    ridge: float,
    decay: float,
) -> Fit:
    """Weighted ridge regression with prior mean beta * slope.

        b = argmin sum_r w_r (f_r - z_r . b)^2 + ridge max(sum w, 1) |b - beta slope|^2
        w_r = weight_r decay^age_r sum_i min(profile_i, profile_r,i)

    The last factor is 1 while the law is the one that drew the row, and 0 when the two
    share no candidate. beta is the weighted least-squares coefficient of f on z .
    slope, kept at 0 unless it is positive and the fit with this prior predicts held-out
    rows better than the fit without: two folds, each fitted on the other.

    Args:
      window: the rows.
      slope: float `[feature]`, gradient of the relaxed loss at an interior point, or
        None.
      profile: float `[pool]`, share of each candidate in the current law.
      step: int32 scalar, now.
      ridge: penalty per row, > 0.
      decay: in (0, 1].
    """
    chex.assert_rank([window.features, window.losses, profile], [2, 1, 1])
    age = (step - window.step).astype(window.losses.dtype)
    overlap = jnp.sum(jnp.minimum(window.profile, profile), axis=-1)
    weight = window.weight * decay**age * overlap
    half = jax.nn.one_hot(window.fold, 2, dtype=weight.dtype) * weight[:, None]
    gram = jnp.einsum("wf,wp,wq->fpq", half, window.features, window.features)
    cross = jnp.einsum("wf,wp,w->fp", half, window.features, window.losses)
    power = half.T @ window.losses**2
    rows = half.sum(0)
    slope = jnp.zeros_like(cross[0]) if slope is None else slope

    def solve(gram: jax.Array, cross: jax.Array, rows: jax.Array) -> tuple:
        """Plain fit, fit with the prior, beta: from one set of sums."""
        size = gram.shape[0]
        penalty = ridge * jnp.maximum(rows, 1.0)
        push = gram @ slope
        energy = slope @ push
        beta = (slope @ cross) / jnp.where(energy > 0, energy, 1.0)
        beta = jnp.where(energy > 0, jnp.maximum(beta, 0.0), 0.0)
        factor = cho_factor(gram + penalty * jnp.eye(size, dtype=gram.dtype))
        both = cho_solve(factor, jnp.stack([cross, push], axis=1))
        plain = both[:, 0]
        return plain, plain + beta * (slope - both[:, 1]), beta

    def explained(coefficients: jax.Array, fold: int) -> jax.Array:
        """Reduction of the weighted squared loss on a fold."""
        return coefficients @ (2 * cross[fold] - gram[fold] @ coefficients)

    # Fitted on fold 1, on fold 0 and on both, as one batch: three factorisations side
    # by side can hang JAX 0.10 on a CPU of two cores.
    plains, priors, betas = jax.vmap(solve)(
        *(jnp.stack([x[1], x[0], x[0] + x[1]]) for x in (gram, cross, rows))
    )
    gain_plain, gain_prior, gain_slope = 0.0, 0.0, 0.0
    for held in (0, 1):
        gain_plain += explained(plains[held], held)
        gain_prior += explained(priors[held], held)
        gain_slope += explained(betas[held] * slope, held)
    plain, prior, beta = plains[2], priors[2], betas[2]
    helps = gain_prior > gain_plain
    total = power.sum()
    total = jnp.where(total > 0, total, 1.0)
    return Fit(
        jnp.where(helps, prior, plain),
        jnp.where(helps, beta, 0.0),
        gain_slope / total,
        gain_plain / total,
        rows.sum(),
    )
