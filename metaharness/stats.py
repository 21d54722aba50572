"""Intervals and correlations that every report uses. Host side, NumPy, float64.

What cannot be known is NaN: the mean of no items, an interval from one item, the
correlation with a constant. Nothing here warns or raises for too few items.

Written out because `scipy.stats` takes 0.6 s to import; the tests compare with it.
"""

import math
from collections.abc import Callable
from functools import reduce
from operator import sub, truediv
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

_RESAMPLED_VALUES_AT_ONCE = 4_000_000  # bounds the memory: 64 MB of indices and values


class Interval(NamedTuple):
    """A mean and the bounds of its confidence interval, in the values' unit."""

    mean: float
    low: float
    high: float


def mean_interval(
    values: ArrayLike,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    num_resamples: int = 4000,
) -> Interval:
    """Mean with a percentile bootstrap interval (Efron 1979).

    Args:
      values: float ``[items]``, or ``[runs, items]``: several runs (random harnesses,
        seeds) on the same items. Runs are then drawn anew as items are, so that the
        interval also covers what other runs would have given (a little too wide
        rather than too narrow: Owen 2007, the pigeonhole bootstrap).
      rng: decides which items are drawn.
      level: share of intervals that hold the true mean, in (0, 1).
      num_resamples: bootstrap samples, at least 1.

    Returns:
      NaN for all three without values; NaN bounds with a single one.
    """
    table = _as_table(values)
    return _bootstrap((table,), rng=rng, level=level, num_resamples=num_resamples)


def paired_difference(
    values: ArrayLike,
    baseline: ArrayLike,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    num_resamples: int = 4000,
) -> Interval:
    """Mean of values minus baseline, with a paired bootstrap interval.

    Both sides see the same items in each resample; their runs are drawn separately.

    Args:
      values: float ``[items]`` or ``[runs, items]``.
      baseline: float ``[items]`` or ``[other runs, items]``, the same items in the
        same order.
      rng, level, num_resamples: as in `mean_interval`.

    Raises:
      ValueError: the two have different numbers of items.
    """
    first, second = _as_table(values), _as_table(baseline)
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"paired difference: {first.shape[1]} items against {second.shape[1]};"
            " pass both sides of the same items."
        )
    return _bootstrap(
        (first, second), rng=rng, level=level, num_resamples=num_resamples
    )


def ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    num_resamples: int = 4000,
) -> Interval:
    """Sum of numerators over sum of denominators, with a bootstrap interval.

    The mean per token, say, where items of many tokens count for more; items are drawn
    with both of their numbers.

    Args:
      numerators: float ``[items]``.
      denominators: float ``[items]``, above 0, of the same items in the same order.
      rng, level, num_resamples: as in `mean_interval`.

    Raises:
      ValueError: shapes differ, or a denominator is not above 0.
    """
    above, below = _as_pair(numerators, denominators)
    if not (below > 0).all():
        raise ValueError(
            f"ratio: expected denominators above 0, got {below.min()}; leave out items"
            " that have none."
        )
    tables = (above[None], below[None])
    return _bootstrap(
        tables, rng=rng, level=level, num_resamples=num_resamples, join=truediv
    )


