"""README's own task trains, and its run can be shown; Ctrl-C keeps what there is."""

import io
import json
import sys

import pytest
from own_task import LITTLE, OWN

from metaharness.cli import main
from metaharness.harness.learned import load_learned
from metaharness.train import loop
from metaharness.train.compare import generates
from metaharness.train.config import EvalConfig


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A run directory, and what the command printed."""
    folder = tmp_path_factory.mktemp("runs") / "own"
    words = ("train", *OWN, "--model", tiny, "--out", folder, *LITTLE)
    with pytest.MonkeyPatch.context() as patch:
        printed = io.StringIO()
        patch.setattr(sys, "stdout", printed)
        assert main([str(word) for word in words]) == 0
        return folder, printed.getvalue()


@pytest.mark.slow
def test_a_users_own_task_trains(trained):
    folder, printed = trained
    for name in ("config.json", "metrics.jsonl", "harness.json", "report.html"):
        assert (folder / name).stat().st_size > 0
    for method in ("Zero-shot", "Random, mean of 2", "Best random of", "Learned "):
        assert method in printed
    assert "against random" in printed and "exact match" in printed
    assert f"report: {folder / 'report.html'}" in printed.replace("\n", "")


@pytest.mark.slow
def test_the_run_records_what_was_asked(trained):
    folder, _ = trained
    config = json.loads((folder / "config.json").read_text())
    assert config["task"] == [str(OWN[1])] and config["search"]["samples"] == 4
    learned = load_learned(folder)
    assert set(learned.choices) == {"task"}
    assert [t.name for t in learned.harness.template.pool] == ["bare", "team"]
    assert {e.kind for e in learned.harness.candidates} == {"right"}


@pytest.mark.slow
def test_show_prints_probabilities_and_the_final_prompt(trained, cli):
    folder, _ = trained
    result = cli("show", folder)
    assert result.status == 0 and result.err == ""
    for part in ("exemplars: 2 of 4 chosen", "template: 1 of 2", "final prompt"):
        assert part in result.out
    assert result.out.count("●") == 3  # two exemplars and a template
    assert "<|assistant|>" in result.out  # the prompt as the model reads it


@pytest.mark.slow
def test_show_of_one_task_refuses_another(trained, cli):
    result = cli("show", trained[0], "--task", "tsk")
    assert result.status == 2 and "expected one of the run's, task" in result.err


def test_ctrl_c_in_a_run_saves_it_and_ends_with_130(cli, tiny, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop._Loop, "_encode", interrupted)
    folder = tmp_path / "run"
    result = cli("train", *OWN, "--model", tiny, "--out", folder, *LITTLE)
    assert result.status == 130 and "Traceback" not in result.err
    assert "Interrupted (Ctrl-C)" in result.out
    assert load_learned(folder).choices and (folder / "report.html").exists()


def test_long_answers_are_not_written_unless_asked_for():
    class Task:
        scorer = staticmethod(float)
        max_new_tokens = 320

    assert not generates(EvalConfig(), Task)
    assert generates(EvalConfig(generate_tokens=320), Task)
    assert not generates(EvalConfig(generate_tokens=320, generate=False), Task)
