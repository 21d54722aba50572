"""Provenance: the commit of our own checkout only, and versions that are installed."""

import subprocess

import jax
import pytest

from metaharness.runlog import jsonfile, provenance


def git(folder, *arguments):
    subprocess.run(
        ["git", "-C", folder, "-c", "user.name=t", "-c", "user.email=t@t", *arguments],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def checkout(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("a = 1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "-m", "Start")
    return tmp_path


def test_commit_and_whether_files_changed(checkout):
    commit, changed = provenance.checkout_state(checkout / "package")
    assert len(commit) == 40 and changed is False
    (checkout / "untracked.txt").write_text("")
    assert provenance.checkout_state(checkout / "package") == (commit, False)
    (checkout / "package" / "code.py").write_text("a = 2\n")
    assert provenance.checkout_state(checkout / "package") == (commit, True)


def test_a_package_inside_somebody_elses_checkout_has_no_commit(checkout):
    installed = checkout / "venv" / "metaharness"
    installed.mkdir(parents=True)
    assert provenance.checkout_state(installed) == (None, None)


def test_no_checkout_and_no_git_are_no_error(tmp_path, monkeypatch):
    assert provenance.checkout_state(tmp_path) == (None, None)
    monkeypatch.setenv("PATH", "")
    assert provenance.checkout_state(tmp_path) == (None, None)


def test_collect_names_code_device_and_data():
    found = provenance.collect(argv=["metaharness", "train"], data={"gsm8k": "ab12"})
    assert found.argv == ("metaharness", "train")
    assert found.packages["jax"] == jax.__version__
    assert found.device == jax.devices()[0].device_kind
    assert found.data == {"gsm8k": "ab12"}
    assert found.created.endswith("+00:00")
    jsonfile.dumps(found)
