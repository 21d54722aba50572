"""Jitted updates of the harness logits: measured and relaxed, each traced once."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from estimators import (
    Estimator,
    Family,
    ask,
    combine,
    evaluate,
    exact,
    linear_proxy,
    over_tasks,
    perturbed_marginals,
    tell,
)
from metaharness import keys
from metaharness.harness.objective import (
    Problem,
    gated_losses,
    measured_losses,
    relaxed_losses,
)
from metaharness.harness.packing import draw_packs
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.train.config import SearchConfig
from metaharness.train.optimizer import OPTIMIZERS

Logits = dict[str, jax.Array]


class TrainState(NamedTuple):
    """What a training step changes.

    logits: slot -> float32 ``[task, pool]``; optimizer: its state on them;
    measured, relaxed: states of the two estimators; step: int32, updates done; root:
    the run's typed key (constant).
    """

    logits: Logits
    optimizer: Any
    measured: Any
    relaxed: Any
    step: jax.Array
    root: jax.Array


class Updated(NamedTuple):
    """Metrics of one update, on the device.

    loss: float32 ``[task]``, the averaged loss of the draw; rows: ``[task, row]``;
    gated: the same rows through the gate, or None; template: int32 ``[task, row]``;
    forward, backward, calls: int32, cost; estimator: slot -> metrics ``[task]``;
    probabilities: slot -> float32 ``[task, pool]`` after the update.
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


