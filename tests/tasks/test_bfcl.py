"""BFCL: the rule that compares calls, the environment, and the real data."""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.tools import ToolCall, ToolReply, ToolSpec
from metaharness.errors import TaskError
from metaharness.tasks import Item, SplitSizes, load_task
from metaharness.tasks.bfcl import (
    CATEGORIES,
    BfclEnvironment,
    json_schema,
    load_bfcl,
    read_category,
)
from metaharness.tasks.call_match import call_matches, calls_match
from metaharness.tasks.domain import NO_CALL

CASES = Path(__file__).parents[1] / "data/tasks/call_match_conformance.jsonl"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


def cases():
    rows = [json.loads(line) for line in CASES.read_text("utf-8").splitlines()]
    assert len({row["id"] for row in rows}) == len(rows) >= 30
    return rows


def spec_of(case, name="f"):
    described = {"type": "dict", **{k: case[k] for k in ("properties", "required")}}
    return ToolSpec(name, "", json_schema(described))


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_a_call_matches_where_the_case_says(case):
    call = ToolCall("f", case["arguments"])
    found = call_matches(call, {"f": case["truth"]}, [spec_of(case)])
    assert found == bool(case["match"]), case["reason"]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_a_call_of_another_function_never_matches(case):
    call = ToolCall("g", case["arguments"])
    tools = [spec_of(case), spec_of(case, "g")]
    assert not call_matches(call, {"f": case["truth"]}, tools)


@given(value=JSON)
def test_the_rule_is_total(value):
    for case in cases():
        call = ToolCall("f", {"a": value})
        assert call_matches(call, {"f": case["truth"]}, [spec_of(case)]) in (
            True,
            False,
        )


def test_a_long_whole_number_is_compared_as_it_is():
    tool = ToolSpec("f", "", {"properties": {"a": {"type": "number"}}})
    assert not call_matches(ToolCall("f", {"a": 10**400}), {"f": {"a": [1.5]}}, [tool])


NUMBER = ToolSpec("math.add", "", {"properties": {"a": {"type": "integer"}}})


def add(*numbers):
    return [ToolCall("math.add", {"a": number}) for number in numbers]


def test_several_calls_are_paired_in_any_order():
    truths = [{"math.add": {"a": [1]}}, {"math.add": {"a": [2]}}]
    assert calls_match(add(1, 2), truths, [NUMBER])
    assert calls_match(add(2, 1), truths, [NUMBER])
    for wrong in (add(1), add(1, 1), add(1, 2, 2), add(), add(1, 3)):
        assert not calls_match(wrong, truths, [NUMBER])


def test_a_pairing_is_found_where_the_first_fit_would_block_it():
    truths = [{"math.add": {"a": [1, 2]}}, {"math.add": {"a": [1]}}]
    assert calls_match(add(1, 2), truths, [NUMBER])
    assert calls_match(add(2, 1), truths, [NUMBER])
    assert not calls_match(add(2, 2), truths, [NUMBER])


def test_types_become_those_of_json_schema():
    described = {
        "type": "dict",
        "properties": {
            "type": {"type": "string", "enum": ["x"], "description": "kind"},
            "at": {"type": "tuple", "items": {"type": "float"}},
            "more": {"type": "dict", "properties": {"n": {"type": "integer"}}},
            "other": {"type": "any", "description": "anything"},
        },
        "required": ["type"],
    }
    before = copy.deepcopy(described)
    schema = json_schema(described)
    assert described == before
    assert schema == {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["x"], "description": "kind"},
            "at": {"type": "array", "items": {"type": "number"}},
            "more": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "other": {"description": "anything"},
        },
        "required": ["type"],
    }
    with pytest.raises(KeyError):
        json_schema({"type": "HashMap"})


def item_of(truths):
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
    }
    tools = [{"name": "math.add", "description": "adds", "parameters": parameters}]
    return Item("1", "q", "", {"tools": tools, "truths": truths})


