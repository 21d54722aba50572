"""Harness files: the slots of a harness and their pools, written in TOML.

    [exemplars]
    k = 4
    file = "pool.jsonl"        # or: from_task = 48, or: [[exemplars.pool]] tables

    [template]
    named = "short"            # and, or instead:

    [[template.candidates]]
    name = "terse"
    question = "{question}\\nOne word."

    [[retry.candidates]]       # also output, tools, context: fields of their policies
    name = "twice"
    attempts = 2

Every error is one line: `path:line: expected ..., got ...; remedy`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.exemplars import Exemplar
from components.templates import Template, check_templates, named
from metaharness.errors import HarnessError, TaskError
from metaharness.harness.policy_file import read_policies
from metaharness.harness.slots import POLICIES
from metaharness.harness.toml_source import TomlSource, closest
from metaharness.tasks.jsonl import read_rows
from metaharness.tasks.leak import find_leaks
from metaharness.tasks.task import Task

SLOTS = ("exemplars", "template", *POLICIES)
_SOURCES = ("pool", "file", "from_task")
_EXEMPLAR = ("question", "answer", "uid", "task", "kind")
_CANDIDATE = ("name", "question", "shot", "system", "chat", "exemplars")


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

    exemplars: None without that slot. templates: empty without that slot. policies:
    slot -> its candidates, of those that the file has.
    """

    exemplars: ExemplarsSpec | None
    templates: tuple[Template, ...]
    path: Path
    policies: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)


def load_harness_file(path: str | Path) -> HarnessFile:
    """Read a harness file; its `file = ...` is relative to it.

    Raises HarnessError or TaskError, with path, line and remedy.
    """
    path = Path(path)
    source = TomlSource(path)
    source.known((), source.data, SLOTS, "slot")
    if not source.data:
        raise HarnessError(
            f"{path}:1: expected a slot, [exemplars] or [template] say, got none; add "
            "one."
        )
    for slot in source.data:
        if not isinstance(source.data[slot], dict):
            source.fail((slot,), f"a table [{slot}]", source.data[slot], "write one.")
    exemplars = _exemplars(source) if "exemplars" in source.data else None
    templates = _templates(source) if "template" in source.data else ()
    policies = {
        slot: read_policies(source, slot) for slot in POLICIES if slot in source.data
    }
    return HarnessFile(exemplars, templates, path, policies)


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


def _exemplars(source: TomlSource) -> ExemplarsSpec:
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


def _listed(source: TomlSource, table: dict[str, Any]) -> list[tuple[str, Any]]:
    at = ("exemplars", "pool")
    if not isinstance(table["pool"], list):
        remedy = "write [[exemplars.pool]] tables, or from_task = N for the task's own."
        source.fail(at, "a list of exemplars", table["pool"], remedy)
    if not table["pool"]:
        source.fail(at, "at least 1 exemplar", 0, "add exemplars.")
    return [(source.place((*at, i)), row) for i, row in enumerate(table["pool"])]


def _file(source: TomlSource, table: dict[str, Any]) -> list[tuple[str, Any]]:
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
                    f"{closest(field, row, ' (did you mean {}?)')}; fill it in."
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


def _templates(source: TomlSource) -> tuple[Template, ...]:
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
            kind = bool if field in ("chat", "exemplars") else str
            if not isinstance(value, kind):
                what = "true or false" if kind is bool else "text in quotes"
                source.fail((*spot, field), what, value, "correct it.")
        try:
            templates.append(Template(**{"name": "", **row}))
            check_templates(tuple(templates))
        except ValueError as error:
            raise HarnessError(f"{source.place(spot)}: {error}") from error
    return tuple(templates)
