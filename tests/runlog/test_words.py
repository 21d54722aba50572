"""Sentences follow the numbers: nothing is claimed that an interval leaves open."""

import dataclasses
import math

import pytest
from sample_report import sample_report

from metaharness.runlog import words
from metaharness.runlog.report_data import (
    Candidate,
    Report,
    ScoreRow,
    SlotReport,
    TrustRow,
)
from metaharness.stats import Interval


def row(method, mean, difference=None, task="gsm8k", **more):
    return ScoreRow(
        method=method,
        task=task,
        num_items=8,
        loss=Interval(mean, mean - 1, mean + 1),
        difference=difference,
        **more,
    )


def lead(difference):
    report = Report(title="x", scores=(row("random", 4), row("mode", 3, difference)))
    return words.headline(report)


def test_an_interval_below_zero_is_a_gain():
    found = lead(Interval(-1.0, -1.5, -0.5))
    assert found.better is True
    assert "beats random ones by 1.00 nats" in found.lead
    assert "95% interval 0.50 to 1.50" in found.lead


def test_an_interval_above_zero_is_a_loss_and_says_not_to_deploy():
    found = lead(Interval(1.0, 0.5, 1.5))
    assert found.better is False
    assert "worse than random ones by 1.00" in found.lead
    assert "do not deploy" in found.lead


@pytest.mark.parametrize(
    "difference",
    [
        Interval(-1.0, -2.5, 0.1),
        Interval(-1.0, -1, 0),
        Interval(-1, math.nan, math.nan),
    ],
)
def test_anything_else_shows_no_difference(difference):
    found = lead(difference)
    assert found.better is None
    assert found.lead.startswith("No difference")


def test_missing_rows_are_said_and_not_filled_in():
    empty = words.headline(Report(title="x"))
    assert empty == ("No scores were written down for this run.", None, ())
    unlearned = words.headline(Report(title="x", scores=(row("random", 4),)))
    assert unlearned.lead.startswith("No learned harness was scored")
    alone = words.headline(Report(title="x", scores=(row("mode", 3),)))
    assert "loss of 3.00 nats" in alone.lead and alone.better is None


def test_points_of_the_sample_report_name_tasks_and_pools():
    points = words.headline(sample_report()).points
    by_task = next(point for point in points if point.startswith("By task"))
    assert "lower loss on gsm8k (−2." in by_task
    assert "no difference shown on isomorphic_strings" in by_task
    assert any("in the pools 25% are" in point for point in points)
    assert any("best of 14 random harnesses" in point for point in points)
    assert any("6% (0 to 15%) with random" in point for point in points)


def test_the_best_random_harness_may_win():
    scores = (row("mode", 3, Interval(-1, -2, -0.5)), row("best_random", 2.5))
    found = words.headline(Report(title="x", scores=scores))
    assert any("is 0.50 above it" in point for point in found.points)
    # a gain over the mean alone is not shown as one
    assert found.better is None
    assert (
        "beats random ones" in found.lead and "but not the best of them" in found.lead
    )


@pytest.mark.parametrize(
    ("row", "level", "text"),
    [
        (TrustRow("t", 0.84, 64, 0.6, 0.7), "trust", "follows the sequential loss"),
        (TrustRow("t", 0.84, 64), "trust", "follows"),
        (TrustRow("t", 0.84, 64, 0.1, 0.7), "care", "slope explains little"),
        (TrustRow("t", 0.6, 64, 0.6, 0.7), "care", "64 harnesses do not show"),
        (TrustRow("t", 0.9, 6, 0.6, 0.7), "care", "6 harnesses do not show"),
        (TrustRow("t", 1.0, 3, 0.6, 0.7), "care", "3 harnesses do not show"),
        (TrustRow("t", 0.2, 64, -1.0, 0.7), "measure", "linear fit of measured losses"),
        (TrustRow("t", 0.2, 64, -1.0, 0.1), "measure", "order or combinations"),
        (TrustRow("t", 0.2, 64, -1.0, math.nan), "measure", "order or combinations"),
        (TrustRow("t", math.nan, 64), "measure", "not compared"),
        (TrustRow("t", None, 0), "measure", "not compared"),
    ],
)
def test_verdicts(row, level, text):
    verdict = words.trust_verdict(row)
    assert verdict.level == level
    assert text in verdict.text


def test_slot_summary_tells_chance_before_and_after():
    slot = SlotReport(
        task="t",
        slot="exemplars",
        k=2,
        candidates=(
            Candidate("a", "right"),
            Candidate("b", "right"),
            Candidate("c", "off_task"),
            Candidate("d", "off_task"),
        ),
        steps=(0,),
        probabilities=((0.9, 0.3, 0.7, 0.1),),
        chosen=(0, 2),
    )
    assert words.slot_summary(slot) == (
        "2 of 4 chosen. At random each has a chance of 0.50; the chosen have"
        " 0.70 to 0.90 (1 right, 1 off task)."
    )
    equal = dataclasses.replace(slot, probabilities=((0.5,) * 4,))
    assert "; the chosen have 0.50 (" in words.slot_summary(equal)
    unshown = dataclasses.replace(slot, chosen=())
    assert words.slot_summary(unshown).startswith("None shown: ")


def test_nested_phases_and_the_whole_run_have_names():
    assert words.phase_label("train/validation") == "train › validation"
    assert words.phase_label("") == "Whole run"
