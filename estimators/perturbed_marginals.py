"""Perturbed marginals: a relaxed k-of-N sample."""

from typing import Any

import jax
import optax

from estimators.family import Family
from estimators.interface import Estimator, refuse_family
from estimators.relaxed import relaxed
from estimators.rows import sample_rows
from estimators.subset import Subset


def perturbed_marginals(
    family: Family, *, samples: int = 8, tau: float | optax.Schedule = 0.5
) -> Estimator:
    """Subset marginals of ``(logits + G) / tau``, G standard Gumbel.

    Stochastic softmax tricks on the k-subset polytope (Paulus et al. 2020), with the
    entropy of the subset law as regulariser.

    With k = 1 this is Gumbel-Softmax. *Biased*: the loss is read at interior weights
    (sum k), and as tau falls the weights tend to the Gumbel top-k, whose law is
    ``Ranking``, not ``Subset``. Soft forward. ``outcomes`` is an independent draw of
    ``Subset`` itself, for black boxes and logs; it is not the rounding of ``weights``.

    Evaluations per step: ``samples``, each with a backward pass. State: ``TauState``.

    Args:
      family: subset.
      samples: rows, at least 1.
      tau: temperature, at least 0.1; or a schedule of the step.

    Raises:
      ValueError: another family, or an argument out of range.
    """
    refuse_family("perturbed_marginals", family, ("subset",))

    def sample(
        key: jax.Array, logits: jax.Array, tau: jax.Array, mask: Any
    ) -> tuple[jax.Array, jax.Array]:
        del tau
        noise_key, outcome_key = jax.random.split(key)
        noise = jax.random.gumbel(noise_key, (samples, family.n), logits.dtype)
        return sample_rows(outcome_key, family, logits, mask, samples), noise

    def weights(
        logits: jax.Array, outcomes: Any, noise: jax.Array, tau: jax.Array, mask: Any
    ) -> jax.Array:
        del outcomes
        return Subset((logits + noise) / tau, family.k, mask).marginals()

    return relaxed(
        "perturbed_marginals",
        family,
        samples=samples,
        tau=tau,
        hard_forward=False,
        sample=sample,
        weights=weights,
    )
