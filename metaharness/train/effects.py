"""Effects of harness and weights from scores of the same items, with intervals.

Four cells, {base, adapted} weights x {seed, learned} harness, and the learned harness
with one slot at a time put back. Every effect is a sum and difference of cells (a 2 x 2
factorial), taken within each item, so that what makes an item hard cancels before its
interval is drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from metaharness import keys
from metaharness.runlog.report_data import (
    OVERALL,
    Attribution,
    CellScore,
    Divergence,
    Effect,
    SlotEffect,
)
from metaharness.stats import (
    Interval,
    mean_interval,
    proportion_interval,
    ratio_interval,
)
from metaharness.train.divergence import AnswerDivergence

BASE, ADAPTED = "base", "adapted"
SEED, LEARNED = "seed", "learned"

Cell = tuple[str, str]
"""Weights, and a harness: SEED, LEARNED, or the slot that is put back."""

# effect -> the cells that it adds and subtracts
_CONTRASTS: Mapping[str, Mapping[Cell, int]] = MappingProxyType(
    {
        "harness_at_base": {(BASE, LEARNED): 1, (BASE, SEED): -1},
        "weights_at_seed": {(ADAPTED, SEED): 1, (BASE, SEED): -1},
        "harness_against_weights": {(BASE, LEARNED): 1, (ADAPTED, SEED): -1},
        "harness_at_adapted": {(ADAPTED, LEARNED): 1, (ADAPTED, SEED): -1},
        "weights_at_learned": {(ADAPTED, LEARNED): 1, (BASE, LEARNED): -1},
        "total": {(ADAPTED, LEARNED): 1, (BASE, SEED): -1},
        "interaction": {
            (ADAPTED, LEARNED): 1,
            (ADAPTED, SEED): -1,
            (BASE, LEARNED): -1,
            (BASE, SEED): 1,
        },
    }
)


class ItemScores(NamedTuple):
    """One harness on one task's items.

    nats: float64 ``[item]``, of the gold answer; hits: float64 ``[item]``, 1 where the
    written answer is exact, else 0, or None where none was written; reward, tokens:
    float64 ``[item]`` of graded episodes, None where none was run.
    """

    nats: np.ndarray
    hits: np.ndarray | None
    reward: np.ndarray | None = None
    tokens: np.ndarray | None = None


class Measured(NamedTuple):
    """What was measured on one task, or on several side by side.

    cells: scores of the same items; same: slot -> whether its learned choice is the
    seed's, every slot of the harness; moved: None where no weights were trained.
    """

    task: str
    cells: dict[Cell, ItemScores]
    same: dict[str, bool]
    moved: AnswerDivergence | None = None


def pool_tasks(tasks: Sequence[Measured]) -> Measured:
    """All tasks as one: every item counts once."""

    def joined(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
        return None if any(p is None for p in parts) else np.concatenate(parts)

    first = tasks[0]
    moved = None
    if first.moved is not None:
        pairs = zip(*(task.moved for task in tasks), strict=True)
        moved = AnswerDivergence(*map(np.concatenate, pairs))
    return Measured(
        OVERALL,
        {
            cell: ItemScores(
                *map(joined, zip(*(task.cells[cell] for task in tasks), strict=True))
            )
            for cell in first.cells
        },
        {slot: all(task.same[slot] for task in tasks) for slot in first.same},
        moved,
    )


def attribution_of(measured: Measured, *, seed: int) -> Attribution:
    """Means, effects and their 95% intervals.

    All intervals of a task come from the same resampled items, so that equal
    differences have equal intervals.
    """
    cells = measured.cells
    last = ADAPTED if (ADAPTED, LEARNED) in cells else BASE

    def interval(values: np.ndarray) -> Interval:
        return mean_interval(values, rng=_rng(seed))

    def differences(signs: Mapping[Cell, int]) -> tuple[Interval, Interval | None]:
        graded = all(cells[cell].hits is not None for cell in signs)
        nats = sum(sign * cells[cell].nats for cell, sign in signs.items())
        if not graded:
            return interval(nats), None
        hits = sum(sign * cells[cell].hits for cell, sign in signs.items())
        return interval(nats), interval(hits)

    def episodes(signs: Mapping[Cell, int]) -> tuple[Interval | None, ...]:
        if any(cells[cell].reward is None for cell in signs):
            return None, None
        return (
            interval(sum(sign * cells[cell].reward for cell, sign in signs.items())),
            interval(sum(sign * cells[cell].tokens for cell, sign in signs.items())),
        )

    return Attribution(
        task=measured.task,
        num_items=len(cells[BASE, SEED].nats),
        cells=tuple(
            CellScore(*cell, interval(scores.nats), _share(scores.hits))
            for cell, scores in cells.items()
            if cell[1] in (SEED, LEARNED)
        ),
        effects=tuple(
            Effect(name, *differences(signs))
            for name, signs in _CONTRASTS.items()
            if cells.keys() >= signs.keys()
        ),
        slots=tuple(
            _slot_effect(slot, same, last, differences, episodes)
            for slot, same in measured.same.items()
        ),
        divergence=_divergence(measured.moved, seed),
    )


def _slot_effect(
    slot: str,
    same: bool,
    weights: str,
    differences: Callable[[Mapping[Cell, int]], tuple[Interval, Interval | None]],
    episodes: Callable[[Mapping[Cell, int]], tuple[Interval | None, ...]],
) -> SlotEffect:
    if same:
        return SlotEffect(slot, True, Interval(0.0, 0.0, 0.0))
    signs = {(weights, LEARNED): 1, (weights, slot): -1}
    reward, tokens = episodes(signs)
    return SlotEffect(slot, False, *differences(signs), reward, tokens)


def _share(hits: np.ndarray | None) -> Interval | None:
    return None if hits is None else proportion_interval(int(hits.sum()), len(hits))


def _divergence(moved: AnswerDivergence | None, seed: int) -> Divergence | None:
    if moved is None:
        return None
    kl = ratio_interval(moved.nats, moved.num_answer, rng=_rng(seed))
    return Divergence(kl, len(moved.nats), int(moved.num_answer.sum()))


def _rng(seed: int) -> np.random.Generator:
    # step 0 is the comparison's
    return keys.host_generator(seed, stage="test", step=1, purpose="bootstrap")
