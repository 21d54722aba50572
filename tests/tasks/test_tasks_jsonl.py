"""A user's own file becomes a task, or is refused with the line that is wrong."""

import gzip
import json
from pathlib import Path

import pytest

from metaharness.errors import TaskError
from metaharness.tasks import SPLITS, SplitSizes, load_task

CAPITALS = Path(__file__).parents[1] / "data/tasks/capitals.jsonl"
ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)]


def write(path: Path, rows) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_file_becomes_a_task_with_four_splits():
    task = load_task(CAPITALS)
    assert task.name == "capitals"
    assert {s: len(rows) for s, rows in task.splits().items()} == {
        "pool": 6, "train": 6, "validation": 6, "test": 6
    }  # fmt: skip
    assert task.max_new_tokens == 16 and task.stop == ("\n",)
    assert "capitals.jsonl, SHA-256" in task.source
    assert task.pool[0].uid.startswith("capitals:")


def test_a_string_path_is_a_path():
    assert load_task(str(CAPITALS)).fingerprint == load_task(CAPITALS).fingerprint


def test_the_splits_of_a_stored_file_do_not_move():
    assert load_task(CAPITALS).fingerprint == STORED_FINGERPRINT


# load_task("tests/data/tasks/capitals.jsonl") when the order was fixed
STORED_FINGERPRINT = "cad83ae9a79498c80cd4b46d942b64f9152ed8093e0150c0a38e3c81b7d77819"


def test_the_seed_decides_the_splits():
    assert load_task(CAPITALS, seed=1).fingerprint != load_task(CAPITALS).fingerprint


def test_the_file_may_say_the_split(tmp_path):
    rows = [{**row, "split": SPLITS[n % 4]} for n, row in enumerate(ROWS)]
    task = load_task(write(tmp_path / "own.jsonl", rows))
    for position, split in enumerate(SPLITS):
        uids = {int(item.uid.split(":")[1]) for item in task.splits()[split]}
        assert uids == set(range(position + 1, 41, 4))


def test_splits_that_no_line_names_are_carved_from_train(tmp_path):
    rows = [{**row, "split": "train" if n < 30 else "test"} for n, row in
            enumerate(ROWS)]  # fmt: skip
    task = load_task(write(tmp_path / "own.jsonl", rows))
    assert len(task.test) == 10
    rest = (*task.pool, *task.train, *task.validation)
    assert {int(item.uid.split(":")[1]) for item in rest} == set(range(1, 31))


def test_asked_sizes_are_met_or_refused(tmp_path):
    path = write(tmp_path / "own.jsonl", ROWS)
    task = load_task(path, sizes=SplitSizes(pool=3, train=4, validation=5, test=6))
    assert [len(rows) for rows in task.splits().values()] == [3, 4, 5, 6]
    with pytest.raises(TaskError, match="expected 64 distinct items for 'pool'"):
        load_task(path, sizes=SplitSizes(test=10, validation=10, train=10))


def test_packed_marked_and_numeric_input_is_read(tmp_path):
    rows = [{"question": n, "answer": n / 2} for n in range(20)]
    text = "\ufeff" + "\r\n".join(json.dumps(row) for row in rows) + "\r\n\r\n"
    path = tmp_path / "own.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    task = load_task(path)
    assert task.name == "own"
    answers = {i.question: i.answer for rows in task.splits().values() for i in rows}
    assert answers["3"] == "1.5" and len(answers) == 20


@pytest.mark.parametrize(
    "bad,message",
    [
        ('{"question": "q", "answer"', r"own.jsonl:3: expected one JSON object, got"),
        ('["q", "a"]', "own.jsonl:3: expected a JSON object, got list; write"),
        ({"question": "q"}, "own.jsonl:3: expected text in field 'answer', got none"),
        (
            {"question": " ", "answer": "a"},
            "own.jsonl:3: .*'question', got \" \"; fill",
        ),
        ({"question": "q", "answer": True}, "own.jsonl:3: .*'answer', got true; fill"),
        (
            {"question": "q", "answer": "a", "split": "dev"},
            "own.jsonl:3: expected field 'split' among pool, train, validation, test",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, bad, message):
    path = write(tmp_path / "own.jsonl", [*ROWS[:2], bad, *ROWS[2:]])
    with pytest.raises(TaskError, match=message) as caught:
        load_task(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_or_not_there_is_refused(tmp_path):
    with pytest.raises(TaskError, match="got 'No such file or directory'"):
        load_task(tmp_path / "own.jsonl")
    (tmp_path / "own.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="own.jsonl: expected a JSON-lines file in UTF"):
        load_task(tmp_path / "own.jsonl")
    (tmp_path / "own.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(TaskError, match="own.jsonl.gz: expected a JSON-lines file"):
        load_task(tmp_path / "own.jsonl.gz")


def test_too_few_items_are_refused(tmp_path):
    with pytest.raises(TaskError, match=r"expected at least 8 items .* got 7; add"):
        load_task(write(tmp_path / "own.jsonl", ROWS[:7]))


def test_the_score_is_equality_of_short_answers():
    task = load_task(CAPITALS)
    item = task.test[0]
    assert task.scorer(f" {item.answer.upper()}.\n", item) == 1.0
    assert task.scorer(f"It is {item.answer}", item) == 0.0
