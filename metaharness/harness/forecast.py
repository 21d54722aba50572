"""What a set of episodes will cost, before it is run."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metaharness.harness.call_cache import call_key
from metaharness.harness.episode import Episode, Job
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.harness.trace import Trace
from metaharness.tasks.task import Item, Task

EXACT, PILOT, BOUND = "exact", "from a pilot", "at most"


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Calls of the model, and the tokens that they read and write.

    How each number is known: ``EXACT``, ``PILOT`` (an estimate from finished episodes)
    or ``BOUND`` (an upper bound).
    """

    episodes: int
    calls: float
    calls_known: str
    prompt_tokens: float
    prompt_known: str
    new_tokens: float
    new_known: str

    def __add__(self, other: "Forecast") -> "Forecast":
        """Of both together; the less certain of two ways to know wins."""

        def worse(a: str, b: str) -> str:
            return max(a, b, key=(EXACT, PILOT, BOUND).index)

        return Forecast(
            self.episodes + other.episodes,
            self.calls + other.calls,
            worse(self.calls_known, other.calls_known),
            self.prompt_tokens + other.prompt_tokens,
            worse(self.prompt_known, other.prompt_known),
            self.new_tokens + other.new_tokens,
            worse(self.new_known, other.new_known),
        )


class _First(NamedTuple):
    """First requests of episodes, identical ones once."""

    requests: int
    prompt_tokens: int
    room: int


def forecast(
    space: Space, task: Task, jobs: Sequence[Job], pilot: Sequence[Trace] = ()
) -> Forecast:
    """Cost of these jobs, which must be of one harness.

    Where nothing is repeated and no tool is offered, calls and prompt tokens are exact:
    every first request is made here, and identical ones count once. Tokens to be
    written are the mean of the ``pilot`` episodes, or without one the limit. Where
    episodes may go on, everything is an estimate from the pilot, or an upper bound:
    every attempt and call is used and fills the model's context.
    """
    (choice,) = {job.choice for job in jobs}
    policies = space.harness.policies(choice)
    first = _first_requests(space, task, jobs)
    offered = task.environment is not None and policies.tools.calls > 0
    ends = policies.retry.attempts == 1 and not (offered and policies.tools.tools != ())
    num = len(jobs)
    scale = first.requests / num  # identical requests are run once
    if ends:
        new = first.room
        if pilot:
            new = scale * num * float(np.mean([trace.new_tokens for trace in pilot]))
        return Forecast(
            num,
            first.requests,
            EXACT,
            first.prompt_tokens,
            EXACT,
            new,
            PILOT if pilot else BOUND,
        )
    if pilot:
        mean = {
            "calls": np.mean([len(trace.steps) for trace in pilot]),
            "prompt": np.mean([trace.prompt_tokens for trace in pilot]),
            "new": np.mean([trace.new_tokens for trace in pilot]),
        }
        return Forecast(
            num,
            num * float(mean["calls"]),
            PILOT,
            num * float(mean["prompt"]),
            PILOT,
            num * float(mean["new"]),
            PILOT,
        )
    texts = policies.retry.attempts * (policies.tools.calls + 1 if offered else 1)
    later = num * (texts - 1)
    room = first.room / max(first.requests, 1)
    return Forecast(
        num,
        num + later,
        BOUND,
        first.prompt_tokens / scale + later * space.model.config.max_positions,
        BOUND,
        (num + later) * room,
        BOUND,
    )


def likelihoods(
    space: Space, choices: Sequence[Choice], items: Sequence[Item]
) -> Forecast:
    """What reading the gold answers of these items costs, exactly."""
    tokens = 0
    for choice in choices:
        template = space.harness.template.pool[choice.template]
        tokens += len(items) * len(space.prefix_of(template, choice.exemplars))
        asked = (space.question_of(template, item.question) for item in items)
        tokens += sum(map(len, asked))
    calls = len(choices) * len(items)
    return Forecast(0, calls, EXACT, tokens, EXACT, 0, EXACT)


def _first_requests(space: Space, task: Task, jobs: Sequence[Job]) -> _First:
    requests = {}
    for job in jobs:
        request = Episode(space, task, job).request
        if request is not None:
            requests[call_key("", request)] = request
    own = requests.values()
    return _First(
        max(len(requests), 1),
        sum(request.num_prompt_tokens for request in own),
        sum(0 if request.options else request.max_new_tokens for request in own),
    )
