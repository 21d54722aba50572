"""A writer in the model's place, whose success rates are known.

It reads the item from the request's text and rolls dice that the request's seed
decides, so that it is a pure function of the request, as a model is.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from tiny_space import make_model

from metaharness.model.request import Batch, Completion, Request


class Simulated:
    """text_of(question text, generator) -> (text, confidence); greedy requests always
    roll the same dice."""

    digest = "simulated"

    def __init__(
        self, text_of: Callable[[str, np.random.Generator], tuple[str, float]]
    ) -> None:
        self._text_of = text_of
        self._tokenizer = make_model().tokenizer
        self.requests: list[Request] = []

    def batches(self, requests: Sequence[Request]) -> Iterator[Batch]:
        for place, request in enumerate(requests):
            self.requests.append(request)
            text = self._tokenizer.decode([*request.prefix, *request.question])
            rng = np.random.default_rng([request.seed, *map(ord, text)])
            written, confidence = self._text_of(text, rng)
            num = len(self._tokenizer.encode(written)) or 1
            num = min(num, request.max_new_tokens)
            done = Completion(written, num, -num * float(np.log(confidence)), True)
            yield Batch([(place, done)], request.num_prompt_tokens + num, 0)


def last_turn(text: str) -> str:
    """What the newest user turn of a chat says."""
    turns = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", text, re.DOTALL)
    return turns[-1] if turns else text
