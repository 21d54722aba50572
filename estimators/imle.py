"""Implicit maximum likelihood: differences of the best perturbed choice."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from estimators.family import Family
from estimators.interface import Estimator, refuse_family
from estimators.relaxed import relaxed
from estimators.rows import draw_gumbel, shuffle_places


def imle(family: Family, *, samples: int = 8, step: float = 1.0) -> Estimator:
    """``|g| / (2 step) (MAP(x + step u) - MAP(x - step u))``, x = logits + noise.

    MAP is the k-hot vector of the k largest entries, g the slope of the loss at MAP(x),
    u = g / |g|. Niepert, Minervini & Franceschi 2021 (I-MLE), with central differences
    and a step relative to the size of the slope as in Minervini, Franceschi & Niepert
    2023 (AIMLE): the estimate is then homogeneous in the loss, whatever its units. The
    step is fixed here, not adapted.

    *Biased*: by the finite step, by the slope at a hard vertex, and for a subset by the
    law. The noise is Gumbel: exact for a categorical, while the best k of a subset are
    drawn as the set of a ``Ranking`` (no noise is known that makes MAP an exact subset
    draw, the authors' sum-of-gamma noise included). ``outcomes`` is MAP(x).

    Evaluations per step: ``samples``, each with a backward pass. State: ``TauState``
    (tau fixed at 1).

    Args:
      family: categorical or subset.
      samples: rows, at least 1.
      step: in logits, > 0. A small one gives rare, large differences; a large one more
        bias. The noise has a standard deviation of 1.3.

    Raises:
      ValueError: another family, or an argument out of range.
    """
    refuse_family("imle", family, ("categorical", "subset"))
    if not step > 0:
        raise ValueError(f"estimator imle: step {step}; give one above 0.")

    def sample(
        key: jax.Array, logits: jax.Array, tau: jax.Array, mask: Any
    ) -> tuple[jax.Array, jax.Array]:
        del tau
        order_key, noise_key = jax.random.split(key)
        outcomes, noise = draw_gumbel(noise_key, family, logits, mask, samples)
        return shuffle_places(order_key, family, outcomes), noise

    def weights(
        logits: jax.Array, outcomes: Any, noise: jax.Array, tau: jax.Array, mask: Any
    ) -> jax.Array:
        del outcomes, tau
        return _best(family, step, logits + noise, mask)

    return relaxed(
        "imle",
        family,
        samples=samples,
        tau=1.0,
        hard_forward=True,
        sample=sample,
        weights=weights,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _best(family: Family, step: float, scores: jax.Array, mask: Any) -> jax.Array:
    """The k-hot vector of the best choice, `[rows, pool]`."""
    outcomes = family.distribution(scores, mask).mode()
    return family.weights(outcomes, scores.dtype)


def _best_forward(family: Family, step: float, scores: jax.Array, mask: Any) -> tuple:
    return _best(family, step, scores, mask), (scores, mask)


def _best_backward(family: Family, step: float, kept: tuple, slope: jax.Array) -> tuple:
    scores, mask = kept
    if mask is not None:
        slope = jnp.where(mask, slope, 0.0)
    size = jnp.linalg.norm(slope, axis=-1, keepdims=True)
    move = step * slope / jnp.where(size > 0, size, 1.0)
    above = _best(family, step, scores + move, mask)
    below = _best(family, step, scores - move, mask)
    return size / (2 * step) * (above - below), None


_best.defvjp(_best_forward, _best_backward)
