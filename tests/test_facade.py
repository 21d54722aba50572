"""The facade: its names, what importing it does, and packages that hide ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import metaharness as mh

ROOT = Path(__file__).parents[1]


def python(code, *paths, cwd=ROOT):
    """Runs code in a process of its own, with these folders first on the path."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths or [ROOT]))},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_at_most_35_names_and_each_is_there():
    assert len(mh.__all__) == len(set(mh.__all__)) <= 35
    for name in mh.__all__:
        assert getattr(mh, name) is not None
    assert set(mh.__all__) <= set(dir(mh))


def test_the_names_of_the_first_five_lines_are_public():
    needed = {"load_model", "load_task", "Harness", "Exemplars", "Templates", "train"}
    assert needed <= set(mh.__all__)


def test_train_stays_the_function_whatever_is_imported_first():
    code = (
        "from metaharness.train.config import TrainConfig as first;"
        "import metaharness as mh; assert callable(mh.train), mh.train;"
        "from metaharness.train import run; assert callable(mh.train), mh.train;"
        "assert mh.TrainConfig is first and mh.Run is run.Run"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mh.nothing  # noqa: B018


def test_importing_changes_nothing():
    code = (
        "import os, sys, warnings; before = dict(os.environ), list(warnings.filters);"
        "import metaharness;"
        "assert before == (dict(os.environ), list(warnings.filters));"
        "heavy = {'jax', 'flax', 'transformers', 'numpy'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    result = python(code)
    assert result.returncode == 0 and result.stderr == result.stdout == ""


@pytest.mark.parametrize("name", ["components", "estimators"])
def test_another_package_of_the_same_name_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("mine = 1")
    result = python("import metaharness", tmp_path, ROOT, cwd=tmp_path)
    assert result.returncode != 0
    said = result.stderr.splitlines()[-1]
    assert said.startswith("ImportError: metaharness: expected its package")
    for part in (str(ROOT / name), str(tmp_path / name), "rename or remove"):
        assert part in said
