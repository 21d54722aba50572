"""A calculator beside a word problem: one tool, no state."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from components.arithmetic import ExpressionError, evaluate_expression
from components.tools import ToolReply, ToolSpec
from metaharness.tasks.environment import EnvironmentMaker
from metaharness.tasks.task import Item, Scorer

CALCULATE = ToolSpec(
    name="calculate",
    description="The value of an arithmetic expression: numbers, + - * / // % ** and "
    "parentheses.",
    parameters={
        "type": "object",
        "properties": {
            "expression": {
                "type": "string",
                "description": "for example (3 + 4.5) * 1,200",
            }
        },
        "required": ["expression"],
        "additionalProperties": False,
    },
)


class Calculator:
    """The world around one item: `calculate`, and the task's own score at the end."""

    tools: tuple[ToolSpec, ...] = (CALCULATE,)
    done = False

    def __init__(self, scorer: Scorer, item: Item) -> None:
        self._scorer, self._item = scorer, item

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """The value as text, or what was expected; never raises."""
        if name != CALCULATE.name:
            return _refusal("the tool 'calculate'", name)
        given = dict(arguments) if isinstance(arguments, Mapping) else arguments
        if not isinstance(given, dict) or list(given) != ["expression"]:
            return _refusal("one argument, 'expression'", given)
        expression = given["expression"]
        if not isinstance(expression, str):
            return _refusal("text as 'expression'", expression)
        try:
            return ToolReply(evaluate_expression(expression))
        except ExpressionError as error:
            return ToolReply(f"calculate: {error}", error=True)

    def reward(self, answer: str) -> float:
        """The task's score of the final answer; calls cost nothing here."""
        return self._scorer(answer, self._item)


def calculator_environment(scorer: Scorer) -> EnvironmentMaker:
    """Makes a `Calculator` for each item."""
    return partial(Calculator, scorer)


def _refusal(expected: str, got: object) -> ToolReply:
    shown = repr(got[:60]) if isinstance(got, str) else _kind(got)
    text = f"calculate: expected {expected}, got {shown}; call calculate(expression)."
    return ToolReply(text, error=True)


def _kind(got: object) -> str:
    """What it is, without showing it: a nested value can be too deep for `repr`."""
    if isinstance(got, dict):
        return "those named " + repr(", ".join(map(str, got))[:60]) if got else "none"
    return type(got).__name__
