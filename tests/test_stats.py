"""Intervals and correlations against SciPy, coverage, and the empty cases."""

import math
import tracemalloc

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from metaharness import stats

VECTORS = arrays(np.float64, st.integers(2, 30), elements=st.floats(-1e6, 1e6))


def rng(seed=0):
    return np.random.default_rng(seed)


def test_mean_interval_agrees_with_scipy():
    values = rng(1).gamma(2.0, size=60)
    ours = stats.mean_interval(values, rng=rng(2), num_resamples=40_000)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=40_000, rng=rng(3)
    ).confidence_interval
    assert ours.mean == pytest.approx(values.mean(), rel=1e-12)
    # two Monte Carlo quantiles of 40,000: their error is about 1% of the sd
    assert ours.low == pytest.approx(theirs.low, abs=0.04 * values.std() / 60**0.5)
    assert ours.high == pytest.approx(theirs.high, abs=0.04 * values.std() / 60**0.5)


def test_paired_difference_agrees_with_scipy():
    base = rng(4).normal(size=50)
    values = base + rng(5).normal(0.3, 0.2, size=50)
    ours = stats.paired_difference(values, base, rng=rng(6), num_resamples=40_000)
    theirs = scipy.stats.bootstrap(
        (values, base),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        paired=True,
        method="percentile",
        n_resamples=40_000,
        rng=rng(7),
    ).confidence_interval
    tolerance = 0.04 * (values - base).std() / 50**0.5
    assert ours.low == pytest.approx(theirs.low, abs=tolerance)
    assert ours.high == pytest.approx(theirs.high, abs=tolerance)


def test_pairing_removes_what_both_sides_share():
    base = rng(8).normal(0, 100, size=80)
    paired = stats.paired_difference(base + 1, base, rng=rng())
    assert paired.low == pytest.approx(1)
    assert paired.high == pytest.approx(1)


def test_ratio_agrees_with_scipy_and_weighs_items_by_their_denominator():
    below = rng(4).integers(1, 30, size=50)
    above = below * rng(5).gamma(2.0, size=50)
    ours = stats.ratio_interval(above, below, rng=rng(6), num_resamples=40_000)
    theirs = scipy.stats.bootstrap(
        (above, below),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        method="percentile",
        n_resamples=40_000,
        rng=rng(7),
    )
    assert ours.mean == pytest.approx(above.sum() / below.sum(), rel=1e-12)
    tolerance = 0.04 * theirs.standard_error
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=tolerance)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=tolerance)


def test_ratio_of_one_item_of_none_and_of_what_is_not_a_ratio():
    one = stats.ratio_interval([3.0], [2], rng=rng())
    assert one.mean == 1.5 and math.isnan(one.low)
    assert math.isnan(stats.ratio_interval([], [], rng=rng()).mean)
    constant = stats.ratio_interval([2.0, 4.0, 8.0], [1, 2, 4], rng=rng())
    assert constant == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="denominators above 0, got 0"):
        stats.ratio_interval([1.0, 2.0], [1, 0], rng=rng())
    with pytest.raises(ValueError, match="vectors of one length"):
        stats.ratio_interval([1.0, 2.0], [1], rng=rng())


@pytest.mark.parametrize("num_runs", [1, 12])
def test_interval_holds_the_true_mean_as_often_as_it_says(num_runs):
    source, hits, trials = rng(9), 0, 400
    for _ in range(trials):
        runs = source.normal(size=(num_runs, 1)) * (num_runs > 1)
        table = runs + source.normal(size=40) + source.normal(size=(num_runs, 40))
        interval = stats.mean_interval(table, rng=source, num_resamples=300)
        hits += interval.low <= 0 <= interval.high
    # 95% of 400 with a standard deviation of 4.4; small samples cover a bit less
    assert 0.89 <= hits / trials <= 0.985


def test_runs_widen_the_interval():
    table = rng(10).normal(size=(6, 1)) + rng(11).normal(0, 0.01, size=(6, 50))
    narrow = stats.mean_interval(table.mean(0), rng=rng())
    wide = stats.mean_interval(table, rng=rng())
    assert wide.high - wide.low > 10 * (narrow.high - narrow.low)
    assert wide.mean == pytest.approx(narrow.mean)


def test_same_generator_same_interval_and_level_orders_width():
    values = rng(12).normal(size=30)
    first = stats.mean_interval(values, rng=rng(1))
    assert first == stats.mean_interval(values, rng=rng(1))
    wider = stats.mean_interval(values, rng=rng(1), level=0.99)
    assert wider.low < first.low < first.mean < first.high < wider.high


