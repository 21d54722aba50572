"""Which harness is deployed: the likeliest, or one that validation knows to be better.

A short or noisy training can leave probabilities whose likeliest harness was never
drawn, let alone measured. Before one is deployed, a few are measured on the same
validation items, as many as half of what training spent pays for: the likeliest, the
one to start with, and those of the smallest losses among the drawn. The likeliest
stands unless the best of them has a smaller loss by more than one standard error of
the difference (Breiman et al. 1984, the one standard error rule).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaharness.harness.call_cache import CallCache
from metaharness.harness.episodes import Writer
from metaharness.harness.grading import Sampling, grade_harnesses
from metaharness.harness.scoring import score_harnesses
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.tasks.task import Item, Task
from metaharness.train.attribution import seed_choice
from metaharness.train.config import TrainConfig
from metaharness.train.fitted import Fitted
from metaharness.train.loop import PHASE

DEPLOYMENT = "deployment"
"""Phase of the budget counter: what is spent to decide what is deployed. Comparisons at
equal tokens count it as training."""
_SHARE = 0.5  # of training's tokens
_LEAST = 8  # items, where even they cost more
LIKELIEST, START = "the likeliest harness", "the harness to start with"


class Finalist(NamedTuple):
    """A harness that may be deployed, and where it comes from."""

    choice: Choice
    name: str


class Standing(NamedTuple):
    """Means of the finalists' losses, and what the best has over the first.

    best: its place; gain: first loss less the best one; error: standard error of the
    gain, paired by item; deployed: place of the one to deploy.
    """

    losses: np.ndarray
    best: int
    gain: float
    error: float
    deployed: int


def settle_finalists(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    writer: Writer,
    *,
    counter: BudgetCounter,
    cache: CallCache | None = None,
) -> Fitted:
    """What training leaves, with the harness of each task that is to be deployed.

    Args:
        space: its model has the trained weights.
        config: ``guards.finalists`` is their number, of which the likeliest and the one
            to start with are two; 1 measures nothing.
        fitted: the drawn harnesses are read from its trace.
        writer: of graded episodes, where the harness has policies.
        counter: counts it in the phase "deployment".
        cache: texts that were written before.
    """
    most = config.guards.finalists
    if most < 2:
        return fitted
    choices, notes = fitted.choices(space), list(fitted.notes)
    affordable = _SHARE * counter.counts(PHASE).token_passes / space.num_tasks
    with counter.phase(DEPLOYMENT):
        for index, task in enumerate(space.tasks):
            found = finalists(space, fitted, index, most)
            items = task.validation[: config.evaluation.validation_items]
            items = items[: _num_items(space, fitted, task, found, items, affordable)]
            if len(found) < 2 or not items:
                continue
            table = _losses(
                space, config, task, [f.choice for f in found], items, writer,
                counter=counter, cache=cache,
            )  # fmt: skip
            standing = stand(table)
            choices[index] = found[standing.deployed].choice
            notes.append(_said(task.name, found, standing, len(items)))
    return dataclasses.replace(fitted, notes=tuple(notes), deployed=tuple(choices))


def finalists(space: Space, fitted: Fitted, index: int, most: int) -> list[Finalist]:
    """At most ``most`` different harnesses of a task: the likeliest, the one to start
    with, then the drawn by their loss; exemplars in the order of their ids."""
    found = {fitted.choices(space)[index]: LIKELIEST}
    found.setdefault(seed_choice(space, index), START)
    name = space.tasks[index].name
    drawn = [
        (one["loss"], row["step"], _choice(one))
        for row in fitted.trace
        for one in row.get("drawn", {}).get(name, ())
        if one["loss"] is not None  # how a row writes what is no number
    ]
    for _, step, choice in sorted(drawn, key=lambda one: one[0]):
        if len(found) >= most:
            break
        found.setdefault(choice, f"a harness drawn in update {step}")
    return [Finalist(choice, name) for choice, name in found.items()][:most]


def stand(table: np.ndarray) -> Standing:
    """Who wins; table: losses float ``[finalist, item]``, the likeliest first."""
    table = np.where(np.isfinite(table), table, np.inf)
    means = table.mean(axis=1)
    best = int(means.argmin())
    if not np.isfinite(means[0]):
        return Standing(means, best, np.inf, 0.0, best)
    gains = table[0] - table[best]
    gain, num = float(gains.mean()), len(gains)
    error = float(gains.std(ddof=1) / np.sqrt(num)) if num > 1 else np.inf
    return Standing(means, best, gain, error, best if gain > error else 0)


def _choice(drawn: Mapping[str, Any]) -> Choice:
    single = {
        slot: ids[0] for slot, ids in drawn.items() if slot not in ("loss", "exemplars")
    }
    return Choice(tuple(sorted(drawn.get("exemplars", ()))), **single)


def _num_items(
    space: Space,
    fitted: Fitted,
    task: Task,
    found: Sequence[Finalist],
    items: Sequence[Item],
    affordable: float,
) -> int:
    """How many items can be read, or answered, by all finalists for these tokens."""
    if space.harness.policy_slots:
        rows = [row for row in fitted.trace if task.name in row.get("tokens", {})]
        each = rows[-1]["tokens"][task.name] * len(found) if rows else np.inf
        return max(_LEAST, int(affordable // max(each, 1)))
    shown = [space.harness.parts(one.choice)[0] for one in found]
    spent = sum(len(space.prefix_tokens(one.choice)) for one in found)
    for num, item in enumerate(items):
        answer = len(space.renderer.answer(item.answer))
        spent += sum(
            len(space.renderer.question(template, item.question)) + answer
            for template in shown
        )
        if spent > affordable:
            return max(_LEAST, num)
    return len(items)


def _losses(
    space: Space,
    config: TrainConfig,
    task: Task,
    choices: Sequence[Choice],
    items: Sequence[Item],
    writer: Writer,
    *,
    counter: BudgetCounter,
    cache: CallCache | None,
) -> np.ndarray:
    """float ``[harness, item]``: of graded episodes where there are policies, else nats
    of the gold answer."""
    if not space.harness.policy_slots:
        scores = score_harnesses(
            space, task, choices, items, generate=False, counter=counter
        )
        return scores.nats
    episodes = config.episodes
    grades = grade_harnesses(
        space,
        task,
        choices,
        items,
        writer,
        counter=counter,
        sampling=Sampling(1, episodes.temperature, config.seed),
        cache=cache,
        at_once=episodes.at_once,
    )
    return grades.table(lambda trace: trace.loss(episodes.token_price))


def _said(
    task: str, found: Sequence[Finalist], standing: Standing, num_items: int
) -> str:
    """What was decided, in words."""
    losses = ", ".join(
        f"{one.name} {loss:.3f}"
        for one, loss in zip(found, standing.losses, strict=True)
    )
    deployed = found[standing.deployed].name
    said = f"Deployed for {task}: {deployed}. Losses on {num_items} validation items: "
    said += losses
    if standing.best:
        said += f"; the best has {standing.gain:.3f} over the likeliest, one standard "
        said += f"error is {standing.error:.3f}"
    return f"{said}."
