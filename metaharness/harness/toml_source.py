"""A TOML file that can say where each of its keys stands.

Every error is one line: `path:line: expected ..., got ...; remedy`.
"""

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from metaharness.errors import HarnessError


def closest(name: str, known: Collection[str], frame: str) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return frame.format(repr(close[0])) if close else ""


class TomlSource:
    """A TOML file's data, and where in its text each key stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise HarnessError(
                f"{path}: expected a harness file in UTF-8, got {reason!r}; check the "
                "path."
            ) from error
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            message, _, where = str(error).partition(" (at ")
            line = re.match(r"line (\d+)", where)
            number = line.group(1) if line else text.count("\n") + 1
            raise HarnessError(
                f"{path}:{number}: expected TOML, got {message.lower()!r}; correct it."
            ) from error
        self._lines = _key_lines(text)

    def place(self, at: tuple[str | int, ...]) -> str:
        """ "path:line" of a key, or of the nearest table around it."""
        while at and at not in self._lines:
            at = at[:-1]
        return f"{self.path}:{self._lines.get(at, 1)}"

    def fail(
        self, at: tuple[str | int, ...], expected: str, got: object, remedy: str
    ) -> NoReturn:
        key = next((str(k) for k in reversed(at) if isinstance(k, str)), "file")
        shown = "none" if got is None else repr(got)[:60]
        raise HarnessError(
            f"{self.place(at)}: {key}: expected {expected}, got {shown}; {remedy}"
        )

    def known(
        self,
        at: tuple[str | int, ...],
        table: Mapping[str, Any],
        names: tuple[str, ...],
        what: str,
    ) -> None:
        """Refuse a key that is not among the names, with the closest of them."""
        for key in table:
            if key not in names:
                hint = closest(key, names, "did you mean {}?") or "remove it."
                raise HarnessError(
                    f"{self.place((*at, key))}: expected {what} among "
                    f"{', '.join(names)}, got {key!r}; {hint}"
                )

    def number(
        self, at: tuple[str, ...], table: Mapping[str, Any], key: str, *, least: int
    ) -> int:
        value = table.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            spot = (*at, key) if key in table else at
            expected = f"a whole number {key} of {least} or more"
            self.fail(spot, expected, value, "set it.")
        return value


_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*([\w\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=")


def _key_lines(text: str) -> dict[tuple[str | int, ...], int]:
    """Line of each key and table of valid TOML; tables of a list carry their index.

    tomllib tells no positions. Keys inside inline tables are not found: `place` then
    gives the line of the key that holds them.
    """
    lines: dict[tuple[str | int, ...], int] = {}
    counts: dict[tuple[str, ...], int] = {}
    table: tuple[str | int, ...] = ()
    inside = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if inside:
            inside = "" if inside in line else inside
            continue
        if header := _HEADER.match(line):
            names = _names(header[2])
            table = names
            if header[1] == "[[":
                table = (*names, counts.get(names, 0))
                counts[names] = counts.get(names, 0) + 1
            for end in range(1, len(table) + 1):
                lines.setdefault(table[:end], number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_names(key[1])), number)
            for quotes in ('"""', "'''"):
                inside = quotes if line.count(quotes) % 2 else inside
    return lines


def _names(dotted: str) -> tuple[str, ...]:
    return tuple(name.strip().strip("\"'") for name in dotted.split("."))
