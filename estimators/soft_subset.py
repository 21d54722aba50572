"""Relaxed ordered k of N: k successive softmaxes of perturbed logits."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from estimators.categorical import Categorical
from estimators.family import Family
from estimators.interface import Estimator, refuse_family
from estimators.relaxed import relaxed
from estimators.rows import draw_gumbel


def soft_subset(
    family: Family, *, samples: int = 8, tau: float | optax.Schedule = 0.5
) -> Estimator:
    """Weights a_1 .. a_k: ``a_j = softmax(alpha_j / tau)``, alpha_1 = logits + G,

        alpha_{j+1} = alpha_j + log(1 - a_j)

    Xie & Ermon 2019 (section 3.2; Plotz & Roth 2018). As tau falls the rows become the
    Gumbel top-k in order, a draw of ``Ranking``; it is not the law of ``Subset``.

    *Biased*: the exact gradient of the loss at soft weights. At low tau a row that is
    all but hard makes 1 - a_j tiny: it is kept above the precision of the dtype, and
    the gradient's variance still grows fast. Prefer tau >= 0.5. Soft forward.
    ``outcomes`` are the top k of the same perturbed logits, an exact draw.

    Evaluations per step: ``samples``, each with a backward pass. State: ``TauState``.

    Args:
      family: ranking.
      samples: rows, at least 1.
      tau: temperature, at least 0.1; or a schedule of the step.

    Raises:
      ValueError: another family, or an argument out of range.
    """
    refuse_family("soft_subset", family, ("ranking",))

    def sample(
        key: jax.Array, logits: jax.Array, tau: jax.Array, mask: Any
    ) -> tuple[jax.Array, jax.Array]:
        del tau
        return draw_gumbel(key, family, logits, mask, samples)

    def weights(
        logits: jax.Array, outcomes: Any, noise: jax.Array, tau: jax.Array, mask: Any
    ) -> jax.Array:
        del outcomes
        alpha, places = logits + noise, []
        below_one = 1 - jnp.finfo(logits.dtype).eps
        for _ in range(family.k):
            place = Categorical(alpha / tau, mask).marginals()
            places.append(place)
            alpha = alpha + jnp.log1p(-jnp.minimum(place, below_one))
        return jnp.stack(places, axis=-2)

    return relaxed(
        "soft_subset",
        family,
        samples=samples,
        tau=tau,
        hard_forward=False,
        sample=sample,
        weights=weights,
    )
