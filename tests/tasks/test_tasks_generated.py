"""reasoning-gym families: default items, disjoint splits, the package's own score."""

import json
import os
import subprocess
import sys
from fractions import Fraction

import pytest

from metaharness.errors import TaskError
from metaharness.tasks import SplitSizes, find_leaks, load_task
from metaharness.tasks import generated as module
from metaharness.tasks.generate import encode
from metaharness.tasks.generated import (
    WORKER,
    decode,
    family_names,
    load_generated,
    split_seed,
)
from metaharness.tasks.normal import normal_question

reasoning_gym = pytest.importorskip("reasoning_gym")

SIZES = SplitSizes(pool=24, train=24, validation=12, test=40)
FAMILIES = (
    "number_sequence",
    "isomorphic_strings",
    "self_reference",
    "prime_factorization",
    "family_relationships",
    "binary_alternation",
    "letter_counting",
    "gcd",
)
# Families that share long text, or vary a number, a name or a grid cell in it.
LOOK_ALIKE = ("aiw", "simple_geometry", "rotten_oranges", "gsm_symbolic", "tsumego")


@pytest.fixture(scope="module", params=FAMILIES)
def task(request):
    return load_generated(request.param, seed=0, sizes=SIZES)


def test_items_are_the_familys_own_at_its_default(task):
    if task.name == "isomorphic_strings":
        pytest.skip("differs between processes; see the test of the hash seed")
    for split in ("pool", "test"):
        base = split_seed(task.name, 0, split)
        data = reasoning_gym.create_dataset(task.name, seed=base)
        for item in task.splits()[split][:5]:
            entry = data[int(item.uid.split("/")[1]) - base]
            assert item.question == entry["question"]
            assert item.answer == entry["answer"]
            assert decode(item.meta["metadata"]) == entry["metadata"]


def test_splits_have_their_sizes_and_no_common_question(task):
    sizes = {split: len(rows) for split, rows in task.splits().items()}
    assert sizes == SIZES.as_dict()
    every = [
        normal_question(i.question) for rows in task.splits().values() for i in rows
    ]
    assert len(set(every)) == len(every)


def test_the_score_is_the_packages_own(task):
    data = reasoning_gym.create_dataset(task.name, seed=1)
    for position, item in enumerate(task.test[:8]):
        entry = {
            "question": item.question,
            "answer": item.answer,
            "metadata": decode(item.meta["metadata"]),
        }
        other = task.test[position + 1].answer
        for text in (item.answer, other, f"{item.answer} or so", "", "7"):
            try:
                score = data.score_answer(text, entry)
            except ValueError:  # some families' scorers raise on other text
                score = 0.0
            assert task.scorer(text, item) == pytest.approx(score)
        assert task.scorer(f"  {item.answer}\n", item) == 1.0


def test_the_guard_raises_no_alarm_on_independent_items(task):
    data = reasoning_gym.create_dataset(task.name, seed=987654321)
    known = {normal_question(item.question) for item in task.test}
    others = [module.Item(str(i), data[i]["question"], "a") for i in range(100)]
    new = [item for item in others if normal_question(item.question) not in known]
    assert len(new) > 50
    assert not find_leaks(new, task.test)


@pytest.mark.parametrize("family", LOOK_ALIKE)
def test_the_guard_raises_no_alarm_on_items_that_look_alike(family):
    data = reasoning_gym.create_dataset(family, seed=5)
    items, seen = [], set()
    for index in range(130):
        question = data[index]["question"]
        if normal_question(question) not in seen:
            seen.add(normal_question(question))
            items.append(module.Item(str(index), question, "a"))
    assert not find_leaks(items[:30], items[30:])
    assert len(find_leaks(items[30:40], items[30:])) == 10


def test_a_copied_item_is_found_in_every_family(task):
    for item in task.test[:10]:
        copy = module.Item("mine", f" {item.question.upper()}\n", item.answer)
        (leak,) = find_leaks([copy], task.test)
        assert leak.evaluated_uid == item.uid


