"""Every outcome of a small choice, as constant arrays."""

import functools
import itertools
import math

import numpy as np

LIMIT = 100_000
"""Largest number of outcomes that is ever enumerated."""


def check_countable(count: int, what: str) -> None:
    """Refuse an enumeration above ``LIMIT`` outcomes.

    Raises:
      ValueError: ``count`` is above the limit.
    """
    if count > LIMIT:
        raise ValueError(
            f"{what}: {count} outcomes, at most {LIMIT} can be enumerated; "
            "use a sampling estimator or a smaller pool."
        )


@functools.lru_cache(maxsize=64)
def combinations(n: int, k: int) -> np.ndarray:
    """All k-subsets of range(n) in lexicographic order: int32 `[C(n, k), k]`."""
    check_countable(math.comb(n, k), f"subsets of {k} of {n}")
    return _frozen(itertools.combinations(range(n), k), k)


@functools.lru_cache(maxsize=64)
def permutations(n: int, k: int) -> np.ndarray:
    """All ordered k-tuples of range(n): int32 `[n! / (n - k)!, k]`."""
    check_countable(math.perm(n, k), f"rankings of {k} of {n}")
    return _frozen(itertools.permutations(range(n), k), k)


def _frozen(
    rows: itertools.combinations | itertools.permutations, k: int
) -> np.ndarray:
    table = np.array(list(rows), np.int32).reshape(-1, k)
    table.flags.writeable = False  # cached and shared
    return table
