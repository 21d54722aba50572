"""Losses over tasks: task by task what one task gives, and nothing where not active."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import TEMPLATES, make_space

from metaharness.harness import objective
from metaharness.harness.objective import (
    Problem,
    gated_losses,
    measured_losses,
    relaxed_losses,
)
from metaharness.harness.relaxed import SoftBatch, loss_and_slope, measure_relaxed
from metaharness.harness.sequential import Batch, Measured, measure

TASKS, ROWS, POOL = 2, 3, 8
PACKS = np.array([[1, 0], [0, 1]], np.int32)
TEMPLATE = np.array([[0, 1, 1], [1, 0, 1]], np.int32)
SHOTS = np.array([[[0, 2], [3, 1], [2, 0]], [[4, 7], [6, 5], [7, 4]]], np.int32)
BOTH = np.ones(TASKS, bool)
ARGUMENTS = {"chunk": ROWS, "implementation": "xla"}


def compiled(function, **more):
    return jax.jit(functools.partial(function, **ARGUMENTS, **more))


@pytest.fixture(scope="module")
def space():
    return make_space(2, templates=TEMPLATES[:2])


@pytest.fixture(scope="module")
def problem(space):
    packs = space.pack("train", width=64, limit=4)
    return Problem(space.model.decoder, space.table, packs, space.encode_pool())


def soft_weights():
    rng = np.random.default_rng(0)
    allowed = np.kron(np.eye(2), np.ones((1, 4)))[:, None]
    return (rng.uniform(0.1, 0.9, (TASKS, ROWS, POOL)) * allowed).astype(np.float32)


def spread(task):
    """Task number and packs of each row."""
    return jnp.full((ROWS,), task, jnp.int32), np.tile(PACKS[task], (ROWS, 1))


def test_measured_losses_are_those_of_each_task_alone(space, problem):
    run = compiled(measured_losses, width=space.width)
    both = run(problem, TEMPLATE, SHOTS, PACKS, BOTH)
    one = run(problem, TEMPLATE, SHOTS, PACKS, np.array([False, True]))
    alone = compiled(measure, width=space.width)
    for task in range(TASKS):
        number, packs = spread(task)
        batch = Batch(number, TEMPLATE[task], SHOTS[task], packs)
        out = alone(problem.decoder, problem.table, problem.packs, batch)
        np.testing.assert_allclose(both.loss[task], out.loss(), rtol=1e-5)
        assert both.tokens[task] == out.tokens.sum()
    assert one.loss[0].tolist() == [0.0] * ROWS and one.tokens[0] == 0
    np.testing.assert_allclose(one.loss[1], both.loss[1], rtol=1e-6)
    assert one.tokens[1] == both.tokens[1]


def test_relaxed_losses_carry_the_slope_of_each_task_alone(problem):
    weights, only = soft_weights(), np.array([True, False])

    @jax.jit
    def run(problem, weights, active):
        def loss(weights):
            losses, slope = relaxed_losses(
                problem, TEMPLATE, weights, PACKS, active, **ARGUMENTS
            )
            return losses.loss.sum(), (losses, slope)

        gradient, (losses, slope) = jax.grad(loss, has_aux=True)(weights)
        return losses, slope, gradient

    losses, slope, gradient = run(problem, weights, BOTH)
    alone = compiled(loss_and_slope)
    for task in range(TASKS):
        number, packs = spread(task)
        batch = SoftBatch(number, TEMPLATE[task], packs)
        loss, found, tokens = alone(*problem_of(problem), batch, weights[task])
        np.testing.assert_allclose(losses.loss[task], loss, rtol=1e-5)
        np.testing.assert_allclose(slope[task], found, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(gradient[task], slope[task], rtol=1e-6)
        assert losses.tokens[task] == tokens.sum()
    assert np.abs(slope).max() > 0.1
    losses, slope, gradient = run(problem, weights, only)
    assert losses.loss[1].tolist() == [0.0] * ROWS and losses.tokens[1] == 0
    assert not np.asarray(slope[1]).any() and not np.asarray(gradient[1]).any()
    assert np.asarray(gradient[0]).any()


def test_gated_losses_are_those_of_each_task_alone(problem):
    weights = soft_weights()
    run = compiled(gated_losses)
    both = run(problem, TEMPLATE, weights, PACKS, BOTH)
    alone = compiled(measure_relaxed)
    for task in range(TASKS):
        number, packs = spread(task)
        batch = SoftBatch(number, TEMPLATE[task], packs)
        out = alone(*problem_of(problem), batch, weights[task])
        np.testing.assert_allclose(both.loss[task], out.loss(), rtol=1e-5)
        assert both.tokens[task] == out.tokens.sum()
    none = run(problem, TEMPLATE, weights, PACKS, ~BOTH)
    assert not np.asarray(none.loss).any() and not np.asarray(none.tokens).any()


def problem_of(problem):
    return problem.decoder, problem.cache, problem.table, problem.packs


@pytest.mark.parametrize("kind", ["measured", "gated", "relaxed"])
@pytest.mark.parametrize("active", [(True, True), (False, True), (False, False)])
def test_a_task_that_is_not_active_runs_nothing(monkeypatch, problem, kind, active):
    """Counts what is executed on the device, not what is traced."""
    ran = collections.Counter()

    def count(task):
        ran[int(task)] += 1

    def fake(*arguments, **_):
        batch = next(a for a in arguments if isinstance(a, Batch | SoftBatch))
        jax.debug.callback(count, batch.task[0])
        nats = jnp.ones((ROWS, 2, 1))
        if kind == "relaxed":
            return nats[:, 0, 0], jnp.ones((ROWS, POOL)), jnp.ones(ROWS, jnp.int32)
        return Measured(nats, nats > 0, jnp.ones(ROWS, jnp.int32))

    for name in ("measure", "measure_relaxed", "loss_and_slope"):
        monkeypatch.setattr(objective, name, fake)
    kinds = {
        "measured": lambda active: measured_losses(
            problem, TEMPLATE, SHOTS, PACKS, active, width=8, **ARGUMENTS
        ),
        "gated": lambda active: gated_losses(
            problem, TEMPLATE, soft_weights(), PACKS, active, **ARGUMENTS
        ),
        "relaxed": lambda active: relaxed_losses(
            problem, TEMPLATE, soft_weights(), PACKS, active, **ARGUMENTS
        )[0],
    }
    losses = jax.jit(kinds[kind])(np.array(active))
    jax.effects_barrier()
    assert ran == {task: 1 for task in range(TASKS) if active[task]}
    expected = np.array(active)[:, None] * np.ones((TASKS, ROWS))
    assert (losses.loss == expected).all()
    assert losses.tokens.tolist() == (ROWS * np.array(active)).tolist()
