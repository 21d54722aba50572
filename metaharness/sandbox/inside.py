"""Inside the wall: serves one child's messages. Everything it says is only a claim.

The host checks the size and shape of each reply and never takes a verdict from here.
Loaded inside the wall, so it imports nothing but the standard library and neighbours
that keep to it.
"""

import builtins
import io
import json
import os
import random
import struct
import sys
import types
from collections.abc import Callable
from typing import NoReturn

from metaharness.sandbox.values import Json, NotPlain, decode, encode

MODULE = "program"
ERROR_CHARS = 500
_HEADER = struct.Struct(">I")


class ToolError(RuntimeError):
    """A tool on the other side of the wall did not return."""


class _Printed(io.TextIOBase):
    """Keeps what the program prints; ends the process when it is too much."""

    def __init__(self, most: int, over: Callable[[], NoReturn]) -> None:
        self._parts: list[str] = []
        self._left = most
        self._over = over

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._left -= len(text.encode("utf-8", "replace"))
        if self._left < 0:
            self._over()
        self._parts.append(text)
        return len(text)

    def take(self) -> str:
        text, self._parts = "".join(self._parts), []
        return text


def serve(channel: int, *, output_bytes: int, result_bytes: int) -> NoReturn:
    """Answers load and call messages until the host goes away.

    output_bytes: all that the program may print; result_bytes: the largest answer.
    """
    # what the program may replace, kept: a courtesy to it, not a wall
    read, write, leave = os.read, os.write, os._exit
    dumps, loads, size_of = json.dumps, json.loads, len

    def receive() -> list[Json]:
        return loads(exactly(_HEADER.unpack(exactly(_HEADER.size))[0]))

    def exactly(count: int) -> bytes:
        parts = []
        while count:
            part = read(channel, count)
            if not part:
                leave(0)
            parts.append(part)
            count -= size_of(part)
        return b"".join(parts)

    def send(message: list[Json]) -> None:
        text = dumps(message).encode("ascii")
        view = memoryview(_HEADER.pack(size_of(text)) + text)
        while view:
            view = view[write(channel, view) :]

    def over() -> NoReturn:
        send(["end", "output", f"printed more than {output_bytes:,} bytes", ""])
        leave(0)

    def tool(name: str) -> Callable[..., object]:
        def call(*args: object) -> object:
            send(["tool", name, encode(list(args))])
            kind, answer = receive()
            if kind == "raise":
                raise ToolError(answer)
            return decode(answer)

        call.__name__ = call.__qualname__ = name
        return call

    printed = _Printed(output_bytes, over)
    sys.stdout = sys.stderr = printed
    sys.stdin = None
    # the same program on the same values draws the same numbers
    random.seed(0)
    module = types.ModuleType(MODULE)
    module.__dict__["__builtins__"] = builtins
    sys.modules[MODULE] = module
    spare = [bytearray(1 << 18)]

    def answer(act: Callable[[], Json]) -> list[Json]:
        try:
            return ["ok", act(), printed.take()]
        except BaseException as error:
            end = _describe(error)
        spare.clear()  # room to say that there was no room
        try:
            return [*end, printed.take()]
        except MemoryError:
            return [*end, ""]

    def load(source: str) -> Json:
        exec(_compile(source), module.__dict__)
        return None

    def call(entry: str, names: list[str], args: Json) -> Json:
        function = module.__dict__.get(entry)
        if not callable(function):
            raise NameError(f"expected a function {entry!r} in the program, got none")
        value = function(*map(tool, names), *decode(args))
        try:
            tree = encode(value, max_nodes=result_bytes)
        except NotPlain as error:
            raise _NoAnswer(str(error)) from None
        del value
        # at least a byte a part is already sure; this is the exact count
        size = size_of(dumps(tree))
        if size > result_bytes:
            raise _NoAnswer(f"expected at most {result_bytes:,} bytes, got {size:,}")
        return tree

    while True:
        kind, *rest = receive()
        send(answer(lambda: load(*rest) if kind == "load" else call(*rest)))  # noqa: B023


class _NoAnswer(Exception):
    """The entry returned something that cannot cross the wall."""


class _NoProgram(Exception):
    """The source does not compile."""


def _compile(source: str) -> types.CodeType:
    try:
        return compile(source, f"<{MODULE}>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        text = f"{type(error).__name__}: {error}"
    raise _NoProgram(text)


def _describe(error: BaseException) -> list[Json]:
    try:
        if isinstance(error, MemoryError):
            return ["end", "memory", "MemoryError"]
        if isinstance(error, _NoAnswer):
            return ["end", "result", str(error)[:ERROR_CHARS]]
        if isinstance(error, _NoProgram):
            return ["end", "refused", str(error)[:ERROR_CHARS]]
        text = f"{type(error).__name__}: {str(error)[:ERROR_CHARS]}"
        return ["end", "error", text[:ERROR_CHARS]]
    except BaseException:
        return ["end", "error", "an error that does not say what it is"]
