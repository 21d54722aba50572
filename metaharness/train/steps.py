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
from einops import rearrange

from estimators import Draw, Estimator, ask, tell
from metaharness import keys
from metaharness.harness.gradients import measured_gradient, relaxed_gradient
from metaharness.harness.objective import (
    Problem,
    gated_losses,
    measured_losses,
    relaxed_losses,
)
from metaharness.harness.packing import draw_packs
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
from metaharness.train.schedule import (
    EPISODES,
    MEASURED,
    RELAXED,
    WEIGHTS,
    plan_of,
)
from metaharness.train.state import TrainState, adapted, chances


class Updated(NamedTuple):
    """Metrics of one update, on the device.

    loss: float32 ``[task]``, the averaged loss of the draw; rows: ``[task, row]``;
    gated: the same rows through the gate, or None; template: int32 ``[task, row]``;
    forward, backward, calls: int32, cost; estimator: slot -> metrics ``[task]``;
    probabilities: slot -> float32 ``[task, pool]`` after the update; theta_grad: norm
    of the gradient in theta, before it is clipped, or None.
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


Update = Callable[[TrainState, Problem, jax.Array], tuple[TrainState, Updated]]


class Part(NamedTuple):
    """What one part of the items gives, already weighted by its share of them.

    losses, gated: float32 ``[task, row]``; slope: ``[task, pool]``; weights: ``[task,
    row, pool]``; theta: of theta's structure; forward, backward: int32, tokens. None
    where not asked for.
    """

    losses: jax.Array
    forward: jax.Array
    backward: jax.Array
    gated: jax.Array | None = None
    slope: jax.Array | None = None
    weights: jax.Array | None = None
    theta: Any = None


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
        return _make(space, config, measured_estimator, _measured_part, phi=True)
    if kind == RELAXED:
        return _make(space, config, relaxed_estimator, _relaxed_part, phi=True)
    if kind == WEIGHTS:
        return _make(space, config, sampler, _sequential_part, phi=False)
    if config.weights.through == "gate":
        return _make(space, config, relaxed_estimator, _relaxed_gradient_part, phi=True)
    return _make(space, config, measured_estimator, _measured_gradient_part, phi=True)


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
    part = _measured_part
    if config.episodes.prompt_loss == "episode":
        part = _unread_part
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
        packs = _draw_packs(key(state, "items"), problem, config)
        dropped = None
        if config.lora.dropout and part_of in _TRAIN_THETA:
            dropped = key(state, "dropout")
        scene = _Scene(space, config, problem, state, draw, active, dropped)
        total = _in_parts(
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
        calls = _calls_by_task(problem, asked.packs) * active
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
        )
        return state, updated

    return Phases(ask_phase, tell_phase)


class _Scene(NamedTuple):
    """What a part reads besides its items."""

    space: Space
    config: TrainConfig
    problem: Problem
    state: TrainState
    draw: Draw
    active: jax.Array
    dropped: jax.Array | None

    def adapt(self, theta):
        return adapted(self.problem.decoder, theta, self.config, key=self.dropped)

    @property
    def static(self) -> dict[str, Any]:
        return {
            "chunk": self.config.search.chunk,
            "implementation": self.space.implementation,
        }

    @property
    def template(self) -> jax.Array:
        return self.draw.outcomes[TEMPLATE][..., 0]

    @property
    def shots(self) -> jax.Array:
        if EXEMPLARS in self.draw.outcomes:
            return self.draw.outcomes[EXEMPLARS]
        return jnp.zeros((*self.template.shape, 0), jnp.int32)


def _measured_part(scene: _Scene, packs, share) -> Part:
    """Losses of sequential prompts; the gate is read for its slope and for trust."""
    problem = scene.problem._replace(decoder=scene.adapt(scene.state.theta))
    losses = measured_losses(
        problem,
        scene.template,
        scene.shots,
        packs,
        scene.active,
        width=scene.space.width,
        **scene.static,
    )
    part = Part(losses.loss * share, losses.tokens.sum(), jnp.int32(0))
    return _read_gate(scene, problem, packs, share, part)


def _unread_part(scene: _Scene, packs, share) -> Part:
    """Nothing but zeros: no slot learns from the likelihood."""
    zero = jnp.int32(0)
    return Part(jnp.zeros(scene.template.shape, jnp.float32), zero, zero)


def _measured_gradient_part(scene: _Scene, packs, share) -> Part:
    """As ``_measured_part``, and the gradient in theta from the same pass."""
    part = _sequential_part(scene, packs, share)
    problem = scene.problem._replace(decoder=scene.adapt(scene.state.theta))
    return _read_gate(scene, problem, packs, share, part)


def _sequential_part(scene: _Scene, packs, share) -> Part:
    out = measured_gradient(
        scene.problem,
        scene.adapt,
        scene.state.theta,
        scene.template,
        scene.shots,
        packs,
        scene.draw.coef * share,
        width=scene.space.width,
        **scene.static,
    )
    tokens = out.tokens.sum()
    return Part(out.loss * share, tokens, tokens, theta=out.theta)


def _read_gate(scene: _Scene, problem, packs, share, part: Part) -> Part:
    probes = scene.draw.probe
    if EXEMPLARS not in scene.draw.outcomes or problem.cache is None:
        return part
    through = gated_losses(
        problem,
        scene.template,
        scene.draw.weights[EXEMPLARS],
        packs,
        scene.active,
        **scene.static,
    )
    part = part._replace(
        gated=through.loss * share, forward=part.forward + through.tokens.sum()
    )
    if probes[EXEMPLARS] is None:
        return part
    likeliest = jnp.argmax(scene.state.logits[TEMPLATE], axis=-1)[:, None]
    at_probe, slopes = relaxed_losses(
        problem,
        likeliest.astype(jnp.int32),
        probes[EXEMPLARS][:, None],
        packs,
        scene.active,
        **scene.static,
    )
    tokens = at_probe.tokens.sum()
    return part._replace(
        slope=slopes[:, 0] * share,
        forward=part.forward + tokens,
        backward=part.backward + tokens,
    )


def _relaxed_part(scene: _Scene, packs, share) -> Part:
    """Losses of soft rows and their gradient in the rows' weights."""
    problem = scene.problem._replace(decoder=scene.adapt(scene.state.theta))
    losses, slopes = relaxed_losses(
        problem,
        scene.template,
        scene.draw.weights[EXEMPLARS],
        packs,
        scene.active,
        **scene.static,
    )
    tokens = losses.tokens.sum()
    coef = (scene.draw.coef * share)[..., None]
    return Part(losses.loss * share, tokens, tokens, weights=slopes * coef)


