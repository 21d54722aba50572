"""Which tools an episode offers, how often, and what happens when one fails."""

from collections.abc import Sequence
from dataclasses import dataclass

from components.tool_protocol import PROTOCOLS
from components.tools import ToolSpec

ON_ERROR = ("show", "hide", "stop")


@dataclass(frozen=True)
class ToolPolicy:
    """One candidate of the tool slot.

    tools: names in the order in which they are offered, None for all that the
    environment has, () for none; calls: at most so many an episode; timeout_s: wall
    seconds that one call may take; on_error: show gives the model the error, hide only
    says that the call failed, stop ends the episode; protocol: how a call is written, a
    name of ``components.tool_protocol.PROTOCOLS``.

    Raises ValueError for a value out of range.
    """

    name: str
    tools: tuple[str, ...] | None = None
    calls: int = 4
    timeout_s: float = 5.0
    on_error: str = "show"
    protocol: str = "tags"

    def __post_init__(self) -> None:
        where = f"tool policy {self.name!r}"
        if not self.name.strip():
            raise ValueError("tool policy: expected a name, got none; name it.")
        if not 0 <= self.calls <= 64:
            raise ValueError(f"{where}: expected 0 to 64 calls, got {self.calls}.")
        if not 0 < self.timeout_s <= 3600:
            raise ValueError(
                f"{where}: expected timeout_s above 0, up to 3600, got "
                f"{self.timeout_s}."
            )
        if self.on_error not in ON_ERROR:
            raise ValueError(
                f"{where}: expected on_error among {', '.join(ON_ERROR)}, got "
                f"{self.on_error!r}."
            )
        if self.protocol not in PROTOCOLS:
            raise ValueError(
                f"{where}: expected protocol among {', '.join(PROTOCOLS)}, got "
                f"{self.protocol!r}."
            )
        if self.tools is not None and len(set(self.tools)) != len(self.tools):
            raise ValueError(f"{where}: expected different tools, got one twice.")

    def offered(self, available: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """The tools that the model is told of, without those that are not there."""
        if self.calls == 0:
            return ()
        if self.tools is None:
            return tuple(available)
        known = {spec.name: spec for spec in available}
        return tuple(known[name] for name in self.tools if name in known)


NO_TOOLS = ToolPolicy("no tools", tools=(), calls=0)
