"""Sentences and page follow from the rows: other results, other sentences."""

import re

import pytest

from experiments.microscope.claims import claims
from experiments.microscope.report import markdown, render


def row(estimator, problem="toy", **changes):
    found = {
        "estimator": estimator,
        "problem": problem,
        "member": estimator,
        "default": True,
        "unbiased": True,
        "hard_forward": True,
        "needs": ["values"],
        "evaluations": 8,
        "relative_bias": 0.01,
        "bias_floor": 0.01,
        "relative_variance": 1.0,
        "relative_error": 1.0,
        "cosine": 0.5,
        "cosine_of_mean": 0.9,
        "descent": 0.9,
        "instances_biased": 0,
        "instances": 3,
        "wall_us_per_step": 5.0,
        "steps_to_1_percent": 100.0,
        "evaluations_to_1_percent": 800.0,
        "share_within_1_percent": 1.0,
        "final_gap": 0.001,
        "mode_regret": 0.0,
        "share_wrong_mode": 0.0,
        "curve": {
            "every": 10,
            "median": [1.0, 0.5, 0.1],
            "low": [1.0, 0.4, 0.05],
            "high": [1.0, 0.6, 0.2],
        },
        "by_scale": [
            {"scale": scale, "entropy": 1 / (1 + scale), "cosine": 0.5}
            for scale in (0.0, 1.0)
        ],
        "by_tau": [],
    }
    found |= changes
    for kind in ("variance", "error"):
        value = found[f"relative_{kind}"]
        found[f"{kind}_x_cost"] = None if value is None else 8 * value
    return found


def bits(label, loss, difference):
    one = {"power": 2.0, "loss": loss, "floor": 0.2025, "reference": loss - difference}
    return {
        "estimator": label,
        "problem": "polynomial",
        "member": label,
        "steps": 8000,
        "record_every": 100,
        "powers": [one | {"difference": difference, "curve": [loss]}],
    }


def results(rows):
    return {
        "rows": rows,
        "config": {"sizes": {"instances": 3, "chains": 4}, "seed": 0},
        "provenance": {"device": "cpu"},
        "seconds": 12.0,
        "about": {"toy": "A toy <with> signs."},
        "skipped": ["Something was left out."],
    }


def test_a_bias_above_the_floor_of_an_unbiased_estimator_is_said():
    fair = " ".join(claims([row("a"), row("b")]))
    assert "No estimator that states to be unbiased shows a bias" in fair
    assert "2 measurements on 1 problems" in fair
    rows = [row("a"), row("b", relative_bias=0.3, instances_biased=3)]
    caught = " ".join(claims(rows))
    assert "b states to be unbiased, yet its relative bias on toy is 0.3" in caught
    assert "No estimator that states" not in caught


def test_a_biased_estimator_is_named_with_its_worst_problem():
    rows = [
        row("c", "one", unbiased=False, relative_bias=0.2, instances_biased=2),
        row("c", "two", unbiased=False, relative_bias=0.4, instances_biased=3),
        row("c", "three", unbiased=False),
    ]
    (said,) = [text for text in claims(rows) if text.startswith("c has")]
    assert "on 2 of 3 problems" in said
    assert "0.4 (floor 0.01) on two" in said
    (said,) = [text for text in claims(rows[2:]) if text.startswith("c shows")]
    assert said == "c shows no bias above its floor on 1 problem."


@pytest.mark.parametrize("winner, loser", [("a", "b"), ("b", "a")])
def test_the_cheapest_and_the_fastest_are_those_of_the_rows(winner, loser):
    rows = [
        row(
            winner,
            relative_variance=0.1,
            relative_error=0.1,
            evaluations_to_1_percent=90.0,
        ),
        row(loser, mode_regret=0.3, share_wrong_mode=0.25),
    ]
    said = claims(rows)
    assert any(f"is that of {winner}: 0.8" in text for text in said)
    assert any(f"{winner} is within 1 %" in text and "90)" in text for text in said)
    assert any(f"{loser} would deploy" in text and "25%" in text for text in said)
    assert not any(f"is that of {loser}" in text for text in said)


def test_runs_that_do_not_arrive_and_failures_are_said():
    rows = [
        row("a", evaluations_to_1_percent=None, steps_to_1_percent=None),
        row("nan", relative_variance=None),
        {"estimator": "d", "problem": "toy", "error": "ValueError: no"},
    ]
    said = claims(rows)
    assert "On toy no estimator brings half of its runs within 1 %" in " ".join(said)
    assert "d could not be measured on toy: ValueError: no" in said
    assert "nan gives estimates that are not finite on toy." in said


def test_polynomial_sentences_count_what_lands_within_the_tolerance():
    said = " ".join(claims([bits("x", 0.2030, 0.001), bits("y", 0.2475, 0.004)]))
    assert "1 of 2 losses are within 0.003" in said
    assert "+0.0040 (y, power 2)" in said
    assert "y is still 0.0450 above the least" in said
    assert "x comes within 0.0005 of the least" in said
    said = " ".join(claims([bits("x", 0.2030, 0.001), bits("y", 0.2031, 0.002)]))
    assert "2 of 2 losses are within 0.003" in said


def test_temperature_sentences_follow_the_sweep():
    sweep = [
        {"tau": tau, "relative_variance": variance, "relative_bias": 0.1}
        for tau, variance in ((0.1, 8.0), (2.0, 2.0))
    ]
    said = " ".join(claims([row("g", by_tau=sweep)]))
    assert "Cooled from tau 2 to 0.1, g has 4 times the variance on toy." in said
    less = [one | {"relative_variance": 2.0} for one in sweep]
    said = " ".join(claims([row("g", by_tau=sweep), row("g", "two", by_tau=less)]))
    assert "4 times the variance on toy, the most of 2 problems, and 1 times on" in said


def test_the_page_is_whole_and_loads_nothing():
    sweep = [
        {"tau": tau, "relative_variance": 1 / tau, "relative_bias": 0.1}
        for tau in (0.1, 1.0)
    ]
    rows = [
        row("a", by_tau=sweep),
        row("exact", relative_variance=0.0, relative_bias=0.0, bias_floor=0.0),
        row(
            "nan",
            relative_variance=None,
            relative_error=None,
            cosine=None,
            curve={"every": 10} | dict.fromkeys(("median", "low", "high"), [None] * 3),
        ),
        {"estimator": "d", "problem": "toy", "error": "ValueError: <no>"},
        bits("x", 0.2030, 0.001),
    ]
    page = render(results(rows))
    assert page.count("<svg") == 4
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert "A toy &lt;with&gt; signs." in page
    assert "prefers-color-scheme: dark" in page
    for text in claims(rows):
        assert text.replace("<", "&lt;").replace(">", "&gt;") in page
    table = markdown(rows)
    assert "| x | 0.2030 (+0.0010) |" in table
    assert "## failed" in table
