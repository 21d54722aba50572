"""The jitted functions of a run, each traced once."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaharness.harness.objective import Problem, measured_losses
from metaharness.harness.relaxed import encode_pools, task_keys
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.model.decoder import Decoder
from metaharness.model.lora import Theta
from metaharness.model.prefix import Pool
from metaharness.train.config import TrainConfig
from metaharness.train.deploy import mode
from metaharness.train.episode_update import EpisodeUpdate
from metaharness.train.state import Phi, adapted
from metaharness.train.steps import Update, make_steps


class Validated(NamedTuple):
    """loss: float32 ``[task]``, nats an answer; tokens: int32 ``[task]``; calls:
    int32."""

    loss: jax.Array
    tokens: jax.Array
    calls: jax.Array


class Compiled(NamedTuple):
    """Functions that compile when they are first called; reuse them for other seeds.

    updates: kind -> update, its state donated; encode: (decoder, theta) -> the encoded
    pool, every style; keys: int32 ``[style, task, key]``, those that each task reads,
    or None without exemplars; validate: (phi, theta, problem) -> ``Validated``;
    episodes: the update from graded episodes, None without policies.
    """

    updates: dict[str, Update]
    encode: Callable[[Decoder, Theta | None], Pool]
    keys: jax.Array | None
    validate: Callable[[Phi, Theta | None, Problem], Validated]
    episodes: EpisodeUpdate | None = None


def compile_updates(space: Space, config: TrainConfig) -> Compiled:
    """What the schedule of ``config`` calls for."""
    keys = None
    if EXEMPLARS in space.families:
        keys = jnp.asarray(task_keys(space.table, space.masks[EXEMPLARS]))
    return Compiled(
        make_steps(space, config),
        jax.jit(make_encode(space, config)),
        keys,
        jax.jit(make_validate(space, config)),
        EpisodeUpdate(space, config) if space.harness.policy_slots else None,
    )


def make_encode(space: Space, config: TrainConfig):
    """See ``Compiled.encode``; not jitted."""

    def encode(decoder: Decoder, theta: Theta | None) -> Pool:
        return encode_pools(
            adapted(decoder, theta, config),
            space.table,
            implementation=space.implementation,
        )

    return encode


def make_validate(space: Space, config: TrainConfig):
    """See ``Compiled.validate``; not jitted. Reads the first packs of every task."""

    def validate(phi: Phi, theta: Theta | None, problem: Problem) -> Validated:
        picked = mode(space, phi.logits())
        template = picked[TEMPLATE]
        shots = picked.get(EXEMPLARS, jnp.zeros((space.num_tasks, 0), jnp.int32))
        held = problem.packs.items
        num = min(config.guards.validation_packs, held.shape[1])
        packs = jnp.broadcast_to(jnp.arange(num), (space.num_tasks, num))
        losses = measured_losses(
            problem._replace(decoder=adapted(problem.decoder, theta, config)),
            template,
            shots[:, None],
            packs,
            jnp.ones((space.num_tasks,), bool),
            width=space.width,
            chunk=1,
            implementation=space.implementation,
        )
        calls = (held[:, :num] >= 0).sum()
        return Validated(losses.loss[:, 0], losses.tokens, calls)

    return validate
