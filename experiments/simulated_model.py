"""A model whose answers are dice with known odds, for experiments with policies.

It stands where a model writes: prompts are rendered and counted as for the real one,
but what comes back is one of a few outcomes. So every policy has an exact value.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from metaharness.harness.episode import Job
from metaharness.harness.episodes import run_episodes
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.model.request import Batch, Completion, Request
from metaharness.runlog.budget import BudgetCounter
from metaharness.tasks.task import Item


class Roll(NamedTuple):
    """One outcome of an attempt.

    chance: in (0, 1]; text: what is written; confidence: mean probability of its
    tokens; num_tokens: its length.
    """

    chance: float
    text: str
    confidence: float
    num_tokens: int


Odds = Callable[[str], Sequence[Roll]]
"""The outcomes of an attempt at the prompt of this text."""


class SimulatedModel:
    """A writer (``metaharness.harness.episodes.Writer``) that rolls dice.

    A roll depends on the request's seed and text alone, as a model's sample does.
    """

    def __init__(self, odds: Odds, decode: Callable[[Sequence[int]], str]) -> None:
        self._odds, self._decode = odds, decode

    @property
    def digest(self) -> str:
        return "simulated"

    def batches(self, requests: Sequence[Request]) -> Iterator[Batch]:
        done, tokens = [], 0
        for place, request in enumerate(requests):
            text = self._decode(request.question)
            words = f"{request.seed} {text}".encode()
            seed = int.from_bytes(hashlib.sha256(words).digest()[:8], "big")
            rolls = self._odds(text)
            chances = [roll.chance for roll in rolls]
            at = np.random.default_rng(seed).choice(len(rolls), p=chances)
            done.append((place, _completion(rolls[at])))
            tokens += request.num_prompt_tokens + rolls[at].num_tokens
        if done:
            yield Batch(done, tokens, 0)


class _Scripted:
    """Writes a fixed series of outcomes, and says how many it needed."""

    digest = "scripted"

    def __init__(self, rolls: Sequence[Roll]) -> None:
        self._rolls, self.used = rolls, 0

    def batches(self, requests: Sequence[Request]) -> Iterator[Batch]:
        (_,) = requests
        roll = self._rolls[self.used]
        self.used += 1
        yield Batch([(0, _completion(roll))], 0, 0)


class Expected(NamedTuple):
    """Exact expectations of one harness: reward, tokens and loss of an episode."""

    reward: float
    tokens: float
    loss: float


def enumerate_policy(
    space: Space,
    item: Item,
    choice: Choice,
    rolls: Sequence[Roll],
    token_price: float,
) -> Expected:
    """Run every series of outcomes once, weighted by its chance.

    The odds of an attempt must not depend on the attempts before it. Cost: outcomes to
    the power of attempts, episodes that stop early counted once.
    """
    (task,) = space.tasks
    most = space.harness.policies(choice).retry.attempts
    totals = np.zeros(3)
    seen: set[tuple[int, ...]] = set()
    for series in itertools.product(range(len(rolls)), repeat=most):
        if any(series[:length] in seen for length in range(1, most)):
            continue  # an episode with this beginning was over by then
        writer = _Scripted([rolls[i] for i in series])
        done = run_episodes(
            space, task, [Job(choice, item)], writer, counter=BudgetCounter()
        )
        trace = done.traces[0]
        used = series[: writer.used]
        seen.add(used)
        weight = float(np.prod([rolls[i].chance for i in used]))
        totals += weight * np.array(
            [trace.reward, trace.tokens, trace.loss(token_price)]
        )
    return Expected(*totals.tolist())


def _completion(roll: Roll) -> Completion:
    nats = -roll.num_tokens * float(np.log(roll.confidence))
    return Completion(roll.text, roll.num_tokens, nats, True)
