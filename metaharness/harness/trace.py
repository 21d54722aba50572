"""What happened in an episode: attempts, calls, tokens, and the boundary it reached."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from metaharness.harness.slots import Choice


class Reached(StrEnum):
    """Where an episode ended, from best to worst.

    RIGHT: the full reward; PARTLY: some of it; NOT_EXTRACTED: none, but the text itself
    holds the right answer, which the output policy did not find or refused; WRONG: an
    answer, no reward; REFUSED: an answer that its check refused; NO_ANSWER: nothing
    was extracted; CUT: the same, the last text having met the limit of tokens; CALLS:
    it still wanted tools when its calls were spent; TOOL_ERROR: a tool failed and the
    policy stops there; TOO_LONG: the prompt left no room in the model's context.
    """

    RIGHT = "right"
    PARTLY = "partly right"
    NOT_EXTRACTED = "right answer, not extracted"
    WRONG = "wrong answer"
    REFUSED = "answer refused by its check"
    NO_ANSWER = "no answer found"
    CUT = "cut at the token limit"
    CALLS = "out of tool calls"
    TOOL_ERROR = "stopped by a tool error"
    TOO_LONG = "prompt too long"


@dataclass(frozen=True)
class ToolUse:
    """One tool call: what was asked, what came back (as the environment said it)."""

    name: str
    arguments: Mapping[str, Any]
    reply: str
    error: bool
    seconds: float


@dataclass(frozen=True)
class Step:
    """One text that the model wrote.

    attempt: 0 for the first; template: id of the template that asked; prompt_tokens,
    new_tokens: of this text; cached: served from the cache of calls, nothing was run;
    text: what was written; ended: False where the token limit cut it; confidence: mean
    probability of its tokens, in (0, 1]; answer: what the output policy made of it,
    None where it made nothing or the text is a tool call; problem: why it was refused,
    ""; uses: the tool calls that it made.
    """

    attempt: int
    template: int
    prompt_tokens: int
    new_tokens: int
    cached: bool
    text: str
    ended: bool
    confidence: float
    answer: str | None = None
    problem: str = ""
    uses: tuple[ToolUse, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One finished episode.

    uid: of the item; task: its name; choice: the harness; sample: number of the
    episode among those of the same item and harness; steps: texts in order; answer:
    what was graded, None where there was none; reward: in [0, 1]; reached: see
    ``Reached``; first_reward: the reward had the first attempt been the last; seconds:
    its share of the time of its batches, and that of its tools and its grading.
    """

    uid: str
    task: str
    choice: Choice
    sample: int
    steps: tuple[Step, ...]
    answer: str | None
    reward: float
    reached: Reached
    first_reward: float
    seconds: float

    @property
    def prompt_tokens(self) -> int:
        return sum(step.prompt_tokens for step in self.steps)

    @property
    def new_tokens(self) -> int:
        return sum(step.new_tokens for step in self.steps)

    @property
    def tokens(self) -> int:
        """Prompt and written tokens of all attempts, cached ones too: what the harness
        costs whoever deploys it."""
        return self.prompt_tokens + self.new_tokens

    @property
    def first_tokens(self) -> int:
        """As ``tokens``, of the first attempt alone."""
        own = [step for step in self.steps if step.attempt == 0]
        return sum(step.prompt_tokens + step.new_tokens for step in own)

    @property
    def attempts(self) -> int:
        return 1 + max((step.attempt for step in self.steps), default=0)

    @property
    def tool_calls(self) -> int:
        return sum(len(step.uses) for step in self.steps)

    def loss(self, token_price: float = 0.0) -> float:
        """1 - reward + the price of its tokens, in reward for 1,000 of them."""
        return 1.0 - self.reward + token_price * self.tokens / 1000

    def loss_after_first(self, token_price: float = 0.0) -> float:
        """What the decisions after the first attempt changed of the loss: the reward
        to go of a retry policy, 0 where nothing was repeated."""
        later = self.tokens - self.first_tokens
        return self.first_reward - self.reward + token_price * later / 1000

    def as_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {
            **dataclasses.asdict(self),
            "choice": self.choice._asdict(),
            "reached": self.reached.value,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Trace":
        """The inverse of ``as_json``. Raises KeyError or TypeError for other data."""
        steps = tuple(
            Step(**{**step, "uses": tuple(ToolUse(**use) for use in step["uses"])})
            for step in data["steps"]
        )
        chosen = data["choice"]
        choice = Choice(**{**chosen, "exemplars": tuple(chosen["exemplars"])})
        return cls(
            **{
                **data,
                "steps": steps,
                "choice": choice,
                "reached": Reached(data["reached"]),
            }
        )
