"""`metaharness train --resume RUN` goes on as that run, or says what differs."""

import shutil

import pytest
from own_task import LITTLE, OWN

from metaharness.train import loop


@pytest.fixture
def stopped(cli, tiny, tmp_path, monkeypatch):
    """A run that Ctrl-C ended before its first update; so it does every other."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop._Loop, "_encode", interrupted)
    folder = tmp_path / "run"
    started = cli("train", *OWN, "--model", tiny, "--out", folder, *LITTLE)
    assert started.status == 130
    assert f"metaharness train --resume {folder}" in started.out.replace("\n", "")
    return folder


def test_a_run_goes_on_with_its_own_options(cli, stopped):
    free = ("--quiet", "--max-tokens", "90000", "--checkpoint.every=3")
    for more in ((), free):
        result = cli("train", "--resume", stopped, *more)
        assert result.status == 130 and "error" not in result.err
        said = " ".join(result.out.split())
        assert "no checkpoint was left; the run starts at its beginning" in said


def test_other_options_are_refused_with_both_values(cli, stopped):
    report = (stopped / "report.json").read_bytes()
    result = cli(
        "train", f"--resume={stopped}", "--seed", 3, "--search.tau=0.7", "--quiet"
    )
    assert result.status == 2 and result.out == ""
    assert "got 2 other values" in result.err
    assert "seed 0 → 3" in result.err and "search.tau 0.5 → 0.7" in result.err
    assert result.err.count("\n") == 1
    assert (stopped / "report.json").read_bytes() == report


def test_other_data_is_refused_by_name(cli, stopped, tiny, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    weights = other / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    config = stopped / "config.json"
    config.write_text(config.read_text().replace(str(tiny), str(other)))
    result = cli("train", "--resume", stopped)
    assert result.status == 2 and "got other contents for model;" in result.err


def test_what_is_no_run_is_refused(cli, tmp_path):
    result = cli("train", "--resume", tmp_path / "nothing", "--seed", 1)
    assert result.status == 2 and "expected a run directory, found none" in result.err
    result = cli("train", "--resume", tmp_path)
    assert result.status == 2 and "found no config.json" in result.err
