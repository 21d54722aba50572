"""Harness files: the slots of a harness and their pools, written in TOML.

    [exemplars]
    k = 4
    file = "pool.jsonl"        # or: from_task = 48, or: [[exemplars.pool]] tables

    [template]
    named = "short"            # and, or instead:

    [[template.candidates]]
    name = "terse"
    question = "{question}\\nOne word."

Every error is one line: `path:line: expected ..., got ...; remedy`.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from components.exemplars import Exemplar
from components.templates import Template, check_templates, named
from metaharness.errors import HarnessError, TaskError
from metaharness.tasks.jsonl import read_rows
from metaharness.tasks.leak import find_leaks
from metaharness.tasks.task import Task

SLOTS = ("exemplars", "template")
_SOURCES = ("pool", "file", "from_task")
_EXEMPLAR = ("question", "answer", "uid", "task", "kind")
_CANDIDATE = ("name", "question", "shot", "system", "chat")


@dataclass(frozen=True)
class ExemplarsSpec:
    """What the file says about the exemplar slot.

    k: exemplars in a prompt. pool: candidates that the file or its JSON-lines file
    lists, empty when they come from the task. places: "path:line" of each candidate.
    from_task: number of candidates to take from the task's pool split, 0 when listed.
    share_right: share of those left right (the rest is corrupted on purpose).
    """

    k: int
    pool: tuple[Exemplar, ...] = ()
    places: tuple[str, ...] = ()
    from_task: int = 0
    share_right: float = 1.0


@dataclass(frozen=True)
class HarnessFile:
    """A harness file, read and checked.

    exemplars: None without that slot. templates: empty without that slot.
    """

    exemplars: ExemplarsSpec | None
    templates: tuple[Template, ...]
    path: Path


def load_harness_file(path: str | Path) -> HarnessFile:
    """Read a harness file; its `file = ...` is relative to it.

    Raises HarnessError or TaskError, with path, line and remedy.
    """
    path = Path(path)
    source = _Source(path)
    source.known((), source.data, SLOTS, "slot")
    if not source.data:
        raise HarnessError(
            f"{path}:1: expected a slot, [exemplars] or [template], got none; add one."
        )
    for slot in source.data:
        if not isinstance(source.data[slot], dict):
            source.fail((slot,), f"a table [{slot}]", source.data[slot], "write one.")
    exemplars = _exemplars(source) if "exemplars" in source.data else None
    templates = _templates(source) if "template" in source.data else ()
    return HarnessFile(exemplars, templates, path)


def check_lengths(
    spec: ExemplarsSpec, count_tokens: Callable[[Exemplar], int], limit: int
) -> None:
    """Refuse a listed exemplar of more than `limit` tokens.

    count_tokens: tokens of the exemplar as the prompt shows it.

    Raises HarnessError.
    """
    for exemplar, place in zip(spec.pool, spec.places, strict=True):
        num_tokens = count_tokens(exemplar)
        if num_tokens > limit:
            raise HarnessError(
                f"{place}: expected an exemplar of at most {limit} tokens, got "
                f"{num_tokens}; shorten it or raise the limit."
            )


def check_file_leaks(spec: ExemplarsSpec, task: Task) -> None:
    """Refuse a listed exemplar that is in the task's validation or test split.

    Raises TaskError that names both items.
    """
    places = dict(zip((e.uid for e in spec.pool), spec.places, strict=True))
    for split in ("test", "validation"):
        for leak in find_leaks(spec.pool, task.splits()[split]):
            what = "equal to" if leak.similarity == 1.0 else "nearly equal to"
            raise TaskError(
                f"{places[leak.pool_uid]}: expected no exemplar from the {split} "
                f"split, got {leak.pool_uid!r} {what} {split} item "
                f"{leak.evaluated_uid!r} of {task.name}; remove it from the pool."
            )


def _exemplars(source: "_Source") -> ExemplarsSpec:
    table = source.data["exemplars"]
    here = ("exemplars",)
    source.known(here, table, ("k", *_SOURCES, "share_right"), "option")
    k = source.number(here, table, "k", least=1)
    given = [name for name in _SOURCES if name in table]
    if len(given) != 1:
        source.fail(
            here,
            "exactly one of pool, file, from_task",
            given or None,
            "say where the exemplars come from.",
        )
    share_right = table.get("share_right", 1.0)
    if "from_task" in table:
        num = source.number(here, table, "from_task", least=1)
        if isinstance(share_right, bool) or not isinstance(share_right, int | float):
            share_right = -1.0
        if not 0.0 <= share_right <= 1.0:
            at = (*here, "share_right")
            source.fail(at, "a number in [0, 1]", table["share_right"], "correct it.")
        spec = ExemplarsSpec(k, from_task=num, share_right=float(share_right))
    else:
        if "share_right" in table:
            at = (*here, "share_right")
            source.fail(at, "it only with from_task", share_right, "remove it.")
        rows = _listed(source, table) if "pool" in table else _file(source, table)
        num = len(rows)
        pool, places = _pool(rows)
        spec = ExemplarsSpec(k, pool, places)
    if k > num:
        at = (*here, "k")
        source.fail(at, f"k between 1 and {num}", k, "lower k or add exemplars.")
    return spec


def _listed(source: "_Source", table: dict[str, Any]) -> list[tuple[str, Any]]:
    at = ("exemplars", "pool")
    if not isinstance(table["pool"], list):
        remedy = "write [[exemplars.pool]] tables, or from_task = N for the task's own."
        source.fail(at, "a list of exemplars", table["pool"], remedy)
    if not table["pool"]:
        source.fail(at, "at least 1 exemplar", 0, "add exemplars.")
    return [(source.place((*at, i)), row) for i, row in enumerate(table["pool"])]


def _file(source: "_Source", table: dict[str, Any]) -> list[tuple[str, Any]]:
    at = ("exemplars", "file")
    if not isinstance(table["file"], str):
        source.fail(at, "a path in quotes", table["file"], "correct it.")
    path = source.path.parent / table["file"]
    if not path.is_file():
        source.fail(at, "an existing JSON-lines file", str(path), "correct the path.")
    rows = [(f"{path}:{number}", row) for number, row in read_rows(path)]
    if not rows:
        raise HarnessError(f"{path}:1: expected at least 1 exemplar, got 0; add lines.")
    return rows


def _pool(
    rows: list[tuple[str, Any]],
) -> tuple[tuple[Exemplar, ...], tuple[str, ...]]:
    pool: list[Exemplar] = []
    first: dict[tuple[str, ...], str] = {}
    for index, (place, row) in enumerate(rows):
        if not isinstance(row, dict):
            raise HarnessError(
                f"{place}: expected a table with question and answer, got {row!r}; "
                "correct it."
            )
        row = {"uid": f"exemplar:{index}", **row}
        values = {field: row[field] for field in _EXEMPLAR if field in row}
        for field in ("question", "answer"):
            if field not in row:
                raise HarnessError(
                    f"{place}: expected text in field {field!r}, got none"
                    f"{_close(field, row, ' (did you mean {}?)')}; fill it in."
                )
        for field, value in values.items():
            if not isinstance(value, str) or (field in _EXEMPLAR[:3] and not value):
                raise HarnessError(
                    f"{place}: expected text in field {field!r}, got {value!r}; "
                    "fill it in."
                )
        try:
            exemplar = Exemplar(**values)
        except ValueError as error:
            raise HarnessError(f"{place}: {error}") from error
        content = (exemplar.question.strip(), exemplar.answer.strip())
        for key in (content, (exemplar.uid,)):
            if key in first:
                raise HarnessError(
                    f"{place}: expected distinct candidates, got the same as at "
                    f"{first[key]}; remove one."
                )
            first[key] = place
        pool.append(exemplar)
    return tuple(pool), tuple(place for place, _ in rows)


def _templates(source: "_Source") -> tuple[Template, ...]:
    table = source.data["template"]
    here = ("template",)
    source.known(here, table, ("named", "candidates"), "option")
    templates: list[Template] = []
    if "named" in table:
        try:
            templates += named(table["named"])
        except (ValueError, TypeError) as error:
            raise HarnessError(f"{source.place((*here, 'named'))}: {error}") from error
    at = (*here, "candidates")
    candidates = table.get("candidates", [])
    if not isinstance(candidates, list) or not (candidates or templates):
        got = candidates if candidates != [] else 0
        remedy = 'add [[template.candidates]] tables or named = "short".'
        source.fail(at if "candidates" in table else here, "candidates", got, remedy)
    for index, row in enumerate(candidates):
        spot = (*at, index)
        if not isinstance(row, dict):
            source.fail(spot, "a table", row, "write [[template.candidates]].")
        source.known(spot, row, _CANDIDATE, "option")
        for field, value in row.items():
            kind = bool if field == "chat" else str
            if not isinstance(value, kind):
                what = "true or false" if kind is bool else "text in quotes"
                source.fail((*spot, field), what, value, "correct it.")
        try:
            templates.append(Template(**{"name": "", **row}))
            check_templates(tuple(templates))
        except ValueError as error:
            raise HarnessError(f"{source.place(spot)}: {error}") from error
    return tuple(templates)


def _close(name: str, known: Collection[str], frame: str) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return frame.format(repr(close[0])) if close else ""


class _Source:
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
                hint = _close(key, names, "did you mean {}?") or "remove it."
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
