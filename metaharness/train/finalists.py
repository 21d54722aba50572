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

import jax.numpy as jnp
import numpy as np

from metaharness.harness.episodes import Writer
from metaharness.harness.grading import Sampling, grade_harnesses
from metaharness.harness.packing import Packs
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.progress import Progress
from metaharness.tasks.task import Task
from metaharness.train.attribution import seed_choice
from metaharness.train.baselines import batch_of, read_packs, tokens_read
from metaharness.train.config import TrainConfig
from metaharness.train.fitted import Finalist, Fitted, Standing
from metaharness.train.loop import PHASE

FILE = "finalists.json"
DEPLOYMENT = "deployment"
"""Phase of the budget counter: what is spent to decide what is deployed. Comparisons at
equal tokens count it as training."""
_SHARE = 0.5  # of training's tokens
_LEAST = 8  # items of episodes, where even they cost more
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
    packs = None
    if not space.harness.policy_slots:
        packs = space.pack(
            "validation",
            width=config.search.pack_width,
            limit=config.evaluation.validation_items,
        )
    with (
        counter.phase(DEPLOYMENT),
        Progress("deployment", total=space.num_tasks, quiet=config.quiet) as bar,
    ):
        for index, task in enumerate(space.tasks):
            found = finalists(space, fitted, index, most)
            if len(found) < 2:
                continue
            shown = [one.choice for one in found]
            if space.harness.policy_slots:
                table = _graded(space, config, fitted, task, shown, writer, counter)
            else:
                table = _read(space, config, packs, index, shown, trained, counter)
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


def _read(
    space: Space,
    config: TrainConfig,
    packs: Packs,
    index: int,
    choices: Sequence[Choice],
    trained: float,
    counter: BudgetCounter,
) -> np.ndarray:
    """Nats of gold answers, float ``[harness, item]``, of as many validation items as
    half of the ``trained`` tokens pay for; read as random search reads them, which
    compiles nothing more."""
    chunk, total = config.search.chunk, int(packs.num_packs[index])
    at_once = min(config.evaluation.validation_packs, packs.items.shape[1])
    padded = [*choices, *[choices[-1]] * (-len(choices) % chunk)]
    left, columns = _SHARE * trained, []
    for first in range(0, total, at_once):
        places = np.arange(first, first + at_once)
        within = places < total
        places = np.where(within, places, first)
        cost = sum(
            tokens_read(space, packs, places[within], index, one) for one in choices
        )
        left -= cost
        if left < 0 and columns:
            break
        read = jnp.asarray(places, jnp.int32)
        out = [
            read_packs(
                space.model.decoder,
                space.table,
                packs,
                batch_of(padded[at : at + chunk], index, read),
                width=space.width,
                chunk=chunk,
                implementation=space.implementation,
            )
            for at in range(0, len(padded), chunk)
        ]
        nats, real = (
            np.concatenate([np.asarray(getattr(part, name)) for part in out])
            for name in ("nats", "real")
        )
        real = real[0] & within[:, None]
        columns.append(nats[: len(choices), real])
        counter.add(lm_calls=len(choices) * int(real.sum()), token_forwards=cost)
    return np.concatenate(columns, axis=1).astype(float)


def _graded(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    task: Task,
    choices: Sequence[Choice],
    writer: Writer,
    counter: BudgetCounter,
) -> np.ndarray:
    """Losses of graded episodes, float ``[harness, item]``, on as many validation items
    as about half of what training's episodes cost pays for, 8 at least."""
    episodes, num = config.episodes, _LEAST
    rows = [row for row in fitted.trace if task.name in row.get("tokens", {})]
    if rows:
        spent = sum(
            row["tokens"][task.name] * len(row["drawn"][task.name]) for row in rows
        )
        spent *= episodes.items * episodes.samples
        each = rows[-1]["tokens"][task.name] * len(choices)
        num = max(num, int(_SHARE * spent / max(each, 1)))
    grades = grade_harnesses(
        space,
        task,
        choices,
        task.validation[: min(num, config.evaluation.validation_items)],
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
