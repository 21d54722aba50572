"""Timing on an accelerator or CPU: warm up, synchronise, repeat, take the median."""

import statistics
import time
from collections.abc import Callable
from typing import Any


def median_seconds(
    run: Callable[[], Any], synchronise: Callable[[Any], None], *, repeats: int
) -> float:
    """Median wall seconds of ``run``, waited for, after two warm-up calls."""
    for _ in range(2):
        synchronise(run())
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        synchronise(run())
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
