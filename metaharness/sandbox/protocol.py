"""What a sandbox is: limits, outcomes, results, and the two protocols."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Protocol, Self

from metaharness.errors import SandboxError
from metaharness.sandbox.values import Plain

Tool = Callable[..., Plain]


@dataclass(frozen=True)
class Limits:
    """What one child may use in its life; a kept program's calls share it.

    cpu_s: CPU seconds, loading included; wall_s: seconds that the host waits for it,
    the tools' own time excluded; memory_bytes: growth over the idle interpreter;
    output_bytes: all that it prints; result_bytes: its answer, encoded; calls: how
    often it may call tools; call_bytes: one call's arguments, encoded.
    """

    cpu_s: float = 0.05
    wall_s: float = 1.0
    memory_bytes: int = 16 << 20
    output_bytes: int = 1 << 16
    result_bytes: int = 1 << 20
    calls: int = 100
    call_bytes: int = 1 << 17

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            seconds = field.name.endswith("_s")
            least, most = (1e-3, 1e6) if seconds else (0, 1 << 40)
            if not least <= value <= most:
                raise SandboxError(
                    f"limits: expected {field.name} from {least} to {most}, got "
                    f"{value}; pass a number in that range."
                )


class Outcome(StrEnum):
    """How a call ended.

    OK: the entry returned a value; ERROR: it raised; REFUSED: the source does not
    compile; CPU, WALL, MEMORY, OUTPUT: a limit of that name; RESULT: the answer is too
    large or no plain data; CALLS: too many tool calls, or one too large; CRASHED: the
    process ended, or broke the rules of the conversation.
    """

    OK = "ok"
    ERROR = "error"
    REFUSED = "refused"
    CPU = "cpu"
    WALL = "wall"
    MEMORY = "memory"
    OUTPUT = "output"
    RESULT = "result"
    CALLS = "calls"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Result:
    """What came out of a call: the program's own claims, checked for form only.

    value: what the entry returned, None unless OK; error: at most 500 characters;
    stdout: what it printed since the last call; cpu_s: seconds that the child used,
    None while a kept one lives; wall_s: seconds that the host waited for it, tools
    excluded; calls: tool calls served.
    """

    outcome: Outcome
    value: Plain = None
    error: str = ""
    stdout: str = ""
    cpu_s: float | None = None
    wall_s: float = 0.0
    calls: int = 0
    backend: str = ""


class Program(Protocol):
    """One source. Not for several threads at once: load it once for each."""

    def call(
        self,
        entry: str,
        *args: Plain,
        tools: Mapping[str, Tool] | None = None,
        limits: Limits | None = None,
    ) -> Result:
        """Calls the function `entry` of the program; never raises for what it did.

        Its arguments are the tools in the mapping's order, then args. A tool runs on
        the host; what it raises the program sees as a ToolError without details.
        limits: other limits for this call; refused for a kept program.
        """
        ...

    def start(self) -> Result:
        """Loads a kept program before its first call; what loading it gave."""
        ...

    async def acall(
        self,
        entry: str,
        *args: Plain,
        tools: Mapping[str, Tool] | None = None,
        limits: Limits | None = None,
    ) -> Result:
        """`call` in a thread."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Sandbox(Protocol):
    """Runs programs that nobody trusts, outside of the host process.

    features: of "full-python" (the whole language), "exec" (programs may run text),
    "os-wall" (the operating system refuses files, network and processes),
    "hard-memory" (its limit too), "fresh-state" (calls share nothing unless kept),
    "namespaces" and "nobody" (further walls that this machine allows).
    """

    name: str
    features: frozenset[str]

    def load(
        self, source: str, *, keep: bool = False, limits: Limits | None = None
    ) -> Program:
        """A program; keep: its calls run in one process, so they share its state."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
