"""Numbers in tables: true minus, dash for unknown, ends kept apart."""

import math

import pytest

from metaharness.runlog import formats
from metaharness.stats import Interval


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1234.5, "1,234.50"), (-0.5, "−0.50"), (-0.001, "0.00"), (0, "0.00")],
)
def test_numbers(value, expected):
    assert formats.number(value) == expected


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_not_known_is_a_dash(value):
    for function in (
        formats.number,
        formats.percent,
        formats.probability,
        formats.duration,
    ):
        assert function(value) == "–"


def test_signs_only_where_asked_and_not_on_zero():
    assert formats.number(0.5, sign=True) == "+0.50"
    assert formats.number(0.001, sign=True) == "0.00"


def test_bounds_need_both_ends():
    assert formats.bounds(Interval(1, -0.5, 2)) == "−0.50 to 2.00"
    assert formats.bounds(Interval(1, math.nan, math.nan)) == ""
    assert formats.bounds(None) == ""
    assert formats.percent_bounds(Interval(0.1, 0.04, 0.2)) == "4 to 20%"
    assert formats.percent_bounds(None) == ""


def test_differences_of_shares_are_in_points_with_a_sign():
    assert [formats.points(x) for x in (0.125, -0.06, 0.001)] == ["+12", "−6", "0"]
    assert formats.points(None) == formats.points(math.nan) == "–"
    assert formats.points_bounds(Interval(0.04, -0.02, 0.1)) == "−2 to +10"
    assert formats.points_bounds(Interval(0.04, math.nan, math.nan)) == ""
    assert formats.points_bounds(None) == ""


def test_probabilities_that_round_to_an_end_are_not_shown_as_one():
    assert [formats.probability(p) for p in (0, 0.001, 0.5, 0.999, 1)] == [
        "0.00",
        "<0.01",
        "0.50",
        ">0.99",
        "1.00",
    ]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.6, "1 min 0 s"),
        (291.4, "4 min 51 s"),
        (9000, "2.5 h"),
    ],
)
def test_durations(seconds, expected):
    assert formats.duration(seconds) == expected
