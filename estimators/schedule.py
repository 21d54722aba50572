"""Hyper-parameters that change over time: they live in an estimator's state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

TAU_FLOOR = 0.1
"""Lowest temperature: below it the variance of a relaxed sample's gradient grows as 1 /
tau while most single gradients underflow to 0."""


class TauState(NamedTuple):
    """Attributes: step, int32, credits so far; tau, float32, now in force."""

    step: jax.Array
    tau: jax.Array


def check_tau(name: str, tau: float | optax.Schedule) -> None:
    """Refuse a constant temperature below the floor; a schedule is clipped.

    Raises:
      ValueError: the constant is below ``TAU_FLOOR``.
    """
    if not callable(tau) and not tau >= TAU_FLOOR:
        raise ValueError(f"estimator {name}: tau {tau} is below {TAU_FLOOR}; raise it.")


def tau_at(tau: float | optax.Schedule, step: jax.Array) -> TauState:
    """State at a step: the constant, or the schedule's value above the floor."""
    value = tau(step) if callable(tau) else tau
    value = jnp.maximum(jnp.asarray(value, jnp.float32), TAU_FLOOR)
    return TauState(jnp.asarray(step, jnp.int32), value)
