"""`metaharness export`: a learned harness for other programs."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from metaharness.errors import InputError

if TYPE_CHECKING:
    from metaharness.harness.learned import Learned


@dataclass(frozen=True)
class Export:
    """Write a learned harness as data, as a prompt, or as a program's state.

    json: template, exemplars and probabilities of one task or of all.

    text: the prompt, letter by letter as the model reads it.

    messages: the prompt as chat messages, for any API.

    dspy: demonstrations and instructions, for dspy.Predict("question -> answer").load.

    A prompt holds {question} where the question goes, unless --question fills it in.
    """

    run: Annotated[Path, Positional, arg(metavar="RUN")]
    """run directory or its harness.json"""
    to: Literal["json", "text", "messages", "dspy"]
    """form to write"""
    task: str | None = None
    """whose harness, where the run learned several; json writes all by default"""
    question: str | None = None
    """fill this in (text and messages); - reads it from standard input"""
    model: str | None = None
    """whose chat template (text); the run's own by default"""
    out: Path | None = None
    """file to write; standard output by default"""
    force: bool = False
    """replace that file if it exists"""

    def execute(self) -> int:
        """Write one form; nothing is written where something is refused."""
        from metaharness.harness.learned import load_learned
        from metaharness.runlog.jsonfile import write_text

        self._check()
        text = FORMS[self.to](self, load_learned(self.run))
        folder = self.run if self.run.is_dir() else self.run.parent
        adapter = folder / "adapter"
        if self.to != "json" and (adapter / "adapter_config.json").is_file():
            print(
                f"warning: this prompt was learned together with the weights in "
                f"{adapter}; use it with them",
                file=sys.stderr,
            )
        if self.out is None:
            sys.stdout.write(text)
        else:
            write_text(self.out, text)
        return 0

    def _check(self) -> None:
        """What can be refused before anything is read."""
        for option, value, forms in (
            ("question", self.question, ("text", "messages")),
            ("model", self.model, ("text",)),
        ):
            if value is not None and self.to not in forms:
                raise InputError(
                    f"--{option}: expected with --to {' or '.join(forms)}, got it with "
                    f"{self.to}; leave it out"
                )
        if self.out is None:
            return
        if not self.out.parent.is_dir():
            raise InputError(
                f"{self.out}: expected an existing folder, found no {self.out.parent}; "
                "make it first"
            )
        if self.out.exists() and not self.out.is_file():
            raise InputError(
                f"{self.out}: expected a file, found something else; name a file"
            )
        if self.out.exists() and not self.force:
            raise InputError(
                f"{self.out}: expected no such file yet, found one; pass --force to "
                "replace it or name another"
            )


def _json(options: Export, learned: "Learned") -> str:
    from metaharness.harness.export import export_json

    return _dumps(export_json(learned, options.task))


def _text(options: Export, learned: "Learned") -> str:
    from metaharness.harness.export import export_text

    def load():
        from metaharness.model.load import load_tokenizer

        return load_tokenizer(options.model or learned.model)

    return export_text(learned, options.task, _asked(options), load_tokenizer=load)


def _messages(options: Export, learned: "Learned") -> str:
    from metaharness.harness.export import export_messages

    return _dumps(export_messages(learned, options.task, _asked(options)))


def _dspy(options: Export, learned: "Learned") -> str:
    from metaharness.harness.export import export_dspy

    return _dumps(export_dspy(learned, options.task))


FORMS: dict[str, Callable[[Export, "Learned"], str]] = {
    "json": _json,
    "text": _text,
    "messages": _messages,
    "dspy": _dspy,
}


def _asked(options: Export) -> str:
    """The question, or the place for it."""
    from components.templates import PLACEHOLDER

    if options.question is None:
        return PLACEHOLDER
    question = options.question
    if question == "-":
        question = sys.stdin.read().strip()
    if not question.strip():
        raise InputError("question: expected text, got none; write one")
    return question


def _dumps(value: object) -> str:
    from metaharness.runlog.jsonfile import dumps

    return dumps(value, indent=2) + "\n"
