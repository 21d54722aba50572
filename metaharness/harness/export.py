"""A learned harness in the forms that other programs read.

Where no question is given, ``{question}`` stands in its place, exactly once: fill it in
by replacing that text (the rest may hold braces of its own).
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from components.templates import PLACEHOLDER, Template
from metaharness.errors import HarnessError
from metaharness.harness.learned import Learned
from metaharness.harness.turns import Turn, conversation, plain_text

if TYPE_CHECKING:  # slow to load, and only a chat's literal text needs it
    from metaharness.model.tokenizer import Tokenizer

SCHEMA = "metaharness.export/1"
_DSPY_DEFAULT = "Given the fields `question`, produce the fields `answer`."


def export_json(learned: Learned, task: str | None = None) -> dict[str, Any]:
    """What was learned for one task or, by default, for all.

    ::

        {"schema": "metaharness.export/1",
         "model": name, "theta_digest": sha256 of its weights,
         "tasks": {task: {
            "template": {"name", "chat", "system", "shot", "question"},
            "exemplars": [{"uid", "question", "answer"}, ...] in prompt order,
            "probabilities": {"template": {name: chance},
                              "exemplars": {uid: chance}}}}}

    ``shot`` is the text of the exemplars' question turns, ``question`` that of the last
    one. A chance is that of being in the prompt; candidates of other tasks are left
    out.

    Raises HarnessError for an unknown task.
    """
    names = list(learned.choices) if task is None else [task]
    return {
        "schema": SCHEMA,
        "model": learned.model,
        "theta_digest": learned.theta_digest,
        "tasks": {name: _one_task(learned, name) for name in names},
    }


def export_messages(
    learned: Learned, task: str | None = None, question: str = PLACEHOLDER
) -> list[Turn]:
    """The prompt as chat messages, the question in the last.

    A plain-text template is one user message with the whole text; a chat model reads it
    inside its own turn marks, which it did not when the harness was learned.

    Raises HarnessError: see `Learned.parts`; or an exemplar of a plain template says
    ``{question}`` itself.
    """
    template, exemplars = learned.parts(task)
    if template.chat:
        return conversation(template, exemplars, question)
    text = _one_place(plain_text(template, exemplars, question), question)
    return [{"role": "user", "content": text}]


def export_text(
    learned: Learned,
    task: str | None = None,
    question: str = PLACEHOLDER,
    *,
    load_tokenizer: "Callable[[], Tokenizer]",
) -> str:
    """The prompt letter by letter as the model reads it, up to where it answers.

    One token that the text does not spell may come first, the beginning of a text:
    see `Renderer.head`. load_tokenizer: called for chat templates only.

    Raises HarnessError: see `Learned.parts`; an exemplar says ``{question}`` itself; or
    the chat template's turns depend on each other.
    """
    template, exemplars = learned.parts(task)
    if not template.chat:
        return _one_place(plain_text(template, exemplars, question), question)
    from metaharness.harness.render import Renderer

    renderer = Renderer(load_tokenizer())
    renderer.prompt(template, exemplars, question)  # refuses what it cannot spell
    return _one_place(renderer.prompt_text(template, exemplars, question), question)


def export_dspy(learned: Learned, task: str | None = None) -> dict[str, Any]:
    """State of ``dspy.Predict("question -> answer")``, for its ``load(path)``.

    The layout is that of ``Predict.dump_state`` and ``Module.save`` in dspy 3.4.1. The
    exemplars are its demonstrations, as they are in the pool; the system text and the
    question turn's text around the question are its instructions. dspy lays its prompt
    out itself, so the model reads other tokens than those the harness was learned with.

    Raises HarnessError: see `Learned.parts`.
    """
    template, exemplars = learned.parts(task)
    return {
        "traces": [],
        "train": [],
        "demos": [{"question": e.question, "answer": e.answer} for e in exemplars],
        "signature": {
            "instructions": instructions(template) or _DSPY_DEFAULT,
            "fields": [
                {"prefix": "Question:", "description": "${question}"},
                {"prefix": "Answer:", "description": "${answer}"},
            ],
        },
        "lm": None,
        # Versions that it was saved with. Loading warns of each that is another one;
        # no dspy saved this.
        "metadata": {"dependency_versions": {}},
    }


def instructions(template: Template) -> str:
    """What a template tells the model beside the question, maybe nothing.

    The bare labels of a question and of an answer are left out.
    """
    before, after = template.question.split(PLACEHOLDER)
    before = re.sub(r"(?i)(^|\n)[ \t]*(question|q):\s*$", "", before)
    after = re.sub(r"(?i)(^|\n)[ \t]*(answer|a):\s*$", "", after)
    parts = (template.system or "", before, after)
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _one_task(learned: Learned, task: str) -> dict[str, Any]:
    template, exemplars = learned.parts(task)
    return {
        "template": {
            "name": template.name,
            "chat": template.chat,
            "system": template.system,
            "shot": template.shot,
            "question": template.question,
        },
        "exemplars": [
            {"uid": e.uid, "question": e.question, "answer": e.answer}
            for e in exemplars
        ],
        "probabilities": {
            slot: _chances(learned, slot, task) for slot in learned.probabilities
        },
    }


def _chances(learned: Learned, slot: str, task: str) -> dict[str, float]:
    """Chance by candidate, of those that the task may use."""
    names = [template.name for template in learned.harness.template.pool]
    allowed: tuple[bool, ...] = (True,) * len(names)
    if slot == "exemplars":
        names = [exemplar.uid for exemplar in learned.harness.candidates]
        place = list(learned.choices).index(task)
        rows = learned.harness.exemplars.allowed if learned.harness.exemplars else ()
        allowed = rows[place] if rows else (True,) * len(names)
    chances = learned.probabilities[slot].get(task, ())
    if len(chances) != len(names):
        raise HarnessError(
            f"probabilities of {slot!r}, {task}: expected {len(names)}, one a "
            f"candidate, got {len(chances)}; use the file as the run wrote it"
        )
    kept = zip(names, chances, allowed, strict=True)
    return {name: chance for name, chance, allow in kept if allow}


def _one_place(text: str, question: str) -> str:
    """The same text, where it is clear which ``{question}`` is to be filled in."""
    found = text.count(PLACEHOLDER)
    if question == PLACEHOLDER and found != 1:
        raise HarnessError(
            f"prompt: expected {PLACEHOLDER} once, got it {found} times, in an "
            "exemplar as well; give the question"
        )
    return text
