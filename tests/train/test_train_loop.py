"""Training traces once, repeats itself, and stops cleanly wherever it is stopped."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import TEMPLATES, make_space

from metaharness import keys
from metaharness.harness.objective import Problem
from metaharness.harness.space import EXEMPLARS, TEMPLATE
from metaharness.runlog.budget import Budget, BudgetCounter
from metaharness.train.deploy import mode_choices, probabilities, sampled_choices
from metaharness.train.loop import fit
from metaharness.train.state import init_state
from metaharness.train.trust import GateRecord

PLAN = ["measured"] * 2 + ["relaxed"] * 2 + ["measured"] * 2


def kinds(fitted):
    return [row["kind"] for row in fitted.trace]


def logits(fitted):
    return {slot: np.asarray(x) for slot, x in fitted.state.logits.items()}


def test_each_update_is_traced_once_over_whole_runs(ran, run_fit, config):
    once = {"measured_losses": 1, "gated_losses": 1, "relaxed_losses": 2}
    assert ran.traces == once  # relaxed losses: one in each kind of update
    run_fit(dataclasses.replace(config, seed=5))
    assert ran.traces == once
    for step in ran.functions.updates.values():
        assert step._cache_size() == 1
    assert ran.functions.encode._cache_size() == 1


def test_one_seed_gives_the_same_numbers_bitwise(ran, run_fit, config):
    again, other = run_fit(), run_fit(dataclasses.replace(config, seed=1))
    assert again.trace == ran.first.trace
    assert other.trace[0]["loss"] != again.trace[0]["loss"]
    for slot, values in logits(again).items():
        assert values.tobytes() == logits(ran.first)[slot].tobytes()


def test_every_update_draws_anew(ran, space, config):
    """From the same logits: other harnesses or items, so other losses."""
    packs = space.pack("train", width=config.search.pack_width, limit=8)
    pool = space.encode_pool()
    problem = Problem(space.model.decoder, space.table, packs, pool)
    losses = []
    for step in (0, 1):
        state = init_state(space, config, keys.root_key(0))
        state = state._replace(step=jnp.int32(step))
        _, out = ran.functions.updates["measured"](state, problem, jnp.ones(2, bool))
        losses.append(np.asarray(out.rows))
    assert (losses[0] != losses[1]).any(axis=1).all()


def test_the_trace_follows_the_plan_and_counts_updates(ran, space):
    trace = ran.first.trace
    assert kinds(ran.first) == PLAN and not ran.first.stopped
    assert [row["step"] for row in trace] == [1, 2, 3, 4, 5, 6]
    names = {task.name for task in space.tasks}
    for row in trace:
        assert set(row["loss"]) == names and min(row["loss"].values()) > 0
        assert row["forward_tokens"] > 0 and row["backward_tokens"] > 0
        assert ("spearman" in row) == (row["kind"] == "measured")
    assert ran.first.gate.num_pairs() == [16, 16]  # 4 steps of 4 harnesses


def test_probabilities_are_the_laws_of_the_last_logits(ran, space):
    chances = probabilities(space, ran.first.state)
    for slot, family in space.families.items():
        values, mask = chances[slot], space.masks[slot]
        np.testing.assert_allclose(values.sum(axis=1), family.k, rtol=1e-5)
        assert (values[~mask] == 0).all() and (values[mask] > 0).all()
        for name, row in zip(("sum", "swap"), values, strict=True):
            shown = ran.first.trace[-1]["probabilities"][slot][name]
            np.testing.assert_allclose(shown, row, atol=1e-5)
    weights = np.exp(logits(ran.first)[TEMPLATE].astype(float))
    expected = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(chances[TEMPLATE], expected, rtol=1e-5)


def test_candidates_that_a_task_may_not_use_are_never_touched(ran, space):
    values, mask = logits(ran.first)[EXEMPLARS], space.masks[EXEMPLARS]
    assert (values[~mask] == 0).all(), "a masked candidate got a gradient"
    assert (values[mask] != 0).all()
    for choice, row in zip(mode_choices(space, ran.first.state), mask, strict=True):
        assert row[list(choice.exemplars)].all()


def test_the_deployed_order_is_that_of_the_candidates(ran, space):
    for choice in mode_choices(space, ran.first.state):
        assert list(choice.exemplars) == sorted(choice.exemplars)


def scaled(state, factor):
    return state._replace(phi=jax.tree.map(lambda x: factor * x, state.phi))


def test_sampled_harnesses_follow_the_learned_law(ran, space):
    uniform, certain = (scaled(ran.first.state, factor) for factor in (0, 1e3))
    sampled = sampled_choices(space, uniform, 6, jax.random.key(0))
    for own, mask in zip(sampled, space.masks[EXEMPLARS], strict=True):
        assert len(own) == 6 and len(set(own)) > 2
        assert {choice.template for choice in own} == {0, 1}
        for choice in own:
            assert (
                len(set(choice.exemplars)) == 2 and mask[list(choice.exemplars)].all()
            )
    sampled = sampled_choices(space, certain, 2, jax.random.key(1))
    mode = mode_choices(space, ran.first.state)
    assert sampled == [[choice] * 2 for choice in mode]


def test_a_budget_ends_the_search_after_the_step_that_spent_it(space, run_fit):
    limit = space.pool_tokens + 1  # one token is left for the first step
    counter = BudgetCounter({"train": Budget(max_tokens=limit)})
    fitted = run_fit(counter=counter)
    assert kinds(fitted) == ["measured"]
    assert fitted.stopped.startswith("train: ") and "tokens" in fitted.stopped
    spent = fitted.trace[0]
    expected = space.pool_tokens + spent["forward_tokens"] + spent["backward_tokens"]
    assert counter.counts("train").token_passes == expected


def test_a_search_stops_where_it_is_asked_to(run_fit):
    answers = iter([False, False, True])
    fitted = run_fit(should_stop=lambda: next(answers))
    assert kinds(fitted) == PLAN[:2] and fitted.stopped == "asked to"
    assert int(fitted.state.step) == 2


@pytest.mark.parametrize("done", [0, 3])
def test_ctrl_c_returns_what_was_done(ran, space, run_fit, done):
    left = itertools.count(done, -1)

    def breaking(step):
        def run(*arguments):
            if next(left) == 0:
                raise KeyboardInterrupt
            return step(*arguments)

        return run

    updates = {kind: breaking(step) for kind, step in ran.functions.updates.items()}
    fitted = run_fit(compiled=ran.functions._replace(updates=updates))
    assert fitted.stopped == "interrupted (Ctrl-C)"
    assert fitted.trace == ran.first.trace[:done]
    assert len(mode_choices(space, fitted.state)) == 2
    assert int(fitted.state.step) == done


def test_no_relaxed_step_is_taken_where_no_gate_is_trusted(
    config, run_fit, monkeypatch
):
    monkeypatch.setattr(GateRecord, "trusted", lambda *_: np.zeros(2, bool))
    strict = dataclasses.replace(config.search, trust=1.0)
    fitted = run_fit(dataclasses.replace(config, search=strict))
    assert kinds(fitted) == ["measured"] * 4 and not fitted.trusted.any()
    assert [row["step"] for row in fitted.trace] == [1, 2, 3, 4]


def test_relaxed_steps_move_only_the_tasks_that_are_trusted(run_fit, monkeypatch):
    only = np.array([False, True])
    monkeypatch.setattr(GateRecord, "trusted", lambda *_: only)
    fitted = run_fit()
    assert kinds(fitted) == PLAN and (fitted.trusted == only).all()
    before, *relaxed = fitted.trace[1:4]
    for row in relaxed:
        assert set(row["loss"]) == {"swap"}
        for slot in (EXEMPLARS, TEMPLATE):
            held, moved = (
                row["probabilities"][slot][name] == before["probabilities"][slot][name]
                for name in ("sum", "swap")
            )
            assert held and not moved


def test_templates_alone_are_learned_without_a_gate(config):
    bare = make_space(0, templates=TEMPLATES[:2])
    fitted = fit(bare, config, counter=BudgetCounter())
    assert kinds(fitted) == ["measured"] * 4  # no relaxed step without exemplars
    losses = np.array([[r["loss"][t.name] for t in bare.tasks] for r in fitted.trace])
    assert (losses > 0).all() and all("spearman" not in r for r in fitted.trace)
    assert all(choice.exemplars == () for choice in mode_choices(bare, fitted.state))
    assert fitted.state.logits.keys() == {TEMPLATE}
