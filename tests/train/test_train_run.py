"""A run leaves a directory with everything in it, also when it is interrupted."""

import dataclasses
import io
import json

import numpy as np
import pytest
from markupsafe import escape
from rich.console import Console

from metaharness.errors import HarnessError, InputError, RunError
from metaharness.harness.learned import load_learned
from metaharness.harness.slots import Choice
from metaharness.runlog.report_data import METHODS
from metaharness.train import loop, results
from metaharness.train import run as module
from metaharness.train.baselines import Selected
from metaharness.train.checkpoint import Checkpoints
from metaharness.train.deploy import mode_choices, probabilities
from metaharness.train.run import print_run, train

METHOD_IDS = ("zero_shot", "random", "best_random", "mode", "sampled")
FILES = {
    "config.json",
    "provenance.json",
    "metrics.jsonl",
    "checkpoints",
    "harness.json",
    "report.json",
    "report.html",
}
MEASURED = {"finalists.json", "baselines.json"}


@pytest.fixture(scope="module")
def start(space, config, ran):
    """`train` on the space's own parts, with the updates that are compiled already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "compile_updates", lambda *_: ran.functions)
        patch.setattr(module, "build_space", lambda *_, **__: space)

        def run(folder, **changed):
            settings = dataclasses.replace(config, out=folder, **changed)
            return train(space.model, space.tasks, space.harness, settings)

        yield run


@pytest.fixture(scope="module")
def finished(start, tmp_path_factory):
    return start(tmp_path_factory.mktemp("runs") / "run")


def test_a_run_directory_has_every_file(finished, ran):
    assert not finished.interrupted
    assert {path.name for path in finished.directory.iterdir()} == FILES | MEASURED
    rows = (finished.directory / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row) for row in rows] == ran.first.trace
    settings = json.loads((finished.directory / "config.json").read_text())
    assert settings["task"] == ["sum", "swap"] and settings["model"] == "tiny"
    assert settings["evaluation"]["test_items"] == 3
    made = json.loads((finished.directory / "provenance.json").read_text())
    assert json.dumps(made).count("0" * 64) == 1  # the model's digest


def test_the_harness_file_is_what_was_learned(finished, ran, space):
    learned = load_learned(finished.directory)
    assert learned == finished.harness
    deployed = [learned.choice(task.name) for task in space.tasks]
    standing = json.loads((finished.directory / "finalists.json").read_text())
    modes = mode_choices(space, ran.first.state)
    for task, own, mode in zip(space.tasks, deployed, modes, strict=True):
        rows = standing[task.name]["finalists"]
        choices = [
            Choice(**{**r["choice"], "exemplars": tuple(r["choice"]["exemplars"])})
            for r in rows
        ]
        assert choices[0] == mode and choices[standing[task.name]["chosen"]] == own
        assert 2 <= len(rows) <= 4 and all(r["loss"] > 0 for r in rows)
    for slot, chances in probabilities(space, ran.first.state).items():
        for task, row in zip(space.tasks, chances, strict=True):
            np.testing.assert_allclose(learned.probabilities[slot][task.name], row)


def test_the_checkpoint_is_the_last_state(finished, ran):
    state = ran.first.state
    with Checkpoints(finished.directory / "checkpoints") as saved:
        assert saved.steps() == [6]
        like = {"state": state, "good": loop._good(state), "keys_of": None}
        found = saved.restore(like).tree["state"]
    for slot, logits in state.logits.items():
        np.testing.assert_array_equal(found.logits[slot], logits)


def test_the_report_holds_the_table_of_all_methods(finished):
    data = json.loads((finished.directory / "report.json").read_text())
    found = {(row["task"], row["method"]) for row in data["scores"]}
    names = ("sum", "swap", "overall")
    assert found == {(task, method) for task in names for method in METHOD_IDS}
    page = (finished.directory / "report.html").read_text()
    assert "<table" in page
    for row in finished.report.scores:
        assert METHODS[row.method].split(",")[0] in page and row.task in page
        assert f"{row.loss.mean:.2f}" in page
        assert row.loss.low <= row.loss.mean <= row.loss.high
        assert 0 <= row.exact_match.mean <= 1
    for prompt in finished.report.prompts:
        assert str(escape(prompt.text)) in page
    phases = [row.phase for row in finished.report.budget]
    assert phases == [
        "train",
        "train/harness",
        "deployment",
        "random search",
        "test",
        "",
    ]
    spent = {row.phase: row.counts.token_passes for row in finished.report.budget}
    assert spent["train"] < spent["random search"]  # what decides counts as training
    assert spent["random search"] <= spent["train"] + spent["deployment"]


def test_the_terminal_shows_the_table_and_where_the_report_lies(finished):
    written = io.StringIO()
    print_run(finished, Console(file=written, width=200))
    said = written.getvalue()
    assert "Learned " in said and "Zero-shot" in said
    assert str(finished.directory / "report.html") in said.replace("\n", "")


def test_a_second_run_into_the_same_folder_is_refused(start, finished):
    before = {p: p.stat().st_mtime_ns for p in finished.directory.rglob("*")}
    with pytest.raises(RunError, match="expected a new or empty folder"):
        start(finished.directory)
    assert {p: p.stat().st_mtime_ns for p in finished.directory.rglob("*")} == before


@pytest.mark.parametrize("done", [0, 3])
def test_ctrl_c_in_the_search_saves_what_was_learned(
    start, ran, tmp_path, monkeypatch, done
):
    left = iter([False] * done + [True])

    def breaking(step):
        def run(*arguments):
            if next(left):
                raise KeyboardInterrupt
            return step(*arguments)

        return run

    updates = {kind: breaking(step) for kind, step in ran.functions.updates.items()}
    broken = ran.functions._replace(updates=updates)
    monkeypatch.setattr(loop, "compile_updates", lambda *_: broken)
    run = start(tmp_path / "run")
    assert run.interrupted and not run.report.scores
    assert {path.name for path in run.directory.iterdir()} == FILES
    assert load_learned(run.directory).choices.keys() == {"sum", "swap"}
    assert "Interrupted" in (run.directory / "report.html").read_text()
    assert len((run.directory / "metrics.jsonl").read_text().splitlines()) == done


def skip_random_search(monkeypatch):
    one = Choice((0, 1), 0)
    found = [Selected([one], np.array([1.0]), one)] * 2
    monkeypatch.setattr(results, "random_search", lambda *_, **__: found)


@pytest.mark.parametrize("where", ["random_search", "compare"])
def test_ctrl_c_after_the_search_keeps_the_search(
    start, tmp_path, monkeypatch, where, finished
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    skip_random_search(monkeypatch)
    monkeypatch.setattr(results, where, interrupted)
    run = start(tmp_path / "run")
    assert run.interrupted and not run.report.scores
    assert load_learned(run.directory) == finished.harness
    assert "Interrupted" in (run.directory / "report.html").read_text()


def test_ctrl_c_in_the_choice_of_a_harness_keeps_the_search(
    start, tmp_path, monkeypatch, ran, space
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "settle_finalists", interrupted)
    run = start(tmp_path / "run")
    assert run.interrupted and not run.report.scores
    assert {path.name for path in run.directory.iterdir()} == FILES
    modes = mode_choices(space, ran.first.state)
    assert [run.harness.choice(task.name) for task in space.tasks] == modes


def test_a_budget_of_tokens_is_that_of_training(start, tmp_path, space, monkeypatch):
    skip_random_search(monkeypatch)
    monkeypatch.setattr(results, "compare", lambda *_, **__: [])
    run = start(tmp_path / "run", max_tokens=space.pool_tokens + 1)
    assert len((run.directory / "metrics.jsonl").read_text().splitlines()) == 1
    assert any("stopped early: train: " in note.text for note in run.report.notes)


def test_what_is_refused_leaves_no_folder(start, config, space, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    few = dataclasses.replace(config.search, samples=3)
    with pytest.raises(InputError, match="search.samples: expected at least 4 for 2"):
        start(folder, search=few)
    few = dataclasses.replace(config.search, relaxed_samples=1)
    with pytest.raises(InputError, match="search.relaxed_samples: expected at least 2"):
        start(folder, search=few)
    with pytest.raises(InputError, match="different names"):
        train(space.model, [space.tasks[0]] * 2, space.harness)

    def refuse(*_, **__):
        raise HarnessError("no")

    monkeypatch.setattr(module, "build_space", refuse)
    with pytest.raises(HarnessError):
        start(folder)
    assert not folder.exists()
