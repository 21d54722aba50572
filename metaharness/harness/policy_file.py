"""The policy slots of a harness file: ``[[retry.candidates]]`` and the like."""

import dataclasses
import types
import typing
from typing import Any

from components.context_policy import ContextPolicy
from components.output_policy import OutputPolicy
from components.retry_policy import RetryPolicy
from components.tool_policy import ToolPolicy
from metaharness.errors import HarnessError
from metaharness.harness.toml_source import TomlSource

POLICY_TYPES: dict[str, type] = {
    "output": OutputPolicy,
    "retry": RetryPolicy,
    "tools": ToolPolicy,
    "context": ContextPolicy,
}


def read_policies(source: TomlSource, slot: str) -> tuple[Any, ...]:
    """The candidates of a policy slot, in the file's order.

    A candidate's keys are the fields of its policy; one that is left out has the
    field's default.

    Raises HarnessError with path, line and remedy.
    """
    kind = POLICY_TYPES[slot]
    table = source.data[slot]
    source.known((slot,), table, ("candidates",), "option")
    at = (slot, "candidates")
    rows = table.get("candidates")
    if not isinstance(rows, list) or not rows:
        remedy = f"add [[{slot}.candidates]] tables."
        source.fail(at, "candidates", rows or None, remedy)
    names = tuple(field.name for field in dataclasses.fields(kind))
    out: list[Any] = []
    for index, row in enumerate(rows):
        spot = (*at, index)
        if not isinstance(row, dict):
            source.fail(spot, "a table", row, f"write [[{slot}.candidates]].")
        source.known(spot, row, names, "option")
        if "name" not in row:
            source.fail(spot, "a name", None, "name the candidate.")
        hints = typing.get_type_hints(kind)
        values = {}
        for field, value in row.items():
            fitted = _fit(hints[field], value)
            if fitted is None:
                what = _words(hints[field])
                source.fail((*spot, field), what, value, "correct it.")
            values[field] = fitted
        try:
            policy = kind(**values)
        except ValueError as error:
            raise HarnessError(f"{source.place(spot)}: {error}") from error
        if policy.name in {other.name for other in out}:
            source.fail((*spot, "name"), "different names", policy.name, "rename one.")
        out.append(policy)
    return tuple(out)


def policy_from_json(slot: str, data: dict[str, Any]) -> Any:
    """The inverse of ``dataclasses.asdict`` of a policy.

    Raises TypeError or ValueError where the data is not one.
    """
    kind = POLICY_TYPES[slot]
    hints = typing.get_type_hints(kind)
    values = {}
    for field, value in data.items():
        if field not in hints:
            raise TypeError(f"{slot} policy: unknown field {field!r}")
        values[field] = value if value is None else _fit(hints[field], value)
        if value is not None and values[field] is None:
            raise TypeError(f"{slot} policy: {field} is {value!r}")
    return kind(**values)


def _fit(hint: Any, value: Any) -> Any:
    """The value as the field takes it, None where it does not."""
    if isinstance(hint, types.UnionType):
        options = [one for one in typing.get_args(hint) if one is not type(None)]
        return next(
            (f for f in (_fit(o, value) for o in options) if f is not None), None
        )
    origin = typing.get_origin(hint)
    if origin is tuple:
        (inner, _) = typing.get_args(hint)
        if not isinstance(value, list | tuple):
            return None
        fitted = tuple(_fit(inner, one) for one in value)
        return None if None in fitted else fitted
    if origin is not None:  # a mapping
        return value if isinstance(value, dict) else None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) and hint is not bool:
        return None
    return value if isinstance(value, hint) else None


def _words(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        kinds = [one for one in typing.get_args(hint) if one is not type(None)]
        return " or ".join(map(_words, kinds))
    if typing.get_origin(hint) is tuple:
        return "a list"
    if typing.get_origin(hint) is not None:
        return "a table"
    return {
        str: "text in quotes",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
    }[hint]
