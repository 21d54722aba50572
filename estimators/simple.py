"""SIMPLE: a hard k-of-N draw with the gradient of its exact marginals."""

from typing import Any

import jax

from estimators.family import Family
from estimators.interface import Estimator, refuse_family
from estimators.relaxed import relaxed, through
from estimators.rows import sample_rows
from estimators.subset import Subset


def simple(family: Family, *, samples: int = 8) -> Estimator:
    """A hard draw with the Jacobian of its marginals: z + (mu - stop(mu)).

    z is drawn from ``Subset`` exactly, mu are its marginals (Ahmed, Zeng, Niepert & Van
    den Broeck 2023).

    *Biased*: ``Cov(z) E_z [grad f(z)]``, exact only for a linear loss. Some published
    code draws by Gumbel top-k and differentiates subset marginals; here both are one
    law.

    Evaluations per step: ``samples``, each with a backward pass. State: ``TauState``
    (tau fixed at 1: the marginals are those of the law that is drawn).

    Args:
      family: subset.
      samples: rows, at least 1.

    Raises:
      ValueError: another family, or no samples.
    """
    refuse_family("simple", family, ("subset",))

    def sample(
        key: jax.Array, logits: jax.Array, tau: jax.Array, mask: Any
    ) -> tuple[jax.Array, None]:
        del tau
        return sample_rows(key, family, logits, mask, samples), None

    def weights(
        logits: jax.Array, outcomes: jax.Array, noise: Any, tau: jax.Array, mask: Any
    ) -> jax.Array:
        del noise, tau
        soft = Subset(logits, family.k, mask).marginals()
        return through(family.weights(outcomes, logits.dtype), soft)

    return relaxed(
        "simple",
        family,
        samples=samples,
        tau=1.0,
        hard_forward=True,
        sample=sample,
        weights=weights,
    )
