"""Data sets that are no JSON lines of text: read as they are, prepared as text."""

import gzip
import json
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from metaharness.errors import TaskError
from metaharness.tasks.prepare import prepare_files


def find_records(name: str, data_dir: Path | None, file: str, origin: str) -> Path:
    """A data set's one file, packed or not, in the subfolder `name` or beside it.

    file: its name without ".gz". origin: where to take it from.

    Raises TaskError that says what to fetch and where to put it.
    """
    place = Path("DIR") if data_dir is None else data_dir
    for folder in () if data_dir is None else (data_dir / name, data_dir):
        for path in (folder / file, folder / f"{file}.gz"):
            if path.is_file():
                return path
    got = "no --data-dir" if data_dir is None else f"no {file} in {place}"
    raise TaskError(
        f"{name}: expected its data, got {got}; fetch {origin} into {place / name}/ "
        f"and pass --data-dir {place}"
    )


def read_list(path: Path) -> list[dict[str, Any]]:
    """The objects of a file that is one JSON list; .gz is unpacked.

    Raises TaskError on an unreadable file and on anything else in it.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        rows = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise TaskError(
            f"{path}: expected a JSON list in UTF-8, got {str(error)!r}; check the "
            "path and the file."
        ) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TaskError(f"{path}: expected a list of objects; fetch the file again.")
    return rows


def field_of(
    path: Path,
    number: int,
    row: Mapping[str, Any],
    field: str,
    kind: type | tuple[type, ...],
) -> Any:
    """A field that must be of this type (or one of these types).

    Raises TaskError when it is absent or of another type.
    """
    value = row.get(field)
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(each.__name__ for each in kinds)
        got = "none" if field not in row else json.dumps(value)[:40]
        raise TaskError(
            f"{path}: item {number}: expected {names} in field {field!r}, got {got}; "
            "fetch the file again."
        )
    return value


def prepare_records(
    name: str, builder: Callable[..., Any], records: Iterable[Mapping[str, str]]
) -> tuple[list[dict[str, str]], str]:
    """The records as TFDS stores them, in an order of its own, and their SHA-256.

    builder: of `metaharness.tasks.builders`. records: its fields, none of them empty.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test.jsonl"
        with open(path, "w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(dict(record)) + "\n" for record in records)
        rows, digest = prepare_files(name, builder, {"test": path})
    return rows["test"], digest


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
