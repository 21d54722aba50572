"""ReinMax: straight-through with a second-order correction."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from estimators.categorical import Categorical
from estimators.family import Family
from estimators.interface import Estimator, refuse_family
from estimators.relaxed import relaxed
from estimators.rows import sample_rows


def reinmax(
    family: Family, *, samples: int = 8, tau: float | optax.Schedule = 1.0
) -> Estimator:
    """A hard draw D whose slope g comes back as ``2 J((q + D) / 2) g - J(p) g / 2``.

    p = softmax(logits), q = softmax(logits / tau), J(r) = diag(r) - r r' (Liu, Dong,
    Liu, Yu & Gao 2023, algorithm 2: Heun's method on the path from the uniform point).

    *Biased*, but exact for a quadratic loss at tau 1; about eight times the variance of
    ``straight_through`` there. Both ends of its rule are hard vertices, where the slope
    through an attention gate can explode. The backward pass has no factor 1 / tau, as
    published.

    Evaluations per step: ``samples``, each with a backward pass. State: ``TauState``.

    Args:
      family: categorical.
      samples: rows, at least 1.
      tau: temperature of q, at least 0.1; the authors keep it at 1 or above. Or a
        schedule of the step.

    Raises:
      ValueError: another family, or an argument out of range.
    """
    refuse_family("reinmax", family, ("categorical",))

    def sample(
        key: jax.Array, logits: jax.Array, tau: jax.Array, mask: Any
    ) -> tuple[jax.Array, None]:
        del tau
        return sample_rows(key, family, logits, mask, samples), None

    def weights(
        logits: jax.Array, outcomes: jax.Array, noise: Any, tau: jax.Array, mask: Any
    ) -> jax.Array:
        del noise
        fixed = jax.lax.stop_gradient(logits)
        hard = family.weights(outcomes, logits.dtype)
        p = Categorical(fixed, mask).marginals()
        q = Categorical(fixed / tau, mask).marginals()
        move = logits - fixed  # zeros that carry the gradient
        return hard + 2 * _jacobian(0.5 * (q + hard), move) - 0.5 * _jacobian(p, move)

    return relaxed(
        "reinmax",
        family,
        samples=samples,
        tau=tau,
        hard_forward=True,
        sample=sample,
        weights=weights,
    )


def _jacobian(prob: jax.Array, move: jax.Array) -> jax.Array:
    """J(prob) move, `[..., pool]`."""
    return prob * (move - jnp.sum(prob * move, axis=-1, keepdims=True))
