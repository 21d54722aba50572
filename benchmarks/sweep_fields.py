"""A table of a TOML file in the place of a config's fields, checked by their types."""

import dataclasses
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Any

from metaharness.errors import HarnessError, InputError
from metaharness.harness.defaults import DEFAULT
from metaharness.harness.toml_source import TomlSource

WORDS: dict[type, str] = {
    str: "text in quotes",
    Path: "a path in quotes",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple: "a list of texts",
}


def overridden(
    source: TomlSource,
    at: tuple[str, ...],
    table: Any,
    config: Any,
    hidden: Collection[str] = (),
) -> Any:
    """The config with a table's values in the place of its own, nested ones by path.

    Raises HarnessError with the line: unknown or ``hidden`` fields, wrong types, values
    that the config refuses.
    """
    if not isinstance(table, dict):
        source.fail(at, "a table", table, "write one.")
    hints = typing.get_type_hints(type(config))
    fields = [f.name for f in dataclasses.fields(config) if f.name not in hidden]
    source.known(at, table, tuple(fields), "field")
    values = {}
    for name, value in table.items():
        spot = (*at, name)
        if dataclasses.is_dataclass(hints[name]):
            value = overridden(source, spot, value, getattr(config, name))
        else:
            kind = _kind(hints[name])
            if not fits(kind, value):
                source.fail(spot, WORDS[kind], value, "correct it.")
            value = beside(source, value) if kind is Path else kind(value)
        values[name] = value
    try:
        return dataclasses.replace(config, **values)
    except HarnessError:
        raise
    except InputError as error:
        raise HarnessError(f"{source.place(at)}: {error}") from error


def _kind(hint: Any) -> type:
    """The type of a field's values, one of ``WORDS``; None is not to be written."""
    if typing.get_origin(hint) is tuple:
        return tuple
    given = [one for one in typing.get_args(hint) if one is not type(None)]
    return given[0] if given else hint


def fits(kind: type, value: Any) -> bool:
    """Whether a value of the file is one of this type, a key of ``WORDS``."""
    if kind is tuple:
        return isinstance(value, list) and all(isinstance(v, str) for v in value)
    if kind is Path:
        return isinstance(value, str) and bool(value)
    if kind is float:
        kind = int | float
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def beside(source: TomlSource, path: str) -> Path:
    """A path of the file, which is relative to it; ``DEFAULT`` is none."""
    return Path(path) if path == DEFAULT else source.path.parent / path
