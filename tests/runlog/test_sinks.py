"""Copies of the metrics: the file comes first, and no copy can break a run."""

import configparser
import importlib.util
import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_trackers import fake_trackio, fake_wandb
from packaging.requirements import Requirement

from metaharness.errors import InputError, RunError
from metaharness.runlog import sinks as module
from metaharness.runlog.rundir import RunDirectory
from metaharness.runlog.sinks import (
    SINKS,
    SinkKind,
    Sinks,
    check_sinks,
    open_sinks,
    scalars,
    stable_id,
)

ROOT = Path(__file__).parents[2]
CONFIG = {"seed": 3, "out": Path("runs/a"), "search": {"tau": 0.5}}


@pytest.fixture
def run(tmp_path):
    made = {"created": "2026-02-03T04:05:06+00:00"}
    return RunDirectory.create(tmp_path / "my run", config=CONFIG, provenance=made)


def row(step):
    """As the search writes them."""
    return {
        "step": step,
        "kind": "measured",
        "loss": {"sum": 1 / step, "swap": math.nan},
        "forward_tokens": 10 * step,
        "probabilities": {"exemplars": {"sum": [0.25, 0.75]}},
    }


FLAT = {
    "loss/sum": 0.5,
    "forward_tokens": 20,
    "probabilities/exemplars/sum/0": 0.25,
    "probabilities/exemplars/sum/1": 0.75,
}


class Broken:
    """Fails in one of its calls; counts all of them."""

    def __init__(self, fails, order):
        self.fails, self.calls, self._order = fails, [], order

    def append(self, row):
        self._call("append")

    def close(self):
        self._call("close")

    def _call(self, name):
        self.calls.append(name)
        self._order.append(name)
        if name == self.fails:
            raise ConnectionError("no\nroute")


def test_numbers_are_named_by_their_path_and_nothing_else_is_kept():
    assert scalars(row(2)) == FLAT
    odd = {"step": 1, "a": None, "b": True, "c": math.inf, "d": {}, "e": [], "f": "2"}
    assert scalars(odd) == {}
    array = scalars({"p": np.array([[0.5, np.nan]], np.float32), "n": np.int32(3)})
    assert array == {"p/0/0": 0.5, "n": 3}
    assert {type(value) for value in array.values()} == {int, float}


@pytest.mark.parametrize("fails", ["append", "close"])
def test_a_copy_that_fails_is_noted_once_and_the_run_goes_on(run, fails):
    broken, good = Broken(fails, order := []), Broken(None, order)
    with Sinks(run.metrics()) as sinks:
        sinks.add("far", lambda: broken)
        sinks.add("near", lambda: good)
        for step in (1, 2, 3):
            sinks.append(row(step))
    assert [r["step"] for r in run.read_metrics()] == [1, 2, 3]
    assert good.calls == ["append"] * 3 + ["close"]
    assert broken.calls.count("append") == (1 if fails == "append" else 3)
    assert broken.calls.count("close") == 1
    (note,) = sinks.notes
    said = "at step 1 and was switched off" if fails == "append" else "was closed"
    assert "far" in note and said in note
    assert "ConnectionError: no route" in note and "metrics.jsonl is complete" in note


def test_a_copy_that_cannot_be_opened_is_noted_and_left_out(run, monkeypatch):
    def refuse(*_):
        raise ValueError("log in first " * 100)

    monkeypatch.setitem(SINKS, "wandb", SinkKind("json", refuse))
    with open_sinks(["wandb"], run, CONFIG) as sinks:
        sinks.append(row(1))
    (note,) = sinks.notes
    assert "wandb could not be opened and is off (ValueError: log in" in note
    assert len(note) < 350 and len(run.read_metrics()) == 1


def test_the_file_is_first_and_its_failure_stops_the_run(run):
    seen = []

    class Reads(Broken):
        def append(self, row):
            seen.append(run.read_metrics()[-1]["step"])

    copy = Reads(None, [])
    with Sinks(run.metrics()) as sinks:
        sinks.add("copy", lambda: copy)
        sinks.append(row(1))
        with pytest.raises(TypeError, match="JSON"):
            sinks.append({"step": 2, "bad": object()})
    assert seen == [1] and sinks.notes == []


def test_ctrl_c_while_a_copy_is_opened_closes_the_file(run, monkeypatch):
    opened = []

    def interrupted(*_):
        raise KeyboardInterrupt

    def metrics(self, *, resume_at=None):
        opened.append(real(self, resume_at=resume_at))
        return opened[-1]

    real = RunDirectory.metrics
    monkeypatch.setattr(RunDirectory, "metrics", metrics)
    monkeypatch.setitem(SINKS, "wandb", SinkKind("json", interrupted))
    with pytest.raises(KeyboardInterrupt):
        open_sinks(["wandb"], run, CONFIG)
    with pytest.raises(ValueError, match="closed file"):
        opened[0].append(row(1))


def test_a_resumed_run_cuts_the_file_before_anything_is_opened(run):
    with open_sinks([], run, CONFIG) as sinks:
        sinks.append(row(1))
        offset = sinks.log.offset
        sinks.append(row(2))
    with open_sinks([], run, CONFIG, resume_at=offset, step=1):
        assert [r["step"] for r in run.read_metrics()] == [1]
    with pytest.raises(RunError, match="at least the checkpoint's"):
        open_sinks(["tensorboard"], run, CONFIG, resume_at=10**6, step=1)
    with pytest.raises(InputError, match="got 'mlflow'"):
        open_sinks(["tensorboard", "mlflow"], run, CONFIG, resume_at=0, step=0)
    assert len(run.read_metrics()) == 1
    assert not (run.path / "tensorboard").exists()


