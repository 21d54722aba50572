"""The metrics of a run: one JSON object a line, only ever appended.

A checkpoint stores `MetricsLog.offset`; a resumed run cuts the file back to it, so
that it holds what an unbroken run would have written.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metaharness.errors import RunError
from metaharness.runlog import jsonfile


class MetricsLog:
    """Open metrics file. A context manager; each row is flushed when appended."""

    def __init__(self, path: Path, *, resume_at: int | None = None):
        """Opens for appending, or cuts back to a checkpoint's offset first.

        Args:
          path: the file; made when absent.
          resume_at: bytes to keep. None keeps all.

        Raises:
          RunError: the file is shorter than the offset, or the offset is not the
            end of a row.
        """
        if resume_at is not None:
            _cut(path, resume_at)
        self._file = open(path, "ab")

    @property
    def offset(self) -> int:
        """Size in bytes after the last row."""
        return self._file.tell()

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row; NaN and infinities become null."""
        self._file.write(jsonfile.dumps(row).encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Waits until the rows are on disk; call before a checkpoint counts on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete rows; a last line that a kill cut short is left out.

    Raises:
      RunError: no such file, or a complete line that is not a JSON object.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise RunError(
            f"{path}: expected the metrics of a run, found no file; check the run"
            " directory."
        ) from None
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise RunError(
                f"{path}:{number}: expected a JSON object, got {error}; remove the"
                " line or start a new run."
            ) from error
    return rows


def _cut(path: Path, offset: int) -> None:
    size = path.stat().st_size if path.exists() else 0
    if size < offset:
        raise RunError(
            f"{path}: expected at least the checkpoint's {offset} bytes, got {size};"
            " the file was changed after the checkpoint: resume an older one or start"
            " a new run."
        )
    if offset == 0 and size == 0:
        return
    with open(path, "r+b") as file:
        if offset > 0:
            file.seek(offset - 1)
            if file.read(1) != b"\n":
                raise RunError(
                    f"{path}: expected a row to end at byte {offset}, the file was"
                    " changed after the checkpoint; start a new run."
                )
        file.truncate(offset)