def test_many_items_stay_within_memory_and_chunks_join():
    values = rng(13).normal(size=20_000)
    tracemalloc.start()
    interval = stats.mean_interval(values, rng=rng(), num_resamples=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6  # all at once would be 20,000 x 1,000 x 16 bytes = 320 MB
    half = (interval.high - interval.low) / 2
    assert half == pytest.approx(1.96 / 20_000**0.5, rel=0.1)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_no_values_are_unknown_in_all_three(shape):
    interval = stats.mean_interval(np.zeros(shape), rng=rng())
    assert all(math.isnan(part) for part in interval)


def test_one_item_has_a_mean_and_no_interval():
    interval = stats.mean_interval([2.5], rng=rng())
    assert interval.mean == 2.5
    assert math.isnan(interval.low) and math.isnan(interval.high)
    difference = stats.paired_difference([2.5], [1.0], rng=rng())
    assert difference.mean == 1.5 and math.isnan(difference.low)


def test_sides_of_different_items_and_levels_out_of_range_are_refused():
    with pytest.raises(ValueError, match="3 items against 2"):
        stats.paired_difference([1, 2, 3], [1, 2], rng=rng())
    with pytest.raises(ValueError, match="level"):
        stats.mean_interval([1, 2, 3], rng=rng(), level=95)
    with pytest.raises(ValueError, match=r"\[items\] or \[runs, items\]"):
        stats.mean_interval(np.zeros((2, 2, 2)), rng=rng())


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_proportion_agrees_with_scipy(pair):
    num_successes, num_trials = pair
    ours = stats.proportion_interval(num_successes, num_trials)
    theirs = scipy.stats.binomtest(num_successes, num_trials).proportion_ci(
        method="wilson"
    )
    assert ours.low == pytest.approx(theirs.low, abs=1e-9)
    assert ours.high == pytest.approx(theirs.high, abs=1e-9)
    assert 0 <= ours.low <= ours.mean <= ours.high <= 1


def test_proportion_of_nothing_and_of_all():
    nothing = stats.proportion_interval(0, 0)
    assert math.isnan(nothing.mean) and (nothing.low, nothing.high) == (0, 1)
    assert stats.proportion_interval(0, 16).high == pytest.approx(0.1936, abs=1e-3)
    with pytest.raises(ValueError, match="0 to 3 successes, got 4"):
        stats.proportion_interval(4, 3)


@given(VECTORS, st.integers(0, 2**32 - 1), st.booleans())
def test_spearman_agrees_with_scipy_with_and_without_ties(first, seed, rounded):
    second = rng(seed).permutation(first) + rng(seed + 1).normal(size=first.size)
    if rounded:
        first, second = np.round(first, -5), np.round(second, -5)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        assert math.isnan(stats.spearman(first, second))
        return
    expected = scipy.stats.spearmanr(first, second).statistic
    assert stats.spearman(first, second) == pytest.approx(expected, abs=1e-9)


@given(VECTORS)
def test_spearman_is_one_with_itself_and_minus_one_with_its_negative(values):
    if np.ptp(values) > 0:
        assert stats.spearman(values, values) == pytest.approx(1)
        assert stats.spearman(values, -values) == pytest.approx(-1)


@pytest.mark.parametrize(
    "pair", [([], []), ([1.0], [2.0]), ([1, 1, 1], [1, 2, 3]), ([1, math.nan], [1, 2])]
)
def test_spearman_is_unknown_where_there_is_no_order(pair):
    assert math.isnan(stats.spearman(*pair))


def test_correlation_interval_holds_the_true_value_as_often_as_it_says():
    # Spearman's of a normal pair with Pearson r: 6 / pi asin(r / 2)
    source, true = rng(14), 6 / math.pi * math.asin(0.8 / 2)
    hits, trials = 0, 2000
    for _ in range(trials):
        x = source.normal(size=20)
        y = 0.8 * x + 0.6 * source.normal(size=20)
        interval = stats.correlation_interval(stats.spearman(x, y), 20)
        hits += interval.low <= true <= interval.high
    assert 0.93 <= hits / trials <= 0.97  # standard error 0.5%


def test_correlation_interval_of_few_pairs_and_at_the_ends():
    low, high = stats.correlation_interval(0.5, 3)[1:]
    assert math.isnan(low) and math.isnan(high)
    assert math.isnan(stats.correlation_interval(math.nan, 50).low)
    perfect = stats.correlation_interval(1.0, 6)
    assert perfect.mean == perfect.high == 1 and 0.4 < perfect.low < 0.7
    opposite = stats.correlation_interval(-1.0, 6)
    assert (opposite.low, opposite.high) == (-1, pytest.approx(-perfect.low))


def test_cosine_of_known_angles_and_extreme_lengths():
    assert stats.cosine([1, 0], [1, 1]) == pytest.approx(0.5**0.5)
    assert stats.cosine([1e-300, 0], [1e-300, 1e-300]) == pytest.approx(0.5**0.5)
    assert stats.cosine([1e300, 0], [-1e300, 0]) == -1
    assert math.isnan(stats.cosine([0, 0], [1, 2]))
    assert math.isnan(stats.cosine([], []))
    assert math.isnan(stats.cosine([math.inf, 1], [1, 2]))
    with pytest.raises(ValueError, match="one length"):
        stats.cosine([1, 2], [1, 2, 3])
