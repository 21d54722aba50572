"""A harness file is read exactly, or refused with file, line and remedy."""

import json
import re
from pathlib import Path

import pytest

from components.templates import named
from metaharness.errors import HarnessError, InputError, TaskError
from metaharness.harness.file import (
    HarnessFile,
    check_file_leaks,
    check_lengths,
    load_harness_file,
)
from metaharness.tasks.task import Item, Task, fingerprint

GOOD = """\
# comment
[exemplars]
k = 2
file = "pool.jsonl"

[template]
named = "short"

[[template.candidates]]
name = "terse"
question = '''
[exemplars] is not a table here, nor is
k = 9
{question}'''

[[template.candidates]]
name = "plain"
question = "{question}\\n"
shot = "{question}\\n"
chat = false
"""
POOL = [
    {"question": "What is 1 + 1?", "answer": "2"},
    {"question": "What is 2 + 2?", "answer": "4", "uid": "four"},
    {"question": "Capital of France?", "answer": "Rome", "kind": "wrong_answer"},
]


def write(folder: Path, text: str = GOOD, pool=POOL) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in pool]
    (folder / "pool.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "harness.toml").write_text(text)
    return folder / "harness.toml"


def test_a_good_file_is_read_in_full(tmp_path):
    path = write(tmp_path)
    file = load_harness_file(path)
    assert isinstance(file, HarnessFile) and file.path == path
    assert file.exemplars.k == 2
    assert [e.uid for e in file.exemplars.pool] == ["exemplar:0", "four", "exemplar:2"]
    assert file.exemplars.pool[2].kind == "wrong_answer"
    assert file.exemplars.places[1] == f"{tmp_path / 'pool.jsonl'}:2"
    assert file.templates[:3] == named("short")
    assert file.templates[3].question.endswith("k = 9\n{question}")
    assert not file.templates[4].chat


def test_exemplars_may_be_listed_or_left_to_the_task(tmp_path):
    listed = '[exemplars]\nk = 1\n[[exemplars.pool]]\nquestion = "q"\nanswer = "a"\n'
    spec = load_harness_file(write(tmp_path, listed)).exemplars
    assert (spec.pool[0].question, spec.places) == (
        "q",
        (f"{tmp_path / 'harness.toml'}:3",),
    )
    taken = "[exemplars]\nk = 4\nfrom_task = 48\nshare_right = 0.5\n"
    spec = load_harness_file(write(tmp_path, taken)).exemplars
    assert (spec.pool, spec.from_task, spec.share_right) == ((), 48, 0.5)
    assert load_harness_file(tmp_path / "harness.toml").templates == ()


def swap(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


BROKEN = {
    "toml": (swap("k = 2", "k = = 2"), POOL, "harness.toml:3: expected TOML"),
    "json line": (
        GOOD,
        [POOL[0], '{"question": "x", "answer": }'],
        "pool.jsonl:2: expected one JSON object",
    ),
    "not an object": (GOOD, ["[1]"], "pool.jsonl:1: expected a JSON object, got list"),
    "missing field": (
        GOOD,
        [POOL[0], {"question": "q", "anwser": "a"}],
        "pool.jsonl:2: expected text in field 'answer', got none "
        r"\(did you mean 'anwser'\?\); fill it in",
    ),
    "field of another type": (
        GOOD,
        [{"question": "q", "answer": ["a"]}],
        r"pool.jsonl:1: expected text in field 'answer', got \['a'\]",
    ),
    "kind": (
        GOOD,
        [{"question": "q", "answer": "a", "kind": "good"}],
        "pool.jsonl:1: .*expected a kind among right",
    ),
    "empty pool": (GOOD, [], "pool.jsonl:1: expected at least 1 exemplar, got 0"),
    "duplicate exemplar": (
        GOOD,
        [*POOL, {**POOL[0], "uid": "other"}],
        "pool.jsonl:4: expected distinct candidates, got the same as at .*:1; remove",
    ),
    "duplicate uid": (
        GOOD,
        [POOL[1], {"question": "q", "answer": "a", "uid": "four"}],
        "pool.jsonl:2: expected distinct candidates, got the same as at .*:1; remove",
    ),
    "duplicate template": (
        swap('name = "plain"', 'name = "terse"'),
        POOL,
        "harness.toml:16: .*got 'terse' at positions 3 and 4; remove or rename",
    ),
    "k over n": (
        swap("k = 2", "k = 4"),
        POOL,
        "harness.toml:3: k: expected k between 1 and 3, got 4; lower k",
    ),
    "k of zero": (
        swap("k = 2", "k = 0"),
        POOL,
        "harness.toml:3: k: expected a whole number k of 1 or more, got 0",
    ),
    "k missing": (
        swap("k = 2", "# k"),
        POOL,
        "harness.toml:2: exemplars: expected a whole number k .* got none",
    ),
    "unknown slot": (
        swap("[exemplars]\nk", "[exemplar]\nk"),
        POOL,
        "harness.toml:2: expected slot among exemplars, template, output, "
        "retry, tools, context, got 'exemplar'; "
        r"did you mean 'exemplars'\?",
    ),
    "unknown option": (
        swap('file = "pool.jsonl"', 'flie = "pool.jsonl"'),
        POOL,
        r"harness.toml:4: expected option among k, .* got 'flie'; did you mean 'file'",
    ),
    "unknown template option": (
        swap('shot = "{', 'shots = "{'),
        POOL,
        r"harness.toml:19: expected option .* got 'shots'; did you mean 'shot'\?",
    ),
    "no placeholder": (
        swap('question = "{question}\\n"', 'question = "{quest}\\n"'),
        POOL,
        r"harness.toml:16: template 'plain': expected \{question\} once in 'question'",
    ),
    "no name": (swap('name = "plain"\n', ""), POOL, "harness.toml:16: template: expec"),
    "chat of another type": (
        swap("chat = false", 'chat = "no"'),
        POOL,
        "harness.toml:20: chat: expected true or false, got 'no'",
    ),
    "unknown set": (
        swap('named = "short"', 'named = "shrt"'),
        POOL,
        "harness.toml:7: templates: expected a set among .* got 'shrt'",
    ),
    "two sources": (
        swap("k = 2", "k = 2\nfrom_task = 4"),
        POOL,
        r"harness.toml:2: .*exactly one of pool, file, from_task, got \['file', 'from",
    ),
    "no source": (
        swap('file = "pool.jsonl"', ""),
        POOL,
        "harness.toml:2: exemplars: expected exactly one of .* got none",
    ),
    "number for a pool": (
        swap('file = "pool.jsonl"', "pool = 48"),
        POOL,
        "harness.toml:4: pool: expected a list .* got 48; .* from_task = N",
    ),
    "missing pool file": (
        swap('file = "pool.jsonl"', 'file = "pol.jsonl"'),
        POOL,
        "harness.toml:4: file: expected an existing JSON-lines file",
    ),
    "share of a listed pool": (
        swap("k = 2", "k = 2\nshare_right = 0.5"),
        POOL,
        "harness.toml:4: share_right: expected it only with from_task",
    ),
    "empty file": ("", POOL, "harness.toml:1: expected a slot"),
    "slot of another type": (
        "exemplars = 4\n",
        POOL,
        r"harness.toml:1: exemplars: expected a table \[exemplars\], got 4",
    ),
    "empty template slot": (
        "[template]\n",
        POOL,
        "harness.toml:1: template: expected candidates, got 0; add",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_malformed_input_is_named_in_one_line(tmp_path, case):
    text, pool, message = BROKEN[case]
    path = write(tmp_path, text, pool)
    with pytest.raises(InputError) as caught:
        load_harness_file(path)
    said = str(caught.value)
    assert "\n" not in said
    assert re.search(message, said), said
    assert said.startswith(str(tmp_path))


def test_keys_inside_a_long_text_are_not_taken_for_keys(tmp_path):
    text = """[[template.candidates]]
name = "a"
question = '''
[exemplars]
k = 1
{question}'''

[exemplars]
k = 4
file = "pool.jsonl"
"""
    with pytest.raises(HarnessError, match="harness.toml:9: k: expected k between"):
        load_harness_file(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(HarnessError, match="nowhere.toml: expected a harness file"):
        load_harness_file(tmp_path / "nowhere.toml")


def test_an_over_long_exemplar_is_named_with_its_line(tmp_path):
    spec = load_harness_file(write(tmp_path)).exemplars

    def count(exemplar):
        return len(exemplar.question)

    check_lengths(spec, count, 18)
    with pytest.raises(HarnessError, match="pool.jsonl:3: .*at most 17 tokens, got 18"):
        check_lengths(spec, count, 17)


def tiny_task(**splits: list[Item]) -> Task:
    empty = {"pool": (), "train": (), "validation": (), "test": ()}
    filled = {**empty, **{name: tuple(items) for name, items in splits.items()}}
    return Task(
        "tiny", **filled, scorer=None, max_new_tokens=8, stop=(),
        fingerprint=fingerprint(filled), source="test",
    )  # fmt: skip


@pytest.mark.parametrize("split", ["test", "validation"])
def test_an_exemplar_from_an_evaluated_split_is_refused(tmp_path, split):
    spec = load_harness_file(write(tmp_path)).exemplars
    item = Item("tiny:7", "what is  2 + 2", "4")
    check_file_leaks(spec, tiny_task(train=[item]))
    with pytest.raises(
        TaskError,
        match=f"pool.jsonl:2: .*from the {split} split, got 'four' equal to {split} "
        "item 'tiny:7' of tiny; remove",
    ):
        check_file_leaks(spec, tiny_task(**{split: [item]}))
