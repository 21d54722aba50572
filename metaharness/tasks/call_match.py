"""Whether calls are the ones that a BFCL item wants: matching by value, not by text.

The rule of the Berkeley Function Calling Leaderboard's AST check for Python (Patil et
al. 2025; bfcl-eval 2026.3.23), written anew. A truth is {function: {argument: values
that are accepted}}, the value "" for "may be left out". Deviations from upstream, each
on calls that it decides by accident: true and 1 are never equal, in an object either;
texts compare in their normal form at every depth and where the data expects a
variable's name; several calls are paired with the truths in any way that works, not
first come, first served.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from components.tools import ToolCall, ToolSpec

Truth = Mapping[str, Mapping[str, Sequence[Any]]]

# "Left out" among the accepted values.
OMITTED = ""
_IGNORED = re.compile(r"[ ,./\-_*^]")
# A value without a type of its own ("any" in the data) is written as a text.
_KINDS = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    None: str,
}


def calls_match(
    calls: Sequence[ToolCall], truths: Sequence[Truth], tools: Sequence[ToolSpec]
) -> bool:
    """Whether the calls can be paired one to one with the truths, in any order."""
    if len(calls) != len(truths):
        return False
    fits = [
        [place for place, call in enumerate(calls) if call_matches(call, truth, tools)]
        for truth in truths
    ]
    owner: dict[int, int] = {}

    def placed(truth: int, tried: set[int]) -> bool:
        # an augmenting path: move the call's owner elsewhere where that is possible
        for call in fits[truth]:
            if call not in tried:
                tried.add(call)
                if call not in owner or placed(owner[call], tried):
                    owner[call] = truth
                    return True
        return False

    return all(placed(truth, set()) for truth in range(len(truths)))


def call_matches(call: ToolCall, truth: Truth, tools: Sequence[ToolSpec]) -> bool:
    """Whether a call has the truth's function and, in each argument, accepted values.

    Arguments that the schema requires are there, and so are those that may not be left
    out; there is none that the schema or the truth does not name.
    """
    ((name, accepted),) = truth.items()
    found = [spec for spec in tools if spec.name == name]
    if call.name != name or not found:
        return False
    known = found[0].parameters.get("properties", {})
    required = found[0].parameters.get("required", ())
    return (
        all(argument in call.arguments for argument in required)
        and all(
            argument in call.arguments or OMITTED in values
            for argument, values in accepted.items()
        )
        and all(
            argument in known
            and argument in accepted
            and value_matches(value, accepted[argument], known[argument])
            for argument, value in call.arguments.items()
        )
    )


def value_matches(value: Any, accepted: Sequence[Any], schema: Any) -> bool:
    """Whether a value has the schema's type and equals an accepted value.

    A whole number is a float, though not inside a list, and a float is no whole number.
    The first accepted value's type is as good as the schema's (where a variable's name
    is expected, or the data contradict themselves). An empty list may stand for one
    that may be left out.
    """
    kinds = _kinds(schema, accepted)
    if float in kinds:
        kinds.add(int)
    if type(value) not in kinds:
        return False
    if value == [] and OMITTED in accepted:
        return True
    return any(
        _equal(value, one) and _items_fit(value, one, schema) for one in accepted
    )


def gold_arguments(accepted: Mapping[str, Sequence[Any]], spec: ToolSpec) -> dict:
    """The first accepted value of each argument; those that may be are left out."""
    required = spec.parameters.get("required", ())
    return {
        name: _first(values)
        for name, values in accepted.items()
        if name in required or OMITTED not in values
    }


def _kinds(schema: Any, accepted: Sequence[Any]) -> set[type]:
    real = [one for one in accepted if one != OMITTED]
    return {_KINDS.get(schema.get("type"), str), *map(type, real[:1])}


def _items_fit(value: Any, one: Any, schema: Any) -> bool:
    """Whether a list's own items have the type that the schema or `one` gives them."""
    if not isinstance(value, list) or "items" not in schema:
        return True
    kinds = _kinds(schema["items"], one)
    return all(type(each) in kinds for each in value)


def _equal(value: Any, one: Any) -> bool:
    """one: an accepted value; an object's values are lists of what is accepted."""
    if isinstance(value, str) and isinstance(one, str):
        return _normal(value) == _normal(one)
    if isinstance(value, list) and isinstance(one, list):
        return len(value) == len(one) and all(map(_equal, value, one))
    if isinstance(value, dict) and isinstance(one, dict):
        return all(
            name in value or OMITTED in _values(values) for name, values in one.items()
        ) and all(
            name in one and any(_equal(each, two) for two in _values(one[name]))
            for name, each in value.items()
        )
    return isinstance(value, bool) == isinstance(one, bool) and bool(value == one)


def _normal(text: str) -> str:
    """Without case, spaces and ``, . / - _ * ^``; single quotes as double ones."""
    return _IGNORED.sub("", text).lower().replace("'", '"')


def _values(values: Any) -> Sequence[Any]:
    """What an object in the truth accepts: a list, or a value that stands alone."""
    return values if isinstance(values, list) else [values]


def _first(values: Any) -> Any:
    real = [one for one in _values(values) if one != OMITTED]
    return _plain(real[0]) if real else OMITTED


def _plain(one: Any) -> Any:
    """An accepted value as a call writes it."""
    if isinstance(one, list):
        return [_plain(each) for each in one]
    if isinstance(one, dict):
        return {
            name: _first(values)
            for name, values in one.items()
            if OMITTED not in _values(values)
        }
    return one
