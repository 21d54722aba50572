"""Episodes on disk: one JSON line each, written as soon as the episode is over."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from metaharness.errors import RunError
from metaharness.harness.trace import Trace
from metaharness.tasks.task import Item

FILE = "episodes.jsonl"


class Logged(NamedTuple):
    """An episode with what it was about: the item's question and gold answer."""

    trace: Trace
    question: str
    gold: str


class EpisodeLog:
    """The episodes of a run. A context manager; each line is flushed at once.

    Opening it again goes on after the last whole line: what a kill cut short is
    dropped.
    """

    def __init__(self, folder: Path) -> None:
        self._path = Path(folder) / FILE
        if self._path.exists():
            data = self._path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                os.truncate(self._path, whole)
        self._file = open(self._path, "ab")

    def append(self, trace: Trace, item: Item) -> None:
        """Write one episode."""
        row = {**trace.as_json(), "question": item.question, "gold": item.answer}
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        self._file.write(text.encode("utf-8", "backslashreplace") + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "EpisodeLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_episodes(folder: Path) -> Iterator[Logged]:
    """The episodes of a run in the order of the file; a cut last line is left out.

    Raises RunError where there are none, or a line is not an episode.
    """
    path = Path(folder) / FILE
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise RunError(
            f"{path}: expected the episodes of a run, found no file; run metaharness "
            "evaluate with that folder as --out."
        ) from None
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row: dict[str, Any] = json.loads(line)
            question, gold = row.pop("question"), row.pop("gold")
            yield Logged(Trace.from_json(row), question, gold)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{path}:{number}: expected an episode, got {error!r}; remove the line "
                "to have it run again."
            ) from error
