"""Polynomial programming: 128 independent bits learned by Adam.

Minimise ``mean_i E |b_i - t|^power`` over the logits of 128 bits, t = 0.45, from equal
chances (Tucker et al. 2017; Grathwohl et al. 2018; Liu et al. 2023, ReinMax, whose
public code has these sizes). The best harness is all zeros, at ``t^power``. Estimators
that are biased stop at wrong interior points.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import estimators as es

TARGET = 0.45
DIMS = 128
BATCH = 64
LEARNING_RATE = 1e-3
POWERS = (2.0, 1.5, 3.0)
TOLERANCE = 0.003


class Method(NamedTuple):
    """A line of the table.

    Attributes:
      label: as printed.
      name: key of ``es.ESTIMATORS``.
      options: of the estimator, but for its samples.
      shared: whether all bits learn from one scalar, the mean loss over the bits.
      reference: power -> expected loss after 8,000 steps, measured once with separate
        code; None where that was not run.
      early: power -> the same after 2,000 steps.
    """

    label: str
    name: str
    options: dict[str, Any]
    shared: bool
    reference: dict[float, float]
    early: dict[float, float]


def _by_power(*values: float) -> dict[float, float]:
    return dict(zip(POWERS, values, strict=False))


def _tau(tau: float) -> dict[str, float]:
    return {"tau": tau}


_NONE: dict[float, float] = {}
METHODS = (
    Method(
        "exact gradient",
        "exact",
        {},
        False,
        _by_power(0.2027, 0.3021, 0.0913),
        _by_power(0.2081, 0.3078, 0.0954),
    ),
    Method(
        "leave-one-out, loss per bit",
        "reinforce",
        {"baseline": "leave_one_out"},
        False,
        _by_power(0.2027, 0.3021, 0.0913),
        _by_power(0.2082, 0.3079, 0.0954),
    ),
    Method(
        "leave-one-out, one scalar loss",
        "reinforce",
        {"baseline": "leave_one_out"},
        True,
        _by_power(0.2031, 0.3026, 0.0916),
        _by_power(0.2150, 0.3152, 0.1006),
    ),
    Method(
        "no baseline, one scalar loss",
        "reinforce",
        {"baseline": "none"},
        True,
        _by_power(0.2474, 0.3508, 0.1231),
        _by_power(0.2511, 0.3537, 0.1273),
    ),
    Method(
        "reinmax tau 1",
        "reinmax",
        _tau(1.0),
        False,
        _by_power(0.2037, 0.3053, 0.0915),
        _by_power(0.2147, 0.3241, 0.0971),
    ),
    Method(
        "straight_through tau 1",
        "straight_through",
        _tau(1.0),
        False,
        _by_power(0.2475, 0.3522, 0.1213),
        _by_power(0.2475, 0.3522, 0.1213),
    ),
    *(
        Method(
            f"gumbel_softmax tau {tau:g}",
            "gumbel_softmax",
            _tau(tau),
            False,
            _by_power(*values),
            _NONE,
        )
        for tau, values in (
            (1.0, (0.2402, 0.3431)),
            (0.5, (0.2381, 0.3414)),
            (0.1, (0.2099, 0.3140)),
        )
    ),
    *(
        Method(
            f"st_gumbel_softmax tau {tau:g}",
            "st_gumbel_softmax",
            _tau(tau),
            False,
            _by_power(*values),
            _NONE,
        )
        for tau, values in (
            (1.0, (0.2459, 0.3514)),
            (0.5, (0.2431, 0.3499)),
            (0.1, (0.2203, 0.3364)),
        )
    ),
)


@dataclass(frozen=True)
class PolynomialConfig:
    """Length of a run; the sizes of the problem are fixed."""

    steps: int = 8000
    record_every: int = 200
    seed: int = 0


def losses_of_bits(bits: jax.Array, power: jax.Array) -> jax.Array:
    """``|b - t|^power``; bits real in [0, 1], of any shape."""
    return jnp.abs(bits - TARGET) ** power


def expected_loss(logits: jax.Array, power: jax.Array) -> jax.Array:
    """Mean over the bits of the exact expectation; logits `[bits, 2]`."""
    ends = losses_of_bits(jnp.arange(2.0), power)
    return jnp.mean(jax.nn.softmax(logits) @ ends)


def floor(power: float) -> float:
    """Loss of the best harness, all bits 0."""
    return min(TARGET**power, (1 - TARGET) ** power)


def objective(power: jax.Array, shared: bool) -> Callable[..., jax.Array]:
    """(draw, theta) -> losses `[bits, rows]`.

    The second entry of a bit's weights is its value, hard or relaxed.
    """

    def losses(draw: es.Draw, theta: Any) -> jax.Array:
        del theta
        each = losses_of_bits(draw.weights[..., 1], power)
        if not shared:
            return each
        return jnp.broadcast_to(each.mean(0), each.shape)

    return losses


def estimator_of(method: Method) -> es.Estimator:
    """The estimator of every bit at once.

    Raises:
      ValueError: the catalogue lacks it.
    """
    options = dict(method.options)
    if "samples" in _options_of(method.name):
        options["samples"] = BATCH
    one = es.make(method.name, es.Family("categorical", 2), options)
    return es.over_tasks(one)


def learn(method: Method, config: PolynomialConfig) -> np.ndarray:
    """Expected loss `[power, record]` after every ``record_every`` steps."""
    estimator = estimator_of(method)
    optimizer = optax.adam(LEARNING_RATE)

    def run(key: jax.Array, power: jax.Array) -> jax.Array:
        step_of = es.value_and_grad(estimator, objective(power, method.shared))
        first, rest = jax.random.split(key)
        logits = jnp.zeros((DIMS, 2))

        def step(carry: Any, number: jax.Array) -> tuple[Any, None]:
            logits, state, opt_state = carry
            found = step_of(jax.random.fold_in(rest, number), logits, state)
            updates, opt_state = optimizer.update(found.logits_grad, opt_state)
            return (optax.apply_updates(logits, updates), found.state, opt_state), None

        def block(carry: Any, numbers: jax.Array) -> tuple[Any, jax.Array]:
            carry, _ = jax.lax.scan(step, carry, numbers)
            return carry, expected_loss(carry[0], power)

        carry = (logits, estimator.init(first, logits), optimizer.init(logits))
        numbers = jnp.arange(config.steps).reshape(-1, config.record_every)
        return jax.lax.scan(block, carry, numbers)[1]

    keys = jax.random.split(jax.random.key(config.seed), len(POWERS))
    return np.asarray(jax.jit(jax.vmap(run))(keys, jnp.asarray(POWERS)))


def _options_of(name: str) -> tuple[str, ...]:
    return es.ESTIMATORS[name].options if name in es.ESTIMATORS else ()
