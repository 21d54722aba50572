"""What the estimators with a path share: the gradient flows through the weights."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from estimators.family import Family
from estimators.interface import PATH, Credit, Draw, Estimator, Spec
from estimators.rows import at_least_float32, equal_coef, sampled
from estimators.schedule import TauState, check_tau, tau_at


def relaxed(
    name: str,
    family: Family,
    *,
    samples: int,
    tau: float | optax.Schedule,
    hard_forward: bool,
    sample: Callable[..., tuple[jax.Array, Any]],
    weights: Callable[..., jax.Array],
) -> Estimator:
    """An estimator whose only term is the derivative of the loss through ``weights``.

    Args:
      name: as in the catalogue.
      family: of the slot.
      samples: rows, at least 1.
      tau: temperature, constant or schedule of the step; it lives in the state.
      hard_forward: whether the value of the weights is that of a hard choice.
      sample: (key, logits, tau, mask) -> outcomes int32 `[rows, k]` and noise.
      weights: (logits, outcomes, noise, tau, mask) -> `[rows, (k,) pool]`,
        differentiable in the logits.

    Raises:
      ValueError: no samples, or a constant tau below the floor.
    """
    if samples < 1:
        raise ValueError(f"estimator {name}: {samples} samples; draw at least 1.")
    check_tau(name, tau)

    def init(key: jax.Array, logits: jax.Array) -> TauState:
        del key, logits
        return tau_at(tau, jnp.zeros((), jnp.int32))

    def draw(
        key: jax.Array, logits: jax.Array, state: TauState, mask: Any = None
    ) -> Draw:
        stopped = jax.lax.stop_gradient(at_least_float32(logits))
        outcomes, noise = sample(key, stopped, state.tau, mask)
        return rebuild(logits, sampled(family, outcomes, mask, noise), state)

    def rebuild(logits: jax.Array, draw: Draw, state: TauState) -> Draw:
        logits = at_least_float32(logits)
        soft = weights(
            logits,
            draw.outcomes,
            draw.memo.noise,
            state.tau.astype(logits.dtype),
            draw.memo.mask,
        )
        return draw._replace(weights=soft, coef=equal_coef(draw, logits.dtype))

    def credit(
        logits: jax.Array, draw: Draw, losses: Any, slope: Any, state: TauState
    ) -> Credit:
        del draw, losses, slope
        surrogate = jnp.zeros((), at_least_float32(logits).dtype)
        return Credit(surrogate, tau_at(tau, state.step + 1), {"tau": state.tau})

    spec = Spec(
        name=name,
        family=family,
        needs=frozenset({PATH}),
        unbiased=False,
        hard_forward=hard_forward,
        rows=samples,
        min_rows=1,
        evaluations=lambda n, k: samples,
    )
    return Estimator(init, draw, credit, spec, rebuild)


def through(hard: jax.Array, soft: jax.Array) -> jax.Array:
    """Value of ``hard`` bit for bit, gradient of ``soft``.

    Written ``hard + soft - stop(soft)`` left to right it is off by 6e-8 in a fifth of
    the rows, and a gate's zero weight is then not zero.
    """
    return hard + (soft - jax.lax.stop_gradient(soft))
