"""Optimisers of phi and of theta; Adam with one second moment for each slot and task.

A search of few, noisy steps cannot afford Adam's own scale for every coordinate: its
first updates are the gradient's *sign*, so that a candidate with no evidence moves as
far as one with much. Here the scale is shared by the candidates of a slot (as
Adam-mini shares it by block: Zhang et al. 2024, arXiv:2406.16793), so that the ratios
of a gradient are kept and only its size is normalised.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaharness.train.config import TrainConfig
from metaharness.train.schedule import count_updates


class SlotAdamState(NamedTuple):
    """count: int32; mean: as the logits; square: slot -> float32 ``[task, 1]``."""

    count: jax.Array
    mean: optax.Params
    square: optax.Params


def scale_by_slot_adam(
    *, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Directions for logits ``[..., pool]`` whose root mean square is about 1 over the
    candidates of a slot that have a gradient.

    Args:
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
            return (m / fix_mean) / (jnp.sqrt(v / fix_square) + eps)

        return jax.tree.map(scale, mean, square), SlotAdamState(count, mean, square)

    return optax.GradientTransformation(init, update)


def phi_rule(config: TrainConfig) -> optax.GradientTransformation:
    """Updates of the logits; its schedule counts updates of phi."""
    search = config.search
    scale = {"slot_adam": scale_by_slot_adam, "adam": optax.scale_by_adam}
    rate = learning_rate(
        search.learning_rate,
        warmup=search.warmup_updates,
        decay=search.decay,
        total=count_updates(config).phi,
    )
    return optax.chain(scale[search.optimizer](), optax.scale_by_learning_rate(rate))


def theta_rule(config: TrainConfig) -> optax.GradientTransformation:
    """Updates of the LoRA weights: AdamW (Loshchilov & Hutter 2019) on a clipped
    gradient; its schedule counts updates of theta."""
    weights = config.weights
    rate = learning_rate(
        weights.learning_rate,
        warmup=weights.warmup_updates,
        decay=weights.decay,
        total=count_updates(config).theta,
    )
    return optax.chain(
        optax.clip_by_global_norm(weights.clip),
        optax.adamw(rate, weight_decay=weights.weight_decay),
    )


def learning_rate(
    peak: float, *, warmup: int, decay: str, total: int
) -> optax.Schedule:
    """A linear rise over ``warmup`` updates, then constant or a cosine to 0.

    The first update has ``peak / (warmup + 1)``, the last of ``total`` with cosine a
    value just above 0.
    """
    rest = max(total - warmup, 1)
    after = {
        "constant": optax.constant_schedule(peak),
        "cosine": optax.cosine_decay_schedule(peak, rest),
    }[decay]
    rise = optax.linear_schedule(peak / (warmup + 1), peak, max(warmup, 1))
    return optax.join_schedules([rise, after], [warmup]) if warmup else after


def _mean_square(grad: jax.Array) -> jax.Array:
    """Mean square over the candidates that have a gradient (masked ones have none)."""
    live = jnp.maximum((grad != 0).sum(axis=-1, keepdims=True), 1)
    return (grad**2).sum(axis=-1, keepdims=True) / live
