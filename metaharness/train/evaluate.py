"""Score a harness on items that were not trained on, beside its baselines."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from components.templates import PLACEHOLDER
from components.tool_policy import ToolPolicy
from metaharness import keys
from metaharness.errors import InputError
from metaharness.harness.call_cache import CallCache
from metaharness.harness.grading import (
    Done,
    Sampling,
    grade_harnesses,
    with_grades,
)
from metaharness.harness.learned import Learned
from metaharness.harness.scoring import Scores, score_harnesses
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates
from metaharness.harness.space import Space, build_space
from metaharness.harness.trace import Trace
from metaharness.model.complete import Completer
from metaharness.model.load import Model
from metaharness.runlog import table
from metaharness.runlog.budget import BudgetCounter, Counts
from metaharness.runlog.progress import Progress
from metaharness.runlog.report_data import ScoreRow
from metaharness.tasks.task import Item, Task
from metaharness.train.attribution import seed_choice
from metaharness.train.compare import MODE, RANDOM, ZERO_SHOT, Compared, score_rows

GIVEN = "given harness"
DEFAULT = "default"
SPLITS = ("validation", "test")


@dataclass(frozen=True)
class Evaluation:
    """What was measured.

    scores: rows with 95% intervals, as in a run's report; compared: scores by harness
    and item, and the graded texts, one entry a task; counts: tokens and seconds;
    stopped: why a budget ended it early, "" where it did not.
    """

    scores: tuple[ScoreRow, ...]
    compared: tuple[Compared, ...]
    counts: Counts
    stopped: str = ""

    def table(self) -> Any:
        """The score table, for ``rich.print``."""
        return table.score_table(self.scores)


class Plan(NamedTuple):
    """One task's part: its space, its items, and the harnesses of each method."""

    space: Space
    items: tuple[Item, ...]
    methods: dict[str, list[Choice]]

    @property
    def task(self) -> Task:
        return self.space.tasks[0]

    @property
    def choices(self) -> list[Choice]:
        """Every harness once."""
        return list(dict.fromkeys(c for own in self.methods.values() for c in own))

    @property
    def graded(self) -> bool:
        """Whether something can grade what is written."""
        return self.task.scorer is not None or self.task.environment is not None

    @property
    def has_gold(self) -> bool:
        """Whether every item has an answer whose likelihood can be read."""
        return all(item.answer for item in self.items)

    @property
    def num_likelihoods(self) -> int:
        """Calls that read gold answers, beside the episodes."""
        return len(self.choices) * len(self.items) if self.has_gold else 0


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
    samples: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    implementation: str = "xla",
    harnesses_at_once: int = 2,
    quiet: bool = False,
) -> Evaluation:
    """Score a harness on the first ``limit`` items of a split.

    harness: a learned one (its choice for each task is scored), or slots with a
    ``choice`` of candidates; of slots alone the first candidates are scored
    ("default"), and where they allow one harness only, that one is. random_harnesses:
    harnesses drawn from the same pools, to compare with. generate: also run graded
    episodes, ``samples`` of each harness and item, at ``temperature`` (0 is greedy),
    where the task can be graded.

    Losses are in nats of the gold answer, differences to the random harnesses are
    paired by item.

    Raises InputError for an unknown split or task.
    """
    plans = plan_evaluation(
        model,
        task,
        harness,
        choice,
        split=split,
        limit=limit,
        random_harnesses=random_harnesses,
        seed=seed,
        implementation=implementation,
    )
    return run_evaluation(
        plans,
        counter=BudgetCounter(),
        generate=generate,
        sampling=Sampling(samples, temperature, seed),
        harnesses_at_once=harnesses_at_once,
        quiet=quiet,
    )


def plan_evaluation(
    model: Model,
    task: Task | Sequence[Task],
    harness: Learned | Harness,
    choice: Choice | None = None,
    *,
    split: str = "test",
    limit: int = 64,
    random_harnesses: int = 4,
    seed: int = 0,
    implementation: str = "xla",
) -> list[Plan]:
    """What ``evaluate`` will run, one entry a task. Raises InputError."""
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
        methods = _members(space, method, chosen, random_harnesses, seed)
        plans.append(Plan(space, one.splits()[split][:limit], methods))
    return plans


