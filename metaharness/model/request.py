"""What is to be written, and what was written."""

import math
from typing import NamedTuple


class Request(NamedTuple):
    """One text to be written.

    prefix: tokens that other requests may share (head and exemplars); question: tokens
    after it; stops: texts that end it and are not part of it; temperature: 0 is greedy;
    seed: of its sample, in [0, 2**32), unused when greedy. options: tokens of the texts
    to choose from; nothing is written then, each is scored.
    """

    prefix: tuple[int, ...]
    question: tuple[int, ...]
    max_new_tokens: int
    stops: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    options: tuple[tuple[int, ...], ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prefix) + len(self.question)


class Completion(NamedTuple):
    """What was written.

    num_tokens: tokens written, those of a stop text counted; nats: their summed
    negative log-probability at temperature 1, a stop token's too; ended: False where
    the limit of tokens cut it. option_nats: summed nats of each option of the request.
    """

    text: str
    num_tokens: int
    nats: float
    ended: bool
    option_nats: tuple[float, ...] = ()

    @property
    def confidence(self) -> float:
        """Geometric mean of the tokens' probabilities, in (0, 1]."""
        return math.exp(-self.nats / max(self.num_tokens, 1))


class Batch(NamedTuple):
    """Requests that ran together.

    completions: (place of the request, what was written); token_forwards: tokens that
    went through the model, a shared prefix once; padded_tokens: padding beside them.
    """

    completions: list[tuple[int, Completion]]
    token_forwards: int
    padded_tokens: int
