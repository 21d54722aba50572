"""What training changes: logits phi, LoRA weights theta, optimisers, estimators."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaharness import keys
from metaharness.harness.space import EXEMPLARS, Space
from metaharness.model.decoder import Decoder
from metaharness.model.lora import Theta, init_lora, with_lora
from metaharness.train.choice import phi_estimator, relaxed_estimator
from metaharness.train.config import TrainConfig
from metaharness.train.credit import Effects, no_effects
from metaharness.train.optimizer import phi_rule, theta_rule

Logits = dict[str, jax.Array]


class Phi(NamedTuple):
    """Parameters of the logits: those of task t are ``shared + delta[t]``.

    shared: slot -> float32 ``[pool]``; delta: slot -> float32 ``[task, pool]``. One of
    them stays 0 where tasks are independent, or share all.
    """

    shared: Logits
    delta: Logits

    def logits(self) -> Logits:
        """Slot -> float32 ``[task, pool]``."""
        return {slot: self.shared[slot] + own for slot, own in self.delta.items()}


class TrainState(NamedTuple):
    """What a training step changes.

    phi: parameters of the logits; phi_optimizer: its state; theta: LoRA weights and
    theta_optimizer, None where no step trains them; measured, relaxed: states of the
    two estimators; step: int32, updates done; root: the run's typed key (constant);
    effects: what episodes showed of each candidate, None without policies.
    """

    phi: Phi
    phi_optimizer: Any
    theta: Theta | None
    theta_optimizer: Any
    measured: Any
    relaxed: Any
    step: jax.Array
    root: jax.Array
    effects: Effects | None = None

    @property
    def logits(self) -> Logits:
        """Slot -> float32 ``[task, pool]``."""
        return self.phi.logits()


def init_state(
    space: Space, config: TrainConfig, root: jax.Array, *, start: Phi | None = None
) -> TrainState:
    """Uniform logits (or ``start``), an adapter that changes nothing yet, fresh states.

    ``root``: typed key of ``keys.root_key``; vmap over several for several seeds.
    """
    phi = start or uniform_phi(space)
    key = keys.derive(root, stage="setup", step=0, purpose="estimator")
    measured_key, relaxed_key = jax.random.split(key)
    relaxed = None
    if EXEMPLARS in space.families and takes_relaxed_steps(config):
        relaxed = relaxed_estimator(space, config).init(relaxed_key, phi.logits())
    theta = theta_optimizer = None
    if config.schedule.trains_weights:
        key = keys.derive(root, stage="setup", step=0, purpose="parameters")
        theta = init_lora(key, config.lora, space.model.config)
        theta_optimizer = theta_rule(config).init(theta)
    return TrainState(
        phi,
        phi_rule(config).init(phi),
        theta,
        theta_optimizer,
        phi_estimator(space, config).init(measured_key, phi.logits()),
        relaxed,
        jnp.int32(0),
        root,
        no_effects(space, config) if space.harness.policy_slots else None,
    )


def uniform_phi(space: Space) -> Phi:
    """All logits 0."""
    return Phi(
        {
            slot: jnp.zeros((family.n,), jnp.float32)
            for slot, family in space.families.items()
        },
        {
            slot: jnp.zeros((space.num_tasks, family.n), jnp.float32)
            for slot, family in space.families.items()
        },
    )


def takes_relaxed_steps(config: TrainConfig) -> bool:
    """Whether some step learns through the gated pool."""
    harness = config.schedule.kind in ("harness", "two-stage")
    through_gate = config.schedule.kind == "joint" and config.weights.through == "gate"
    return (harness and config.search.relaxed_steps > 0) or through_gate


def adapted(
    decoder: Decoder,
    theta: Theta | None,
    config: TrainConfig,
    *,
    key: jax.Array | None = None,
) -> Decoder:
    """The decoder with the adapter beside its weights; itself without one."""
    if theta is None:
        return decoder
    return with_lora(decoder, theta, config.lora, key=key)


def chances(space: Space, logits: Logits) -> dict[str, jax.Array]:
    """Slot -> chance of each candidate to be chosen, float32 ``[task, pool]``."""
    return {
        slot: family.distribution(
            logits[slot], jnp.asarray(space.masks[slot])
        ).marginals()
        for slot, family in space.families.items()
    }
