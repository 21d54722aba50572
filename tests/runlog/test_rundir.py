"""Run directories: made once, never overwritten, opened only when they are runs."""

import dataclasses

import pytest

from metaharness.errors import RunError
from metaharness.runlog import rundir
from metaharness.runlog.rundir import RunDirectory


@dataclasses.dataclass(frozen=True)
class Config:
    seed: int = 3


def create(path):
    return RunDirectory.create(path, config=Config(), provenance={"commit": None})


def test_a_created_run_opens_with_what_it_was_given(tmp_path):
    create(tmp_path / "deep" / "run")
    run = RunDirectory.open(tmp_path / "deep" / "run")
    assert run.config == {"seed": 3}
    assert run.provenance == {"commit": None}
    with run.metrics() as metrics:
        metrics.append({"step": 0})
        offset = metrics.offset
        metrics.append({"step": 1})
    with run.metrics(resume_at=offset):
        assert run.read_metrics() == [{"step": 0}]


def test_an_empty_folder_is_taken(tmp_path):
    assert create(tmp_path).path == tmp_path


def test_an_existing_run_is_kept_and_the_remedy_named(tmp_path):
    create(tmp_path)
    before = sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir())
    with pytest.raises(RunError, match="2 entries; resume that run or name another"):
        create(tmp_path)
    assert sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir()) == before


def test_other_folders_and_files_are_not_written_into(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="found 1 entries; name another folder"):
        create(tmp_path)
    with pytest.raises(RunError, match="found a file"):
        create(tmp_path / "notes.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_only_runs_open(tmp_path):
    with pytest.raises(RunError, match="expected a run directory, found none"):
        RunDirectory.open(tmp_path / "absent")
    with pytest.raises(RunError, match="found no config.json"):
        RunDirectory.open(tmp_path)


def test_a_folder_without_its_configuration_is_not_yet_a_run(tmp_path):
    # a kill between the two files must not leave something that looks like a run
    with pytest.raises(TypeError):
        RunDirectory.create(tmp_path, config=object(), provenance={})
    with pytest.raises(RunError, match="no config.json"):
        RunDirectory.open(tmp_path)


def test_new_paths_never_exist(tmp_path):
    paths = []
    for _ in range(3):
        paths.append(rundir.new_path(tmp_path, "train"))
        paths[-1].mkdir()
    assert len(set(paths)) == 3
    assert all(path.name.startswith("train-2") for path in paths)
