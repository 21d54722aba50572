"""Straight-through: a hard one-of-N draw with the gradient of its probabilities."""

from typing import Any

import jax
import optax

from estimators.categorical import Categorical
from estimators.family import Family
from estimators.interface import Estimator, refuse_family
from estimators.relaxed import relaxed, through
from estimators.rows import sample_rows


def straight_through(
    family: Family, *, samples: int = 8, tau: float | optax.Schedule = 1.0
) -> Estimator:
    """A hard draw with the Jacobian of its probabilities: D + (q - stop(q)).

    D is drawn from softmax(logits), q = softmax(logits / tau) (Bengio, Leonard &
    Courville 2013; Chung, Ahn & Bengio 2017).

    *Biased*: ``E_D [J(q) / tau grad f(D)]``, exact only for a linear loss at tau 1. The
    slope at a hard vertex of an attention gate can explode for unselected candidates.

    Evaluations per step: ``samples``, each with a backward pass. State: ``TauState``.

    Args:
      family: categorical.
      samples: rows, at least 1.
      tau: temperature of the backward pass only, at least 0.1; or a schedule of the
        step.

    Raises:
      ValueError: another family, or an argument out of range.
    """
    refuse_family("straight_through", family, ("categorical",))

    def sample(
        key: jax.Array, logits: jax.Array, tau: jax.Array, mask: Any
    ) -> tuple[jax.Array, None]:
        del tau
        return sample_rows(key, family, logits, mask, samples), None

    def weights(
        logits: jax.Array, outcomes: jax.Array, noise: Any, tau: jax.Array, mask: Any
    ) -> jax.Array:
        del noise
        soft = Categorical(logits / tau, mask).marginals()
        return through(family.weights(outcomes, logits.dtype), soft)

    return relaxed(
        "straight_through",
        family,
        samples=samples,
        tau=tau,
        hard_forward=True,
        sample=sample,
        weights=weights,
    )
