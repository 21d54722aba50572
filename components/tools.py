"""What a tool tells the model about itself, and what it replies."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True)
class ToolSpec:
    """One tool as it is offered.

    name: letters, digits, underscores and dots; description: what it does, for the
    model; parameters: JSON schema of its arguments, an object with named properties.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"tool: expected a name of letters, digits, underscores and dots, got "
                f"{self.name!r}; rename it."
            )

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of its arguments, in the schema's order."""
        return tuple(self.parameters.get("properties", {}))


@dataclass(frozen=True)
class ToolCall:
    """A call that a model wrote; arguments are what it said, unchecked."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ToolReply:
    """What a call gave, as the model reads it; error: whether the call failed."""

    text: str
    error: bool = False
