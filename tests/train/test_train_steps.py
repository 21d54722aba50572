"""Updates find what a table of losses says is best, and count what they spend."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_tables import AT_PROBE, GATED, SEQUENTIAL, additive, patch_objectives

from metaharness import keys
from metaharness.harness.slots import Choice
from metaharness.harness.space import EXEMPLARS, TEMPLATE
from metaharness.runlog.budget import BudgetCounter
from metaharness.train.compiled import compile_updates
from metaharness.train.deploy import mode_choices
from metaharness.train.guards import entropy_bonus
from metaharness.train.loop import fit
from metaharness.train.stage_config import GuardConfig
from metaharness.train.state import chances, init_state
from metaharness.train.trust import GateRecord

EXEMPLAR_LOSS = np.array(
    [
        [2.0, 0.2, 1.5, 0.4, 9.0, 9.0, 9.0, 9.0],
        [9.0, 9.0, 9.0, 9.0, 0.3, 1.1, 1.3, 0.1],
    ],
    np.float32,
)
TEMPLATE_LOSS = np.array([[1.0, 0.4], [0.2, 1.2]], np.float32)
BEST = [Choice((1, 3), 1), Choice((4, 7), 0)]


@pytest.fixture(scope="module")
def run(space, config):
    """A training by one kind of update over the table; compiles once for each bonus."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch_objectives(patch, space, additive(TEMPLATE_LOSS, EXEMPLAR_LOSS))
        patch.setattr(GateRecord, "trusted", lambda _, least: np.full(2, least == -1))

        @functools.cache
        def run(kind, num, *, bonus=0.0, seed=0):
            search = dataclasses.replace(
                config.search,
                warmup_steps=num if kind == "measured" else 0,
                relaxed_steps=num if kind == "relaxed" else 1,
                measured_steps=0,
                trust=-1 if kind == "relaxed" else 1,
                learning_rate=0.3,
            )
            guards = GuardConfig(entropy_bonus=bonus)
            own = dataclasses.replace(config, search=search, guards=guards, seed=seed)
            if bonus not in made:
                both = dataclasses.replace(search, warmup_steps=1, relaxed_steps=1)
                made[bonus] = compile_updates(
                    space, dataclasses.replace(own, search=both)
                )
            return fit(space, own, counter=BudgetCounter(), compiled=made[bonus])

        yield run


def entropy(space, state):
    masks = {slot: jnp.asarray(mask) for slot, mask in space.masks.items()}
    measure = jax.jit(lambda logits: entropy_bonus(space.families, masks, logits))
    return measure(state.logits)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("kind", "num"), [("measured", 25), ("relaxed", 40)])
def test_the_best_harness_is_found(space, run, kind, num, seed):
    searched = run(kind, num, seed=seed)
    assert [row["kind"] for row in searched.trace] == [kind] * num
    assert mode_choices(space, searched.state) == BEST
    chances = searched.trace[-1]["probabilities"]
    for name, best in zip(("sum", "swap"), BEST, strict=True):
        exemplars, template = best.exemplars, best.template
        assert chances[TEMPLATE][name][template] > 0.9
        assert min(chances[EXEMPLARS][name][i] for i in exemplars) > 0.8
    first, last = (searched.trace[at]["loss"] for at in (0, -1))
    assert all(last[name] < first[name] - 0.5 for name in first)


def test_exactly_what_a_linear_loss_says_is_learned_from_its_slope(run):
    """The slope explains every loss, so the fit is right from the second step on."""
    trace = run("measured", 25).trace
    for name in ("sum", "swap"):
        assert trace[3]["spearman"][name] == pytest.approx(1.0)
        assert trace[3]["beta"][name] == pytest.approx(1.0, abs=0.1)


def test_an_update_counts_each_pass_once(run, space):
    for row in run("measured", 25).trace:
        assert row["forward_tokens"] == 2 * (SEQUENTIAL + GATED + AT_PROBE)
        assert row["backward_tokens"] == 2 * AT_PROBE
    for row in run("relaxed", 40).trace:
        assert row["forward_tokens"] == row["backward_tokens"] == 2 * AT_PROBE


def test_an_entropy_bonus_keeps_the_slots_more_open(space, run):
    plain = entropy(space, run("measured", 25).state)
    wide = entropy(space, run("measured", 25, bonus=2.0).state)
    assert wide > plain + 0.6


def test_updates_leave_masked_candidates_alone(space, run):
    state = run("relaxed", 40).state
    values = np.asarray(state.logits[EXEMPLARS])
    assert (values[~space.masks[EXEMPLARS]] == 0).all()
    assert (values[space.masks[EXEMPLARS]] != 0).all()


def test_a_state_starts_uniform_and_names_the_runs_root(space, config):
    state = init_state(space, config, keys.root_key(3))
    start = chances(space, state.logits)
    mask = space.masks[EXEMPLARS]
    np.testing.assert_allclose(start[EXEMPLARS], 0.5 * mask, atol=1e-6)
    np.testing.assert_allclose(start[TEMPLATE], 0.5)
    assert int(state.step) == 0 and state.relaxed is not None
    assert state.theta is None and state.theta_optimizer is None
    search = dataclasses.replace(config.search, relaxed_steps=0)
    bare = dataclasses.replace(config, search=search)
    assert init_state(space, bare, keys.root_key(3)).relaxed is None
    other = init_state(space, config, keys.root_key(4))
    assert (jax.random.key_data(state.root) != jax.random.key_data(other.root)).any()
