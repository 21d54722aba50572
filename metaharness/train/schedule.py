"""What each update of a run trains."""

import itertools
from typing import NamedTuple

from metaharness.train.config import TrainConfig

MEASURED, RELAXED, WEIGHTS, JOINT = "measured", "relaxed", "weights", "joint"
EPISODES = "episodes"
"""Kinds of updates. measured: phi, from sequential prompts; relaxed: phi, through the
gated pool; weights: theta alone; joint: both by one backward pass; episodes: phi, from
sequential prompts and graded episodes, in the place of measured where the harness has
policies."""

TRAINS_PHI = frozenset({MEASURED, RELAXED, JOINT, EPISODES})
TRAINS_THETA = frozenset({WEIGHTS, JOINT})


class Updates(NamedTuple):
    """Updates of a schedule, by what they train."""

    phi: int
    theta: int


def plan(config: TrainConfig) -> list[str]:
    """Kind of every update, in order; see ``ScheduleConfig``."""
    schedule, search = config.schedule, config.search
    harness = (
        [MEASURED] * search.warmup_steps
        + [RELAXED] * search.relaxed_steps
        + [MEASURED] * search.measured_steps
    )
    turn = [MEASURED] * schedule.harness_block + [WEIGHTS] * schedule.weights_block
    alternate = list(itertools.islice(itertools.cycle(turn), schedule.steps))
    return {
        "harness": harness,
        "weights": [WEIGHTS] * schedule.steps,
        "joint": [JOINT] * schedule.steps,
        "alternate": alternate,
        "two-stage": harness + alternate,
    }[schedule.kind]


def plan_of(config: TrainConfig, *, policies: bool) -> list[str]:
    """``plan`` for a harness with policies, or without."""
    kinds = plan(config)
    if not policies:
        return kinds
    return [EPISODES if kind == MEASURED else kind for kind in kinds]


def count_updates(config: TrainConfig) -> Updates:
    """How often the schedule updates phi and theta, at most (relaxed steps may be
    skipped where the gate is not trusted)."""
    kinds = plan(config)
    return Updates(
        sum(kind in TRAINS_PHI for kind in kinds),
        sum(kind in TRAINS_THETA for kind in kinds),
    )
