"""The host's end of the conversation with one confined child."""

import json
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metaharness.sandbox.protocol import Limits, Outcome, Result, Tool
from metaharness.sandbox.values import NotPlain, Plain, decode, encode

ERROR_CHARS = 500
_HEADER = struct.Struct(">I")
_CPU_SIGNALS = (signal.SIGPROF, signal.SIGXCPU)
_BURIAL_S = 5.0
# what a child may say about its own end
_CLAIMS = {
    outcome.value: outcome
    for outcome in (
        Outcome.ERROR,
        Outcome.REFUSED,
        Outcome.MEMORY,
        Outcome.OUTPUT,
        Outcome.RESULT,
    )
}


class _End(Exception):
    """The conversation is over."""

    def __init__(self, outcome: Outcome, error: str, stdout: str = "") -> None:
        super().__init__(error)
        self.outcome, self.error, self.stdout = outcome, error, stdout


@dataclass(frozen=True)
class _Death:
    status: int | None
    cpu_s: float
    error: str


class Session:
    """One child: load once, then call; the first outcome that is not a value or an
    error of the program's own ends it. Killed by `close`, at the latest.

    channel: stream socket to the child; leash: packet socket to its parent.
    """

    def __init__(
        self, channel: socket.socket, leash: socket.socket, limits: Limits, backend: str
    ) -> None:
        self._channel, self._leash = channel, leash
        self._limits, self._backend = limits, backend
        self._wall_left_s = limits.wall_s
        self._calls = 0
        self._death: _Death | None = None
        # an answer and what was printed, each byte of which JSON writes in up to six
        self._most_bytes = (
            max(limits.result_bytes, limits.call_bytes)
            + 6 * limits.output_bytes
            + 12 * ERROR_CHARS
            + 256
        )

    @property
    def alive(self) -> bool:
        return self._death is None

    def load(self, source: str) -> Result:
        return self._guarded(["load", source], {})

    def call(
        self, entry: str, args: Sequence[Plain], tools: Mapping[str, Tool]
    ) -> Result:
        return self._guarded(["call", entry, list(tools), encode(list(args))], tools)

    def close(self) -> float | None:
        """Kills the child; its CPU seconds, None when its parent did not say."""
        if self._death is None:
            try:
                self._leash.send(b"kill")
            except OSError:
                pass  # it died by itself, or its parent did
            self._read_death()
        return self._death.cpu_s if self._death.status is not None else None

    def _guarded(self, message: list[object], tools: Mapping[str, Tool]) -> Result:
        if self._death is not None:
            return self._result(Outcome.CRASHED, error="the program has ended")
        try:
            return self._exchange(message, tools)
        except _End as end:
            self.close()
            return self._result(end.outcome, error=end.error, stdout=end.stdout)
        except BaseException:  # the host was interrupted, say: leave nothing running
            self.close()
            raise

    def _exchange(self, message: list[object], tools: Mapping[str, Tool]) -> Result:
        self._send(message)
        while True:
            match self._receive():
                case ["tool", str(name), arguments] if name in tools:
                    self._send(self._use(tools[name], arguments))
                case ["ok", tree, str(stdout)]:
                    try:
                        value = decode(tree)
                    except NotPlain as error:
                        raise _End(Outcome.CRASHED, f"malformed: {error}") from None
                    return self._result(Outcome.OK, value=value, stdout=stdout)
                case ["end", str(claim), str(error), str(stdout)] if claim in _CLAIMS:
                    outcome, error = _CLAIMS[claim], error[:ERROR_CHARS]
                    if outcome is not Outcome.ERROR:
                        raise _End(outcome, error, stdout)
                    return self._result(outcome, error=error, stdout=stdout)
                case _:
                    raise _End(Outcome.CRASHED, "sent a message of unknown form")

    def _use(self, tool: Tool, arguments: object) -> list[object]:
        if self._calls >= self._limits.calls:
            raise _End(Outcome.CALLS, f"more than {self._limits.calls} tool calls")
        self._calls += 1
        try:
            values = decode(arguments)
        except NotPlain as error:
            raise _End(Outcome.CRASHED, f"malformed: {error}") from None
        if type(values) is not list:
            raise _End(Outcome.CRASHED, "sent tool arguments of unknown form")
        try:
            return ["reply", encode(tool(*values))]
        except Exception:  # its text may hold what the program should not see
            return ["raise", "the tool failed"]

    def _send(self, message: list[object]) -> None:
        text = json.dumps(message).encode("ascii")
        start = time.monotonic()
        self._channel.settimeout(self._wait_s())
        try:
            self._channel.sendall(_HEADER.pack(len(text)) + text)
        except TimeoutError:
            raise self._too_late() from None
        except OSError:
            raise self._died() from None
        finally:
            self._wall_left_s -= time.monotonic() - start

    def _receive(self) -> list[object]:
        (size,) = _HEADER.unpack(self._exactly(_HEADER.size))
        if size > self._most_bytes:
            raise _End(Outcome.RESULT, f"a message of {size:,} bytes")
        text = self._exactly(size)
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            raise _End(Outcome.CRASHED, "sent a message that is not JSON") from None
        if type(message) is not list:
            raise _End(Outcome.CRASHED, "sent a message of unknown form")
        if message[:1] == ["tool"] and size > self._limits.call_bytes:
            most = self._limits.call_bytes
            raise _End(Outcome.CALLS, f"a tool call of {size:,} bytes, over {most:,}")
        return message

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            start = time.monotonic()
            self._channel.settimeout(self._wait_s())
            try:
                part = self._channel.recv(min(count, 1 << 20))
            except TimeoutError:
                raise self._too_late() from None
            except OSError:
                part = b""
            finally:
                self._wall_left_s -= time.monotonic() - start
            if not part:
                raise self._died()
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _wait_s(self) -> float:
        if self._wall_left_s <= 0:
            raise self._too_late()
        return self._wall_left_s

    def _too_late(self) -> _End:
        return _End(Outcome.WALL, f"took more than {self._limits.wall_s:g} s")

    def _died(self) -> _End:
        """The channel ended: says why, from its parent's report, not from its own."""
        death = self._read_death()
        if death.status is None:
            return _End(Outcome.CRASHED, death.error)
        number = death.status & 0x7F
        if number in _CPU_SIGNALS or (
            number == signal.SIGKILL and death.cpu_s >= self._limits.cpu_s
        ):
            return _End(Outcome.CPU, f"used {self._limits.cpu_s:g} s of CPU time")
        how = signal.Signals(number).name if number else f"status {death.status >> 8}"
        return _End(Outcome.CRASHED, f"ended without an answer ({how})")

    def _read_death(self) -> _Death:
        if self._death is None:
            lost = _Death(None, 0.0, "the sandbox's own process ended")
            self._leash.settimeout(_BURIAL_S)
            try:
                report = self._leash.recv(1 << 12)
                self._death = _Death(*json.loads(report)) if report else lost
            except OSError:
                self._death = lost
            self._leash.close()
            self._channel.close()
        return self._death

    def _result(
        self,
        outcome: Outcome,
        *,
        value: Plain = None,
        error: str = "",
        stdout: str = "",
    ) -> Result:
        death = self._death
        return Result(
            outcome,
            value=value,
            error=error[:ERROR_CHARS],
            stdout=stdout[: self._limits.output_bytes],
            cpu_s=None if death is None or death.status is None else death.cpu_s,
            wall_s=self._limits.wall_s - self._wall_left_s,
            calls=self._calls,
            backend=self._backend,
        )