def test_items_do_not_depend_on_the_hash_seed(monkeypatch, tmp_path):
    """Isomorphic strings iterate over sets of letters: other processes, other items."""
    monkeypatch.setenv("METAHARNESS_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    task = load_generated("isomorphic_strings", seed=0, sizes=SIZES)
    assert task.fingerprint == HASH_SEED_FINGERPRINT


# of that task, in a process with another hash seed
HASH_SEED_FINGERPRINT = (
    "ea5795389aaf3c29950a8ce991e5ea3094fa6c73cdc015a10e58f50a50f470a0"
)


def test_the_seed_decides_the_items():
    one, two = (load_generated("gcd", seed=seed, sizes=SIZES) for seed in (0, 1))
    assert one.fingerprint != two.fingerprint


def test_seeds_of_splits_lie_far_apart():
    seeds = sorted(
        split_seed(family, seed, split)
        for family in FAMILIES
        for seed in range(20)
        for split in ("pool", "train", "validation", "test")
    )
    gaps = [b - a for a, b in zip(seeds, seeds[1:], strict=False)]
    assert 0 <= seeds[0] and seeds[-1] < 2**31
    # the closest seeds of one family may not share 10,000 items
    assert len(set(seeds)) == len(seeds) and sorted(gaps)[3] > 1000


def test_a_sequence_is_cut_short_without_changing_any_item():
    """The worker drops a hopeless sequence early; the package computes it in full."""
    # seeds whose sequences the package computes in little time
    seeds = (20_000, 21_000, 23_000, 24_000, 25_000)
    requests = [(seed, index) for seed in seeds for index in range(40)]
    replies = iter(worker_entries("number_sequence", requests))
    for seed in seeds:
        plain = reasoning_gym.create_dataset("number_sequence", seed=seed)
        for index in range(40):
            assert decode(next(replies)["entry"]) == plain[index]


def worker_entries(family, requests):
    done = subprocess.run(
        [sys.executable, "-P", str(WORKER), family],
        input="".join(f"{seed} {index}\n" for seed, index in requests),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_worker_reports_an_item_that_fails_and_goes_on():
    # this family needs a configuration
    replies = worker_entries("composite", [(1, 0), (1, 1)])
    assert [list(reply) for reply in replies] == [["error"], ["error"]]


def test_prepared_items_are_read_again_without_a_worker(monkeypatch):
    first = load_generated("gcd", seed=0, sizes=SIZES)

    def refuse(*_):
        raise AssertionError("generated again")

    monkeypatch.setattr(module, "_Worker", refuse)
    assert load_generated("gcd", seed=0, sizes=SIZES).fingerprint == first.fingerprint


def test_a_family_with_few_questions_shrinks_unless_sizes_are_asked(monkeypatch):
    monkeypatch.setattr(module, "DRAWS", 1)
    task = load_generated("coin_flip", seed=0, sizes=None)
    sizes = [len(rows) for rows in task.splits().values()]
    assert min(sizes) >= 4 and sum(sizes) < SplitSizes().total
    with pytest.raises(
        TaskError, match="'coin_flip': expected 704 distinct items, got"
    ):
        load_generated("coin_flip", seed=0, sizes=SplitSizes())


def test_a_family_without_gold_answers_is_refused_by_reason():
    with pytest.raises(TaskError, match="'graph_color': .*stores no gold answer"):
        load_task("graph_color")
    assert "graph_color" not in family_names()


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TaskError, match=r"pip install 'metaharness\[embedded\]'"):
        load_task("gcd")
    assert family_names() == ()


def test_a_worker_that_dies_is_reported(monkeypatch, fresh_cache, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(module, "WORKER", broken)
    with pytest.raises(TaskError, match=r"process ended \(exit status 3\); run"):
        load_generated("gcd", seed=0, sizes=SIZES)
    assert not list(fresh_cache.rglob("*.jsonl"))


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, 2.5, None), "b": [True, "x"]},
        {1: "a", (2, "b"): [()]},
        {"!tuple": 1},
        Fraction(3, 7),
    ],
)
def test_stored_metadata_comes_back_equal(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value
    assert type(decode(encode(value))) is type(value)


def test_unknown_metadata_is_refused_not_changed():
    with pytest.raises(TypeError, match="cannot store object"):
        encode({"a": object()})