def _relaxed_gradient_part(scene: _Scene, packs, share) -> Part:
    """As ``_relaxed_part``, and the gradient in theta from the same pass."""
    out = relaxed_gradient(
        scene.problem,
        scene.adapt,
        scene.state.theta,
        scene.template,
        scene.draw.weights[EXEMPLARS],
        packs,
        scene.draw.coef * share,
        exact=scene.config.weights.cache == "exact",
        **scene.static,
    )
    tokens = out.tokens.sum()
    if scene.config.weights.cache == "exact":
        tokens += scene.space.pool_tokens
    return Part(out.loss * share, tokens, tokens, weights=out.weights, theta=out.theta)


_TRAIN_THETA = (_sequential_part, _measured_gradient_part, _relaxed_gradient_part)


def _tell(
    estimator: Estimator, state: TrainState, draw: Draw, total: Part, losses, held
):
    nothing = dict.fromkeys(state.logits)
    slope = weights_grad = None
    if total.slope is not None:
        slope = {**nothing, EXEMPLARS: total.slope}
    if total.weights is not None:
        weights_grad = {**nothing, EXEMPLARS: total.weights}
    return tell(
        estimator,
        state.logits,
        draw,
        losses,
        held,
        slope=slope,
        weights_grad=weights_grad,
    )


def _draw_packs(key: jax.Array, problem: Problem, config: TrainConfig) -> jax.Array:
    """The items of an update: int32 ``[task, pack]``, each task its own."""
    num_packs, total = problem.packs.num_packs, problem.packs.items.shape[1]
    wanted = config.search.packs * config.search.accumulate
    item_keys = jax.random.split(key, num_packs.shape[0])
    return jax.vmap(lambda key, num: draw_packs(key, num, total, wanted))(
        item_keys, num_packs
    )


def _in_parts(run, problem: Problem, packs: jax.Array, num: int) -> Part:
    """``run(packs, share)`` over ``num`` parts of the packs, added up.

    share: float32 ``[task, 1]``, the part's share of the update's items. The sum is
    what one part with all packs gives, because losses are means over items.
    """
    if num == 1:
        return run(packs, jnp.ones((packs.shape[0], 1)))
    parts = rearrange(packs, "task (part pack) -> part task pack", part=num)
    counts = jax.vmap(lambda packs: _calls_by_task(problem, packs))(parts)
    shares = counts / jnp.maximum(counts.sum(axis=0), 1)

    def add(total, part):
        packs, share = part
        return jax.tree.map(jnp.add, total, run(packs, share[:, None])), None

    start = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(run, parts[0], shares[0][:, None]),
    )
    return jax.lax.scan(add, start, (parts, shares))[0]


def _calls_by_task(problem: Problem, packs: jax.Array) -> jax.Array:
    """Items in each task's packs, int32 ``[task]``."""
    chosen = jnp.take_along_axis(problem.packs.items, packs[..., None], axis=1)
    return (chosen >= 0).sum(axis=(1, 2))