def proportion_interval(
    num_successes: int, num_trials: int, *, level: float = 0.95
) -> Interval:
    """Share of successes with Wilson's score interval (Wilson 1927, equation 1).

    Unlike the bootstrap it does not shrink to a point at 0 of n and n of n.

    Returns:
      (NaN, 0, 1) without trials.

    Raises:
      ValueError: the number of successes is not in 0 to num_trials.
    """
    if not 0 <= num_successes <= num_trials:
        raise ValueError(
            f"proportion: expected 0 to {num_trials} successes, got {num_successes}."
        )
    if num_trials == 0:
        return Interval(math.nan, 0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = num_successes / num_trials
    scale = 1 / (1 + z * z / num_trials)
    centre = scale * (share + z * z / (2 * num_trials))
    half = (
        scale
        * z
        * math.sqrt(
            share * (1 - share) / num_trials + z * z / (4 * num_trials * num_trials)
        )
    )
    # At the ends the bound is the share itself; rounding must not move past it.
    low = 0.0 if num_successes == 0 else centre - half
    high = 1.0 if num_successes == num_trials else centre + half
    return Interval(share, low, high)


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Rank correlation of two ``[n]``, in [-1, 1]; ties share their mean rank.

    NaN for fewer than two pairs, a constant side, or a NaN in either.
    """
    a, b = _as_pair(first, second)
    if a.size < 2 or np.isnan(a).any() or np.isnan(b).any():
        return math.nan
    return cosine(_centred_ranks(a), _centred_ranks(b))


def correlation_interval(
    correlation: float, num_pairs: int, *, level: float = 0.95
) -> Interval:
    """Rank correlation with an interval from its Fisher transform.

    The transform's variance is 1.06 / (n - 3) (Fieller, Hartley and Pearson 1957). A
    perfect correlation counts as one with a single swap of neighbouring ranks, so that
    few pairs do not give an interval without width.

    Args:
      correlation: Spearman's, in [-1, 1], of ``num_pairs`` pairs.

    Returns:
      NaN bounds for fewer than four pairs or a correlation that is NaN.
    """
    if num_pairs < 4 or math.isnan(correlation):
        return Interval(correlation, math.nan, math.nan)
    one_swap = 1 - 12 / (num_pairs * (num_pairs**2 - 1))
    centre = math.atanh(min(max(correlation, -one_swap), one_swap))
    half = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(1.06 / (num_pairs - 3))
    low, high = math.tanh(centre - half), math.tanh(centre + half)
    return Interval(correlation, min(low, correlation), max(high, correlation))


def cosine(first: ArrayLike, second: ArrayLike) -> float:
    """Cosine of the angle between two ``[n]``, in [-1, 1].

    NaN for a zero vector and for entries that are not finite.
    """
    a, b = _as_pair(first, second)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    a, b = _scaled(a), _scaled(b)
    length = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(np.clip(a @ b / length, -1.0, 1.0)) if length else math.nan


def _bootstrap(
    tables: tuple[np.ndarray, ...],
    *,
    rng: np.random.Generator,
    level: float,
    num_resamples: int,
    join: Callable[..., Any] = sub,
) -> Interval:
    """Interval of the first table's mean, joined with the second's if there is one."""
    if not 0 < level < 1:
        raise ValueError(f"level: expected a share between 0 and 1, got {level}.")
    if any(table.size == 0 for table in tables):
        return Interval(math.nan, math.nan, math.nan)
    num_items = tables[0].shape[1]
    mean = reduce(join, [float(table.mean()) for table in tables])
    if num_items == 1:
        return Interval(mean, math.nan, math.nan)
    chunk = max(1, _RESAMPLED_VALUES_AT_ONCE // num_items)
    means = np.concatenate(
        [
            _resampled_means(tables, min(chunk, num_resamples - start), rng, join)
            for start in range(0, num_resamples, chunk)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high))


def _resampled_means(
    tables: tuple[np.ndarray, ...],
    num: int,
    rng: np.random.Generator,
    join: Callable[..., Any],
) -> np.ndarray:
    """Bootstrap means float ``[num]``; all tables share the drawn items."""
    num_items = tables[0].shape[1]
    item_counts = _counts(num_items, num, rng)
    sides = []
    for table in tables:
        by_run = item_counts @ table.T / num_items  # [num, runs]
        num_runs = table.shape[0]
        if num_runs == 1:
            sides.append(by_run[:, 0])
        else:
            run_counts = _counts(num_runs, num, rng)
            sides.append((run_counts * by_run).sum(1) / num_runs)
    return reduce(join, sides)


def _counts(size: int, num: int, rng: np.random.Generator) -> np.ndarray:
    """How often each of ``size`` was drawn, in ``num`` resamples: ``[num, size]``."""
    drawn = rng.integers(0, size, (num, size))
    drawn += np.arange(num)[:, None] * size
    return np.bincount(drawn.ravel(), minlength=num * size).reshape(num, size)


def _centred_ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    return mean_rank[inverse] - (values.size + 1) / 2


def _scaled(vector: np.ndarray) -> np.ndarray:
    """The same direction with largest entry 1: squares neither overflow nor vanish."""
    largest = np.abs(vector).max(initial=0.0)
    return vector / largest if largest else vector


def _as_table(values: ArrayLike) -> np.ndarray:
    table = np.asarray(values, np.float64)
    if table.ndim not in (1, 2):
        raise ValueError(
            f"expected values [items] or [runs, items], got shape {table.shape}."
        )
    return np.atleast_2d(table)


def _as_pair(first: ArrayLike, second: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(
            f"expected two vectors of one length, got shapes {a.shape} and {b.shape}."
        )
    return a, b