def test_the_environment_records_and_grades_calls():
    environment = BfclEnvironment(item_of([{"math.add": {"a": [1]}}]))
    assert [spec.name for spec in environment.tools] == ["math.add"]
    assert environment.reward("math.add(a=1)") == 0.0
    assert environment.call("math.add", {"a": 1}) == ToolReply("recorded")
    assert environment.reward("") == 1.0
    assert environment.call("math.add", {"a": 1}) == ToolReply("recorded")
    assert environment.reward("") == 0.0


@pytest.mark.parametrize(
    "name,arguments,said",
    [
        ("add", {"a": 1}, "expected a tool among math.add, got 'add'"),
        ("math.add", {"b": 1}, "math.add: expected the arguments a; got no 'a'"),
        ("math.add", {"a": 1, "b": 1}, "math.add: expected the arguments a; got 'b'"),
        ("math.add", {"a": "1"}, "math.add: expected integer in 'a', got '1'"),
        (
            "math.add",
            [1],
            "math.add: expected an object of arguments, got a value of t",
        ),
    ],
)
def test_a_wrong_call_is_told_and_counts(name, arguments, said):
    environment = BfclEnvironment(item_of([{"math.add": {"a": [1]}}]))
    reply = environment.call(name, arguments)
    assert reply.error and said in reply.text
    environment.call("math.add", {"a": 1})
    assert environment.reward("") == 0.0


def test_where_nothing_fits_any_call_is_wrong():
    assert BfclEnvironment(item_of([])).reward("I cannot.") == 1.0
    for name in ("math.add", "no such tool"):
        environment = BfclEnvironment(item_of([]))
        environment.call(name, {"a": 1})
        assert environment.reward("I cannot.") == 0.0


@given(name=st.sampled_from(["math.add", "x"]) | st.text(), arguments=JSON)
def test_a_call_never_raises(name, arguments):
    environment = BfclEnvironment(item_of([{"math.add": {"a": [1]}}]))
    assert isinstance(environment.call(name, arguments), ToolReply)
    assert environment.reward("") in (0.0, 1.0)


def question(number):
    function = {
        "name": "play",
        "description": "Plays.",
        "parameters": {
            "type": "dict",
            "properties": {
                "song": {"type": "string"},
                "loud": {"type": "float"},
                "again": {"type": "boolean"},
            },
            "required": ["song"],
        },
    }
    turn = {"role": "user", "content": f"Play song {number} at {number / 2}, please."}
    return {"id": f"q{number}", "question": [[turn]], "function": [function]}


def answer(number):
    truth = {"again": ["", False], "loud": [number / 2], "song": [f"song {number}"]}
    return {"id": f"q{number}", "ground_truth": [{"play": truth}]}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.fixture
def local(tmp_path):
    write(tmp_path / "bfcl/simple_python.jsonl", map(question, range(40)))
    write(tmp_path / "bfcl/simple_python.answers.jsonl", map(answer, range(40)))
    write(tmp_path / "bfcl/irrelevance.jsonl", map(question, range(40)))
    return tmp_path


SIZES = SplitSizes(4, 5, 6, 7)


def test_a_category_is_a_task_that_only_its_environment_grades(local):
    task = load_task("bfcl_simple", data_dir=local, sizes=SIZES)
    assert [len(rows) for rows in task.splits().values()] == [4, 5, 6, 7]
    assert task.scorer is None and task.name == "bfcl_simple"
    item = task.test[0]
    number = int(item.uid[1:])
    assert item.question == f"Play song {number} at {number / 2}, please."
    assert json.loads(item.answer) == {
        "name": "play",
        "arguments": {"song": f"song {number}", "loud": number / 2},
    }
    assert list(json.loads(item.answer)["arguments"]) == ["song", "loud"]
    assert play(task, item) == 1.0


