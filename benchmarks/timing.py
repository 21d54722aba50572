"""Timing on an accelerator or CPU: warm up, synchronise, repeat, take the median."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
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


def interleaved_seconds(
    runs: Mapping[Hashable, Callable[[], Any]],
    synchronise: Callable[[Any], None],
    *,
    repeats: int,
    on_repeat: Callable[[int], None] = lambda done: None,
) -> dict[Hashable, list[float]]:
    """Wall seconds of every run, ``repeats`` each, after two warm-up calls.

    The runs take turns, so that whatever else keeps the machine busy slows all alike.
    """
    for run in runs.values():
        for _ in range(2):
            synchronise(run())
    seconds: dict[Hashable, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name, run in runs.items():
            started = time.perf_counter()
            synchronise(run())
            seconds[name].append(time.perf_counter() - started)
        on_repeat(repeat + 1)
    return seconds
