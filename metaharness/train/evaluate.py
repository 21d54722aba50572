"""Score a harness on items that were not trained on, beside its baselines."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from metaharness import keys
from metaharness.errors import InputError
from metaharness.harness.learned import Learned
from metaharness.harness.scoring import score_harnesses
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates
from metaharness.harness.space import Space, build_space
from metaharness.model.load import Model
from metaharness.runlog import table
from metaharness.runlog.budget import BudgetCounter, Counts
from metaharness.runlog.progress import Progress
from metaharness.runlog.report_data import ScoreRow
from metaharness.tasks.task import Task
from metaharness.train.compare import (
    MODE,
    RANDOM,
    ZERO_SHOT,
    Compared,
    generates,
    score_rows,
)
from metaharness.train.config import EvalConfig

GIVEN = "given harness"
SPLITS = ("validation", "test")


@dataclass(frozen=True)
class Evaluation:
    """What was measured.

    scores: rows with 95% intervals, as in a run's report; compared: scores by harness
    and item, and the generated texts, one entry a task; counts: tokens and seconds.
    """

    scores: tuple[ScoreRow, ...]
    compared: tuple[Compared, ...]
    counts: Counts

    def table(self) -> Any:
        """The score table, for ``rich.print``."""
        return table.score_table(self.scores)


def evaluate(
    model: Model,
    task: Task | Sequence[Task],
    harness: Learned | Harness,
    choice: Choice | None = None,
    *,
    split: str = "test",
    limit: int = 64,
    random_harnesses: int = 4,
    generate: bool = True,
    generate_tokens: int = 128,
    seed: int = 0,
    implementation: str = "xla",
    harnesses_at_once: int = 2,
    quiet: bool = False,
) -> Evaluation:
    """Score a harness on the first ``limit`` items of a split.

    harness: a learned one (its choice for each task is scored), or slots with a
    ``choice`` of candidates; slots alone are scored at random, and where they allow one
    harness only, that one is. random_harnesses: harnesses drawn from the same pools, to
    compare with. generate: also write and grade answers, where the task has a scorer
    and its answers take at most ``generate_tokens`` tokens.

    Losses are in nats of the gold answer, differences to the random harnesses are
    paired by item.

    Raises InputError for an unknown split or task, or nothing to score.
    """
    tasks = (task,) if isinstance(task, Task) else tuple(task)
    if split not in SPLITS:
        raise InputError(
            f"split: expected {' or '.join(SPLITS)}, got {split!r}; use one of these"
        )
    if limit < 1 or random_harnesses < 0:
        raise InputError(
            "evaluate: expected limit >= 1 and random_harnesses >= 0, got "
            f"{limit} and {random_harnesses}; raise them"
        )
    plans = []
    for place, one in enumerate(tasks):
        own, method, chosen = _narrow(harness, choice, one, place, len(tasks))
        space = build_space(model, own, [one], implementation=implementation)
        plans.append((space, _members(space, method, chosen, random_harnesses, seed)))
    config = EvalConfig(generate=generate, generate_tokens=generate_tokens)
    counter = BudgetCounter()
    compared = []
    total = sum(len(set(sum(plan.values(), []))) for _, plan in plans)
    with (
        counter.phase("evaluate"),
        Progress("evaluate", total=total, quiet=quiet) as bar,
    ):
        done = 0
        for space, plan in plans:
            compared.append(
                _score(
                    space,
                    plan,
                    split=split,
                    limit=limit,
                    generate=generates(config, space.tasks[0]),
                    counter=counter,
                    harnesses_at_once=harnesses_at_once,
                )
            )
            done += len(compared[-1].choices)
            bar.update(done)
    return Evaluation(
        tuple(score_rows(compared, seed=seed)), tuple(compared), counter.counts()
    )


def _score(
    space: Space,
    plan: dict[str, list[Choice]],
    *,
    split: str,
    limit: int,
    generate: bool,
    counter: BudgetCounter,
    harnesses_at_once: int,
) -> Compared:
    (task,) = space.tasks
    unique = list(dict.fromkeys(c for own in plan.values() for c in own))
    started = counter.counts().seconds
    scores = score_harnesses(
        space,
        task,
        unique,
        task.splits()[split][:limit],
        generate=generate,
        counter=counter,
        harnesses_at_once=harnesses_at_once,
    )
    members = {method: [unique.index(c) for c in own] for method, own in plan.items()}
    seconds = counter.counts().seconds - started
    return Compared(task.name, unique, members, scores, seconds)


def _members(
    space: Space, method: str, chosen: Choice | None, num_random: int, seed: int
) -> dict[str, list[Choice]]:
    """Method -> its harnesses; the zero-shot prompt is always one."""
    plan = {ZERO_SHOT: [Choice((), 0)]}
    only = space.harness.k == len(space.harness.candidates)
    only = only and len(space.harness.template.pool) == 1
    if only and chosen is None:
        chosen = Choice(tuple(range(space.harness.k)), 0)
    if num_random and not only:
        rng = keys.host_generator(seed, stage="test", step=0, purpose="random_harness")
        plan[RANDOM] = space.harness.random_choices(num_random, 0, 1, rng)
    if chosen is not None:
        plan[method] = [chosen]
    if len(plan) == 1:
        raise InputError(
            "harness: expected a choice of its candidates, got slots that allow "
            "several; train it, give a choice or ask for random harnesses"
        )
    return plan


def _narrow(
    harness: Learned | Harness,
    choice: Choice | None,
    task: Task,
    place: int,
    num_tasks: int,
) -> tuple[Harness, str, Choice | None]:
    """The harness with the candidates of one task only, and its choice among them."""
    method = GIVEN
    if isinstance(harness, Learned):
        if choice is not None:
            raise InputError(
                "choice: expected none beside a learned harness, which has its own; "
                "leave it out or give the slots (learned.harness)"
            )
        choice, method = harness.choice(task.name), MODE
        place, num_tasks = list(harness.choices).index(task.name), len(harness.choices)
        harness = harness.harness
    if harness.exemplars is None:
        return harness, method, choice
    mask = harness.exemplars.allowed_mask(num_tasks)[place]
    kept = [i for i, allowed in enumerate(mask) if allowed]
    pool = tuple(harness.candidates[i] for i in kept)
    if choice is not None:
        choice = choice._replace(exemplars=tuple(map(kept.index, choice.exemplars)))
    slot = Exemplars(pool, harness.k)
    return dataclasses.replace(harness, exemplars=slot), method, choice


def bare_harness() -> Harness:
    """No exemplars and no instruction: the question as it is."""
    named = Templates.named("short")
    return Harness(None, Templates(named.pool[:1]))
