"""A report shows what was measured, and says why nothing was learned."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaharness.harness.space import EXEMPLARS, TEMPLATE
from metaharness.runlog.budget import BudgetCounter
from metaharness.train.deploy import mode_choices, probabilities
from metaharness.train.diagnosis import diagnose
from metaharness.train.summary import build_report, trust_rows
from metaharness.train.trust import GateRecord


def notes_of(space, fitted):
    return [note.text for note in diagnose(space, fitted)]


def with_logits(fitted, factor, **changed):
    phi = jax.tree.map(lambda x: factor * x, fitted.state.phi)
    state = fitted.state._replace(phi=phi)
    return dataclasses.replace(fitted, state=state, **changed)


@pytest.fixture(scope="module")
def report(space, ran):
    return build_report(
        space,
        ran.first,
        [],
        counter=BudgetCounter(),
        seed=0,
        command="metaharness train",
        notes=[],
        config={"seed": 0},
        provenance={},
    )


def test_slots_show_each_tasks_own_candidates_over_time(space, ran, report):
    chances = probabilities(space, ran.first.state)
    modes = mode_choices(space, ran.first.state)
    assert len(report.slots) == 4
    for shown in report.slots:
        task = [t.name for t in space.tasks].index(shown.task)
        ids = np.flatnonzero(space.masks[shown.slot][task])
        assert shown.steps == tuple(range(7)) and len(shown.candidates) == len(ids)
        start = space.families[shown.slot].k / len(ids)
        np.testing.assert_allclose(shown.probabilities[0], start)
        last = chances[shown.slot][task][ids]
        np.testing.assert_allclose(shown.probabilities[-1], last, atol=1e-5)
        chosen = [shown.candidates[at].name for at in shown.chosen]
        if shown.slot == EXEMPLARS:
            pool = space.harness.candidates
            assert [c.name for c in shown.candidates] == [pool[i].uid for i in ids]
            assert [c.kind for c in shown.candidates] == [pool[i].kind for i in ids]
            assert chosen == [pool[i].uid for i in modes[task].exemplars]
        else:
            names = [t.name for t in space.harness.template.pool]
            assert chosen == [names[modes[task].template]]


def test_curves_are_the_losses_of_the_trace_with_their_stages(ran, report):
    (curve,) = report.curves
    for series in curve.series:
        assert series.x == tuple(range(1, 7))
        assert list(series.y) == [r["loss"][series.name] for r in ran.first.trace]
    assert [(s.name, s.start, s.stop) for s in curve.spans] == [
        ("measured", 1, 2),
        ("relaxed", 3, 4),
        ("measured", 5, 6),
    ]


def test_prompts_are_the_deployed_ones_with_a_validation_question(space, report):
    for task, shown in zip(space.tasks, report.prompts, strict=True):
        item = task.validation[0]
        assert shown.task == task.name and shown.answer == item.answer
        assert item.question in shown.text
        assert len(space.model.tokenizer.encode(shown.text)) == shown.num_tokens


def test_trust_is_shown_with_its_pairs(space, ran, report):
    ranks = ran.first.gate.spearman()
    last = ran.first.trace[-1]
    for row, rank in zip(report.trust, ranks, strict=True):
        assert row.spearman == pytest.approx(rank) and row.num_harnesses == 16
        assert row.slope_fit == last["slope_r2"][row.task]
        assert row.ridge_fit == last["ridge_r2"][row.task]


def test_trust_that_is_not_known_is_left_open(space, ran):
    once = dataclasses.replace(ran.first, trace=ran.first.trace[:1], gate=GateRecord(2))
    for row in trust_rows(space, once):
        assert row.spearman is row.slope_fit is row.ridge_fit is None
        assert row.num_harnesses == 0
    never = dataclasses.replace(ran.first, trace=[])
    assert trust_rows(space, never) == []


def test_a_search_that_stopped_says_why(space, ran):
    cut = dataclasses.replace(ran.first, stopped="asked to")
    assert notes_of(space, cut)[0] == "Training stopped early: asked to."
    none = dataclasses.replace(cut, trace=[])
    assert notes_of(space, none) == [
        "Training stopped early: asked to.",
        "Nothing learned, because no step was done.",
    ]


def losses(*values):
    row = {"kind": "measured"}
    equal = {"sum": 0.0, "swap": 0.0}
    spread = equal if len(set(values)) == 1 else {"sum": 0.1, "swap": 0.1}
    return [row | {"loss": {"sum": x, "swap": x}, "spread": spread} for x in values]


def within(*values):
    """Losses that differ between updates, and never within one."""
    equal = {"sum": 0.0, "swap": 0.0}
    return [row | {"spread": equal} for row in losses(*values)]


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (losses(3.0), "updated only once"),
        (losses(3.0, 3.0, 3.0), "all its losses were equal"),
        (losses(3.0, 2.0), "no candidate was consistently better"),
        (within(3.0, 2.0), "no candidate had an advantage"),
    ],
)
def test_a_slot_that_stayed_uniform_says_why(space, ran, trace, reason):
    for factor, said in ((0.0, "got no gradient at all"), (1e-3, "near uniform")):
        notes = notes_of(space, with_logits(ran.first, factor, trace=trace))
        for task in ("sum", "swap"):
            for slot in (EXEMPLARS, TEMPLATE):
                (note,) = [n for n in notes if n.startswith(f"{task}: slot {slot} ")]
                assert said in note and reason in note


def test_a_slot_that_moved_or_saturated_is_told_apart(space, ran):
    assert not any("uniform" in n for n in notes_of(space, ran.first))
    certain = notes_of(space, with_logits(ran.first, 1e3))
    assert sum("is saturated" in n for n in certain) == 4
    half = jnp.asarray([[0.4, 0.0], [0.4, 0.0]])
    state = ran.first.state
    delta = {**state.phi.delta, TEMPLATE: half}
    state = state._replace(phi=state.phi._replace(delta=delta))
    moved = notes_of(space, dataclasses.replace(ran.first, state=state))
    assert not any("slot template" in n for n in moved)


def test_the_tasks_of_relaxed_steps_are_named(space, ran):
    both = notes_of(space, ran.first)
    assert "Relaxed steps were taken for sum, swap." in both
    only = dataclasses.replace(ran.first, trusted=np.array([False, True]))
    (note,) = [n for n in notes_of(space, only) if n.startswith("Relaxed")]
    assert note.startswith("Relaxed steps were taken for swap; not for sum,")
    none = [row for row in ran.first.trace if row["kind"] == "measured"]
    quiet = notes_of(space, dataclasses.replace(ran.first, trace=none))
    assert not any(n.startswith("Relaxed") for n in quiet)
