"""A learned harness is evaluated and asked; lists, pipes and a light start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from own_task import OWN

from metaharness.harness.from_file import harness_from_file
from metaharness.harness.learned import Learned, load_learned
from metaharness.harness.slots import Choice
from metaharness.model.load import load_model
from metaharness.tasks.registry import load_task

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """What `evaluate` and `generate` read of a run directory."""
    folder = tmp_path_factory.mktemp("run")
    task = load_task(OWN[1])
    harness = harness_from_file(OWN[3], task)
    model = load_model(tiny)
    learned = Learned(
        harness,
        {"task": Choice((1, 2), 1)},
        {"exemplars": {"task": (0.1, 0.9, 0.9, 0.1)}, "template": {"task": (0.2, 0.8)}},
        str(tiny),
        model.digest,
    )
    (folder / "harness.json").write_text(json.dumps(learned.as_json()))
    config = {"task": [str(OWN[1])], "model": str(tiny), "seed": 0, "data_dir": None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_evaluate_a_run(run, cli, tmp_path):
    out = tmp_path / "run"
    result = cli(
        *("evaluate", run, "--split", "validation", "--limit", 2, "--quiet"),
        *("--random-harnesses", 2, "--no-generate", "--out", out),
    )
    assert result.status == 0 and result.err == ""
    for part in ("task (2 items)", "Learned ", "Random, mean of 2", "tokens read"):
        assert part in result.out
    rows = json.loads((out / "scores.json").read_text())["scores"]
    by_method = {row["method"]: row for row in rows}
    assert set(by_method) == {"zero_shot", "random", "mode"}
    change = by_method["mode"]["difference"]
    assert change["low"] <= change["mean"] <= change["high"]


def test_evaluate_a_harness_file_at_its_first_candidates_and_at_random(
    cli, tiny, tmp_path
):
    result = cli(
        *("evaluate", *OWN, "--model", tiny, "--limit", 2, "--random-harnesses", 3),
        *("--no-generate", "--quiet", "--out", tmp_path / "run"),
    )
    assert result.status == 0
    assert "Random, mean of 3" in result.out and "Learned" not in result.out
    assert "Default harness" in result.out


def test_evaluate_the_default_harness_of_a_task(cli, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("METAHARNESS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    for split, start, end in (("train", 100, 220), ("test", 300, 304)):
        rows = [
            {"question": f"What is {a} and {a}?", "answer": f"Add.\n#### {2 * a}"}
            for a in range(start, end)
        ]
        text = "\n".join(map(json.dumps, rows))
        (folder / f"{split}.jsonl").write_text(text)
    result = cli(
        *("evaluate", "--task", "gsm8k", "--data-dir", tmp_path, "--model", tiny),
        *("--harness", "default", "--limit", 1, "--random-harnesses", 1),
        *("--no-generate", "--quiet", "--out", tmp_path / "run"),
    )
    assert result.status == 0, result.err
    for part in ("gsm8k (1 items)", "Zero-shot", "Default harness", "Random"):
        assert part in result.out
    (prompt,) = [
        p["text"]
        for p in json.loads((tmp_path / "run/scores.json").read_text())["prompts"]
        if p["method"] == "default"
    ]
    assert prompt.count("Add.") == 4 and "Work step by step" in prompt


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_default_harness_must_be_there_and_serve_all_tasks(cli, command, tmp_path):
    asked = (command, "--harness", "default", "--model", "none", "--task")
    result = cli(*asked, "gsm8k", "mbpp", "--data-dir", tmp_path)
    assert result.status == 2
    assert "share a default one, got gsm8k gsm8k.toml, mbpp mbpp.toml" in result.err
    result = cli(*asked, OWN[1])
    assert result.status == 2 and "a default one (gsm8k, svamp," in result.err


def test_evaluate_zero_shot(cli, tiny, tmp_path):
    words = ("--model", tiny, "--limit", 2, "--no-generate", "--quiet")
    words += ("--out", tmp_path / "run")
    result = cli("evaluate", *OWN[:2], *words)
    assert result.status == 0
    assert result.out.count("Zero-shot") == 1 and "given" not in result.out
    assert "Random" not in result.out


def test_evaluate_refuses_a_task_that_was_not_learned(run, cli, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_bytes(OWN[1].read_bytes())
    result = cli("evaluate", run, "--task", other)
    assert result.status == 2
    assert "expected a task among task, got 'other'" in result.err


def test_generate_answers_with_the_learned_harness(run, cli):
    words = ("generate", "Where is my box?", "--harness", run)
    result = cli(*words, "--max-new-tokens", 5, "--show-prompt")
    assert result.status == 0 and result.err == ""
    assert "Where is my box?" in result.out
    learned = load_learned(run)
    shown = [e.question in result.out for e in learned.harness.candidates]
    assert shown == [False, True, True, False]
    answer = cli(*words, "--max-new-tokens", 5).out
    assert result.out.endswith("<|assistant|>\n" + answer)


def test_generate_without_a_harness(cli, tiny):
    result = cli("generate", "Hello", "--model", tiny, "--max-new-tokens", 3)
    assert result.status == 0 and result.out.endswith("\n")


def test_generate_refuses_what_does_not_fit(cli, tiny):
    words = ("generate", "Hello", "--model", tiny, "--max-new-tokens", 2000)
    result = cli(*words)
    assert result.status == 2 and "at most 1024 tokens" in result.err


def test_models_and_tasks_are_listed(cli):
    models = cli("models")
    assert models.status == 0 and "smollm2-135m" in models.out
    tasks = cli("tasks", "gsm")
    assert tasks.status == 0 and "gsm8k" in tasks.out
    assert "humaneval" not in tasks.out


def test_a_closed_pipe_is_quiet():
    command = f"{sys.executable} -m metaharness models | true"
    result = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert result.stderr == ""


def test_library_advice_is_hidden_and_the_start_is_light():
    """In a process of its own: no line but the command's, no model code for help."""
    code = (
        "import sys; from metaharness.cli import main; status = main(['--help']);"
        "heavy = {'jax', 'transformers', 'numpy'} & set(sys.modules);"
        "assert not heavy, heavy;"
        "status = main(['show', 'nowhere']); assert status == 2;"
        "import metaharness.model.tokenizer; sys.exit(status - 2)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines() == [
        "error: nowhere: expected a run directory, found none."
    ]
