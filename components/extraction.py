"""From what a model wrote to its answer, by a named rule: pure total functions."""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from components.fences import fenced_blocks
from components.matching import squad_normal
from components.parsers import final_number
from components.schema import read_json

Extractor = Callable[[str, Sequence[str]], str | None]
"""(text, labels) -> the answer, None where the rule finds none."""

_MARKED = re.compile(r"(?im)\banswer[ \t]*(?:is|:|=)[ \t]*[:=]?[ \t]*(\S.*?)[ \t]*$")
_HASHES = re.compile(r"(?m)^.*####[ \t]*(\S.*?)[ \t]*$")
_BOXED = re.compile(r"\\boxed[ \t]*\{")


def _whole(text: str, _: Sequence[str]) -> str | None:
    return text.strip() or None


def _first_line(text: str, _: Sequence[str]) -> str | None:
    return next(iter(_lines(text)), None)


def _last_line(text: str, _: Sequence[str]) -> str | None:
    return next(reversed(_lines(text)), None)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _marked(text: str, _: Sequence[str]) -> str | None:
    """The rest of the last line that says "answer is", "answer:" or "answer ="."""
    found = _MARKED.findall(text)
    return found[-1].rstrip(".").strip() or None if found else None


def _hashes(text: str, _: Sequence[str]) -> str | None:
    """What follows the last "####" of a line: GSM8K's own mark."""
    found = _HASHES.findall(text)
    return found[-1] if found else None


def _boxed(text: str, _: Sequence[str]) -> str | None:
    r"""What the last ``\boxed{...}`` holds, braces matched."""
    starts = list(_BOXED.finditer(text))
    if not starts:
        return None
    start = starts[-1].end()
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return text[start:place].strip() or None
    return None


def _number(text: str, _: Sequence[str]) -> str | None:
    return final_number(text)


def _json(text: str, _: Sequence[str]) -> str | None:
    found = read_json(text)
    return None if found is None else json.dumps(found.value, ensure_ascii=False)


def _code(text: str, _: Sequence[str]) -> str | None:
    """The longest fenced block; None without one."""
    blocks = [b.code for b in fenced_blocks(text.replace("\r\n", "\n"))[0]]
    return max((b for b in blocks if b.strip()), key=len, default=None)


def _label(text: str, labels: Sequence[str]) -> str | None:
    """The label whose words the text names first (of two at one place the longer)."""
    words = f" {squad_normal(text)} "
    places = []
    for label in labels:
        at = words.find(f" {squad_normal(label)} ")
        if at >= 0:
            places.append((at, -len(label), label))
    return min(places)[2] if places else None


EXTRACTORS: dict[str, Extractor] = {
    "whole": _whole,
    "first_line": _first_line,
    "last_line": _last_line,
    "marked": _marked,
    "hashes": _hashes,
    "boxed": _boxed,
    "number": _number,
    "json": _json,
    "code": _code,
    "label": _label,
}


def extract(rule: str, text: str, labels: Sequence[str] = ()) -> str | None:
    """The answer that a rule of ``EXTRACTORS`` finds in a text, or None.

    whole: all of it; first_line, last_line: of those that are not empty; marked: after
    the last "answer is" or "answer:", to the end of its line; hashes: after "####";
    boxed: inside the last ``\\boxed{}``; number: the number that a worked solution
    answers with; json: the value, rewritten; code: the longest fenced block; label: the
    one of ``labels`` that is named first. Empty is None.
    """
    return EXTRACTORS[rule](text, labels)


_SOURCES = (
    "extraction",
    "output_policy",
    "parsers",
    "numbers",
    "matching",
    "schema",
    "fences",
)


@functools.cache
def parser_digest() -> str:
    """sha256 of the code that turns texts into answers: what was fitted to outcomes of
    another version belongs to another parser."""
    folder = Path(__file__).parent
    parts = [(folder / f"{name}.py").read_bytes() for name in _SOURCES]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
