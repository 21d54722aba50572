"""Makefile and .ci/run: every failing check fails the whole, and the end says so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PASSING = "def test_fast():\n    pass\n"
SLOW = "import pytest\n\n\n@pytest.mark.slow\ndef test_slow():\n    assert {}\n"
TOOLS = ("ruff", "lint-imports", "uv", "metaharness")


@pytest.fixture
def project(tmp_path):
    """A small project with our Makefile, and tools that succeed at once."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "setup.cfg").write_text("[tool:pytest]\nmarkers =\n    slow: slow\n")
    (tmp_path / "README.md").write_text("```python\nvalue = 1\n```\n")
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "readme_code.py", tmp_path / "tests")
    (tmp_path / "tests" / "test_fast.py").write_text(PASSING)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    tool(programs / "python", f'exec "{sys.executable}" "$@"')
    for name in TOOLS:
        tool(programs / name, "exit 0")
    (tmp_path / ".venv" / ".ready").write_text("")
    return tmp_path


def tool(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def run(project, *command):
    return subprocess.run(
        command,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ
        | {
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "WORKERS": "0",
        },
    )


def test_all_checks_pass_and_the_closing_lines_are_shown(project):
    result = run(project, ".ci/run")
    assert result.returncode == 0, result.stdout + result.stderr
    summary = result.stdout.split("== summary")[1]
    assert "test: 1 passed in" in summary
    # nothing is marked slow: said, and no failure
    assert "test-slow: 1 deselected in" in summary
    assert "all checks passed" in summary


@pytest.mark.parametrize("outcome", [True, False])
def test_slow_tests_count(project, outcome):
    (project / "tests" / "test_later.py").write_text(SLOW.format(outcome))
    result = run(project, ".ci/run")
    assert (result.returncode == 0) == outcome
    summary = result.stdout.split("== summary")[1]
    assert "test: 1 passed, 1 deselected in" in summary
    line = "1 passed" if outcome else "1 failed"
    assert f"test-slow: {line}, 1 deselected in" in summary
    assert ("failed: test-slow" in summary) != outcome


@pytest.mark.parametrize(
    ("name", "body", "failed"),
    [
        (".venv/bin/ruff", 'test "$1" != check', "failed: ruff"),
        (".venv/bin/ruff", 'test "$1" != format', "failed: ruff-format"),
        (".venv/bin/lint-imports", "exit 1", "failed: import-linter"),
    ],
)
def test_a_failing_linter_fails_and_the_rest_still_runs(project, name, body, failed):
    tool(project / name, body)
    result = run(project, ".ci/run")
    assert result.returncode == 1
    assert result.stdout.endswith(f"{failed}\n")
    assert "test: 1 passed" in result.stdout


def test_failing_readme_code_and_a_suite_without_tests_fail(project):
    (project / "README.md").write_text("```python\n1 / 0\n```\n")
    (project / "tests" / "test_fast.py").unlink()
    result = run(project, ".ci/run")
    assert result.returncode == 1
    assert "test: no tests ran in" in result.stdout
    assert result.stdout.endswith("failed: test readme\n")


def test_an_old_python_is_refused_by_name(project):
    shutil.rmtree(project / ".venv")
    old = project / "old-python"
    tool(old, 'test "$1" = --version && echo Python 3.9.18; exit 1')
    result = run(project, "make", "setup", f"PYTHON={old}")
    assert result.returncode == 2
    assert "expected Python 3.11 or newer, got 'Python 3.9.18'" in result.stderr
    assert not (project / ".venv").exists()


def test_set_up_is_not_repeated_and_a_failed_one_is(project):
    assert "Nothing to be done" in run(project, "make", "setup").stdout
    (project / ".venv" / ".ready").unlink()
    tool(project / ".venv" / "bin" / "python", "exit 1")
    assert run(project, "make", "setup").returncode == 2
    assert not (project / ".venv" / ".ready").exists()
