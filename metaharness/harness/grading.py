"""Grade concrete harnesses by episodes: every harness on every item, some samples."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from metaharness.harness.call_cache import CallCache
from metaharness.harness.episode import Job
from metaharness.harness.episodes import Writer, run_episodes
from metaharness.harness.scoring import Scores, score_harnesses
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.harness.trace import Trace
from metaharness.runlog.budget import BudgetCounter
from metaharness.tasks.task import Item, Task

Done = Mapping[tuple[Choice, str, int], Trace]
"""Episodes that were finished before: (harness, uid of the item, sample) -> trace."""


class Sampling(NamedTuple):
    """num: episodes of each harness and item; temperature: of their first attempts;
    seed: of everything sampled."""

    num: int = 1
    temperature: float = 0.0
    seed: int = 0


class Grades(NamedTuple):
    """Results of harnesses on the same items.

    traces: ``[harness][item][sample]``, None where the budget ended first; stopped:
    why it ended, "".
    """

    traces: list[list[list[Trace | None]]]
    stopped: str

    @property
    def complete(self) -> bool:
        return all(t is not None for rows in self.traces for row in rows for t in row)

    def texts(self) -> list[list[str]]:
        """``[harness][item]``: the last text of the first sample, "" where it was not
        finished or nothing could be asked."""
        return [
            [row[0].steps[-1].text if row[0] and row[0].steps else "" for row in rows]
            for rows in self.traces
        ]

    def table(self, value: Callable[[Trace], float]) -> np.ndarray:
        """float64 ``[harness, item]``, means over samples; NaN where none finished."""
        out = np.full((len(self.traces), len(self.traces[0])), np.nan)
        for h, rows in enumerate(self.traces):
            for i, row in enumerate(rows):
                known = [value(trace) for trace in row if trace is not None]
                if known:
                    out[h, i] = float(np.mean(known))
        return out


def grade_harnesses(
    space: Space,
    task: Task,
    choices: Sequence[Choice],
    items: Sequence[Item],
    writer: Writer,
    *,
    counter: BudgetCounter,
    sampling: Sampling = Sampling(),  # noqa: B008 - immutable
    cache: CallCache | None = None,
    done: Done | None = None,
    at_once: int = 2048,
    on_finish: Callable[[Trace], None] | None = None,
) -> Grades:
    """Run an episode of every harness on every item, those in ``done`` excepted.

    All harnesses share their batches. on_finish gets each new trace at once.
    """
    known = done or {}
    traces: list[list[list[Trace | None]]] = [
        [
            [known.get((choice, item.uid, sample)) for sample in range(sampling.num)]
            for item in items
        ]
        for choice in choices
    ]
    jobs, places = [], []
    # item by item: what the budget leaves unfinished lacks the same items everywhere
    for i, item in enumerate(items):
        for h, choice in enumerate(choices):
            for sample in range(sampling.num):
                if traces[h][i][sample] is None:
                    heat, seed = sampling.temperature, sampling.seed
                    jobs.append(Job(choice, item, sample, heat, seed))
                    places.append((h, i, sample))

    def finish(at: int, trace: Trace) -> None:
        h, i, sample = places[at]
        traces[h][i][sample] = trace
        if on_finish:
            on_finish(trace)

    ended = run_episodes(
        space,
        task,
        jobs,
        writer,
        counter=counter,
        cache=cache,
        at_once=at_once,
        on_finish=finish,
    )
    return Grades(traces, ended.stopped)


def needs_episodes(space: Space, task: Task) -> bool:
    """Whether written answers must be graded by whole episodes: policies decide, or
    nothing but the task's environment can grade."""
    alone = task.scorer is None and task.environment is not None
    return bool(space.harness.policy_slots) or alone


def score_by_episodes(
    space: Space,
    task: Task,
    choices: Sequence[Choice],
    items: Sequence[Item],
    writer: Writer,
    *,
    counter: BudgetCounter,
    at_once: int = 2048,
    harnesses_at_once: int = 2,
    cache: CallCache | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """As ``score_harnesses`` with ``generate``, but rewards come from episodes: one of
    each harness and item, greedy."""
    scores = score_harnesses(
        space,
        task,
        choices,
        items,
        generate=False,
        counter=counter,
        harnesses_at_once=harnesses_at_once,
    )
    total, finished = len(choices) * len(items), 0

    def finish(_: Trace) -> None:
        nonlocal finished
        finished += 1
        if on_progress:
            on_progress(finished, total)

    grades = grade_harnesses(
        space,
        task,
        choices,
        items,
        writer,
        counter=counter,
        cache=cache,
        at_once=at_once,
        on_finish=finish,
    )
    return with_grades(scores, grades)


def with_grades(scores: Scores, grades: Grades) -> Scores:
    """Likelihoods with rewards, texts and tokens of the same harnesses' episodes."""
    return scores._replace(
        reward=grades.table(lambda trace: trace.reward),
        outputs=grades.texts(),
        tokens=grades.table(lambda trace: float(trace.tokens)),
    )
