"""What an episode of several turns keeps in view, and how much an attempt may write."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Turn = TypeVar("Turn")
_CUT = " ..."


@dataclass(frozen=True)
class ContextPolicy:
    """One candidate of the context slot.

    turns: exchanges after the question that stay in the prompt, the newest ones; None
    keeps all, 0 none; result_chars: a tool's reply or a refused attempt is cut to so
    many characters; quote: each line of a tool's reply starts with "> ", so that it
    cannot pass for an instruction; attempt_tokens: most tokens of one attempt, None
    leaves it to the task.

    Raises ValueError for a value out of range.
    """

    name: str
    turns: int | None = None
    result_chars: int = 2000
    quote: bool = False
    attempt_tokens: int | None = None

    def __post_init__(self) -> None:
        where = f"context policy {self.name!r}"
        if not self.name.strip():
            raise ValueError("context policy: expected a name, got none; name it.")
        for name, value, least in (
            ("turns", self.turns, 0),
            ("result_chars", self.result_chars, 16),
            ("attempt_tokens", self.attempt_tokens, 1),
        ):
            if value is not None and value < least:
                raise ValueError(
                    f"{where}: expected {name} of {least} or more, got {value}."
                )

    def kept(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """The exchanges that stay in the prompt, oldest first."""
        if self.turns is None:
            return turns
        return turns[len(turns) - min(self.turns, len(turns)) :]

    def shorten(self, text: str) -> str:
        """A text within ``result_chars``."""
        if len(text) <= self.result_chars:
            return text
        return text[: self.result_chars - len(_CUT)] + _CUT

    def show_result(self, text: str) -> str:
        """A tool's reply as the prompt holds it."""
        text = self.shorten(text)
        if self.quote:
            text = "\n".join(f"> {line}" for line in text.split("\n"))
        return text
