"""How far an estimator's steps are from the exact gradient, on a pool small enough."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from estimators.combine import combine
from estimators.exact import exact
from estimators.family import Family
from estimators.interface import Estimator
from estimators.rows import at_least_float32
from estimators.step import value_and_grad


class Diagnosis(NamedTuple):
    """Scalars, over many steps from one state at one point.

    Attributes:
      cosine: mean over steps of the cosine of one step's gradient to the exact one.
      cosine_of_mean: of the steps' mean; near 1 for an unbiased estimator.
      descent: share of steps that lower the expected loss to first order.
      relative_bias: length of (mean - exact) over that of exact.
      bias_floor: what an unbiased estimator would show of it by chance,
        sqrt(relative_variance / steps).
      relative_variance: trace of the covariance over the squared exact length.
      effective_rows: mean of (sum of coefficients)^2 / sum of their squares: how many
        equally weighted rows a step is worth.
      saturation: share of candidates whose probability of being taken is below 0.05 or
        above 0.95 (joint: over all slots).
      exact_norm: length of the exact gradient, loss units per unit of logit.
    """

    cosine: jax.Array
    cosine_of_mean: jax.Array
    descent: jax.Array
    relative_bias: jax.Array
    bias_floor: jax.Array
    relative_variance: jax.Array
    effective_rows: jax.Array
    saturation: jax.Array
    exact_norm: jax.Array


def diagnose(
    estimator: Estimator,
    objective: Callable[..., Any],
    key: jax.Array,
    logits: Any,
    state: Any,
    theta: Any = None,
    *args: Any,
    slope: Callable[..., Any] | None = None,
    mask: Any = None,
    steps: int = 256,
) -> Diagnosis:
    """Compare steps of an estimator with the gradient by enumeration; in jit or not.

    Every step starts from the same state, so a window or a network keeps what it has
    learned so far and learns no more. Costs ``steps`` steps and one evaluation of every
    harness (in one random order for a subset: give an objective that ignores it).

    Args:
      estimator: single or joint.
      objective: (draw, theta, *args) -> one loss `[rows]`, not a mapping.
      key: for the draws.
      logits: at which to compare.
      state: of the estimator.
      theta: passed to the objective.
      *args: passed to the objective.
      slope: as in ``value_and_grad``.
      mask: of the logits' structure, bool, or None.
      steps: at least 2.

    Raises:
      ValueError: too many outcomes to enumerate, fewer than 2 steps, a slope missing.
    """
    if steps < 2:
        raise ValueError(f"diagnose: {steps} steps; take at least 2.")
    family = estimator.spec.family
    truth = _exact(family)
    exact_key, step_key = jax.random.split(key)
    reference = value_and_grad(truth, objective)
    init = truth.init(jax.random.key(0), logits)  # its state is a step count
    found = reference(exact_key, logits, init, theta, *args, mask=mask)
    target = _flat(found.logits_grad)
    # what is left of equal losses after rounding is no gradient
    noise = jnp.finfo(target.dtype).eps * jnp.max(jnp.abs(found.losses))
    target = jnp.where(jnp.max(jnp.abs(target)) > noise, target, 0.0)
    run = value_and_grad(estimator, objective, slope)

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = run(key, logits, state, theta, *args, mask=mask)
        coef = found.draw.coef
        rows = jnp.sum(coef) ** 2 / jnp.sum(coef**2)
        return _flat(found.logits_grad), rows

    grads, rows = jax.lax.map(one, jax.random.split(step_key, steps))
    mean = jnp.mean(grads, axis=0)
    size = jnp.linalg.norm(target)
    square = jnp.where(size > 0, size**2, 1.0)
    variance = jnp.sum((grads - mean) ** 2) / (steps - 1) / square
    along = grads @ target
    return Diagnosis(
        cosine=jnp.mean(_cosine(grads, target)),
        cosine_of_mean=_cosine(mean, target),
        descent=jnp.mean(along > 0),
        relative_bias=jnp.linalg.norm(mean - target) / jnp.sqrt(square),
        bias_floor=jnp.sqrt(variance / steps),
        relative_variance=variance,
        effective_rows=jnp.mean(rows),
        saturation=_saturation(family, logits, mask),
        exact_norm=size,
    )


def _exact(family: Family | Mapping[str, Family]) -> Estimator:
    if isinstance(family, Family):
        return exact(family)
    return combine({slot: (own, exact(own)) for slot, own in family.items()})


def _flat(grads: Any) -> jax.Array:
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(grads)])


def _cosine(vector: jax.Array, target: jax.Array) -> jax.Array:
    sizes = jnp.linalg.norm(vector, axis=-1) * jnp.linalg.norm(target)
    return (vector @ target) / jnp.where(sizes > 0, sizes, 1.0)


def _saturation(family: Any, logits: Any, mask: Any) -> jax.Array:
    slots = family if isinstance(family, Mapping) else {"": family}
    points = logits if isinstance(family, Mapping) else {"": logits}
    masks = (mask or {}) if isinstance(family, Mapping) else {"": mask}
    taken = []
    for slot, own in slots.items():
        law = own.distribution(at_least_float32(points[slot]), masks.get(slot))
        marginals = law.marginals()
        taken.append(marginals.sum(-2) if own.kind == "ranking" else marginals)
    taken = jnp.concatenate(taken)
    return jnp.mean((taken < 0.05) | (taken > 0.95))
