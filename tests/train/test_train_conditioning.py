"""Logits of a task are shared + delta: what each kind of conditioning trains."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_tables import additive, compile_on_tables, patch_objectives

from metaharness import keys
from metaharness.harness.objective import Problem
from metaharness.harness.slots import Choice
from metaharness.harness.space import EXEMPLARS, TEMPLATE
from metaharness.runlog.budget import BudgetCounter
from metaharness.train.deploy import mode_choices
from metaharness.train.loop import fit
from metaharness.train.state import Phi, init_state

# The tasks agree on no template; their exemplars are not each other's.
TABLE = additive(
    [[1.0, 0.4], [0.2, 1.2]],
    [[2.0, 0.2, 1.5, 0.4, 9, 9, 9, 9], [9, 9, 9, 9, 0.3, 1.1, 1.3, 0.1]],
)
BEST = [Choice((1, 3), 1), Choice((4, 7), 0)]
EVERY, SECOND = (True, True), (False, True)


def settings(config, conditioning, shrinkage=0.01):
    search = dataclasses.replace(
        config.search,
        estimator="reinforce",
        samples=8,
        warmup_steps=40,
        relaxed_steps=1,
        measured_steps=0,
        trust=1,
        learning_rate=0.3,
        conditioning=conditioning,
        shrinkage=shrinkage,
    )
    return dataclasses.replace(config, search=search)


@pytest.fixture(scope="module")
def compiled(space, config):
    with pytest.MonkeyPatch.context() as patch:
        patch_objectives(patch, space, TABLE)

        @functools.cache
        def functions(*conditioning):
            return compile_on_tables(space, settings(config, *conditioning))

        yield functions


@pytest.fixture(scope="module")
def trained(space, config, compiled):
    @functools.cache
    def run(*conditioning):
        own = settings(config, *conditioning)
        functions = compiled(*conditioning)
        return fit(space, own, counter=BudgetCounter(), compiled=functions)

    return run


@pytest.fixture(scope="module")
def updated(space, config, compiled):
    """One update from logits that differ: the state after it, and the mean gradient
    that its optimiser holds, a tenth of its first."""
    packs = space.pack("train", width=config.search.pack_width, limit=8)
    problem = Problem(space.model.decoder, space.table, packs, None)

    @functools.cache
    def run(kind, active, *conditioning):
        start = parameters(space)
        own = settings(config, *conditioning)
        state = init_state(space, own, keys.root_key(0), start=start)
        step = compiled(*conditioning).updates[kind]
        state, _ = step(state, problem, jnp.asarray(active))
        mean = state.phi_optimizer[0].mean
        return jax.tree.map(lambda x: 10 * np.asarray(x), mean), state.phi

    return run


def parameters(space):
    rng = np.random.default_rng(2)
    values = {
        slot: rng.normal(size=(3, family.n)).astype(np.float32)
        for slot, family in space.families.items()
    }
    return Phi(
        {slot: jnp.asarray(x[0]) for slot, x in values.items()},
        {slot: jnp.asarray(x[1:]) for slot, x in values.items()},
    )


def arrays(values):
    return {slot: np.asarray(x) for slot, x in values.items()}


def test_independent_tasks_share_nothing(space, updated):
    _, phi = updated("measured", EVERY, "independent")
    start = parameters(space)
    for slot, shared in arrays(phi.shared).items():
        assert (shared == np.asarray(start.shared[slot])).all()
        assert (np.asarray(phi.delta[slot]) != np.asarray(start.delta[slot])).any()


def test_tasks_that_share_all_keep_equal_logits(space, trained):
    fitted = trained("shared")
    for values in arrays(fitted.state.logits).values():
        assert (values[0] == values[1]).all() and (values[0] != 0).all()
    choices = mode_choices(space, fitted.state)
    assert [choice.exemplars for choice in choices] == [(1, 3), (4, 7)]
    # 0.6 are lost by the one wrong template, 1.0 by the other
    assert [choice.template for choice in choices] == [0, 0]


def test_each_task_learns_its_difference(space, trained):
    state = trained("task").state
    assert mode_choices(space, state) == BEST
    shared, delta = arrays(state.phi.shared), arrays(state.phi.delta)
    assert np.sign(delta[TEMPLATE]).tolist() == [[-1, 1], [1, -1]]
    assert np.abs(shared[TEMPLATE]).max() < np.abs(delta[TEMPLATE]).min()
    assert (shared[EXEMPLARS][[1, 3, 4, 7]] > 1).all()


@pytest.mark.slow
def test_a_large_shrinkage_leaves_no_difference(trained):
    phi = trained("task", 100.0).state.phi
    for slot, values in arrays(phi.delta).items():
        assert np.abs(values).max() < 0.05
        assert np.abs(np.asarray(phi.shared[slot])).max() > 2


def test_the_shared_part_gets_the_sum_of_the_tasks_gradients(updated):
    own, _ = updated("measured", EVERY, "independent")
    both, _ = updated("measured", EVERY, "shared")
    for slot, grads in own.delta.items():
        assert np.abs(grads).max() > 1e-3
        np.testing.assert_allclose(
            both.shared[slot], grads.sum(axis=0), rtol=1e-4, atol=1e-6
        )
        assert (both.delta[slot] == 0).all() and (own.shared[slot] == 0).all()


def test_a_difference_is_pulled_by_its_penalty(space, updated):
    """Half the squared difference, in a loss that is a mean over tasks."""
    plain, _ = updated("measured", EVERY, "independent")
    pulled, _ = updated("measured", EVERY, "task", 100.0)
    for slot, delta in arrays(parameters(space).delta).items():
        expected = plain.delta[slot] + 100.0 / 2 * delta
        np.testing.assert_allclose(pulled.delta[slot], expected, rtol=1e-4)
        np.testing.assert_allclose(
            pulled.shared[slot], plain.delta[slot].sum(axis=0), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("conditioning", ["independent", "task"])
def test_a_task_that_is_not_trusted_keeps_its_difference(space, updated, conditioning):
    _, phi = updated("relaxed", SECOND, conditioning)
    start = parameters(space)
    for slot, delta in arrays(phi.delta).items():
        before = np.asarray(start.delta[slot])
        assert delta[0].tobytes() == before[0].tobytes()
        assert (delta[1] != before[1]).any()


def test_a_task_that_is_not_trusted_adds_nothing_to_the_shared_part(updated):
    every, _ = updated("relaxed", EVERY, "independent")
    second, _ = updated("relaxed", SECOND, "shared")
    for slot, grads in every.delta.items():
        np.testing.assert_allclose(second.shared[slot], grads[1], rtol=1e-4, atol=1e-6)
