"""Prepared data is complete or absent, whoever prepares it and whatever interrupts."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from metaharness.errors import TaskError
from metaharness.tasks.cache import cache_root, prepared


def fill(folder: Path) -> None:
    (folder / "data").write_text("whole")


def test_the_folder_is_chosen_by_the_environment_at_each_call(monkeypatch, tmp_path):
    monkeypatch.setenv("METAHARNESS_CACHE", str(tmp_path / "a"))
    assert cache_root() == tmp_path / "a"
    monkeypatch.delenv("METAHARNESS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache/metaharness"


def test_data_is_prepared_once(fresh_cache):
    calls = []
    for _ in range(3):
        folder = prepared("a/key", lambda f: (calls.append(f), fill(f)))
    assert folder == fresh_cache / "a/key" and len(calls) == 1
    assert (folder / "data").read_text() == "whole"
    assert [path.name for path in (fresh_cache / "a").iterdir()] == ["key"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_preparation_leaves_nothing(fresh_cache, error):
    def broken(folder):
        (folder / "data").write_text("ha")
        raise error

    with pytest.raises(error):
        prepared("a/key", broken)
    assert not list((fresh_cache / "a").iterdir())
    assert (prepared("a/key", fill) / "data").read_text() == "whole"


DIE = """
import os
from metaharness.tasks.cache import prepared

def die(folder):
    (folder / "data").write_text("ha")
    os._exit(9)

prepared("a/key", die)
"""


def test_a_killed_preparation_is_not_taken_for_data(fresh_cache):
    # A process of its own: forking one that has JAX's threads could deadlock.
    child = subprocess.run([sys.executable, "-c", DIE], check=False)
    assert child.returncode == 9
    assert len(list((fresh_cache / "a").iterdir())) == 1, "expected its leftovers"
    assert (prepared("a/key", fill) / "data").read_text() == "whole"


def test_two_at_once_both_get_whole_data(fresh_cache):
    barrier = threading.Barrier(2)
    results = []

    def slow(folder):
        barrier.wait(timeout=20)
        fill(folder)
        barrier.wait(timeout=20)

    threads = [
        threading.Thread(target=lambda: results.append(prepared("a/key", slow)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [fresh_cache / "a/key"] * 2
    assert (results[0] / "data").read_text() == "whole"
    assert [path.name for path in (fresh_cache / "a").iterdir()] == ["key"]


def test_a_cache_that_cannot_be_written_is_refused(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("METAHARNESS_CACHE", str(tmp_path / "file"))
    with pytest.raises(TaskError, match="set METAHARNESS_CACHE to a folder of yours"):
        prepared("a/key", fill)
