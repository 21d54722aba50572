"""Several seeds of one training as one vmapped step, and scores of what they learned.

The seeds share the space and the base weights; each has its own phi, theta, draws and
items. Every function is compiled ahead, so that its time is known apart.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaharness import keys
from metaharness.harness.objective import Problem
from metaharness.harness.relaxed import PoolCache, task_keys
from metaharness.harness.sequential import Batch, measure
from metaharness.harness.slots import Choice
from metaharness.harness.space import EXEMPLARS, Space
from metaharness.train.compiled import make_encode
from metaharness.train.config import TrainConfig
from metaharness.train.deploy import mode_choices
from metaharness.train.schedule import TRAINS_THETA, WEIGHTS, plan
from metaharness.train.state import Phi, TrainState, adapted, init_state
from metaharness.train.steps import make_update

Shown = Callable[[int], None]


class SeedRuns(NamedTuple):
    """Result of ``train_seeds``; the leading axis of state and arrays is the seed.

    losses: float32 ``[update, seed, task]``; steps: updates at which probabilities were
    kept; chances: slot -> float32 ``[time, seed, task, pool]``; forward, backward:
    tokens of one seed on average; train_s, compile_s: seconds for all seeds together.
    """

    state: TrainState
    losses: np.ndarray
    steps: list[int]
    chances: dict[str, np.ndarray]
    forward: float
    backward: float
    train_s: float
    compile_s: float

    @property
    def num_seeds(self) -> int:
        return self.losses.shape[1]

    def one(self, seed: int) -> TrainState:
        """The state of one seed."""
        return jax.tree.map(lambda x: x[seed], self.state)


class Prepared(NamedTuple):
    """A training whose functions are compiled; ``train_seeds`` runs it once.

    updates: kind -> compiled update; encode: (decoder, theta) -> pools of all seeds.
    """

    space: Space
    kinds: list[str]
    state: TrainState
    problem: Problem
    updates: dict[str, Callable[..., Any]]
    encode: Callable[..., Any]
    compile_s: float


def prepare_seeds(
    space: Space, config: TrainConfig, seeds: Sequence[int], *, start: Phi | None = None
) -> Prepared:
    """Compile ``config``'s schedule for several seeds; call it from several threads to
    compile several trainings at once.

    Relaxed updates train every task. ``start``: logits with a leading seed axis;
    uniform where None.
    """
    began = time.monotonic()
    packs = space.pack(
        "train", width=config.search.pack_width, limit=config.evaluation.train_items
    )
    roots = jnp.stack([keys.root_key(seed) for seed in seeds])
    if start is None:
        state = jax.jit(jax.vmap(lambda root: init_state(space, config, root)))(roots)
    else:
        state = jax.jit(
            jax.vmap(lambda root, phi: init_state(space, config, root, start=phi))
        )(roots, start)
    encode = jax.jit(jax.vmap(make_encode(space, config), (None, 0)))
    kinds = plan(config)
    cache = None
    if EXEMPLARS in space.families and set(kinds) != {WEIGHTS}:
        index = jnp.asarray(task_keys(space.table, space.masks[EXEMPLARS]))
        cache = PoolCache(_encoded(space, encode, state.theta), index)
    problem = Problem(space.model.decoder, space.table, packs, cache)
    axes = _axes(cache, config.schedule.trains_weights)
    updates = {}
    for kind in dict.fromkeys(kinds):
        update = jax.vmap(make_update(space, config, kind), (0, axes, None))
        step = jax.jit(update, donate_argnums=0)
        updates[kind] = step.lower(state, problem, _active(space)).compile()
    jax.block_until_ready(state)
    took = time.monotonic() - began
    return Prepared(space, kinds, state, problem, updates, encode, took)


def train_seeds(
    prepared: Prepared,
    *,
    keep_every: int = 10,
    shown: Shown = lambda done: None,
) -> SeedRuns:
    """Run a prepared training; its state is donated, so once."""
    space, kinds, state, problem, updates, encode, compile_s = prepared
    began = time.monotonic()
    active = _active(space)
    losses, kept, steps, tokens = [], [], [], []
    dirty = False
    for number, kind in enumerate(kinds, start=1):
        if dirty and kind != WEIGHTS:
            pool = _encoded(space, encode, state.theta)
            problem = problem._replace(cache=problem.cache._replace(pool=pool))
            dirty = False
        state, out = updates[kind](state, problem, active)
        dirty = dirty or (kind in TRAINS_THETA and problem.cache is not None)
        losses.append(out.loss)
        tokens.append((out.forward, out.backward))
        if number % keep_every == 0 or number in (1, len(kinds)):
            steps.append(number)
            kept.append(jax.device_get(out.probabilities))
            shown(number)
    losses = np.stack(jax.device_get(losses))
    train_s = time.monotonic() - began
    forward, backward = np.array(jax.device_get(tokens), float).sum(0).mean(-1)
    chances = {slot: np.stack([row[slot] for row in kept]) for slot in kept[0]}
    return SeedRuns(
        state, losses, steps, chances, forward, backward, train_s, compile_s
    )


def _active(space: Space) -> jax.Array:
    return jnp.ones((space.num_tasks,), bool)


def _encoded(space: Space, encode, theta):
    if theta is not None:
        return encode(space.model.decoder, theta)
    return space.encode_pool().pool


def _axes(cache: PoolCache | None, by_seed: bool) -> Problem:
    """Where a problem has a seed axis: in the encoded pool, if theta is trained."""
    if cache is None:
        return Problem(None, None, None, None)
    pool = jax.tree.map(lambda _: 0 if by_seed else None, cache.pool)
    return Problem(None, None, None, PoolCache(pool, None))


class CellScores(NamedTuple):
    """nats: float64 ``[cell, seed, item]``; exact: bool, whether greedy decoding writes
    the gold answer first."""

    nats: np.ndarray
    exact: np.ndarray


def make_scorer(space: Space, config: TrainConfig, *, pack_width: int, limit: int):
    """``score(theta, choices, task)`` of the first test items, all seeds at once.

    theta: with a seed axis, or None for the base weights; choices: ``[cell][seed]``.
    """
    packs = space.pack("test", width=pack_width, limit=limit)

    def cells(decoder, theta, task, template, shots):
        decoder = adapted(decoder, theta, config)
        num = template.shape[0]
        at = jnp.arange(packs.items.shape[1])
        batch = Batch(
            jnp.full((num,), task),
            template,
            shots,
            jnp.broadcast_to(at, (num, *at.shape)),
        )
        out = measure(
            decoder,
            space.table,
            packs,
            batch,
            width=space.width,
            chunk=1,
            implementation=space.implementation,
            with_exact=True,
        )
        return out.nats, out.exact

    with_theta = jax.jit(jax.vmap(cells, (None, 0, None, 0, 0)))
    base = jax.jit(jax.vmap(cells, (None, None, None, 0, 0)))

    def score(theta: Any, choices: Sequence[Sequence[Choice]], task: int) -> CellScores:
        by_seed = list(zip(*choices, strict=True))
        template = jnp.asarray([[c.template for c in row] for row in by_seed])
        shots = jnp.asarray([[c.exemplars for c in row] for row in by_seed])
        run = base if theta is None else with_theta
        nats, exact = jax.device_get(
            run(
                space.model.decoder,
                theta,
                jnp.int32(task),
                template,
                shots.astype(jnp.int32),
            )
        )
        items = np.asarray(packs.items[task])
        real = items >= 0
        order = np.argsort(items[real])

        def by_item(values):
            return np.moveaxis(values[:, :, real][:, :, order], 0, 1)

        return CellScores(by_item(nats).astype(float), by_item(exact))

    return score


def seed_modes(space: Space, runs: SeedRuns) -> list[list[Choice]]:
    """The likeliest harness of every seed and task: ``[seed][task]``."""
    return [mode_choices(space, runs.one(seed)) for seed in range(runs.num_seeds)]
