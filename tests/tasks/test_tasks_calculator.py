"""The calculator's environment: replies to anything, and grades as its task does."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.tools import ToolReply
from metaharness.tasks.calculator import CALCULATE, calculator_environment
from metaharness.tasks.scorers import exact_match, number_match
from metaharness.tasks.task import Item

ITEM = Item("three", "How many?", "1 + 2 = 3\n#### 3")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture
def calculator():
    return calculator_environment(number_match)(ITEM)


def test_it_offers_one_tool_with_a_json_safe_schema(calculator):
    assert calculator.tools == (CALCULATE,)
    assert CALCULATE.name == "calculate" and CALCULATE.arguments == ("expression",)
    assert json.loads(json.dumps(CALCULATE.parameters)) == CALCULATE.parameters


@pytest.mark.parametrize(
    ("expression", "text"),
    [("1,250 * 2", "2500"), ("20% of 50", "10"), ("1 / 3", "0.3333333333")],
)
def test_a_call_gives_the_value_alone(calculator, expression, text):
    assert calculator.call("calculate", {"expression": expression}) == ToolReply(text)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search", {"expression": "1"}, "expected the tool 'calculate', got 'search'"),
        ("calculate", {}, "expected one argument, 'expression', got none"),
        ("calculate", {"x": "1"}, "got those named 'x'"),
        ("calculate", {"expression": "1", "y": 2}, "got those named 'expression, y'"),
        ("calculate", {"expression": 1}, "expected text as 'expression', got int"),
        ("calculate", ["1"], "got list"),
        ("calculate", None, "got NoneType"),
        ("calculate", {"expression": "1 / 0"}, "a divisor other than 0"),
        ("calculate", {"expression": "import os"}, "got 'import'"),
        ("calculate", {"expression": ""}, "got the end"),
    ],
)
def test_a_wrong_call_gets_an_error_that_says_what_was_expected(
    calculator, name, arguments, said
):
    reply = calculator.call(name, arguments)
    assert reply.error and said in reply.text and "\n" not in reply.text


@settings(max_examples=300)
@given(
    name=st.sampled_from(["calculate", "", "search"]) | st.text(),
    arguments=JSON | st.fixed_dictionaries({"expression": JSON}),
)
def test_no_call_raises(name, arguments):
    calculator = calculator_environment(number_match)(ITEM)
    reply = calculator.call(name, arguments)
    assert isinstance(reply, ToolReply) and reply.text
    assert len(reply.text) < 400
    assert calculator.reward("3") == 1.0


def test_arguments_too_deep_to_be_shown_are_refused(calculator):
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert calculator.call("calculate", {"expression": deep}).error
    while deep:  # a deep list cannot be freed at once by every interpreter
        deep = deep[0]


@given(st.text())
def test_the_reward_is_the_tasks_score(text):
    for scorer in (number_match, exact_match):
        reward = calculator_environment(scorer)(ITEM).reward(text)
        assert reward == scorer(text, ITEM)


def test_calls_do_not_change_the_reward(calculator):
    for _ in range(3):
        calculator.call("calculate", {"expression": "1 + 1"})
    assert (calculator.reward("#### 3"), calculator.reward("2")) == (1.0, 0.0)
