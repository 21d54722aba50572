"""IFEval: a score by instruction and by prompt, and no gold answers to learn from."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.exemplars import as_exemplars
from metaharness.errors import TaskError
from metaharness.tasks import SplitSizes, load_task, task_names
from metaharness.tasks.ifeval import all_followed, followed, share_followed
from metaharness.tasks.task import Item

SIZES = SplitSizes(pool=2, train=6, validation=4, test=8)
ITEM = Item(
    "two",
    "Write three words without a comma.",
    "",
    {
        "instructions": ["punctuation:no_comma", "length_constraints:number_words"],
        "arguments": [{}, {"num_words": 3, "relation": "at least"}],
    },
)


def prompt(number, **changes):
    words = " ".join(f"word{number * 13 + i * i}" for i in range(12))
    row = {
        "key": number,
        "prompt": f"Write about {words} with no comma and {number} words.",
        "instruction_id_list": ITEM.meta["instructions"],
        "kwargs": [{}, {"num_words": number, "relation": "at least"}],
    }
    return row | changes


def write(folder, rows):
    path = folder / "ifeval/input_data.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def local(tmp_path):
    return write(tmp_path, [prompt(number) for number in range(30)])


def test_the_score_is_the_share_of_instructions_followed():
    for text, marks in {
        "one two three": (True, True),
        "one two": (True, False),
        "one, two, three": (False, True),
        "one,": (False, False),
        "  ": (False, False),
    }.items():
        assert followed(text, ITEM) == marks
        assert share_followed(text, ITEM) == sum(marks) / 2
        assert all_followed(text, ITEM) == float(all(marks))


@given(st.text())
def test_a_score_is_total_and_in_range(text):
    share = share_followed(text, ITEM)
    assert 0.0 <= share <= 1.0
    assert all_followed(text, ITEM) == float(share == 1.0)


def test_the_task_scores_by_share_and_keeps_ids_and_arguments(local):
    task = load_task("ifeval", data_dir=local, sizes=SIZES)
    assert [len(rows) for rows in task.splits().values()] == [2, 6, 4, 8]
    item = task.test[0]
    number = int(item.uid.removeprefix("ifeval/"))
    assert item.meta["instructions"] == ITEM.meta["instructions"]
    assert item.meta["arguments"][1]["num_words"] == number
    assert task.scorer("word " * number + ",", item) == 0.5
    assert task.scorer("word " * (number + 1), item) == 1.0
    assert json.loads(json.dumps(item.meta)) == item.meta


def test_there_is_no_gold_answer_and_what_needs_one_refuses(local):
    task = load_task("ifeval", data_dir=local, sizes=SIZES)
    assert all(item.answer == "" for item in (*task.pool, *task.test))
    assert "no gold answers" in task.source
    with pytest.raises(ValueError, match="expected text in 'answer', got none"):
        as_exemplars(task.pool, "ifeval")
    (info,) = [info for info in task_names() if info.name == "ifeval"]
    assert "for episodes only" in info.note


def test_prompts_that_cannot_be_checked_are_left_out_and_counted(local):
    rows = [prompt(number) for number in range(30)]
    rows += [
        prompt(40, instruction_id_list=["language:response_language"] * 2,
               kwargs=[{"language": "ja"}, {"language": "de"}]),
        prompt(41, instruction_id_list=["no:such", "punctuation:no_comma"]),
    ]  # fmt: skip
    task = load_task("ifeval", data_dir=write(local, rows), sizes=SIZES)
    assert "; 2 prompts left out" in task.source
    uids = {item.uid for rows in task.splits().values() for item in rows}
    assert not uids & {"ifeval/40", "ifeval/41"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kwargs": [{}]}, "item 1: expected one object in 'kwargs' for each id in"),
        ({"kwargs": [{}, 1]}, "item 1: expected one object in 'kwargs'"),
        ({"instruction_id_list": [], "kwargs": []}, "item 1: expected one object"),
        ({"kwargs": {}}, "item 1: expected list in field 'kwargs', got {}"),
        ({"prompt": ""}, ":1: expected text in field 'prompt'"),
        ({"key": None}, "item 1: expected int in field 'key', got null"),
    ],
)
def test_a_broken_row_is_named(tmp_path, change, message):
    with pytest.raises(TaskError, match=message):
        load_task("ifeval", data_dir=write(tmp_path, [prompt(1, **change)]))


def test_missing_data_is_named_with_what_to_fetch(tmp_path):
    with pytest.raises(TaskError, match="got no input_data.jsonl in .*; fetch https"):
        load_task("ifeval", data_dir=tmp_path)


def test_real_ifeval(shared):
    task = load_task("ifeval", data_dir=shared)
    sizes = {split: len(rows) for split, rows in task.splits().items()}
    assert sizes == REAL_SIZES
    assert "; 0 prompts left out" in task.source
    names = {name for i in task.test for name in i.meta["instructions"]}
    assert len(names) == 25
    for item in task.test:
        # words enough for most, a comma for none
        assert 0.0 <= task.scorer("My answer is yes. " * 400, item) <= 1.0
        assert task.scorer("", item) == 0.0


REAL_SIZES = {"pool": 16, "train": 192, "validation": 82, "test": 250}