def test_what_cannot_be_opened_is_refused_before_there_is_a_run(monkeypatch):
    check_sinks([])
    with pytest.raises(InputError, match="tensorboard, wandb, trackio, got 'mlflow'"):
        check_sinks(["tensorboard", "mlflow"])
    with pytest.raises(InputError, match="'tensorboard' twice; name it once"):
        check_sinks(["tensorboard", "tensorboard"])
    for name, kind in SINKS.items():
        monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
        said = rf"package {kind.package}, found .* pip install 'metaharness\[{name}\]'"
        with pytest.raises(InputError, match=said):
            check_sinks([name])


def test_a_folder_that_a_package_left_behind_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    if importlib.util.find_spec("wandb").origin is not None:
        pytest.skip("wandb is installed")
    with pytest.raises(InputError, match=r"metaharness\[wandb\]"):
        check_sinks(["wandb"])


def test_each_sink_has_an_extra_of_its_name():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    for name, kind in SINKS.items():
        (line,) = (
            line
            for line in parser["options.extras_require"][name].splitlines()
            if line and not line.startswith("#")
        )
        assert Requirement(line).name == kind.package


def test_importing_loads_none_of_the_packages():
    loaded = {kind.package for kind in SINKS.values()}
    code = f"import sys, {module.__name__}; sys.exit(bool({loaded} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_name_elsewhere_is_stable_and_belongs_to_one_run(run, tmp_path):
    assert stable_id(run) == "my-run-20260203040506"
    assert stable_id(RunDirectory.open(run.path)) == stable_id(run)
    again = RunDirectory.create(
        tmp_path / "again" / "my run",
        config=CONFIG,
        provenance={"created": "2026-02-03T05:05:06+00:00"},
    )
    assert stable_id(again) != stable_id(run)
    bare = RunDirectory.create(tmp_path / "é:#", config=CONFIG, provenance={})
    assert set(stable_id(bare)) <= set("abc-_.0123456789")


@pytest.fixture(params=["wandb", "trackio"])
def tracker(request, monkeypatch):
    make = {"wandb": fake_wandb, "trackio": fake_trackio}[request.param]
    fake = make("a line of the package\n")
    monkeypatch.setitem(sys.modules, request.param, fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return fake


def test_trackers_get_the_numbers_and_the_config(run, tracker, capsys):
    with open_sinks([tracker.__name__], run, CONFIG) as sinks:
        sinks.append(row(2))
        sinks.append({"note": "no step", "loss": 1.0})
    assert sinks.notes == []
    ((name, made),) = tracker.runs.items()
    assert name == "my-run-20260203040506" and made.finished == 1
    assert made.rows == [(2, FLAT)]
    assert made.given["project"] == "metaharness"
    assert made.given["config"] == CONFIG | {"out": "runs/a"}
    out, err = capsys.readouterr()
    assert out == "" and "a line of the package" in err


def test_trackers_go_on_with_the_same_run_after_a_resume(run, tracker):
    with open_sinks([tracker.__name__], run, CONFIG) as sinks:
        sinks.append(row(1))
        offset = sinks.log.offset
        sinks.append(row(2))
        sinks.append(row(3))
    name = tracker.__name__
    with open_sinks([name], run, CONFIG, resume_at=offset, step=1) as sinks:
        for step in (2, 3, 4):
            sinks.append(row(step))
    assert sinks.notes == []
    ((_, made),) = tracker.runs.items()
    steps = [step for step, _ in made.rows]
    assert sorted(set(steps)) == [1, 2, 3, 4]
    by_step = dict(made.rows)
    assert all(by_step[step] == data for step, data in made.rows)


def test_wandb_writes_inside_the_run_and_to_the_users_project(run, monkeypatch):
    fake = fake_wandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    with open_sinks(["wandb"], run, CONFIG):
        pass
    (made,) = fake.runs.values()
    assert made.given["project"] == "mine" and made.given["name"] == "my run"
    assert made.given["dir"] == str(run.path.resolve())
    assert made.given["reinit"] == "create_new"


def events(run):
    """(step, tag, value) of all event files in their order, and the purged steps.

    Framing: TFRecord, length uint64 and its CRC, data and its CRC, little-endian.
    """
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found, purged = [], []
    for path in sorted((run.path / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.session_log.status == SessionLog.START:
                purged.append(event.step)
            for value in event.summary.value:
                found.append((event.step, value.tag, value.simple_value))
    return found, purged


def test_tensorboard_shows_every_row_once(run):
    with open_sinks(["tensorboard"], run, CONFIG) as sinks:
        sinks.append(row(1))
        offset = sinks.log.offset
        sinks.append({"note": "no step", "loss": 1.0})
        sinks.append(row(2))
    found, purged = events(run)
    assert purged == []
    assert {tag: value for step, tag, value in found if step == 2} == FLAT
    with open_sinks(["tensorboard"], run, CONFIG, resume_at=offset, step=1) as sinks:
        for step in (2, 3):
            sinks.append(row(step))
    assert sinks.notes == []
    found, purged = events(run)
    # TensorBoard hides earlier events of the purged step and of later ones.
    assert purged == [2]
    assert [step for step, tag, _ in found if tag == "loss/sum"] == [1, 2, 2, 3]
