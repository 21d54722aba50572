"""A run that is killed and resumed is the run that was never killed."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from metaharness.errors import RunError
from metaharness.runlog.rundir import RunDirectory
from metaharness.train.resume import open_to_resume

SCRIPT = Path(__file__).with_name("killed_run.py")
SAME = ("metrics.jsonl", "harness.json", "adapter/adapter_model.safetensors")


@pytest.fixture(scope="module")
def execute(tmp_path_factory):
    """Run the script; compilations are shared by its processes."""
    cache = tmp_path_factory.mktemp("cache")
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run(folder, *options):
        return subprocess.run(
            [sys.executable, str(SCRIPT), str(folder), *options],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def run_whole(execute, folder, *options):
    """A run that nothing stops, and the kinds of its updates."""
    done = execute(folder, *options)
    assert done.returncode == 0, done.stderr
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    kinds = [json.loads(row)["kind"] for row in rows]
    assert kinds.count("weights") == 3
    return folder, set(kinds)


@pytest.fixture(scope="module")
def whole(execute, tmp_path_factory):
    folder, kinds = run_whole(execute, tmp_path_factory.mktemp("runs") / "whole")
    assert kinds == {"measured", "weights", "validation"}
    return folder


@pytest.fixture(scope="module")
def whole_relaxed(execute, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "relaxed"
    folder, kinds = run_whole(execute, folder, "--relaxed")
    assert kinds == {"measured", "relaxed", "weights", "validation"}
    return folder


def assert_same(folder, whole):
    for name in SAME:
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name
    adapter = load_file(folder / SAME[-1])
    assert any(np.abs(x).max() > 0 for n, x in adapter.items() if "lora_B" in n)


def killed(done):
    return done.returncode == -signal.SIGKILL


def test_a_run_killed_three_times_is_the_whole_run(execute, whole, tmp_path):
    folder = tmp_path / "run"
    assert killed(execute(folder, "--kill", "line:6"))
    torn = (folder / "metrics.jsonl").read_bytes()
    assert not torn.endswith(b"\n")
    assert whole.joinpath("metrics.jsonl").read_bytes().startswith(torn)
    assert killed(execute(folder, "--resume", "--kill", "checkpoint:2"))
    assert killed(execute(folder, "--resume", "--kill", "update:3"))
    last = execute(folder, "--resume")
    assert last.returncode == 0, last.stderr
    assert_same(folder, whole)
    digests = RunDirectory.open(folder).provenance["data"]
    with pytest.raises(RunError, match="found a finished one"):
        open_to_resume(folder, None, digests)


def finished(folder):
    """Whether the report is there and complete: a kill may come just after it."""
    report = folder / "report.json"
    return report.is_file() and json.loads(report.read_text())["complete"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_twenty_kills_at_any_time(execute, whole_relaxed, tmp_path, seed):
    """Four kills a run, at times that are spread over it."""
    draw = random.Random(seed)
    folder, resume, kills = tmp_path / "run", ("--relaxed",), 0
    while True:
        limit = draw.uniform(0.5, 9.0)
        kill = ("--kill", f"seconds:{limit}") if kills < 4 else ()
        done = execute(folder, *resume, *kill)
        if folder.joinpath("config.json").exists():
            resume = ("--resume",)
        if not killed(done) or finished(folder):
            break
        kills += 1
    assert finished(folder), done.stderr
    assert_same(folder, whole_relaxed)
