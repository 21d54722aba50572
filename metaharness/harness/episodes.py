"""Many episodes at once: whatever the model shall write next goes into few batches."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from metaharness.errors import TaskError
from metaharness.harness.call_cache import CallCache, call_key
from metaharness.harness.episode import Episode, Job
from metaharness.harness.space import Space
from metaharness.harness.trace import Trace
from metaharness.model.request import Batch, Completion, Request
from metaharness.runlog.budget import BudgetCounter
from metaharness.tasks.task import Task


class Writer(Protocol):
    """What writes: a ``Completer``, or a simulation in its place.

    digest: of the weights; the same digest and request give the same text.
    """

    @property
    def digest(self) -> str: ...

    def batches(self, requests: Sequence[Request]) -> Iterator[Batch]:
        """Each request's place once, in whatever batches suit the writer."""
        ...


class Finished(NamedTuple):
    """traces: one a job, None where the budget ended first; stopped: why, or ""."""

    traces: list[Trace | None]
    stopped: str


def run_episodes(
    space: Space,
    task: Task,
    jobs: Sequence[Job],
    writer: Writer,
    *,
    counter: BudgetCounter,
    cache: CallCache | None = None,
    at_once: int = 2048,
    on_finish: Callable[[int, Trace], None] | None = None,
) -> Finished:
    """Run every job; at most ``at_once`` are open at the same time.

    cache: None while weights are trained. on_finish(place of the job, trace) is called
    as soon as an episode is over, in no particular order. A limit on calls in
    ``counter`` is never passed: episodes that it leaves unfinished have no trace.

    Raises TaskError where nothing can grade the task.
    """
    if task.scorer is None and task.environment is None:
        raise TaskError(
            f"task {task.name}: expected a scorer or an environment to grade episodes, "
            "got neither; score its likelihood only"
        )
    traces: list[Trace | None] = [None] * len(jobs)
    waiting = deque(enumerate(jobs))
    active: dict[int, Episode] = {}

    def close(place: int) -> None:
        traces[place] = active.pop(place).trace
        if on_finish:
            on_finish(place, traces[place])

    while waiting or active:
        while waiting and len(active) < at_once:
            place, job = waiting.popleft()
            active[place] = Episode(space, task, job)
            if active[place].trace is not None:  # nothing could be asked
                close(place)
        places = list(active)
        requests = [active[place].request for place in places]
        served = 0
        for at, given in _serve(requests, writer, counter, cache):
            active[places[at]].receive(
                given.completion, cached=given.cached, seconds=given.seconds
            )
            served += 1
            if active[places[at]].trace is not None:
                close(places[at])
        if served < len(requests):
            return Finished(traces, counter.exceeded())
    return Finished(traces, "")


class _Given(NamedTuple):
    completion: Completion
    cached: bool
    seconds: float


def _serve(
    requests: Sequence[Request],
    writer: Writer,
    counter: BudgetCounter,
    cache: CallCache | None,
) -> Iterator[tuple[int, _Given]]:
    """(place, what was given) for each request that the budget allows."""
    digest = writer.digest
    same: dict[str, list[int]] = {}
    for place, request in enumerate(requests):
        same.setdefault(call_key(digest, request), []).append(place)
    firsts = [places[0] for places in same.values()]
    twins = {places[0]: places[1:] for places in same.values()}
    known = cache.find(digest, [requests[i] for i in firsts]) if cache else []
    found = {i: one for i, one in zip(firsts, known, strict=False) if one is not None}
    for first, completion in found.items():
        for place in (first, *twins[first]):
            counter.add(cached_calls=1)
            yield place, _Given(completion, True, 0.0)
    missing = [i for i in firsts if i not in found]
    left = counter.calls_left()
    if left is not None:
        missing = missing[:left]
    if not missing or counter.exceeded():
        return
    wanted = [requests[i] for i in missing]
    started = time.perf_counter()
    for batch in writer.batches(wanted):
        seconds = (time.perf_counter() - started) / len(batch.completions)
        counter.add(
            lm_calls=len(batch.completions),
            token_forwards=batch.token_forwards,
            padded_tokens=batch.padded_tokens,
            generated_tokens=sum(one.num_tokens for _, one in batch.completions),
        )
        if cache is not None:
            cache.store(digest, [(wanted[at], one) for at, one in batch.completions])
        for at, completion in batch.completions:
            first = missing[at]
            yield first, _Given(completion, False, seconds)
            for place in twins[first]:
                counter.add(cached_calls=1)
                yield place, _Given(completion, True, 0.0)
        if counter.exceeded():
            return
        started = time.perf_counter()
