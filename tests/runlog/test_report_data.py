"""Report data: shapes are checked, and JSON gives back the same report."""

import json
import math

import pytest
from sample_report import sample_report

from metaharness.errors import RunError
from metaharness.runlog import jsonfile
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.report_data import (
    OVERALL,
    Candidate,
    Report,
    ScoreRow,
    Series,
    SlotReport,
    budget_rows,
    from_json,
    scores_by_task,
)
from metaharness.stats import Interval


def test_json_gives_back_the_same_report():
    report = sample_report()
    text = jsonfile.dumps(report)
    again = from_json(json.loads(text))
    assert jsonfile.json_safe(again) == json.loads(text)
    assert again.scores == report.scores and again.slots == report.slots
    assert again.attribution == report.attribution
    assert math.isnan(again.curves[1].series[0].y[4])  # null on file


def test_a_bare_report_comes_back():
    assert from_json(jsonfile.json_safe(Report(title="x"))) == Report(title="x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [{"method": "mode"}]}, r"report.scores\[0\]: .*task"),
        (
            {"notes": [{"text": "a", "colour": "red"}]},
            r"notes\[0\]: expected only text",
        ),
        ({"notes": {"text": "a"}}, "report.notes: expected a list"),
        ({"title": 3}, "report.title: expected a value of type str, got 3"),
        ({"seconds": "long"}, "report.seconds: expected a number, got 'long'"),
        ({"trust": ["gsm8k"]}, r"report.trust\[0\]: expected an object"),
    ],
)
def test_data_of_another_shape_is_refused_by_path(change, message):
    with pytest.raises(RunError, match=message):
        from_json({"title": "x"} | change)


def slot(**changes):
    parts = {
        "task": "gsm8k",
        "slot": "exemplars",
        "k": 1,
        "candidates": (Candidate("a"), Candidate("b")),
        "steps": (0, 1),
        "probabilities": ((0.5, 0.5), (0.9, 0.1)),
        "chosen": (0,),
    }
    return SlotReport(**(parts | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": (0,)}, "1 steps for 2 rows"),
        ({"steps": (), "probabilities": ()}, "at least one row"),
        ({"probabilities": ((0.5, 0.5), (1.0,))}, "rows of 2 probabilities"),
        ({"chosen": (2,)}, "not within 2 candidates"),
        ({"chosen": (-1,)}, "not within 2 candidates"),
    ],
)
def test_slots_that_do_not_fit_together_are_refused(changes, message):
    slot()
    with pytest.raises(ValueError, match=f"'exemplars' of task 'gsm8k'.*{message}"):
        slot(**changes)


def test_series_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="series 'loss': expected 2 values"):
        Series("loss", (0, 1), (1.0,))


def test_scores_are_grouped_with_all_tasks_first_and_methods_in_order():
    interval = Interval(1, 1, 1)

    def row(method, task):
        return ScoreRow(method=method, task=task, num_items=1, loss=interval)

    rows = [
        row("mine", "b"),
        row("mode", "b"),
        row("zero_shot", "b"),
        row("mode", OVERALL),
        row("mode", "a"),
    ]
    by_task = scores_by_task(rows)
    assert list(by_task) == [OVERALL, "b", "a"]
    assert [r.method for r in by_task["b"]] == ["zero_shot", "mode", "mine"]
    assert scores_by_task([]) == {}


def test_cells_and_effects_are_found_by_name():
    row = sample_report().attribution[0]
    assert row.cell("adapted", "seed") is row.cells[2]
    assert row.effect("total") is row.effects[5]
    assert row.cell("adapted", "other") is None and row.effect("other") is None


def test_budget_rows_end_with_the_whole_run():
    counter = BudgetCounter()
    with counter.phase("train"), counter.phase("validation"):
        counter.add(lm_calls=2)
    rows = budget_rows(counter)
    assert [row.phase for row in rows] == ["train", "train/validation", ""]
    assert [row.counts.lm_calls for row in rows] == [2, 2, 2]
