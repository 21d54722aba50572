"""Which part of a two-stage run brought the gain: the harness, the weights, or both."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from metaharness.harness.episodes import Writer
from metaharness.harness.slots import Choice
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.model.decoder import Decoder
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.progress import Progress
from metaharness.runlog.report_data import Attribution
from metaharness.train.compare import score
from metaharness.train.config import EvalConfig
from metaharness.train.divergence import make_divergence, num_blocks
from metaharness.train.effects import (
    ADAPTED,
    BASE,
    LEARNED,
    SEED,
    Cell,
    ItemScores,
    Measured,
    attribution_of,
    pool_tasks,
)

_PACK_WIDTH = 128  # tokens of a row of validation items; grows to the longest item


def seed_choice(space: Space, task_index: int) -> Choice:
    """What a user starts with: the first k allowed candidates and the first template.

    Both in the order of their pools.
    """
    if EXEMPLARS not in space.families:
        return Choice((), 0)
    allowed = np.flatnonzero(space.masks[EXEMPLARS][task_index])
    return Choice(tuple(int(i) for i in allowed[: space.harness.k]), 0)


def attribute(
    space: Space,
    adapted: Decoder | None,
    *,
    seed_choices: Sequence[Choice],
    learned: Sequence[Choice],
    config: EvalConfig,
    seed: int,
    counter: BudgetCounter,
    writer: Writer | None = None,
    quiet: bool = False,
) -> list[Attribution]:
    """Score {base, adapted} weights x {seed, learned} harness; say what each brings.

    On the first ``test_items`` test items of every task; beside the four cells the
    learned harness with one slot at a time put back to the seed's choice. Equal weights
    and choice are scored once, whatever they are called. The KL of the adapted to the
    base weights is measured on the first ``validation_items`` validation items, under
    the learned harness.

    Args:
        space: its model has the base weights.
        adapted: weights with the adapter merged or beside them (and no dropout); None
            where the harness alone was trained: the base row is then the only one.
        seed_choices: the harness to start from, one a task; see ``seed_choice``.
        learned: the learned harness, one a task.
        config: how many items, and whether answers are written and graded.
        seed: of the bootstrap.
        counter: counts all of it in the phase "attribution".
        writer: of graded episodes, each cell's own model by default.
        quiet: show no progress.

    Returns:
        One entry a task, and one over the items of all tasks where there are several.

    Raises:
        ValueError: the choices are not one a task, or ``adapted`` has another shape.
        KeyboardInterrupt: Ctrl-C; nothing is returned.
    """
    _check(space, adapted, seed_choices, learned)
    spaces = {BASE: space}
    if adapted is not None and adapted is not space.model.decoder:
        model = dataclasses.replace(space.model, decoder=adapted)
        spaces[ADAPTED] = dataclasses.replace(space, model=model)
    plans = [
        _plan(space, start, end, tuple(spaces))
        for start, end in zip(seed_choices, learned, strict=True)
    ]
    sizes = [
        {weights: _blocks(own.values(), config) for weights, own in plan.items()}
        for plan in plans
    ]
    total, packs = sum(sum(size.values()) for size in sizes), None
    if ADAPTED in spaces:
        packs = space.pack(
            "validation", width=_PACK_WIDTH, limit=config.validation_items
        )
        total += sum(num_blocks(packs, task) for task in range(space.num_tasks))
    done = 0
    measured = []
    with (
        counter.phase("attribution"),
        Progress("attribution", total=total, quiet=quiet) as bar,
    ):

        def share(size: int) -> Callable[[int, int], None]:
            nonlocal done
            start, done = done, done + size
            return lambda part, of: bar.update(start + size * part // of)

        divergence = make_divergence(space, packs, counter) if packs else None
        for task, (plan, size) in enumerate(zip(plans, sizes, strict=True)):
            cells: dict[Cell, ItemScores] = {}
            for weights, own in plan.items():
                scores = _score(
                    spaces[weights],
                    task,
                    own,
                    config,
                    counter,
                    writer,
                    share(size[weights]),
                )
                cells |= {(weights, name): score for name, score in scores.items()}
            moved = None
            if divergence:
                on_progress = share(num_blocks(packs, task))
                moved = divergence(adapted, task, learned[task], on_progress)
            same = {
                slot: choice == learned[task]
                for slot, choice in _put_back(
                    space, seed_choices[task], learned[task]
                ).items()
            }
            measured.append(Measured(space.tasks[task].name, cells, same, moved))
    if len(measured) > 1:
        measured.append(pool_tasks(measured))
    return [attribution_of(one, seed=seed) for one in measured]


def _check(
    space: Space,
    adapted: Decoder | None,
    seed_choices: Sequence[Choice],
    learned: Sequence[Choice],
) -> None:
    for name, choices in (("seed_choices", seed_choices), ("learned", learned)):
        if len(choices) != space.num_tasks:
            raise ValueError(
                f"{name}: expected {space.num_tasks} choices, one a task, got "
                f"{len(choices)}; give them in the order of the space's tasks"
            )
    if adapted is not None and adapted.config != space.model.config:
        raise ValueError(
            "adapted: expected a decoder of the shape of the space's model, got "
            f"{adapted.config}; adapt that model"
        )


def _plan(
    space: Space, start: Choice, end: Choice, weights: tuple[str, ...]
) -> dict[str, dict[str, Choice]]:
    """Weights -> harnesses by name; slots are put back where all else is trained."""
    plan = {name: {SEED: start, LEARNED: end} for name in weights}
    plan[weights[-1]] |= _put_back(space, start, end)
    return plan


def _put_back(space: Space, start: Choice, end: Choice) -> dict[str, Choice]:
    """Slot -> the learned harness with the seed's choice in that slot."""
    changed = {
        EXEMPLARS: end._replace(exemplars=start.exemplars),
        TEMPLATE: end._replace(template=start.template),
    }
    for slot in space.harness.policy_slots:
        changed[slot] = end._replace(**{slot: getattr(start, slot)})
    return {slot: one for slot, one in changed.items() if slot in space.families}


def _score(
    space: Space,
    task_index: int,
    choices: dict[str, Choice],
    config: EvalConfig,
    counter: BudgetCounter,
    writer: Writer | None,
    on_progress: Callable[[int, int], None],
) -> dict[str, ItemScores]:
    """Name -> scores; names of one choice share one score."""
    task = space.tasks[task_index]
    unique = list(dict.fromkeys(choices.values()))
    scores = score(
        space,
        task,
        unique,
        task.test[: config.test_items],
        config,
        counter=counter,
        writer=writer,
        on_progress=on_progress,
    )
    found = {}
    for name, choice in choices.items():
        at = unique.index(choice)
        hits = None if scores.reward is None else (scores.reward[at] >= 0.99) * 1.0
        episodes = (None, None)
        if scores.tokens is not None:
            episodes = (scores.reward[at], scores.tokens[at])
        found[name] = ItemScores(scores.nats[at], hits, *episodes)
    return found


def _blocks(choices: Iterable[Choice], config: EvalConfig) -> int:
    """Steps of the progress bar that scoring different choices takes."""
    return -(-len(set(choices)) // config.harnesses_at_once)
