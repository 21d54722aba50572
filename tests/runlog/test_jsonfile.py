"""JSON files: strict, whole or absent, and readable by others."""

import dataclasses
import json
import math
import os
import stat
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaharness.errors import RunError
from metaharness.runlog import jsonfile

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


class Pair(NamedTuple):
    first: float
    second: float


@dataclasses.dataclass(frozen=True)
class Nested:
    pair: Pair
    path: Path
    array: object


def test_every_kind_of_value_becomes_plain_json():
    value = Nested(Pair(1.0, math.nan), Path("a/b"), np.array([[1, 2]], np.int32))
    assert jsonfile.json_safe(value) == {
        "pair": {"first": 1.0, "second": None},
        "path": "a/b",
        "array": [[1, 2]],
    }
    assert jsonfile.json_safe((jnp.float32(2), np.float32(math.inf), True)) == [
        2.0,
        None,
        True,
    ]
    assert type(jsonfile.json_safe(np.int64(3))) is int


@given(JSON)
def test_text_is_strict_json_and_reads_back(value):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    text = jsonfile.dumps(value)
    assert json.loads(text, parse_constant=refuse) == jsonfile.json_safe(value)
    assert "\n" not in text  # one line: a row of the metrics


@pytest.mark.parametrize("value", [{1: 2}, {"a": {3}}, object(), Nested])
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(TypeError, match="JSON: expected"):
        jsonfile.json_safe(value)


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch):
    path = tmp_path / "value.json"
    jsonfile.write_json(path, {"a": 1})
    monkeypatch.setattr(os, "replace", _fail)
    with pytest.raises(OSError, match="disk"):
        jsonfile.write_json(path, {"a": 2})
    assert jsonfile.read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["value.json"]


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path):
    jsonfile.write_json(tmp_path / "ours.json", 1)
    (tmp_path / "plain").write_text("")
    modes = [
        stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("ours.json", "plain")
    ]
    assert modes[0] == modes[1]


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(RunError, match="none.json: expected a file of a run"):
        jsonfile.read_json(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"a":')
    with pytest.raises(RunError, match="cut.json: expected JSON"):
        jsonfile.read_json(tmp_path / "cut.json")


def _fail(*_):
    raise OSError("disk full")