def play(task, item):
    """Reward of an episode that makes the calls of the gold answer."""
    environment = task.environment(item)
    for line in item.answer.splitlines() if item.answer != NO_CALL else ():
        call = json.loads(line)
        environment.call(call["name"], call["arguments"])
    return environment.reward("done")


def test_irrelevance_needs_no_answers(local):
    task = load_bfcl(data_dir=local, seed=0, sizes=SIZES, category="irrelevance")
    assert all(item.answer == NO_CALL for item in task.pool)
    assert play(task, task.pool[0]) == 1.0


def test_missing_and_malformed_data_is_named_with_a_remedy(local, tmp_path):
    with pytest.raises(
        TaskError, match="bfcl_simple: expected its data, got no --data"
    ):
        load_task("bfcl_simple")
    with pytest.raises(
        TaskError, match="no multiple.jsonl in .*; copy bfcl_eval/data/B"
    ):
        load_task("bfcl_multiple", data_dir=local)
    with pytest.raises(TaskError, match="expected a category among simple, .* 'java'"):
        load_bfcl(data_dir=local, seed=0, sizes=None, category="java")
    place = local / "bfcl/simple_python.jsonl"
    write(place, [question(50)])
    with pytest.raises(TaskError, match="jsonl:1: expected an answer with id 'q50'"):
        load_task("bfcl_simple", data_dir=local)
    write(place, [{**question(1), "question": [[], []]}])
    with pytest.raises(TaskError, match="jsonl:1: expected one user turn"):
        load_task("bfcl_simple", data_dir=local)
    write(place.with_name("simple_python.answers.jsonl"), [{"id": "q1"}])
    with pytest.raises(TaskError, match="jsonl:1: expected a list in field 'ground_t"):
        load_task("bfcl_simple", data_dir=local)
    place.with_name("simple_python.answers.jsonl").unlink()
    with pytest.raises(
        TaskError, match="answers.jsonl in .*possible_answer/BFCL_v4_si"
    ):
        load_task("bfcl_simple", data_dir=local)


# Items of each category in bfcl-eval 2026.3.23, and the splits that they fill
# (4 questions of "multiple" and of "irrelevance" are there twice).
COUNTS = {
    "simple": (400, (64, 128, 64, 144)),
    "multiple": (200, (32, 60, 32, 72)),
    "irrelevance": (240, (32, 76, 40, 88)),
    "parallel": (200, (32, 64, 32, 72)),
    "parallel_multiple": (200, (32, 64, 32, 72)),
}


@pytest.mark.parametrize("category", CATEGORIES)
def test_real_data_gold_calls_solve_every_item(shared, category):
    items, _ = read_category(shared, category)
    task = load_task(f"bfcl_{category}", data_dir=shared)
    assert len(items) == COUNTS[category][0]
    assert all(play(task, item) == 1.0 for item in items)
    nothing = [BfclEnvironment(item).reward(item.answer) for item in items]
    assert set(nothing) == {float(category == "irrelevance")}


@pytest.mark.parametrize("category", CATEGORIES)
def test_real_data_fills_disjoint_splits(shared, category):
    task = load_task(f"bfcl_{category}", data_dir=shared)
    rows = task.splits()
    assert tuple(map(len, rows.values())) == COUNTS[category][1]
    uids = [item.uid for split in rows.values() for item in split]
    assert len(set(uids)) == len(uids)
    for item in task.test:
        assert json.loads(json.dumps(item.meta)) == item.meta
        assert not any(stop in item.answer for stop in task.stop)


@pytest.mark.parametrize("category", [c for c in CATEGORIES if c != "irrelevance"])
def test_real_data_another_items_calls_solve_nothing(shared, category):
    items, _ = read_category(shared, category)
    for item, other in zip(items, items[1:], strict=False):
        environment = BfclEnvironment(item)
        for line in other.answer.splitlines():
            call = json.loads(line)
            environment.call(call["name"], call["arguments"])
        assert environment.reward("") == 0.0
