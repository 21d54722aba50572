"""JSON files that are either complete or not there.

Numbers that JSON cannot hold (NaN, infinities) become null, so that every reader,
strict ones included, can load what a run wrote.
"""

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from metaharness.errors import RunError


def json_safe(value: Any) -> Any:
    """The same value as dicts, lists, strings, numbers and None.

    Dataclasses and named tuples become dicts by field name, arrays nested lists,
    paths strings, NaN and infinities None.

    Raises:
      TypeError: a value of another type, or a key that is not a string.
    """
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(key): json_safe(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: json_safe(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return json_safe(value._asdict())
    if isinstance(value, tuple | list):
        return [json_safe(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return json_safe(np.asarray(value).tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(
        f"JSON: expected numbers, text, arrays, dataclasses, lists or dicts; got a"
        f" {type(value).__name__}: {value!r:.80}"
    )


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of everything that nested dicts hold."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}".removeprefix("."))
    else:
        yield path, value


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, ignored: Collection[str] = ()
) -> list[str]:
    """What two nested dicts differ in, as "path old → new", without ignored paths."""
    before, after = dict(leaves(old)), dict(leaves(new))
    return [
        f"{path} {before.get(path)!r} → {after.get(path)!r}"
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path) and path not in ignored
    ]


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON text of `json_safe(value)`."""
    return json.dumps(
        json_safe(value), allow_nan=False, ensure_ascii=False, indent=indent
    )


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON; readers see the old file or the new one, never a part."""
    write_text(path, dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text through a temporary file beside the target."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp is private to the user; a result is as readable as any new file
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_json(path: Path) -> Any:
    """Reads what `write_json` wrote.

    Raises:
      RunError: the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(
            f"{path}: expected a file of a run, found none; check the run directory."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(
            f"{path}: expected JSON, got {error}; restore the file or start a new run."
        ) from error


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(
            f"JSON: expected keys that are strings, got {key!r}; name it with str()."
        )
    return key


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
