"""From gradients to new parameters: one optimiser step on phi, one on theta."""

from collections.abc import Collection

import jax
import jax.numpy as jnp
import optax

from metaharness.harness.space import Space
from metaharness.model.lora import Theta
from metaharness.train.config import TrainConfig
from metaharness.train.guards import entropy_bonus
from metaharness.train.optimizer import phi_rule, theta_rule
from metaharness.train.state import Logits, Phi, TrainState


def update_phi(
    space: Space,
    config: TrainConfig,
    state: TrainState,
    grads: Logits,
    active: jax.Array,
    slots: Collection[str],
) -> TrainState:
    """One optimiser step on phi; ``grads``: slot -> float32 ``[task, pool]``.

    ``active``: bool ``[task]``; what is other tasks' own stays as it is, and so do
    slots that are not among ``slots``, whatever momentum they have.
    """
    if config.guards.entropy_bonus:
        masks = {slot: jnp.asarray(mask) for slot, mask in space.masks.items()}

        def bonus(logits):
            size = entropy_bonus(space.families, masks, logits)
            return -config.guards.entropy_bonus * size

        grads = jax.tree.map(jnp.add, grads, jax.grad(bonus)(state.logits))
    old = state.phi
    kind = config.search.conditioning
    shared, delta = jax.tree.map(jnp.zeros_like, old)
    if kind != "independent":
        shared = jax.tree.map(lambda grad: grad.sum(axis=0), grads)
    if kind == "independent":
        delta = grads
    if kind == "task":
        shrink = config.search.shrinkage / space.num_tasks
        delta = jax.tree.map(lambda grad, own: grad + shrink * own, grads, old.delta)
    updates, optimizer = phi_rule(config).update(
        Phi(shared, delta), state.phi_optimizer, old
    )
    new = optax.apply_updates(old, updates)
    delta = jax.tree.map(
        lambda new, old: jnp.where(active[:, None], new, old), new.delta, old.delta
    )
    kept = Phi(
        {slot: (new if slot in slots else old).shared[slot] for slot in delta},
        {
            slot: own if slot in slots else old.delta[slot]
            for slot, own in delta.items()
        },
    )
    return state._replace(phi=kept, phi_optimizer=optimizer)


def update_theta(config: TrainConfig, state: TrainState, grads: Theta) -> TrainState:
    """One optimiser step on theta."""
    updates, optimizer = theta_rule(config).update(
        grads, state.theta_optimizer, state.theta
    )
    theta = optax.apply_updates(state.theta, updates)
    return state._replace(theta=theta, theta_optimizer=optimizer)
