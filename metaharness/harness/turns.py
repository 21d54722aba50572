"""A prompt as chat turns or as plain text, before any tokenizer comes in."""

from collections.abc import Sequence
from typing import NamedTuple

from components.exemplars import Exemplar
from components.templates import Template

Turn = dict[str, str]
"""``{"role": "system" | "user" | "assistant", "content": text}``."""


def system_turns(system: str | None) -> list[Turn]:
    """The system turn, none where the template leaves it to the model."""
    return [] if system is None else [{"role": "system", "content": system}]


def shot_turns(template: Template, exemplar: Exemplar) -> list[Turn]:
    """The two turns of one exemplar."""
    return [
        {"role": "user", "content": template.show(exemplar.question)},
        {"role": "assistant", "content": exemplar.answer},
    ]


def conversation(
    template: Template, exemplars: Sequence[Exemplar], question: str
) -> list[Turn]:
    """All turns of a chat template's prompt, the question's last."""
    turns = system_turns(template.system)
    for exemplar in exemplars:
        turns += shot_turns(template, exemplar)
    return [*turns, {"role": "user", "content": template.ask(question)}]


class Exchange(NamedTuple):
    """What followed the question: the model's text, and what it was answered."""

    said: str
    reply: str


def later_turns(exchanges: Sequence[Exchange]) -> list[Turn]:
    """The turns after the question's."""
    turns: list[Turn] = []
    for said, reply in exchanges:
        turns.append({"role": "assistant", "content": said})
        turns.append({"role": "user", "content": reply})
    return turns


def plain_later(exchanges: Sequence[Exchange]) -> str:
    """Text of a plain template after the question, up to where the model goes on."""
    return "".join(f"{said}\n\n{reply}\n" for said, reply in exchanges)


def plain_head(system: str | None) -> str:
    """Text of a plain template before the first exemplar."""
    return f"{system}\n\n" if system else ""


def plain_shot(template: Template, exemplar: Exemplar) -> str:
    """Text of one exemplar of a plain template."""
    return f"{template.show(exemplar.question)}{exemplar.answer}\n\n"


def plain_text(template: Template, exemplars: Sequence[Exemplar], question: str) -> str:
    """The whole prompt of a plain template, up to where the answer starts."""
    shots = "".join(plain_shot(template, exemplar) for exemplar in exemplars)
    return plain_head(template.system) + shots + template.ask(question)
