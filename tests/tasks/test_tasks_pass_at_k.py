"""pass@k is the share of choices of k samples that hold a right one."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from metaharness.tasks.pass_at_k import pass_at_k


@pytest.mark.parametrize("num_samples", range(1, 9))
def test_it_is_the_share_of_choices_that_hold_a_pass(num_samples):
    for num_passed in range(num_samples + 1):
        samples = [True] * num_passed + [False] * (num_samples - num_passed)
        for k in range(1, num_samples + 1):
            choices = list(itertools.combinations(samples, k))
            share = sum(map(any, choices)) / len(choices)
            assert pass_at_k(num_samples, num_passed, k) == pytest.approx(share)


def test_it_is_unbiased():
    """Its mean over draws of n samples is 1 - (1 - p)^k."""
    p, n = 0.3, 6
    for k in range(1, n + 1):
        mean = sum(
            math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k)
            for c in range(n + 1)
        )
        assert mean == pytest.approx(1 - (1 - p) ** k, rel=1e-12)


@pytest.mark.parametrize(
    ("n", "c", "k"),
    [
        (200, 3, 100),
        (10_000, 1, 10),
        (10_000, 9_000, 1),
        (100_000, 1, 1),
        (10**6, 2, 5),
    ],
)
def test_large_numbers_keep_their_digits(n, c, k):
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert pass_at_k(n, c, k) == pytest.approx(float(exact), rel=1e-12)


def test_it_agrees_with_the_published_code():
    """Chen et al. 2021, figure 3."""
    for n, c, k in ((200, 13, 1), (200, 13, 10), (200, 13, 100), (20, 0, 5), (5, 3, 4)):
        published = 1.0
        if n - c >= k:
            published = 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))
        assert pass_at_k(n, c, k) == pytest.approx(published, abs=1e-12)


def test_the_ends_are_exact():
    assert pass_at_k(5, 0, 5) == 0.0 and math.copysign(1, pass_at_k(5, 0, 5)) == 1
    assert pass_at_k(5, 1, 5) == pass_at_k(5, 5, 1) == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 6, 1), "expected 0 to 5 passes, got 6"),
        ((5, -1, 1), "expected 0 to 5 passes, got -1"),
        ((5, 2, 0), "expected k from 1 to 5"),
        ((5, 2, 6), "expected k from 1 to 5 \\(the samples drawn\\), got 6; draw more"),
    ],
)
def test_impossible_numbers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(*arguments)
