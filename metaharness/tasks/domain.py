"""A domain of tools over records: what stays between two calls, and how one is made."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from components.schema import accepts
from components.tools import ToolReply, ToolSpec

Given = Mapping[str, Any]
Tables = Mapping[str, Mapping[str, Any]]

# The gold answer, as text, where the right thing is to call nothing.
NO_CALL = "No tool is called."


class Refused(Exception):
    """A call that a rule of the domain forbids; its text is the reply."""


class Records:
    """Records by table and key, each copied when it is first changed.

    base: table name to key to record (a JSON object); never changed, so that any number
    of episodes shares it at the cost of the records that each one touches.
    """

    def __init__(self, base: Tables) -> None:
        self._base = base
        self._own: dict[tuple[str, str], Any] = {}

    def read(self, table: str, key: str) -> Any:
        """The record, not to be changed; None where there is none."""
        if (table, key) in self._own:
            return self._own[table, key]
        return self._base[table].get(key)

    def edit(self, table: str, key: str) -> Any:
        """This episode's own copy of a record that exists."""
        if (table, key) not in self._own:
            self._own[table, key] = copy.deepcopy(self._base[table][key])
        return self._own[table, key]

    def add(self, table: str, key: str, record: Any) -> None:
        """A new record, or another in the place of an old one; it is copied."""
        self._own[table, key] = copy.deepcopy(record)

    def rows(self, table: str) -> Iterator[tuple[str, Any]]:
        """Key and record of a whole table, those not to be changed; new ones last."""
        for key in self._base[table]:
            yield key, self.read(table, key)
        for owner, key in self._own:
            if owner == table and key not in self._base[table]:
                yield key, self._own[table, key]

    def changes(self) -> dict[tuple[str, str], Any]:
        """Records that differ from the base; equal for two states that are equal."""
        return {
            (table, key): record
            for (table, key), record in self._own.items()
            if key not in self._base[table] or record != self._base[table][key]
        }


@dataclass(frozen=True)
class Tool:
    """run: takes arguments that its schema accepts, changes the records, gives the
    reply's text; raises Refused before it has changed anything."""

    spec: ToolSpec
    run: Callable[[Records, Given], str]


def text(description: str) -> dict[str, Any]:
    """Schema of an argument that is a text."""
    return {"type": "string", "description": description}


def texts(description: str) -> dict[str, Any]:
    """Schema of an argument that is a list of texts."""
    return {"type": "array", "items": {"type": "string"}, "description": description}


def make_tool(
    run: Callable[[Records, Given], str],
    description: str,
    properties: Mapping[str, Any],
    *,
    optional: tuple[str, ...] = (),
) -> Tool:
    """The tool of a function, by the function's name; no other arguments are allowed.

    properties: schema by argument.
    """
    parameters = {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }
    return Tool(ToolSpec(run.__name__, description, parameters), run)


def call_tool(
    tools: Mapping[str, Tool], records: Records, name: str, arguments: Given
) -> ToolReply:
    """Run a tool on the records; total: what cannot be done is an error reply."""
    tool = tools.get(name) if isinstance(name, str) else None
    if tool is None:
        return ToolReply(unknown_tool(name, tuple(tools)), error=True)
    problem = argument_problem(tool.spec, arguments)
    if problem:
        return ToolReply(problem, error=True)
    try:
        return ToolReply(tool.run(records, arguments))
    except Refused as refusal:
        return ToolReply(f"{name}: {refusal}", error=True)


def unknown_tool(name: Any, known: tuple[str, ...]) -> str:
    """The reply to a call of a tool that does not exist."""
    return f"expected a tool among {', '.join(known)}, got {_shown(name)}."


def argument_problem(spec: ToolSpec, arguments: Any) -> str:
    """What keeps arguments from a tool's schema; "" where nothing does."""
    if not isinstance(arguments, Mapping):
        return f"{spec.name}: expected an object of arguments, got {_shown(arguments)}."
    known = spec.parameters.get("properties", {})
    required = spec.parameters.get("required", ())
    missing = [name for name in required if name not in arguments]
    unknown = [name for name in arguments if name not in known]
    if missing or unknown:
        wanted = ", ".join(n if n in required else f"[{n}]" for n in known) or "none"
        got = f"no {missing[0]!r}" if missing else _shown(unknown[0])
        return f"{spec.name}: expected the arguments {wanted}; got {got}."
    for name, value in arguments.items():
        if not accepts(known[name], value):
            wanted = _wanted(known[name])
            return f"{spec.name}: expected {wanted} in {name!r}, got {_shown(value)}."
    return ""


def call_text(spec: ToolSpec, arguments: Given) -> str:
    """A call as one line of JSON, its arguments in the order of the schema."""
    order = (
        *spec.arguments,
        *(name for name in arguments if name not in spec.arguments),
    )
    ordered = {name: arguments[name] for name in order if name in arguments}
    return json.dumps({"name": spec.name, "arguments": ordered}, ensure_ascii=False)


def written(record: Any) -> str:
    """A record as the model reads it."""
    return json.dumps(record, ensure_ascii=False)


def _wanted(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {schema['enum']}"
    inner = schema.get("items", {}).get("type")
    return f"{schema.get('type')} of {inner}" if inner else f"{schema.get('type')}"


def _shown(value: Any) -> str:
    # a deep container, or a whole number with thousands of digits, has no text at all
    short = isinstance(value, int) and abs(value) < 10**18
    if short or isinstance(value, str | float | None):
        return repr(value)[:60]
    return f"a value of type {type(value).__name__}"