def run_evaluation(
    plans: Sequence[Plan],
    *,
    counter: BudgetCounter,
    generate: bool = True,
    sampling: Sampling = Sampling(),  # noqa: B008 - immutable
    cache: CallCache | None = None,
    done: Mapping[str, Done] | None = None,
    on_finish: Callable[[Plan, Trace], None] | None = None,
    tokens_at_once: int = 16384,
    harnesses_at_once: int = 2,
    quiet: bool = False,
) -> Evaluation:
    """Run what was planned.

    cache: serves calls that were made before; done: task -> episodes that are
    finished; each new one is given to ``on_finish`` at once. A budget in ``counter``
    ends it cleanly: rewards are then those of the items that every harness has
    answered.

    Raises InputError: several samples at temperature 0, which would all be the same.
    """
    if sampling.num > 1 and sampling.temperature == 0:
        raise InputError(
            f"temperature: expected one above 0 for {sampling.num} samples of an item, "
            "got 0 (greedy texts are all the same); set it, or take 1 sample"
        )
    compared, stopped, finished = [], "", 0
    total = sum(len(plan.choices) * len(plan.items) * sampling.num for plan in plans)
    with (
        counter.phase("evaluate"),
        Progress("evaluate", total=total, quiet=quiet) as bar,
    ):
        for plan in plans:
            stopped = _too_dear(plan, counter)
            if stopped:
                break
            started = counter.counts().seconds
            scores = _likelihoods(plan, counter, harnesses_at_once)
            grades = None
            if generate and plan.graded:

                def finish(trace: Trace, plan: Plan = plan) -> None:
                    nonlocal finished
                    finished += 1
                    bar.update(finished, {"reward": trace.reward})
                    if on_finish:
                        on_finish(plan, trace)

                grades = grade_harnesses(
                    plan.space,
                    plan.task,
                    plan.choices,
                    plan.items,
                    Completer(
                        plan.space.model,
                        tokens_at_once=tokens_at_once,
                        implementation=plan.space.implementation,
                    ),
                    counter=counter,
                    sampling=sampling,
                    cache=cache,
                    done=(done or {}).get(plan.task.name),
                    on_finish=finish,
                )
                scores = with_grades(scores, grades)
                stopped = grades.stopped
            else:
                finished += len(plan.choices) * len(plan.items) * sampling.num
                bar.update(finished)
            places = {choice: at for at, choice in enumerate(plan.choices)}
            members = {m: [places[c] for c in own] for m, own in plan.methods.items()}
            seconds = counter.counts().seconds - started
            compared.append(
                Compared(
                    plan.task.name,
                    plan.choices,
                    members,
                    scores,
                    seconds,
                    grades=grades,
                )
            )
            if stopped:
                break
    rows = score_rows(compared, seed=sampling.seed)
    return Evaluation(tuple(rows), tuple(compared), counter.counts(), stopped)


def _too_dear(plan: Plan, counter: BudgetCounter) -> str:
    """Why the likelihoods of a plan cannot be read, "" where they can: they are read
    all or not at all, so that every harness is compared on the same items."""
    left, needed = counter.calls_left(), plan.num_likelihoods
    if left is None or needed <= left:
        return ""
    return (
        f"the likelihoods of {plan.task.name} take {needed:,} calls, {left:,} are left "
        "of the budget"
    )


def _likelihoods(plan: Plan, counter: BudgetCounter, harnesses_at_once: int) -> Scores:
    """Of the gold answers; not a number where the task has none."""
    if plan.has_gold:
        return score_harnesses(
            plan.space,
            plan.task,
            plan.choices,
            plan.items,
            generate=False,
            counter=counter,
            harnesses_at_once=harnesses_at_once,
        )
    shape = (len(plan.choices), len(plan.items))
    return Scores(
        np.full(shape, np.nan),
        np.ones(len(plan.items), int),
        None,
        None,
        np.zeros(shape, int),
    )


def _members(
    space: Space, method: str, chosen: Choice | None, num_random: int, seed: int
) -> dict[str, list[Choice]]:
    """Method -> its harnesses; the zero-shot prompt is one of them.

    Without a choice the first candidates are the default harness. Where it has no
    exemplars both are the same, said once: by its own name, unless it is the bare
    question.
    """
    plan = {ZERO_SHOT: [Choice((), 0)]}
    only = space.harness.k == len(space.harness.candidates)
    only = only and len(space.harness.template.pool) == 1
    only = only and all(
        len(space.harness.pool(slot)) == 1 for slot in space.harness.policy_slots
    )
    if chosen is None:
        first = seed_choice(space, 0)
        if first in plan[ZERO_SHOT] and not _is_bare(space.harness):
            plan = {}
        if first not in plan.get(ZERO_SHOT, []):
            plan[method if only else DEFAULT] = [first]
    if num_random and not only:
        rng = keys.host_generator(seed, stage="test", step=0, purpose="random_harness")
        plan[RANDOM] = space.harness.random_choices(num_random, 0, 1, rng)
    if chosen is not None:
        plan[method] = [chosen]
    return plan


def _is_bare(harness: Harness) -> bool:
    """Whether the first candidates add nothing to the question."""
    template = harness.template.pool[0]
    added = template.question != PLACEHOLDER or template.system is not None
    return not (added or harness.policy_slots)


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


def bare_harness(tasks: Sequence[Task] = ()) -> Harness:
    """No exemplars and no instruction: the question as it is; every tool where only
    what calls do can be graded."""
    named = Templates.named("short")
    needed = any(task.scorer is None and task.environment for task in tasks)
    tools = (ToolPolicy("all tools"),) if needed else ()
    return Harness(None, Templates(named.pool[:1]), tools=tools)
