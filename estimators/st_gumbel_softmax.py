"""Straight-through Gumbel-Softmax: a hard draw with the gradient of a relaxed one."""

from typing import Any

import jax
import optax

from estimators.categorical import Categorical
from estimators.family import Family
from estimators.interface import Estimator, refuse_family
from estimators.relaxed import relaxed, through
from estimators.rows import draw_gumbel


def st_gumbel_softmax(
    family: Family, *, samples: int = 8, tau: float | optax.Schedule = 0.5
) -> Estimator:
    """D + (y - stop(y)), y = ``softmax((logits + G) / tau)``, D its hard maximum.

    Jang, Gu & Poole 2017 (section 2.2).

    *Biased*: the slope is read at the hard draw and carried back through the relaxed
    one; more biased than either, and more variable than ``straight_through``.
    ``gumbel_rao`` has the same expectation and less variance.

    Evaluations per step: ``samples``, each with a backward pass. State: ``TauState``.

    Args:
      family: categorical.
      samples: rows, at least 1.
      tau: temperature of the backward pass, at least 0.1; or a schedule of the step.

    Raises:
      ValueError: another family, or an argument out of range.
    """
    refuse_family("st_gumbel_softmax", family, ("categorical",))

    def sample(
        key: jax.Array, logits: jax.Array, tau: jax.Array, mask: Any
    ) -> tuple[jax.Array, jax.Array]:
        del tau
        return draw_gumbel(key, family, logits, mask, samples)

    def weights(
        logits: jax.Array,
        outcomes: jax.Array,
        noise: jax.Array,
        tau: jax.Array,
        mask: Any,
    ) -> jax.Array:
        soft = Categorical((logits + noise) / tau, mask).marginals()
        return through(family.weights(outcomes, logits.dtype), soft)

    return relaxed(
        "st_gumbel_softmax",
        family,
        samples=samples,
        tau=tau,
        hard_forward=True,
        sample=sample,
        weights=weights,
    )
