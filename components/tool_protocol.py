"""How a model is told of tools and how it writes a call, as text.

Every protocol is total: any text is an answer, a call, or a call that cannot be read.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from components.tools import ToolCall, ToolSpec


class Written(NamedTuple):
    """What a text holds. calls: in order; problem: why a call cannot be read, else "".

    Both empty: the text is an answer. With a problem the calls before it are kept.
    """

    calls: tuple[ToolCall, ...]
    problem: str = ""


@dataclass(frozen=True)
class Protocol:
    """describe: the tools as the model reads them, with how to call one; read: what a
    text holds; opening, stop: texts around a call, "" for none. Writing ends at stop.
    """

    describe: Callable[[Sequence[ToolSpec]], str]
    read: Callable[[str], Written]
    opening: str = ""
    stop: str = ""

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if self.stop else ()

    def closing(self, text: str) -> str:
        """The stop that ended the call in a text and was left out of it, or ""."""
        return self.stop if self.opening in text and self.stop not in text else ""


REPLY = "Result: "
"""What stands before a tool's reply."""

_TAG = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FENCED = re.compile(r"```(?:json|tool)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_LINE = re.compile(r"(?m)^[ \t]*Call[ \t]*:[ \t]*(.*)$")
_DECODER = json.JSONDecoder()
_NO_CALL = 'a call must be JSON, an object with "name" and "arguments"'
_CONSTANTS = {"True": True, "False": False, "None": None}
_CALL = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)[ \t]*\((.*)\)[ \t]*\Z", re.DOTALL)
_ANSWER = "When no call is needed, write the answer without one."


def _signature(spec: ToolSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": dict(spec.parameters),
    }


def _lines(values: Sequence[Any]) -> str:
    """JSON, one value a line."""
    return "\n".join(json.dumps(value, ensure_ascii=False) for value in values)


def _describe_tags(specs: Sequence[ToolSpec]) -> str:
    tools = [{"type": "function", "function": _signature(spec)} for spec in specs]
    return (
        "You can call these functions; their signatures stand within <tools></tools>:\n"
        f"<tools>\n{_lines(tools)}\n</tools>\n"
        "For each call, write a JSON object with the function's name and its arguments "
        "within <tool_call></tool_call>, and wait for its result:\n"
        '<tool_call>\n{"name": <function name>, "arguments": <JSON object of '
        f"arguments>}}\n</tool_call>\n{_ANSWER}"
    )


def _describe_fenced(specs: Sequence[ToolSpec]) -> str:
    return (
        f"You can use these tools:\n{_lines([_signature(spec) for spec in specs])}\n"
        'To call one, write\n```json\n{"name": "...", "arguments": {...}}\n```\n'
        f"and wait for its result. {_ANSWER}"
    )


def _describe_lines(specs: Sequence[ToolSpec]) -> str:
    lines = [
        f"- {spec.name}({', '.join(f'{name}=...' for name in spec.arguments)}): "
        f"{spec.description}"
        for spec in specs
    ]
    return (
        "You can use these tools:\n"
        + "\n".join(lines)
        + '\nTo call one, write a line such as\nCall: name(argument="value", other=3)\n'
        f"and wait for its result. {_ANSWER}"
    )


def _scan(source: str) -> tuple[list[ToolCall | str], str]:
    """The calls that a text starts with, each a JSON object, and what stands after it
    all; in the place of one that cannot be read, such as one that is cut, why not."""
    found: list[ToolCall | str] = []
    rest = source.strip()
    while rest.startswith("{"):
        try:
            value, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            return [*found, _NO_CALL], ""
        found.append(_call_of(value))
        rest = rest[end:].lstrip(" \t\r\n,;")
    return found, rest


def _marked(source: str) -> list[ToolCall | str]:
    """The calls of a text that is marked as one: it must hold them and nothing else."""
    found, rest = _scan(source)
    return [*found, _NO_CALL] if rest or not found else found


def _call_of(value: Any) -> ToolCall | str:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return _NO_CALL
    arguments = value.get("arguments", value.get("parameters", {}))
    if "description" in value and "arguments" not in value:
        return "a call must give arguments, not repeat the signature"
    if not isinstance(arguments, dict):
        return '"arguments" must be an object'
    return ToolCall(value["name"], arguments)


def _collect(found: Sequence[ToolCall | str]) -> Written:
    calls: list[ToolCall] = []
    for one in found:
        if isinstance(one, str):
            return Written(tuple(calls), one)
        calls.append(one)
    return Written(tuple(calls))


def _read_tags(text: str) -> Written:
    if "<tool_call>" not in text:
        return _read_whole(text)
    return _collect([one for source in _TAG.findall(text) for one in _marked(source)])


def _read_whole(text: str) -> Written:
    """A text of JSON objects and nothing else, fenced or not: many models leave the
    tags out."""
    fenced = _FENCED.fullmatch(text.strip())
    source = fenced[1] if fenced else text
    found, rest = _scan(source)
    return _collect(found) if _meant(source) and not rest else Written(())


def _meant(source: str) -> bool:
    """Whether JSON that stands where no call must is meant as one: it names what it
    calls."""
    return '"name"' in source and ('"arguments"' in source or '"parameters"' in source)


def _read_fenced(text: str) -> Written:
    """Fenced JSON objects that are meant as calls."""
    blocks = _FENCED.findall(text)
    if not blocks:
        return _read_whole(text)
    meant = [source for source in blocks if _meant(source)]
    return _collect([one for source in meant for one in _marked(source)])


def _read_lines(text: str) -> Written:
    return _collect([_from_line(source) for source in _LINE.findall(text)])


def _from_line(source: str) -> ToolCall | str:
    match = _CALL.fullmatch(source.strip())
    if match is None:
        return 'a call must be a line such as Call: name(argument="value")'
    arguments: dict[str, Any] = {}
    for part in _split(match[2]):
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier():
            return f'an argument must be written name="value", got {part.strip()[:40]}'
        arguments[name.strip()] = _value(value.strip())
    return ToolCall(match[1], arguments)


def _split(text: str) -> list[str]:
    """Arguments between commas that stand outside quotes and brackets."""
    parts, depth, quote, start = [], 0, "", 0
    for place, sign in enumerate(text):
        if quote:
            if sign == quote and text[place - 1] != "\\":
                quote = ""
        elif sign in "\"'":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def _value(source: str) -> Any:
    """A JSON value, a constant of Python, a text in single quotes, or just the text."""
    if source in _CONSTANTS:
        return _CONSTANTS[source]
    try:
        return json.loads(source)
    except (ValueError, RecursionError):
        pass
    if len(source) >= 2 and source[0] == source[-1] == "'":
        return source[1:-1].replace("\\'", "'")
    return source


PROTOCOLS: dict[str, Protocol] = {
    "tags": Protocol(_describe_tags, _read_tags, "<tool_call>", "</tool_call>"),
    "fenced": Protocol(_describe_fenced, _read_fenced),
    "lines": Protocol(_describe_lines, _read_lines),
}
"""tags: JSON between <tool_call> and </tool_call>, as Qwen's chat template has it;
fenced: JSON in a fenced block; lines: ``Call: name(argument="value")``. A text of JSON
objects and nothing else is read as calls by the first two."""
