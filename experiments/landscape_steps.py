"""Estimates and learning runs on a landscape, many runs at once.

A step is one jitted function for the estimates and for learning alike, so that each
estimator compiles once. Estimators that read the gate call it between two halves.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import estimators as es
from experiments.landscape_file import Table, table_losses
from experiments.landscape_gate import Gate
from experiments.landscape_problems import EXEMPLARS, PATH, SLOPE, VALUES, Entry


class Runs(NamedTuple):
    """What a step changes, over a leading run axis.

    logits: of the problem's structure; state: the estimator's; moments: Adam's.
    """

    logits: Any
    state: Any
    moments: Any


class Stepped(NamedTuple):
    """After a step: moved runs, gradients at the logits before, deployed harnesses
    (template int32 ``[run]``, shots int32 ``[run, k]``)."""

    runs: Runs
    gradient: Any
    template: jax.Array
    shots: jax.Array


class Stepper(NamedTuple):
    """begin: (keys, logits) -> Runs; step: (keys, number, runs, rates, wanted) ->
    Stepped, where a slope member reads 0 for the gate's slope unless it is wanted."""

    begin: Callable[..., Runs]
    step: Callable[..., Stepped]


def make_stepper(entry: Entry, table: Table, gate: Gate | None = None) -> Stepper:
    """The jitted step of an entry: Adam on the logits, one learning rate a run."""
    estimator, problem = entry.estimator, entry.problem
    adam = optax.scale_by_adam()

    @jax.jit
    def begin(keys, logits):
        state = jax.vmap(estimator.init)(_fold(keys, 10**6), logits)
        return Runs(logits, state, adam.init(logits))

    def ask(keys, number, runs, table):
        """The draws, and what is looked up for them."""

        def one(key, logits, state):
            draw_key, item_key = jax.random.split(key)
            draw = es.ask(estimator, draw_key, logits, state)
            items = jax.random.permutation(item_key, table.losses.shape[1])
            items = items[: entry.num_items].astype(jnp.int32)
            template, shots = problem.harness(draw.outcomes)
            return draw, items, table_losses(table, template, shots, items)

        return jax.vmap(one)(_fold(keys, number), runs.logits, runs.state)

    def tell(runs, draw, losses, slope, weights_grad, rates):
        def one(logits, state, draw, losses, slope, weights_grad):
            return es.tell(estimator, logits, draw, losses, state, slope, weights_grad)

        told = jax.vmap(one)(runs.logits, runs.state, draw, losses, slope, weights_grad)
        updates, moments = adam.update(told.logits_grad, runs.moments)
        logits = jax.tree.map(
            lambda x, change: x - rates[:, None] * change, runs.logits, updates
        )
        deployed = jax.vmap(problem.mode)(logits)
        return Stepped(Runs(logits, told.state, moments), told.logits_grad, *deployed)

    if entry.needs == VALUES:

        @jax.jit
        def whole_step(keys, number, runs, rates, table):
            draw, _, losses = ask(keys, number, runs, table)
            return tell(runs, draw, losses, None, None, rates)

        def step(keys, number, runs, rates, wanted):
            del wanted
            return whole_step(keys, number, runs, rates, table)

        return Stepper(begin, step)
    if gate is None:
        raise ValueError(f"{entry.name} reads the gate; give one.")
    ask, tell = jax.jit(ask), jax.jit(tell)

    def step(keys, number, runs, rates, wanted):
        draw, items, losses = ask(keys, number, runs, table)
        slope = weights_grad = None
        if entry.needs == SLOPE:
            slope = jnp.zeros_like(draw.probe[EXEMPLARS])
            if wanted:
                slope = gate.slope(runs.logits, draw.probe[EXEMPLARS], items)
            slope = dict.fromkeys(runs.logits) | {EXEMPLARS: slope}
        elif problem.kind == "whole":
            losses, weights_grad = gate.whole_path(draw, items)
        else:
            losses, weights_grad = gate.path(draw, items)
        return tell(runs, draw, losses, slope, weights_grad, rates)

    return Stepper(begin, step)


def estimate(
    entry: Entry,
    stepper: Stepper,
    keys: jax.Array,
    logits: Any,
    *,
    past_steps: int,
    repeats: int,
) -> Any:
    """Gradient estimates at fixed logits, of the logits' structure with leading axes
    ``[repeat, run]``. The first ``past_steps`` steps only fill windows and fits
    (estimators with a path have none).
    """
    runs = stepper.begin(keys, logits)
    rates = jnp.zeros((len(keys),))
    first = past_steps if entry.needs == PATH or entry.reference else 0
    gradients = []
    for number in range(first, past_steps + repeats):
        counts = number >= past_steps
        stepped = stepper.step(keys, number, runs, rates, counts)
        # a deep queue of steps can hang XLA's thread pool on a CPU of few cores
        runs = jax.block_until_ready(stepped.runs)
        if counts:
            gradients.append(stepped.gradient)
    return jax.tree.map(lambda *x: np.stack(x), *jax.device_get(gradients))


class Learned(NamedTuple):
    """Deployed harness after every step: int32 ``[step, run]``, ``[step, run, k]``."""

    template: np.ndarray
    shots: np.ndarray


def learn(
    entry: Entry, stepper: Stepper, keys: jax.Array, rate: float, *, steps: int
) -> Learned:
    """Learning from uniform logits, one run a key."""
    uniform = entry.problem.normal(jax.random.key(0), 0.0)
    logits = jax.tree.map(lambda x: jnp.zeros((len(keys), *x.shape)), uniform)
    runs = stepper.begin(keys, logits)
    rates = jnp.full((len(keys),), rate)
    deployed = []
    for number in range(steps):
        stepped = stepper.step(keys, number, runs, rates, True)
        runs = jax.block_until_ready(stepped.runs)  # as in ``estimate``
        deployed.append((stepped.template, stepped.shots))
    template, shots = zip(*jax.device_get(deployed), strict=True)
    return Learned(np.stack(template), np.stack(shots))


def _fold(keys: jax.Array, number: int | jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)
