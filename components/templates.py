"""Instruction templates: how a question is put to the model."""

from dataclasses import dataclass

from components.pools import check_pool

PLACEHOLDER = "{question}"


@dataclass(frozen=True)
class Template:
    """One candidate of a template slot.

    question: text of the final question turn; shot: text of the exemplars' question
    turns; each holds `{question}` exactly once, and no other braces are special.
    system: text of the system turn, None leaves it to the model's chat template.
    chat: True sends user and assistant turns through the model's chat template; False
    writes plain text, where exemplars are separated by a blank line and the answer
    starts on its own line, so that it is the same tokens under every template.
    exemplars: False leaves the exemplars out: whether to show any is then a candidate
    of this slot.

    Raises ValueError on a missing or repeated placeholder, and on plain text that does
    not end its question with a line break.
    """

    name: str
    question: str = PLACEHOLDER
    shot: str = PLACEHOLDER
    system: str | None = None
    chat: bool = True
    exemplars: bool = True

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("template: expected a name, got none; name it.")
        for field, text in (("question", self.question), ("shot", self.shot)):
            found = text.count(PLACEHOLDER)
            if found != 1:
                raise ValueError(
                    f"template {self.name!r}: expected {PLACEHOLDER} once in "
                    f"{field!r}, got it {found} times; put it where the question goes."
                )
            if not self.chat and not text.endswith("\n"):
                raise ValueError(
                    f"template {self.name!r}: expected {field!r} of plain text "
                    f"(chat = false) to end with a line break, got {text[-12:]!r}; "
                    "end it with \\n."
                )

    @property
    def cache_key(self) -> tuple[bool, str | None, str, bool]:
        """What the encoded exemplar pool depends on; equal keys share one pool."""
        return (self.chat, self.system, self.shot, self.exemplars)

    def ask(self, question: str) -> str:
        """Text of the final question turn."""
        return self.question.replace(PLACEHOLDER, question)

    def show(self, question: str) -> str:
        """Text of an exemplar's question turn."""
        return self.shot.replace(PLACEHOLDER, question)


_PLAIN = "Question: {question}\nAnswer:\n"

# The first three of each set differ only in the final question turn: one encoded pool.
NAMED: dict[str, tuple[Template, ...]] = {
    "default": (
        Template("bare"),
        Template("result_only", question="{question}\nAnswer with the result only."),
        Template("question_answer", question="Question: {question}\nAnswer:"),
        Template("system_line", system="You answer with the result only, no comment."),
        Template("plain", question=_PLAIN, shot=_PLAIN, chat=False),
    ),
    "short": (
        Template("bare"),
        Template("result_only", question="{question}\nAnswer with the result only."),
        Template("question_answer", question="Question: {question}\nAnswer:"),
    ),
    "math": (
        Template("bare"),
        Template(
            "steps",
            question="{question}\nWork step by step. End with a line '#### ' followed "
            "by the final number.",
        ),
        Template(
            "short_steps",
            question="Solve in as few steps as possible, one a line, then write "
            "'#### ' and the number.\n\n{question}",
        ),
        Template(
            "teacher",
            system="You are a careful mathematics teacher. You end every solution with "
            "a line '#### ' followed by the final number.",
        ),
        Template("plain", question=_PLAIN, shot=_PLAIN, chat=False),
    ),
    "code": (
        Template("bare"),
        Template(
            "body_only",
            question="Complete the function. Write its body only, indented.\n\n"
            "{question}",
        ),
        Template(
            "continue",
            question="Continue this Python file after its last line.\n\n{question}",
        ),
        Template("plain", question="{question}\n", shot="{question}\n", chat=False),
    ),
}


def named(name: str) -> tuple[Template, ...]:
    """A ready set of templates, by name.

    Raises ValueError for a name that is not in `NAMED`.
    """
    if name not in NAMED:
        raise ValueError(
            f"templates: expected a set among {', '.join(NAMED)}, got {name!r}; "
            "use one of these or give your own templates."
        )
    return NAMED[name]


def check_templates(templates: tuple[Template, ...]) -> None:
    """Refuse an empty set, and two templates of one name or of one content.

    Raises ValueError.
    """
    check_pool("template", [t.name for t in templates])
    first: dict[tuple[object, ...], str] = {}
    for template in templates:
        content = (*template.cache_key, template.question)
        if content in first:
            raise ValueError(
                f"pool 'template': expected distinct candidates, got the same text in "
                f"{first[content]!r} and {template.name!r}; remove one."
            )
        first[content] = template.name
