"""An item's own paragraphs: shown in its question, and found by a search tool."""

import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from components.bm25 import best, bm25
from components.matching import squad_normal
from components.schema import accepts
from components.tools import ToolReply, ToolSpec
from metaharness.tasks.task import Item, Scorer

# Paragraphs that a question shows, and that a search gives when it names no number.
RETRIEVED = 3
MOST = 5

Paragraph = Mapping[str, Any]  # title, text, maybe supporting

_MARK = re.compile(r"</?context>", re.IGNORECASE)

SEARCH = ToolSpec(
    name="search",
    description="Find the paragraphs that share the rarest words with a query. num: "
    f"how many, 1 to {MOST}, {RETRIEVED} if left out.",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "num": {"type": "integer", "minimum": 1, "maximum": MOST},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
)
LOOKUP = ToolSpec(
    name="lookup",
    description="Read the paragraphs that have this title.",
    parameters={
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "additionalProperties": False,
    },
)
_WANTED = {
    "search": f"query (text) and maybe num (whole number from 1 to {MOST})",
    "lookup": "title (text)",
}


def retrieve(
    query: str, paragraphs: Sequence[Paragraph], num: int = RETRIEVED
) -> tuple[Paragraph, ...]:
    """The best `num` paragraphs for a query by BM25 over title and text, best first.

    Fewer where there are fewer; paragraphs that share no word with the query come last.
    """
    scores = bm25(query, _texts(paragraphs))
    return tuple(paragraphs[at] for at in best(scores, num))


def numbered(paragraphs: Sequence[Paragraph]) -> str:
    """Two lines a paragraph: number and title, then the text on one line."""
    lines = []
    for number, paragraph in enumerate(paragraphs, start=1):
        lines += [f"[{number}] {_line(paragraph['title'])}", _line(paragraph["text"])]
    return "\n".join(lines)


def closed_question(question: str, paragraphs: Sequence[Paragraph]) -> str:
    """A closed block of paragraphs, then the question on a line of its own."""
    return f"<context>\n{numbered(paragraphs)}\n</context>\n{question.strip()}"


class SearchEnvironment:
    """Tools over one item's paragraphs (`meta["paragraphs"]`); calls leave no trace.

    search: paragraphs by BM25, numbered, with titles; lookup: the paragraphs of a
    title, equal in `squad_normal` form. Neither says which paragraphs support the
    answer.
    """

    tools: tuple[ToolSpec, ...] = (SEARCH, LOOKUP)
    done = False

    def __init__(self, item: Item, *, scorer: Scorer) -> None:
        self._item = item
        self._scorer = scorer
        self._paragraphs: Sequence[Paragraph] = item.meta["paragraphs"]

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """The reply of `search` or `lookup`; an error reply to anything else."""
        spec = next((tool for tool in self.tools if tool.name == name), None)
        if spec is None:
            names = " or ".join(tool.name for tool in self.tools)
            return _error(f"expected the tool {names}, got {_shown(name)}")
        given = dict(arguments) if isinstance(arguments, Mapping) else arguments
        if not accepts(spec.parameters, given):
            return _error(
                f"{spec.name}: expected {_WANTED[spec.name]}, got "
                f"{_shown(given)}; call it again"
            )
        if spec is SEARCH:
            return self._search(given["query"], int(given.get("num", RETRIEVED)))
        return self._lookup(given["title"])

    def reward(self, answer: str) -> float:
        """The task's score of the answer; the calls cost nothing here."""
        return self._scorer(answer, self._item)

    def _search(self, query: str, num: int) -> ToolReply:
        scores = bm25(query, _texts(self._paragraphs))
        found = [self._paragraphs[at] for at in best(scores, num) if scores[at] > 0.0]
        return ToolReply(
            numbered(found) or "no paragraph has a word of this query; try other words"
        )

    def _lookup(self, title: str) -> ToolReply:
        wanted = _title_key(title)
        found = [p for p in self._paragraphs if _title_key(p["title"]) == wanted]
        if not found:
            return _error(
                f"lookup: expected a title that search shows, got {_shown(title)}; "
                "search first"
            )
        return ToolReply(numbered(found))


def _texts(paragraphs: Sequence[Paragraph]) -> list[str]:
    return [f"{p['title']}\n{p['text']}" for p in paragraphs]


def _title_key(title: str) -> str:
    return squad_normal(title) or title.strip()


def _line(text: str) -> str:
    # a text must neither end its block nor, by an empty line, its exemplar
    return " ".join(_MARK.sub(" ", text).split())


def _shown(given: Any) -> str:
    try:
        return reprlib.repr(given)
    except ValueError:  # an integer of too many digits
        return type(given).__name__


def _error(text: str) -> ToolReply:
    return ToolReply(f"error: {text}", error=True)
