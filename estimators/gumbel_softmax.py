"""Gumbel-Softmax: a relaxed one-of-N sample."""

from typing import Any

import jax
import optax

from estimators.categorical import Categorical
from estimators.family import Family
from estimators.interface import Estimator, refuse_family
from estimators.relaxed import relaxed
from estimators.rows import draw_gumbel


def gumbel_softmax(
    family: Family, *, samples: int = 8, tau: float | optax.Schedule = 0.5
) -> Estimator:
    """Weights ``softmax((logits + G) / tau)``, G standard Gumbel.

    Jang, Gu & Poole 2017; Maddison, Mnih & Teh 2017 (the Concrete distribution).

    *Biased*: the exact gradient of the loss at soft weights, not of the expected loss
    at hard ones; variance grows as 1 / tau. Soft forward. ``outcomes`` is the argmax of
    the same perturbed logits, an exact draw of the categorical.

    Evaluations per step: ``samples``, each with a backward pass. State: ``TauState``.

    Args:
      family: categorical.
      samples: rows, at least 1.
      tau: temperature, at least 0.1; or a schedule of the step.

    Raises:
      ValueError: another family, or an argument out of range.
    """
    refuse_family("gumbel_softmax", family, ("categorical",))

    def sample(
        key: jax.Array, logits: jax.Array, tau: jax.Array, mask: Any
    ) -> tuple[jax.Array, jax.Array]:
        del tau
        return draw_gumbel(key, family, logits, mask, samples)

    def weights(
        logits: jax.Array, outcomes: Any, noise: jax.Array, tau: jax.Array, mask: Any
    ) -> jax.Array:
        del outcomes
        return Categorical((logits + noise) / tau, mask).marginals()

    return relaxed(
        "gumbel_softmax",
        family,
        samples=samples,
        tau=tau,
        hard_forward=False,
        sample=sample,
        weights=weights,
    )
