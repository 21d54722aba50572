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
    text holds; stops: texts after which a call is complete, so that writing ends."""

    describe: Callable[[Sequence[ToolSpec]], str]
    read: Callable[[str], Written]
    stops: tuple[str, ...]


REPLY = "Result: "
"""What stands before a tool's reply."""

_TAG = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FENCED = re.compile(r"```(?:json|tool)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_LINE = re.compile(r"(?m)^[ \t]*Call[ \t]*:[ \t]*(.*)$")
_CALL = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)[ \t]*\((.*)\)[ \t]*\Z", re.DOTALL)


def _signatures(specs: Sequence[ToolSpec]) -> str:
    """The tools as JSON, one a line."""
    return "\n".join(
        json.dumps(
            {
                "name": spec.name,
                "description": spec.description,
                "parameters": dict(spec.parameters),
            },
            ensure_ascii=False,
        )
        for spec in specs
    )


def _describe_tags(specs: Sequence[ToolSpec]) -> str:
    return (
        f"You can use these tools:\n<tools>\n{_signatures(specs)}\n</tools>\n"
        "To call one, write\n"
        '<tool_call>{"name": "...", "arguments": {...}}</tool_call>\n'
        "and wait for its result. When you know the answer, write it without a call."
    )


def _describe_fenced(specs: Sequence[ToolSpec]) -> str:
    return (
        f"You can use these tools:\n{_signatures(specs)}\n"
        'To call one, write\n```json\n{"name": "...", "arguments": {...}}\n```\n'
        "and wait for its result. When you know the answer, write it without a call."
    )


def _describe_lines(specs: Sequence[ToolSpec]) -> str:
    lines = [
        f"- {spec.name}({', '.join(spec.arguments)}): {spec.description}"
        for spec in specs
    ]
    return (
        "You can use these tools:\n"
        + "\n".join(lines)
        + '\nTo call one, write a line such as\nCall: name(argument="value")\n'
        "and wait for its result. When you know the answer, write it without a call."
    )


def _from_json(source: str) -> ToolCall | str:
    """The call that a JSON text holds, or why it holds none."""
    try:
        value = json.loads(source.strip())
    except (ValueError, RecursionError):
        return "a call must be JSON"
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return 'a call must be an object with "name" and "arguments"'
    arguments = value.get("arguments", value.get("parameters", {}))
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
    return _collect([_from_json(source) for source in _TAG.findall(text)])


def _read_fenced(text: str) -> Written:
    """Fenced JSON objects that have a "name" and nothing that a call has not."""
    found: list[ToolCall | str] = []
    for source in _FENCED.findall(text):
        call = _from_json(source)
        if not isinstance(call, str):
            found.append(call)
        elif '"name"' in source and '"arguments"' in source:
            found.append(call)
    return _collect(found)


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
    """A JSON value, a text in single quotes, or the text as it stands."""
    try:
        return json.loads(source)
    except (ValueError, RecursionError):
        pass
    if len(source) >= 2 and source[0] == source[-1] == "'":
        return source[1:-1].replace("\\'", "'")
    return source


PROTOCOLS: dict[str, Protocol] = {
    "tags": Protocol(_describe_tags, _read_tags, ("</tool_call>",)),
    "fenced": Protocol(_describe_fenced, _read_fenced, ()),
    "lines": Protocol(_describe_lines, _read_lines, ()),
}
"""tags: JSON between <tool_call> and </tool_call>, as Qwen's chat template has it;
fenced: JSON in a fenced block; lines: ``Call: name(argument="value")``."""