def measured_estimator(space: Space, config: SearchConfig) -> Estimator:
    """``linear_proxy`` on the exemplars, stratified enumeration of the templates."""
    parts: dict[str, tuple[Family, Estimator]] = {}
    if EXEMPLARS in space.families:
        family = space.families[EXEMPLARS]
        proxy = linear_proxy(
            family,
            samples=config.samples,
            window=max(config.window // config.samples, 1) * config.samples,
            ridge=config.ridge,
            residual=config.residual,
        )
        parts[EXEMPLARS] = (family, proxy)
    family = space.families[TEMPLATE]
    parts[TEMPLATE] = (family, exact(family))
    return over_tasks(combine(parts))


def relaxed_estimator(space: Space, config: SearchConfig) -> Estimator:
    """``perturbed_marginals`` on the exemplars, stratified enumeration of templates.

    Templates learn here from a soft exemplar choice; they are learned again from
    deployable harnesses in the measured steps.
    """
    exemplars, template = space.families[EXEMPLARS], space.families[TEMPLATE]
    soft = perturbed_marginals(
        exemplars, samples=config.relaxed_samples, tau=config.tau
    )
    parts = {EXEMPLARS: (exemplars, soft), TEMPLATE: (template, exact(template))}
    return over_tasks(combine(parts, allow_soft_reward=True))


def init_state(space: Space, config: SearchConfig, seed: int) -> TrainState:
    """Uniform logits and fresh optimiser and estimator states."""
    root = keys.root_key(seed)
    logits = {
        slot: jnp.zeros((space.num_tasks, family.n), jnp.float32)
        for slot, family in space.families.items()
    }
    key = keys.derive(root, stage="setup", step=0, purpose="estimator")
    measured_key, relaxed_key = jax.random.split(key)
    relaxed = None
    if EXEMPLARS in space.families and config.relaxed_steps:
        relaxed = relaxed_estimator(space, config).init(relaxed_key, logits)
    return TrainState(
        logits,
        OPTIMIZERS[config.optimizer](config.learning_rate).init(logits),
        measured_estimator(space, config).init(measured_key, logits),
        relaxed,
        jnp.int32(0),
        root,
    )


class Steps(NamedTuple):
    """The jitted updates of one space; reuse them, so that nothing compiles twice.

    measured: ``(state, problem)``; relaxed: ``(state, problem, active)``, or None
    where nothing relaxed is asked for. Both return the new state and ``Updated``.
    """

    measured: Callable[[TrainState, Problem], tuple[TrainState, Updated]]
    relaxed: Callable[..., tuple[TrainState, Updated]] | None


def make_steps(space: Space, config: SearchConfig) -> Steps:
    """Step makers' results; they compile when they are first called."""
    relaxed = None
    if EXEMPLARS in space.families and config.relaxed_steps:
        relaxed = make_relaxed_step(space, config)
    return Steps(make_measured_step(space, config), relaxed)


def make_measured_step(
    space: Space, config: SearchConfig
) -> Callable[[TrainState, Problem], tuple[TrainState, Updated]]:
    """An update from sequential prompts; the gate is read for slopes and for trust."""
    estimator = measured_estimator(space, config)
    exemplars = EXEMPLARS in space.families
    static = {"chunk": config.chunk, "implementation": space.implementation}
    everyone = np.ones((space.num_tasks,), bool)

    def step(state: TrainState, problem: Problem) -> tuple[TrainState, Updated]:
        draw, packs = _ask(estimator, state, state.measured, problem, space, config)
        template = draw.outcomes[TEMPLATE][..., 0]
        if exemplars:
            shots = draw.outcomes[EXEMPLARS]
        else:
            shots = jnp.zeros((*template.shape, 0), jnp.int32)
        active = jnp.asarray(everyone)
        losses = measured_losses(
            problem, template, shots, packs, active, width=space.width, **static
        )
        gated = slope = None
        forward, backward = losses.tokens.sum(), jnp.int32(0)
        if exemplars:
            through = gated_losses(
                problem, template, draw.weights[EXEMPLARS], packs, active, **static
            )
            likeliest = jnp.argmax(state.logits[TEMPLATE], axis=-1)[:, None]
            probe = draw.probe[EXEMPLARS][:, None]
            at_probe, slopes = relaxed_losses(
                problem, likeliest.astype(jnp.int32), probe, packs, active, **static
            )
            gated = through.loss
            slope = {EXEMPLARS: slopes[:, 0], TEMPLATE: None}
            forward += through.tokens.sum() + at_probe.tokens.sum()
            backward += at_probe.tokens.sum()
        told = tell(
            estimator, state.logits, draw, losses.loss, state.measured, slope=slope
        )
        state = _apply(state, told.logits_grad, space, config)
        rows = losses.loss
        updated = Updated(
            (draw.coef * rows).sum(-1) * space.num_tasks,
            rows,
            gated,
            template,
            forward,
            backward,
            _calls(problem, packs) * template.shape[1],
            told.metrics,
            chances(space, state.logits),
        )
        return state._replace(measured=told.state), updated

    return jax.jit(step, donate_argnums=0)


def make_relaxed_step(
    space: Space, config: SearchConfig
) -> Callable[[TrainState, Problem, jax.Array], tuple[TrainState, Updated]]:
    """An update through the gated pool; tasks that are not ``active`` stay put."""
    estimator = relaxed_estimator(space, config)
    static = {"chunk": config.chunk, "implementation": space.implementation}

    def step(
        state: TrainState, problem: Problem, active: jax.Array
    ) -> tuple[TrainState, Updated]:
        draw, packs = _ask(estimator, state, state.relaxed, problem, space, config)

        def objective(draw, theta):
            del theta
            template = draw.outcomes[TEMPLATE][..., 0]
            losses, _ = relaxed_losses(
                problem, template, draw.weights[EXEMPLARS], packs, active, **static
            )
            return losses.loss

        evaluated = evaluate(estimator, objective)(draw, None)
        told = tell(
            estimator,
            state.logits,
            draw,
            evaluated.losses,
            state.relaxed,
            weights_grad=evaluated.weights_grad,
        )
        fresh = _apply(state, told.logits_grad, space, config)
        kept = jax.tree.map(
            lambda new, old: jnp.where(active[:, None], new, old),
            fresh.logits,
            state.logits,
        )
        template = draw.outcomes[TEMPLATE][..., 0]
        rows = evaluated.losses
        tokens = _row_tokens(problem, template, packs, active)
        updated = Updated(
            (draw.coef * rows).sum(-1) * space.num_tasks,
            rows,
            None,
            template,
            tokens,
            tokens,
            (_calls_by_task(problem, packs) * active).sum() * template.shape[1],
            told.metrics,
            chances(space, kept),
        )
        return fresh._replace(logits=kept, relaxed=told.state), updated

    return jax.jit(step, donate_argnums=0)


def chances(space: Space, logits: Logits) -> dict[str, jax.Array]:
    """Slot -> chance of each candidate to be chosen, float32 ``[task, pool]``."""
    return {
        slot: family.distribution(
            logits[slot], jnp.asarray(space.masks[slot])
        ).marginals()
        for slot, family in space.families.items()
    }


def _ask(estimator, state, estimator_state, problem, space, config):
    def key(purpose):
        return keys.derive(state.root, stage="search", step=state.step, purpose=purpose)

    masks = {slot: jnp.asarray(mask) for slot, mask in space.masks.items()}
    draw = ask(estimator, key("draw"), state.logits, estimator_state, masks)
    item_keys = jax.random.split(key("items"), space.num_tasks)
    total = problem.packs.items.shape[1]
    packs = jax.vmap(
        lambda item_key, num: draw_packs(item_key, num, total, config.packs)
    )(item_keys, problem.packs.num_packs)
    return draw, packs


def _apply(state, grads, space, config) -> TrainState:
    if config.entropy_bonus:

        def bonus(logits):
            entropy = 0.0
            for slot, family in space.families.items():
                law = family.distribution(logits[slot], jnp.asarray(space.masks[slot]))
                entropy += law.entropy().mean()
            return -config.entropy_bonus * entropy

        grads = jax.tree.map(jnp.add, grads, jax.grad(bonus)(state.logits))
    rule = OPTIMIZERS[config.optimizer](config.learning_rate)
    updates, optimizer = rule.update(grads, state.optimizer)
    logits = optax.apply_updates(state.logits, updates)
    return state._replace(logits=logits, optimizer=optimizer, step=state.step + 1)


def _calls_by_task(problem: Problem, packs: jax.Array) -> jax.Array:
    """Items in each task's packs, int32 ``[task]``."""
    chosen = jnp.take_along_axis(problem.packs.items, packs[..., None], axis=1)
    return (chosen >= 0).sum(axis=(1, 2))


def _calls(problem: Problem, packs: jax.Array) -> jax.Array:
    return _calls_by_task(problem, packs).sum()


def _row_tokens(problem, template, packs, active) -> jax.Array:
    """Tokens of every row's items, int32 scalar."""

    def one(counts, template, packs):
        return counts[template[:, None], packs[None, :]].sum()

    each = jax.vmap(one)(problem.packs.num_tokens, template, packs)
    return (each * active).sum()
