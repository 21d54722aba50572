"""What counts as an answer: how it is extracted and what it must satisfy."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from components.extraction import EXTRACTORS, extract
from components.schema import accepts, check_schema, read_json


class Parsed(NamedTuple):
    """answer: what is graded, None where there is none; problem: what the model is told
    where the answer is refused, "" where it is not."""

    answer: str | None
    problem: str


@dataclass(frozen=True)
class OutputPolicy:
    """One candidate of the output slot.

    extract: a rule of ``components.extraction``; pattern: a regular expression that the
    whole answer must match; schema: a JSON schema (the subset of
    ``components.schema``) that it must satisfy; labels: the closed set of answers that
    there are; strict: True refuses an answer that fails a check, False lets it pass
    (the check then only counts); constrain: choose the likeliest of ``labels`` instead
    of writing freely, each label's log-likelihood shifted by its ``bias``, a number for
    each label (empty: all 0).

    Raises ValueError for a rule, pattern, schema or bias that cannot be used.
    """

    name: str
    extract: str = "whole"
    pattern: str | None = None
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    labels: tuple[str, ...] = ()
    strict: bool = True
    constrain: bool = False
    bias: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        where = f"output policy {self.name!r}"
        if not self.name.strip():
            raise ValueError("output policy: expected a name, got none; name it.")
        if self.extract not in EXTRACTORS:
            raise ValueError(
                f"{where}: expected extract among {', '.join(EXTRACTORS)}, got "
                f"{self.extract!r}; use one."
            )
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(
                    f"{where}: expected a regular expression in pattern, got "
                    f"{self.pattern!r} ({error}); correct it."
                ) from error
        if self.schema is not None:
            check_schema(self.schema, f"{where}: schema")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"{where}: expected different labels, got one twice.")
        if (self.extract == "label" or self.constrain) and len(self.labels) < 2:
            raise ValueError(
                f"{where}: expected two labels or more, got {len(self.labels)}; name "
                "the answers that there are."
            )
        if self.bias and len(self.bias) != len(self.labels):
            raise ValueError(
                f"{where}: expected a bias for each of {len(self.labels)} labels, got "
                f"{len(self.bias)}; give one a label or none."
            )
        if self.bias and not self.constrain:
            raise ValueError(
                f"{where}: expected bias only with constrain = true, got it without; "
                "set constrain or drop the bias."
            )

    def parse(self, text: str) -> Parsed:
        """The answer in a text, and what is wrong with it. Total."""
        answer = extract(self.extract, text, self.labels)
        if answer is None:
            return Parsed(None, f"no answer was found ({_HINTS[self.extract]})")
        problem = self._check(answer)
        if problem and self.strict:
            return Parsed(None, problem)
        return Parsed(answer, "" if not self.strict else problem)

    def finds(self, text: str) -> bool:
        """Whether the extraction rule finds something, whatever its check says."""
        return extract(self.extract, text, self.labels) is not None

    def choose(self, nats: Sequence[float]) -> tuple[str, float]:
        """The likeliest label, its log-likelihood shifted by its bias, and its share
        of the probability. nats: negative log-likelihoods, one a label."""
        bias = self.bias or (0.0,) * len(self.labels)
        scores = [shift - own for shift, own in zip(bias, nats, strict=True)]
        top = max(scores)
        shares = [math.exp(score - top) for score in scores]
        place = scores.index(top)
        return self.labels[place], shares[place] / sum(shares)

    def _check(self, answer: str) -> str:
        if self.labels and answer not in self.labels:
            return f"the answer must be one of: {', '.join(self.labels)}"
        if self.pattern is not None and not re.fullmatch(self.pattern, answer):
            return f"the answer must match {self.pattern}"
        if self.schema is not None:
            found = read_json(answer)
            if found is None:
                return "the answer must be JSON"
            if not accepts(self.schema, found.value):
                return f"the answer must satisfy {json.dumps(self.schema)}"
        return ""


_HINTS = {
    "whole": "the text was empty",
    "first_line": "the text was empty",
    "last_line": "the text was empty",
    "marked": 'end with a line "Answer: ..."',
    "hashes": 'end with a line "#### ..."',
    "boxed": "put it in \\boxed{...}",
    "number": "give a number",
    "json": "write JSON",
    "code": "put the code in a fenced block",
    "label": "name one of the labels",
}
