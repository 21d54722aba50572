"""SVAMP: a problem of two sentences, a number, a calculator."""

import gzip
import json

import pytest

from metaharness.errors import TaskError
from metaharness.tasks import SplitSizes, load_task

NAMES = "Ada Ben Cem Dora Eva Finn Gus Hana Ivo Jana Kai Lea Mia Ned Ola Pia".split()
THINGS = "pens cups maps nuts eggs hats keys bags toys cars figs pies caps logs".split()


def problem(number, **changes):
    name, thing = NAMES[number % 16], THINGS[number * 5 % 14]
    row = {
        "ID": f"chal-{number}",
        "Body": f"{name} had {number} {thing} on day {number * 3} and got {number * 2}",
        "Question": f"How many {thing} did {name} have at the end of it ?",
        "Equation": f"( {number}.0 + {number * 2}.0 )",
        "Answer": float(number * 3),
        "Type": "Addition",
    }
    return row | changes


def write(folder, rows, name="svamp/SVAMP.json"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(rows, indent=4).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder


@pytest.fixture
def local(tmp_path):
    return write(tmp_path, [problem(number) for number in range(1, 61)])


SIZES = SplitSizes(pool=5, train=10, validation=5, test=10)


def test_body_and_question_are_asked_and_the_number_is_the_answer(local):
    task = load_task("svamp", data_dir=local, sizes=SIZES)
    item = task.test[0]
    number = int(item.uid.removeprefix("svamp/chal-"))
    row = problem(number)
    assert item.question == f"{row['Body']} {row['Question']}"
    assert item.answer == str(number * 3)


def test_answers_that_are_no_whole_number_keep_their_decimals(tmp_path):
    rows = [problem(n, Answer=n + 0.25) for n in range(1, 61)]
    task = load_task("svamp", data_dir=write(tmp_path, rows), sizes=SIZES)
    assert all(item.answer.endswith(".25") for item in task.test)


def test_it_is_scored_by_the_final_number_with_a_calculator_at_hand(local):
    task = load_task("svamp", data_dir=local, sizes=SIZES)
    for item in task.test:
        world = task.environment(item)
        for text, reward in {
            f"So there are {item.answer}.0 in all.": 1.0,
            f"{item.answer}9": 0.0,
            "": 0.0,
        }.items():
            assert task.scorer(text, item) == world.reward(text) == reward
        reply = world.call("calculate", {"expression": f"{item.answer} * 2 / 2"})
        assert reply.text == item.answer and not reply.error


def test_a_packed_file_is_the_same_task(local, tmp_path):
    packed = tmp_path / "packed"
    write(packed, [problem(n) for n in range(1, 61)], "SVAMP.json.gz")
    first = load_task("svamp", data_dir=local, sizes=SIZES)
    assert load_task("svamp", data_dir=packed, sizes=SIZES).fingerprint == (
        first.fingerprint
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Answer": "three"}, "item 2: expected int or float in field 'Answer'"),
        ({"Answer": None}, "item 2: expected int or float in field 'Answer', got null"),
        ({"Body": ""}, ":2: expected text in field 'Body'"),
    ],
)
def test_a_broken_row_is_named(tmp_path, change, message):
    rows = [problem(1), problem(2, **change)]
    with pytest.raises(TaskError, match=message):
        load_task("svamp", data_dir=write(tmp_path, rows))


@pytest.mark.parametrize("text", ["{}", "[1]", "[", "", '[{"Answer": NaN}]', "\xff"])
def test_a_broken_file_is_named(tmp_path, text):
    (tmp_path / "SVAMP.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(TaskError, match="SVAMP.json: expected a "):
        load_task("svamp", data_dir=tmp_path)


def test_missing_data_is_named_with_what_to_fetch(tmp_path):
    with pytest.raises(TaskError, match="got no SVAMP.json in .*; fetch https://raw"):
        load_task("svamp", data_dir=tmp_path)


def test_real_svamp(shared):
    task = load_task("svamp", data_dir=shared)
    sizes = {split: len(rows) for split, rows in task.splits().items()}
    assert sizes == REAL_SIZES
    for item in (*task.test, *task.train):
        assert task.scorer(item.answer, item) == 1.0


REAL_SIZES = {"pool": 64, "train": 400, "validation": 128, "test": 400}
