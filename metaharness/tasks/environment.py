"""What surrounds an item while it is being answered: tools, state, and a grade."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from components.tools import ToolReply, ToolSpec
from metaharness.tasks.task import Item


class Environment(Protocol):
    """One item's world, made anew for each episode; nothing is shared between two.

    tools: those that can be offered, in their default order. done: True once nothing
    that follows could change the reward; the episode then ends.
    """

    tools: tuple[ToolSpec, ...]
    done: bool

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Run a tool; changes this environment alone, never raises.

        Names that do not exist and arguments of a wrong kind give an error reply that
        says what was expected.
        """
        ...

    def reward(self, answer: str) -> float:
        """In [0, 1], of the final answer and of what the calls did; total."""
        ...


EnvironmentMaker = Callable[[Item], Environment]
