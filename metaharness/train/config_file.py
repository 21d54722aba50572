"""A training configuration from ``config.json``, and what two of them disagree in."""

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any

from metaharness.errors import InputError, RunError
from metaharness.runlog.jsonfile import differences, json_safe
from metaharness.train.config import TrainConfig

# What a resumed run may do otherwise: none of it changes a number that was written.
_FREE = frozenset(
    {"out", "quiet", "sinks", "max_seconds", "max_tokens", "max_calls"}
    | {"checkpoint.every", "checkpoint.keep"}
)


def as_data(config: TrainConfig) -> dict[str, Any]:
    """Plain JSON of the fields of ``TrainConfig``."""
    return {
        field.name: json_safe(getattr(config, field.name))
        for field in dataclasses.fields(TrainConfig)
    }


def read_config(data: Any, kind: type = TrainConfig, *, source: str) -> Any:
    """The configuration that ``as_data`` took apart, as ``kind``.

    Raises:
        RunError: a field is not known or of another form; named with ``source``.
    """
    try:
        return _build(kind, data)
    except (TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"{source}: expected a configuration of this version, got {error}; start "
            "a new run"
        ) from error


def check_same(stored: TrainConfig, asked: TrainConfig) -> None:
    """Refuse to go on under another configuration.

    Raises:
        InputError: names every field that differs, with both values.
    """
    differing = differences(as_data(stored), as_data(asked), ignored=_FREE)
    if differing:
        raise InputError(
            f"resume: expected the run's own configuration, got {len(differing)} other "
            f"values ({', '.join(differing)}); leave them out, or start a new run"
        )


def _build(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _build(arguments[0], value)
    if origin is tuple:
        return tuple(_build(arguments[0], item) for item in value)
    if kind is Path:
        return Path(value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        unknown = sorted(value.keys() - hints.keys())
        if unknown:
            raise ValueError(f"unknown fields {', '.join(unknown)}")
        return kind(**{name: _build(hints[name], item) for name, item in value.items()})
    if kind is float and isinstance(value, int):
        return float(value)
    return value
