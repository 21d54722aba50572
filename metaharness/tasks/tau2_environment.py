"""One tau2 task as an environment: the domain's tools over its own records."""

import re
from collections.abc import Mapping
from typing import Any

from components.tools import ToolCall, ToolReply
from metaharness.tasks.domain import Given, Records, Tables, Tool, call_tool
from metaharness.tasks.task import Item

# Commas between thousands, which an answer may have and the gold text has not.
_GROUPED = re.compile(r"(?<=\d),(?=\d{3})")


class Tau2Environment:
    """One task's tools over its own copy of the records.

    domain: tools by name; base: the domain's database, shared and never changed.
    """

    done = False

    def __init__(self, domain: Mapping[str, Tool], base: Tables, item: Item) -> None:
        self.tools = tuple(tool.spec for tool in domain.values())
        self._domain, self._base, self._item = domain, base, item
        self._records = self._start()
        self._calls: list[ToolCall] = []

    def call(self, name: str, arguments: Given) -> ToolReply:
        """Run a tool; changes this environment alone, never raises."""
        reply = call_tool(self._domain, self._records, name, arguments)
        if not reply.error:
            self._calls.append(ToolCall(name, dict(arguments)))
        return reply

    def reward(self, answer: str) -> float:
        """1.0 where all holds, else 0.0.

        The records equal those after the gold actions, made anew; the answer contains
        each text of `communicate_info`, whatever its case and with or without commas
        between thousands; and where the task's reward is based on "ACTION", each gold
        action was called (with the arguments that upstream compares).
        """
        meta = self._item.meta
        said = answer.casefold()
        bare = _GROUPED.sub("", said)
        told = all(
            info.casefold() in said or info.casefold() in bare
            for info in meta["communicate_info"]
        )
        done = "ACTION" not in meta["reward_basis"] or all(
            any(_is_action(call, action) for call in self._calls)
            for action in meta["actions"]
        )
        return float(told and done and self._records.changes() == self._gold())

    def _start(self) -> Records:
        records = Records(self._base)
        start = self._item.meta["start"]
        for table, rows in start["data"].items():
            for key, fields in rows.items():
                old = records.read(table, key) or {}
                records.add(table, key, {**old, **fields})
        for call in start["calls"]:
            call_tool(self._domain, records, call["name"], call["arguments"])
        return records

    def _gold(self) -> dict[tuple[str, str], Any]:
        records = self._start()
        for action in self._item.meta["actions"]:
            call_tool(self._domain, records, action["name"], action["arguments"])
        return records.changes()


def _is_action(call: ToolCall, action: Mapping[str, Any]) -> bool:
    """compare: names of the arguments that must agree, None for all."""
    names = action["compare"]
    if names is None:
        names = {*call.arguments, *action["arguments"]}
    return call.name == action["name"] and all(
        call.arguments.get(n) == action["arguments"].get(n) for n in names
    )
