"""Adam with one second moment for each slot and task.

A search of few, noisy steps cannot afford Adam's own scale for every coordinate: its
first updates are the gradient's *sign*, so that a candidate with no evidence moves as
far as one with much. Here the scale is shared by the candidates of a slot (as
Adam-mini shares it by block: Zhang et al. 2024, arXiv:2406.16793), so that the ratios
of a gradient are kept and only its size is normalised.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax


class SlotAdamState(NamedTuple):
    """count: int32; mean: as the logits; square: slot -> float32 ``[task, 1]``."""

    count: jax.Array
    mean: optax.Params
    square: optax.Params


def slot_adam(
    learning_rate: float, *, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Updates of logits ``[task, pool]``: a step moves those candidates of a slot that
    have a gradient by about ``learning_rate`` in root mean square.

    Args:
        learning_rate: > 0.
        b1, b2: decay of the mean and of the mean square, in [0, 1).
        eps: added to the root.
    """

    def init(params: optax.Params) -> SlotAdamState:
        square = jax.tree.map(lambda x: jnp.zeros((*x.shape[:-1], 1), x.dtype), params)
        return SlotAdamState(jnp.int32(0), jax.tree.map(jnp.zeros_like, params), square)

    def update(grads, state, params=None):
        del params
        count = state.count + 1
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, grads)
        square = jax.tree.map(
            lambda v, g: b2 * v + (1 - b2) * _mean_square(g), state.square, grads
        )
        fix_mean, fix_square = 1 - b1**count, 1 - b2**count

        def scale(m, v):
            return -learning_rate * (m / fix_mean) / (jnp.sqrt(v / fix_square) + eps)

        return jax.tree.map(scale, mean, square), SlotAdamState(count, mean, square)

    return optax.GradientTransformation(init, update)


OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    "slot_adam": slot_adam,
    "adam": optax.adam,
}


def _mean_square(grad: jax.Array) -> jax.Array:
    """Mean square over the candidates that have a gradient (masked ones have none)."""
    live = jnp.maximum((grad != 0).sum(axis=-1, keepdims=True), 1)
    return (grad**2).sum(axis=-1, keepdims=True) / live
