"""Which part of an episode's loss a slot learns from.

Whole-episode credit hands every slot the same number. Credit by decision takes out what
the slot cannot have caused:
  - what came before it: a retry policy decides after the first attempt only, so its
    loss is what changed from there on (the reward to go);
  - what the other slots' draws are known to bring: a linear fit on earlier rows gives
    each candidate an effect, and those of the other slots are subtracted. The fit has
    not seen this update's losses and the slots are drawn independently, so the expected
    gradient stays what it is (a control variate; Greensmith et al. 2004).
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.train.config import TrainConfig

_RIDGE = 1.0  # of one row: a candidate seen once is believed half


class Effects(NamedTuple):
    """Rows of past updates, a ring. ``features`` counts the candidates that a row had.

    features: float32 ``[task, window, candidate]``, all slots side by side; losses,
    later: float32 ``[task, window]``, of the whole episode and of what came after the
    first attempt, each less its update's mean; count: int32, rows written so far.
    """

    features: jax.Array
    losses: jax.Array
    later: jax.Array
    count: jax.Array


def no_effects(space: Space, config: TrainConfig) -> Effects:
    """An empty window, whole updates long."""
    rows = config.search.samples
    window = max(config.episodes.window // rows, 1) * rows
    size = sum(family.n for family in space.families.values())
    losses = jnp.zeros((space.num_tasks, window), jnp.float32)
    features = jnp.zeros((*losses.shape, size), jnp.float32)
    # buffers of their own: the state that holds them is donated
    return Effects(features, losses, jnp.zeros_like(losses), jnp.int32(0))


def credit_losses(
    space: Space,
    config: TrainConfig,
    effects: Effects,
    outcomes: Mapping[str, jax.Array],
    likelihood: jax.Array,
    episode: jax.Array,
    later: jax.Array,
) -> tuple[dict[str, jax.Array], Effects]:
    """Slot -> the loss that it learns from, and the window with these rows.

    outcomes: slot -> int32 ``[task, row, k]``; likelihood: nats, episode: losses of
    episodes, later: what of it came after the first attempt; each ``[task, row]``.
    """
    by_decision = config.episodes.credit == "decision"
    features = {
        slot: jax.nn.one_hot(outcomes[slot], family.n, dtype=jnp.float32).sum(-2)
        for slot, family in space.families.items()
    }
    rows = jnp.concatenate(list(features.values()), axis=-1)
    prompt = config.episodes.prompt_loss == "likelihood"
    whole, after = _fit(effects, effects.losses), _fit(effects, effects.later)
    losses, start = {}, 0
    for slot, own in features.items():
        end = start + own.shape[-1]
        if slot in (EXEMPLARS, TEMPLATE) and prompt:
            losses[slot] = likelihood
        elif not by_decision:
            losses[slot] = episode
        else:
            loss, fitted = (later, after) if slot == "retry" else (episode, whole)
            others = fitted.at[:, start:end].set(0.0)
            losses[slot] = loss - jnp.einsum("trc,tc->tr", rows, others)
        start = end
    return losses, _push(effects, rows, episode, later)


def _fit(effects: Effects, losses: jax.Array) -> jax.Array:
    """Effect of each candidate, float32 ``[task, candidate]``: a ridge fit."""

    def one(features, losses):
        gram = features.T @ features + _RIDGE * jnp.eye(features.shape[1])
        return jnp.linalg.solve(gram, features.T @ losses)

    return jax.vmap(one)(effects.features, losses)


def _push(effects: Effects, rows, episode, later) -> Effects:
    num, window = rows.shape[1], effects.losses.shape[1]
    at = (effects.count + jnp.arange(num)) % window

    def put(old, new):
        return old.at[:, at].set(new)

    return Effects(
        put(effects.features, rows),
        put(effects.losses, episode - episode.mean(axis=1, keepdims=True)),
        put(effects.later, later - later.mean(axis=1, keepdims=True)),
        effects.count + num,
    )
