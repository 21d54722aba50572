"""JSON in an answer, and whether a small subset of JSON Schema accepts it."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from components.fences import fenced_blocks

KEYWORDS = frozenset(
    ["type", "required", "properties", "enum", "items", "minimum", "maximum"]
    + ["additionalProperties"]
)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": (int, float),
    "boolean": bool,
    "null": type(None),
}


class Json(NamedTuple):
    """A JSON value in a field of its own, so that null is not "none found"."""

    value: Any


def read_json(text: str) -> Json | None:
    """The JSON value that an answer is, or that its last fenced block holds.

    RFC 8259: no NaN or Infinity. Of a name twice in an object the last value counts.
    None where there is none, or one too deep or too long for the reader.
    """
    blocks = fenced_blocks(text.replace("\r\n", "\n"))[0]
    held = [b.code for b in blocks if b.language in ("", "json") and b.code.strip()]
    for source in (text, *held[-1:]):
        try:
            return Json(json.loads(source.strip(), parse_constant=_refuse))
        except (ValueError, RecursionError):
            continue
    return None


def check_schema(schema: Any, path: str = "schema") -> None:
    """Raise ValueError unless the schema keeps to the subset that `accepts` honours.

    Keywords: `KEYWORDS`, all with the meaning of JSON Schema 2020-12, `items` and
    `additionalProperties` a schema (true and false are schemas, too). `type` is one
    name or a list of names. Any other keyword is refused, annotations as well: what
    would be passed over in silence is not checked.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ValueError(f"{path}: expected an object or a boolean, got {schema!r}.")
    unknown = sorted(map(str, set(schema) - KEYWORDS))
    if unknown:
        raise ValueError(
            f"{path}: expected keywords among {', '.join(sorted(KEYWORDS))}, got "
            f"{unknown[0]!r}; leave it out or check it in a scorer of your own."
        )
    for name in _names(schema.get("type", [])):
        if name not in _TYPES:
            raise ValueError(
                f"{path}: expected a type among {', '.join(_TYPES)}, got {name!r}."
            )
    for keyword, kind, what in (
        ("required", list, "a list of names"),
        ("enum", list, "a list of values"),
        ("properties", Mapping, "an object of schemas"),
        ("minimum", (int, float), "a number"),
        ("maximum", (int, float), "a number"),
    ):
        value = schema.get(keyword)
        if keyword in schema and (
            isinstance(value, bool) or not isinstance(value, kind)
        ):
            raise ValueError(f"{path}: expected {what} in {keyword!r}, got {value!r}.")
    for name, inner in schema.get("properties", {}).items():
        check_schema(inner, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        check_schema(schema.get(keyword, True), f"{path}.{keyword}")


def accepts(schema: Any, value: Any) -> bool:
    """Whether a JSON value keeps to a schema that `check_schema` lets pass.

    1.0 is an integer and equals 1; true is no number.
    """
    if isinstance(schema, bool):
        return schema
    names = _names(schema.get("type", []))
    if names and not any(_is(value, name) for name in names):
        return False
    if "enum" in schema and not any(_equal(value, each) for each in schema["enum"]):
        return False
    if _is(value, "number") and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
    ):
        return False
    if isinstance(value, list):
        return all(accepts(schema.get("items", True), each) for each in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        other = schema.get("additionalProperties", True)
        return all(name in value for name in schema.get("required", [])) and all(
            accepts(known.get(name, other), each) for name, each in value.items()
        )
    return True


def _names(names: Any) -> list[Any]:
    return names if isinstance(names, list) else [names]


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    whole = name != "integer" or not isinstance(value, float) or value.is_integer()
    return isinstance(value, _TYPES[name]) and whole


def _equal(a: Any, b: Any) -> bool:
    """Equality of JSON values: unlike Python's, true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    return bool(a == b)


def _refuse(name: str) -> None:
    raise ValueError(name)
