"""Jitted updates of phi and theta, each traced once.

Four kinds (see ``schedule``), one signature: ``(state, problem, active) -> (state,
Updated)``. ``active``: bool ``[task]``; a relaxed update leaves other tasks' logits as
they are, the other kinds train every task.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from estimators import Draw, Estimator, ask, tell
from metaharness import keys
from metaharness.harness.objective import Problem
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.train.apply import update_phi, update_theta
from metaharness.train.choice import (
    episode_estimator,
    measured_estimator,
    relaxed_estimator,
    sampler,
)
from metaharness.train.config import TrainConfig
from metaharness.train.guards import mask_at_random
from metaharness.train.parts import (
    TRAIN_THETA,
    Part,
    Scene,
    calls_by_task,
    in_parts,
    measured_gradient_part,
    measured_part,
    relaxed_gradient_part,
    relaxed_part,
    sequential_part,
    unread_part,
    update_packs,
)
from metaharness.train.rounding import above_rounding, differences
from metaharness.train.schedule import (
    EPISODES,
    MEASURED,
    RELAXED,
    WEIGHTS,
    plan_of,
)
from metaharness.train.state import TrainState, chances


class Updated(NamedTuple):
    """Metrics of one update, on the device.

    loss: float32 ``[task]``, the averaged loss of the draw; rows: ``[task, row]``;
    gated: the same rows through the gate, or None; template: int32 ``[task, row]``;
    forward, backward, calls: int32, cost; estimator: slot -> metrics ``[task]``;
    probabilities: slot -> float32 ``[task, pool]`` after the update; theta_grad: norm
    of the gradient in theta, before it is clipped, or None; outcomes: slot -> int32
    ``[task, row, k]``, what was drawn, or None where the draw is soft.
    """

    loss: jax.Array
    rows: jax.Array
    gated: jax.Array | None
    template: jax.Array
    forward: jax.Array
    backward: jax.Array
    calls: jax.Array
    estimator: Mapping[str, Any]
    probabilities: Mapping[str, jax.Array]
    theta_grad: jax.Array | None
    outcomes: Mapping[str, jax.Array] | None


Update = Callable[[TrainState, Problem, jax.Array], tuple[TrainState, Updated]]


def make_steps(space: Space, config: TrainConfig) -> dict[str, Update]:
    """The jitted updates of a schedule by kind, state donated; reuse them, so that
    nothing compiles twice. Those with episodes are not among them: ``EpisodeUpdate``
    has them in two."""
    policies = bool(space.harness.policy_slots)
    kinds = [
        kind
        for kind in dict.fromkeys(plan_of(config, policies=policies))
        if kind != EPISODES and (kind != RELAXED or EXEMPLARS in space.families)
    ]
    return {
        kind: jax.jit(make_update(space, config, kind), donate_argnums=0)
        for kind in kinds
    }


def make_update(space: Space, config: TrainConfig, kind: str) -> Update:
    """One kind of update, not jitted: vmap it over states for several seeds."""
    if kind == MEASURED:
        return _make(space, config, measured_estimator, measured_part, phi=True)
    if kind == RELAXED:
        return _make(space, config, relaxed_estimator, relaxed_part, phi=True)
    if kind == WEIGHTS:
        return _make(space, config, sampler, sequential_part, phi=False)
    if config.weights.through == "gate":
        return _make(space, config, relaxed_estimator, relaxed_gradient_part, phi=True)
    return _make(space, config, measured_estimator, measured_gradient_part, phi=True)


class Asked(NamedTuple):
    """An update after its draw, before it learns.

    draw: harnesses of every task; packs: int32 ``[task, pack]``, their items; total:
    what evaluating them gave.
    """

    draw: Draw
    packs: jax.Array
    total: Part


class Phases(NamedTuple):
    """An update in two: ``ask(state, problem, active) -> Asked``, then ``tell(state,
    problem, active, asked, losses) -> (state, Updated)``; losses: what the slots learn
    from, ``asked.total.losses`` or those of a host."""

    ask: Callable[[TrainState, Problem, jax.Array], Asked]
    tell: Callable[..., tuple[TrainState, Updated]]


def _make(space, config, estimator_of, part_of, *, phi: bool) -> Update:
    phases = _make_phases(space, config, estimator_of, part_of, phi=phi)

    def update(
        state: TrainState, problem: Problem, active: jax.Array
    ) -> tuple[TrainState, Updated]:
        asked = phases.ask(state, problem, active)
        return phases.tell(state, problem, active, asked, asked.total.losses)

    return update


def make_episode_phases(space: Space, config: TrainConfig) -> Phases:
    """An update whose harnesses are graded by episodes on the host between its phases;
    not jitted. Losses of ``tell``: slot -> float32 ``[task, row]``."""
    part = measured_part
    if config.episodes.prompt_loss == "episode":
        part = unread_part
    return _make_phases(space, config, episode_estimator, part, phi=True)


def _make_phases(space, config, estimator_of, part_of, *, phi: bool) -> Phases:
    estimator = estimator_of(space, config)
    relaxed = estimator_of is relaxed_estimator
    stage = "search" if phi else "train"
    masks = {slot: jnp.asarray(mask) for slot, mask in space.masks.items()}

    def key(state, purpose):
        return keys.derive(state.root, stage=stage, step=state.step, purpose=purpose)

    def ask_phase(state: TrainState, problem: Problem, active: jax.Array) -> Asked:
        allowed = {slot: masks[slot] for slot in estimator.spec.parts}
        if phi and config.guards.mask_rate and EXEMPLARS in masks:
            allowed[EXEMPLARS] = mask_at_random(
                key(state, "mask"),
                masks[EXEMPLARS],
                keep=space.families[EXEMPLARS].k + 1,
                rate=config.guards.mask_rate,
            )
        if phi:
            held = state.relaxed if relaxed else state.measured
        else:
            held = estimator.init(key(state, "estimator"), state.logits)
        draw = ask(estimator, key(state, "draw"), state.logits, held, allowed)
        packs = update_packs(key(state, "items"), problem, config)
        dropped = None
        if config.lora.dropout and part_of in TRAIN_THETA:
            dropped = key(state, "dropout")
        scene = Scene(space, config, problem, state, draw, active, dropped)
        total = in_parts(
            lambda packs, share: part_of(scene, packs, share),
            problem,
            packs,
            config.search.accumulate,
        )
        return Asked(draw, packs, total)

    def tell_phase(
        state: TrainState, problem: Problem, active: jax.Array, asked: Asked, losses
    ) -> tuple[TrainState, Updated]:
        draw, total = asked.draw, asked.total
        template = draw.outcomes[TEMPLATE][..., 0]
        told = None
        if phi:
            held = state.relaxed if relaxed else state.measured
            told = _tell(estimator, state, draw, total, losses, held)
            state = update_phi(
                space,
                config,
                state,
                told.logits_grad,
                active,
                estimator.spec.parts.keys(),
            )
            state = state._replace(**{"relaxed" if relaxed else "measured": told.state})
        theta_grad = None
        if total.theta is not None:
            theta_grad = optax.tree.norm(total.theta)
            state = update_theta(config, state, total.theta)
        state = state._replace(step=state.step + 1)
        rows = total.losses
        # none where no likelihood was read
        calls = calls_by_task(problem, asked.packs) * active * (total.forward > 0)
        updated = Updated(
            (draw.coef * rows).sum(-1) * space.num_tasks,
            rows,
            total.gated,
            template,
            total.forward,
            total.backward,
            calls.sum() * template.shape[1],
            told.metrics if told else {},
            chances(space, state.logits),
            theta_grad,
            None if relaxed or not phi else draw.outcomes,
        )
        return state, updated

    return Phases(ask_phase, tell_phase)


def _tell(
    estimator: Estimator, state: TrainState, draw: Draw, total: Part, losses, held
):
    nothing = dict.fromkeys(state.logits)
    slope = weights_grad = None
    if total.slope is not None:
        slope = {**nothing, EXEMPLARS: total.slope}
    if total.weights is not None:
        weights_grad = {**nothing, EXEMPLARS: total.weights}
    apart = jax.tree.map(lambda own: differences(own, draw.coef), losses)
    told = tell(
        estimator,
        state.logits,
        draw,
        apart,
        held,
        slope=slope,
        weights_grad=weights_grad,
    )
    by_slot = apart if isinstance(apart, Mapping) else dict.fromkeys(nothing, apart)
    grads = {
        slot: above_rounding(grad, by_slot[slot], draw.coef)
        for slot, grad in told.logits_grad.items()
    }
    return told._replace(logits_grad=grads)
