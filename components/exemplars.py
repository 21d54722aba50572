"""Exemplars: the solved questions that a few-shot prompt shows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

KINDS = ("right", "wrong_answer", "wrong_format", "off_task")


class Solved(Protocol):
    """Anything with a question and its gold answer (a task's item, an exemplar)."""

    @property
    def uid(self) -> str: ...

    @property
    def question(self) -> str: ...

    @property
    def answer(self) -> str: ...


@dataclass(frozen=True)
class Exemplar:
    """One candidate of an exemplar slot.

    uid: unique within its pool, a corrupted copy has its own; task: name of the task
    that the question comes from, empty when unknown; kind: one of `KINDS`, "right"
    unless the exemplar was made bad on purpose to give a search something to avoid.
    """

    uid: str
    question: str
    answer: str
    task: str = ""
    kind: str = "right"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f"exemplar {self.uid!r}: expected a kind among {', '.join(KINDS)}, "
                f"got {self.kind!r}; use one of these."
            )
        for field in ("uid", "question", "answer"):
            if not getattr(self, field).strip():
                raise ValueError(
                    f"exemplar {self.uid!r}: expected text in {field!r}, got none; "
                    "fill it in or drop the exemplar."
                )


def as_exemplars(items: Iterable[Solved], task: str) -> tuple[Exemplar, ...]:
    """Right exemplars with the items' questions and gold answers, in their order."""
    return tuple(
        Exemplar(uid=item.uid, question=item.question, answer=item.answer, task=task)
        for item in items
    )
