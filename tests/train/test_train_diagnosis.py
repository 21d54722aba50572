"""A training that learned nothing, or broke, says why."""

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from loss_tables import compile_on_tables, patch_objectives

from metaharness.harness.space import EXEMPLARS, TEMPLATE
from metaharness.runlog import jsonfile
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.report_data import from_json
from metaharness.train.diagnosis import diagnose
from metaharness.train.guards import Watch
from metaharness.train.loop import fit
from metaharness.train.stage_config import GuardConfig
from metaharness.train.summary import build_report

EVERYTHING = [
    (task, slot) for task in ("sum", "swap") for slot in (EXEMPLARS, TEMPLATE)
]


def constant(value):
    return lambda template, weights: jnp.full(template.shape, value)


def drawn_together(template, weights):
    """One loss for all harnesses of an update, another in the next."""
    total = (weights * jnp.arange(8.0)).sum(axis=(1, 2)) + template.sum(axis=1)
    return jnp.broadcast_to(total[:, None], template.shape)


def better(template, weights):
    return jnp.where(template == 1, 1.0, 2.0)


def known(template, weights):
    return jnp.where(template == 1, 1.0, jnp.nan)


EQUAL, UNKNOWN = constant(1.0), constant(math.nan)


@pytest.fixture(scope="module")
def said(space, config):
    """A training on a table, and what it says of itself."""

    @functools.cache
    def run(table, validation=None, *, samples=4, **guards):
        search = dataclasses.replace(
            config.search,
            estimator="reinforce",
            samples=samples,
            warmup_steps=6,
            relaxed_steps=0,
            measured_steps=0,
        )
        own = dataclasses.replace(config, search=search, guards=GuardConfig(**guards))
        with pytest.MonkeyPatch.context() as patch:
            patch_objectives(patch, space, table, validation)
            functions = compile_on_tables(space, own)
            fitted = fit(space, own, counter=BudgetCounter(), compiled=functions)
        return fitted, [note.text for note in diagnose(space, fitted)]

    return run


def assert_each_slot(notes, what, why):
    for task, slot in EVERYTHING:
        (note,) = [n for n in notes if n.startswith(f"{task}: slot {slot} ")]
        assert what in note and why in note


def test_equal_losses_teach_nothing(said):
    fitted, notes = said(EQUAL)
    assert all((np.asarray(x) == 0).all() for x in fitted.state.logits.values())
    assert_each_slot(notes, "got no gradient at all", "all its losses were equal")


def test_losses_that_are_equal_within_each_update_teach_nothing(said):
    fitted, notes = said(drawn_together)
    assert len({row["loss"]["sum"] for row in fitted.trace}) > 1
    assert_each_slot(notes, "got no gradient", "no candidate had an advantage")


def test_steps_made_of_rounding_errors_are_called_so(said):
    """A mean of six equal losses may be another number; slot_adam makes it large."""
    fitted, notes = said(constant(1 / 3), samples=6)
    assert np.abs(np.asarray(fitted.state.logits[EXEMPLARS])).max() < 2
    for task in ("sum", "swap"):
        own = [n for n in notes if n.startswith(f"{task}: slot {EXEMPLARS} ")]
        assert own and "all its losses were equal" in own[0]


def test_losses_that_are_not_numbers_are_named(space, said):
    fitted, notes = said(UNKNOWN)
    assert_each_slot(notes, "has no probabilities any more", "were not numbers")
    report = report_of(space, fitted)
    assert all(math.isnan(y) for series in report.curves[0].series for y in series.y)
    assert all(math.isnan(slot.probabilities[-1][0]) for slot in report.slots)


def test_without_a_validation_loss_the_start_is_kept(said):
    fitted, notes = said(EQUAL, UNKNOWN, validate_every=2)
    assert fitted.returned and fitted.watch == Watch(worse=4)
    assert "No validation loss was a number: the state of the start is kept." in notes
    assert "Nothing learned, because no validation loss was a number." in notes


def test_a_report_shows_a_validation_that_was_not_a_number(space, said):
    guards = {"validate_every": 2, "rollback": None}
    fitted, notes = said(better, known, **guards)
    values = [row["loss"]["sum"] for row in fitted.validations]
    assert values[0] is None and values[-1] == 1.0
    report = report_of(space, fitted)
    shown = report.curves[1].series[0].y
    assert [None if math.isnan(y) else y for y in shown] == values


def report_of(space, fitted):
    """A report, which its file can hold."""
    report = build_report(
        space,
        fitted,
        [],
        counter=BudgetCounter(),
        seed=0,
        command="",
        notes=[],
        config={},
        provenance={},
    )
    assert from_json(jsonfile.json_safe(report)).title == report.title
    return report


def test_the_first_state_was_kept_only_where_it_was_returned_to(space, said):
    """Notes of a resumed run are no evidence of that."""
    fitted, _ = said(EQUAL)
    watch = Watch(1.0, 0, 3)
    why = "Nothing learned, because the state before the first update validated best"
    resumed = dataclasses.replace(fitted, watch=watch, notes=("Resumed: x.",))
    assert not any(note.text.startswith(why) for note in diagnose(space, resumed))
    kept = dataclasses.replace(resumed, returned=True)
    assert any(note.text.startswith(why) for note in diagnose(space, kept))
