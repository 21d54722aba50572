"""Which harness is deployed: the likeliest, or one that validation knows to be better.

A short or noisy training can leave probabilities whose likeliest harness was never
drawn, let alone measured. Before one is deployed, a few are measured on the same
validation items, as many as about half of what training spent pays for: the likeliest,
the one to start with, and those of the smallest losses among the drawn. The likeliest
stands unless the best of them has a smaller loss by more than one standard error of
the difference (Breiman et al. 1984, the one standard error rule).

Texts that training wrote are not served again here, and what training spent is read
from its rows: a resumed run chooses as an unbroken one does.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metaharness.harness.episodes import Writer
from metaharness.harness.grading import Sampling, grade_harnesses
from metaharness.harness.scoring import score_harnesses
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.progress import Progress
from metaharness.tasks.task import Item, Task
from metaharness.train.attribution import seed_choice
from metaharness.train.config import TrainConfig
from metaharness.train.fitted import Finalist, Fitted, Standing
from metaharness.train.loop import PHASE

FILE = "finalists.json"
DEPLOYMENT = "deployment"
"""Phase of the budget counter: what is spent to decide what is deployed. Comparisons at
equal tokens count it as training."""
_SHARE = 0.5  # of training's tokens
_LEAST = 8  # items, where even they cost more
_ROUNDING = 1e-9
LIKELIEST, START = "the likeliest harness", "the harness to start with"


def settle_finalists(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    writer: Writer,
    *,
    counter: BudgetCounter,
) -> Fitted:
    """What training leaves, with the harness of each task that is to be deployed.

    Args:
        space: its model has the trained weights.
        config: ``guards.finalists`` is their number, of which the likeliest and the one
            to start with are two; 1 measures nothing.
        fitted: the drawn harnesses are read from its trace.
        writer: of graded episodes, where the harness has policies.
        counter: counts it in the phase "deployment".
    """
    most = config.guards.finalists
    if most < 2:
        return fitted
    choices, notes = fitted.choices(space), list(fitted.notes)
    standing: dict[str, Standing] = {}
    trained = counter.counts(PHASE).token_passes / space.num_tasks
    with (
        counter.phase(DEPLOYMENT),
        Progress("deployment", total=space.num_tasks, quiet=config.quiet) as bar,
    ):
        for index, task in enumerate(space.tasks):
            found = finalists(space, fitted, index, most)
            items = task.validation[: config.evaluation.validation_items]
            items = items[: _num_items(space, config, fitted, task, found, trained)]
            if len(found) < 2 or not items:
                continue
            table = _losses(
                space, config, task, [f.choice for f in found], items, writer,
                counter=counter,
            )  # fmt: skip
            own = standing[task.name] = stand(found, table)
            choices[index] = found[own.deployed].choice
            bar.update(index + 1, {"loss": own.losses[own.deployed]})
    return dataclasses.replace(
        fitted,
        notes=(*notes, *_said(standing)),
        deployed=tuple(choices),
        standing=standing,
    )


def standing_json(standing: Mapping[str, Standing]) -> dict[str, Any]:
    """What ``finalists.json`` of a run keeps, by task; chosen: a place. Retries that do
    not pay are taken out later."""
    return {
        task: {
            "num_items": own.num_items,
            "finalists": [
                {"name": one.name, "choice": one.choice._asdict(), "loss": loss}
                for one, loss in zip(own.finalists, own.losses, strict=True)
            ],
            "chosen": own.deployed,
            "gain": own.gain,
            "standard_error": own.error,
        }
        for task, own in standing.items()
    }


def finalists(space: Space, fitted: Fitted, index: int, most: int) -> list[Finalist]:
    """At most ``most`` different harnesses of a task: the likeliest, the one to start
    with, then the drawn by their loss; exemplars in the order of their ids."""
    name = space.tasks[index].name
    drawn = [
        (one["loss"], row["step"], _choice(one))
        for row in fitted.trace
        for one in row.get("drawn", {}).get(name, ())
        if one["loss"] is not None  # how a row writes what is no number
    ]
    every = [
        Finalist(fitted.choices(space)[index], LIKELIEST),
        Finalist(seed_choice(space, index), START),
        *(
            Finalist(choice, f"a harness drawn in update {step}")
            for _, step, choice in sorted(drawn, key=lambda one: one[0])
        ),
    ]
    found: dict[Choice, Finalist] = {}
    for one in every:
        # exemplars that its template leaves out make no other harness
        shows = space.harness.template.pool[one.choice.template].exemplars
        same = one.choice if shows else one.choice._replace(exemplars=())
        if len(found) < most:
            found.setdefault(same, one)
    return list(found.values())


def stand(found: Sequence[Finalist], table: np.ndarray) -> Standing:
    """Who wins; table: losses float ``[finalist, item]``, the likeliest first."""
    table = np.where(np.isfinite(table), table, np.inf)
    means = table.mean(axis=1)
    best, num = int(means.argmin()), table.shape[1]
    losses = tuple(means.tolist())
    if not np.isfinite(means[0]):
        return Standing(tuple(found), losses, num, np.inf, 0.0, best)
    gains = table[0] - table[best]
    gain = float(gains.mean())
    error = float(gains.std(ddof=1) / np.sqrt(num)) if num > 1 else np.inf
    # where one item makes the difference both are equal but for rounding
    deployed = best if gain > error * (1 + _ROUNDING) else 0
    return Standing(tuple(found), losses, num, gain, error, deployed)


def _choice(drawn: Mapping[str, Any]) -> Choice:
    single = {
        slot: ids[0] for slot, ids in drawn.items() if slot not in ("loss", "exemplars")
    }
    return Choice(tuple(sorted(drawn.get("exemplars", ()))), **single)


def _num_items(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    task: Task,
    found: Sequence[Finalist],
    trained: float,
) -> int:
    """How many items all finalists can read, or answer, for about half of what training
    spent: ``trained`` tokens on the likelihoods of a task; on episodes as its rows say,
    whose texts may have been written once for several."""
    if space.harness.policy_slots:
        rows = [row for row in fitted.trace if task.name in row.get("tokens", {})]
        if not rows:
            return _LEAST
        episodes = config.episodes
        spent = sum(
            row["tokens"][task.name] * len(row["drawn"][task.name]) for row in rows
        )
        spent *= episodes.items * episodes.samples
        each = rows[-1]["tokens"][task.name] * len(found)
        return max(_LEAST, int(_SHARE * spent / max(each, 1)))
    left = _SHARE * trained
    left -= sum(len(space.prefix_tokens(one.choice)) for one in found)
    shown = [space.harness.parts(one.choice)[0] for one in found]
    items = task.validation[: config.evaluation.validation_items]
    for num, item in enumerate(items):
        answer = len(space.renderer.answer(item.answer))
        left -= sum(
            len(space.renderer.question(template, item.question)) + answer
            for template in shown
        )
        if left < 0:
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
        cache=None,
        at_once=episodes.at_once,
    )
    return grades.table(lambda trace: trace.loss(episodes.token_price))


def _said(standing: Mapping[str, Standing]) -> list[str]:
    """What was decided, in words."""
    notes = [
        f"{task} deploys {own.finalists[own.deployed].name}: its loss on "
        f"{own.num_items} validation items is {own.losses[own.deployed]:.2f}, that of "
        f"the likeliest {own.losses[0]:.2f} (higher by {own.gain:.2f}, standard error "
        f"{own.error:.2f})."
        for task, own in standing.items()
        if own.deployed
    ]
    kept = [task for task, own in standing.items() if not own.deployed]
    if kept:
        notes.append(
            f"The likeliest harness is deployed for {', '.join(kept)}: on validation "
            "items neither the one to start with nor the best drawn is better by more "
            "than a standard error."
        )
    return notes
