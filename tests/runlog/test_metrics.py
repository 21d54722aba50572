"""Metrics: append-only, and cut back exactly where a checkpoint says."""

import math

import pytest

from metaharness.errors import RunError
from metaharness.runlog.metrics import MetricsLog, read_metrics


def write(path, rows):
    offsets = []
    with MetricsLog(path) as log:
        for row in rows:
            log.append(row)
            offsets.append(log.offset)
    return offsets


def test_rows_read_back_and_are_on_file_before_close(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append({"step": 0, "loss": math.nan, "text": "é\n"})
        assert read_metrics(path) == [{"step": 0, "loss": None, "text": "é\n"}]
        log.append({"step": 1})
        log.sync()
    assert len(read_metrics(path)) == 2


def test_opening_again_appends(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [{"step": 0}])
    with MetricsLog(path) as log:
        assert log.offset == path.stat().st_size
        log.append({"step": 1})
    assert [row["step"] for row in read_metrics(path)] == [0, 1]


@pytest.mark.parametrize("killed_after", range(4))
def test_resume_at_any_row_writes_the_same_bytes_as_an_unbroken_run(
    tmp_path, killed_after
):
    rows = [{"step": step, "loss": 1 / (step + 1)} for step in range(4)]
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    offsets = [0, *write(whole, rows)]
    write(broken, rows[: killed_after + 1])
    with open(broken, "ab") as file:
        file.write(b'{"step": 9, "lo')  # a kill in the middle of a row
    with MetricsLog(broken, resume_at=offsets[killed_after]) as log:
        for row in rows[killed_after:]:
            log.append(row)
    assert broken.read_bytes() == whole.read_bytes()


def test_a_row_cut_short_is_left_out_and_a_broken_one_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"st')
    assert read_metrics(path) == [{"step": 0}]
    path.write_text('{"step": 0}\n{"st\n')
    with pytest.raises(RunError, match="metrics.jsonl:2: expected a JSON object"):
        read_metrics(path)
    with pytest.raises(RunError, match="found no file"):
        read_metrics(tmp_path / "none.jsonl")


def test_a_file_that_changed_after_the_checkpoint_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(RunError, match="at least the checkpoint's 5 bytes, got 0"):
        MetricsLog(path, resume_at=5)
    (end,) = write(path, [{"step": 0}])
    before = path.read_bytes()
    with pytest.raises(RunError, match=f"{end + 1} bytes, got {end}"):
        MetricsLog(path, resume_at=end + 1)
    with pytest.raises(RunError, match="a row to end at byte 4"):
        MetricsLog(path, resume_at=4)
    assert path.read_bytes() == before


def test_resuming_a_run_without_rows_starts_an_empty_file(tmp_path):
    with MetricsLog(tmp_path / "metrics.jsonl", resume_at=0) as log:
        assert log.offset == 0
