"""A user's own task: a JSON-lines file of questions and answers."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components.parsers import normal_answer
from metaharness.errors import TaskError
from metaharness.tasks.splits import fitting_sizes, make_splits
from metaharness.tasks.task import (
    SPLITS,
    Item,
    SplitSizes,
    Task,
    answer_limits,
    fingerprint,
)

LARGEST = SplitSizes(pool=64, train=2000, validation=256, test=2000)


def load_jsonl(path: Path, *, seed: int, sizes: SplitSizes | None) -> Task:
    """Task of a file with one object a line: `question`, `answer`, maybe `split`.

    split: one of "pool", "train", "validation", "test"; lines without one, and splits
    that no line names, are filled by a fixed shuffle from the seed. sizes: None fits
    them to the file, up to `LARGEST`. Scored by equality of `normal_answer`.

    Raises TaskError that names file, line and remedy.
    """
    groups: dict[str, list[Item]] = {}
    for number, row in read_rows(path):
        split, item = _item(path, number, row)
        groups.setdefault(split, []).append(item)
    num_items = sum(map(len, groups.values()))
    if num_items < 8:
        raise TaskError(
            f"{path}: expected at least 8 items (two a split), got {num_items}; add "
            "lines."
        )
    splits = make_splits(
        path.name,
        groups,
        sizes or fitting_sizes(groups, LARGEST),
        seed,
        at_most=sizes is None,
    )
    max_new_tokens, stop = answer_limits(splits["pool"] + splits["train"])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Task(
        name=path.name.split(".")[0],
        **splits,
        scorer=normalised_match,
        max_new_tokens=max_new_tokens,
        stop=stop,
        fingerprint=fingerprint(splits),
        source=f"{path.name}, SHA-256 {digest}, seed {seed}",
    )


def normalised_match(text: str, item: Item) -> float:
    """1.0 where text and gold answer have the same `normal_answer`, else 0.0."""
    return float(normal_answer(text) == normal_answer(item.answer))


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of each line that is not blank; .gz is unpacked.

    Raises TaskError on a line that is not a JSON object, and on an unreadable file.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TaskError(
            f"{path}: expected a JSON-lines file in UTF-8, got {reason!r}; check the "
            "path and the file."
        ) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise TaskError(
                f"{path}:{number}: expected one JSON object, got {error.msg} at column "
                f"{error.colno}; fix or remove the line."
            ) from error
        if not isinstance(row, dict):
            raise TaskError(
                f"{path}:{number}: expected a JSON object, got {type(row).__name__}; "
                'write {"question": ..., "answer": ...}.'
            )
        yield number, row


def text_field(path: Path, number: int, row: dict[str, Any], field: str) -> str:
    """A field that must hold text; a number is taken as it is written in JSON.

    Raises TaskError when it is absent, empty, or of another type.
    """
    value = row.get(field)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = json.dumps(value)
    if not isinstance(value, str) or not value.strip():
        got = "none" if field not in row else json.dumps(row[field])[:40]
        raise TaskError(
            f"{path}:{number}: expected text in field {field!r}, got {got}; fill it in."
        )
    return value


def _item(path: Path, number: int, row: dict[str, Any]) -> tuple[str, Item]:
    split = row.get("split", "")
    if split not in ("", *SPLITS):
        raise TaskError(
            f"{path}:{number}: expected field 'split' among {', '.join(SPLITS)}, got "
            f"{split!r}; correct it or leave it out."
        )
    item = Item(
        uid=f"{path.stem}:{number}",
        question=text_field(path, number, row, "question"),
        answer=text_field(path, number, row, "answer"),
    )
    return split, item
