"""An evaluation leaves its episodes; stopped or killed, it goes on without loss."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from own_task import OWN

from metaharness.cli import main
from metaharness.harness.episode_log import FILE, read_episodes
from metaharness.harness.slots import Choice

ROOT = Path(__file__).parents[2]
HARNESS = """
[template]
named = "short"

[[output.candidates]]
name = "first"
extract = "first_line"

[[retry.candidates]]
name = "{retry}"
attempts = {attempts}
"""


@pytest.fixture(scope="module")
def words(tiny, tmp_path_factory):
    """Arguments of an evaluation of one harness: 4 items, no likelier ones beside."""
    folder = tmp_path_factory.mktemp("harness")

    def arguments(out, *more, attempts=1):
        file = folder / f"{attempts}.toml"
        file.write_text(HARNESS.format(retry=f"{attempts} times", attempts=attempts))
        fixed = ("--model", tiny, "--harness", file, "--limit", 4, "--quiet")
        return (
            *("evaluate", *OWN[:2], *fixed, "--random-harnesses", 2),
            *("--out", out, *more),
        )

    return arguments


def episodes(folder):
    return [logged.trace for logged in read_episodes(folder)]


def scores(folder):
    return json.loads((folder / "scores.json").read_text())


def identities(traces):
    return sorted((t.choice, t.uid, t.sample) for t in traces)


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    """Folder of a whole evaluation, and what it printed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([str(word) for word in words(folder)]) == 0
    return folder, out.getvalue()


def test_every_episode_is_kept_and_counted(whole):
    folder, out = whole
    kept = episodes(folder)
    found = scores(folder)
    (by_method,) = found["reached"].values()
    assert sum(by_method["Default harness"].values()) == 4
    assert sum(by_method["Random"].values()) == 8
    assert len(kept) == len(set(identities(kept)))
    assert found["counts"]["lm_calls"] > 0 and found["prompts"][0]["text"]
    for part in ("episodes that ended", "written", "calls", f"run: {folder}"):
        assert part in out
    assert {row["method"] for row in found["scores"]} >= {"default", "random"}


def test_the_same_command_runs_nothing_again(whole, words, cli):
    folder, first = whole
    before = (folder / FILE).read_bytes()
    again = cli(*words(folder))
    assert again.status == 0
    assert (folder / FILE).read_bytes() == before
    table = first.split("episodes that ended")[1].split("test split")[0]
    assert table in again.out
    assert scores(folder)["counts"]["generated_tokens"] == 0


def test_a_budget_of_calls_holds_and_the_rest_follows(whole, words, cli, tmp_path):
    folder = tmp_path / "run"
    likelihoods = 4 * len({t.choice for t in episodes(whole[0])})
    limit = likelihoods + 3
    result = cli(*words(folder, "--max-calls", limit))
    assert result.status == 0 and "Stopped early" in result.out
    assert scores(folder)["counts"]["lm_calls"] == limit
    few = episodes(folder)
    assert 0 < len(few) < len(episodes(whole[0]))
    assert cli(*words(folder)).status == 0
    assert identities(episodes(folder)) == identities(episodes(whole[0]))
    assert episodes(folder)[: len(few)] == few


@pytest.mark.parametrize("limit", [1, 5])
def test_a_budget_below_the_likelihoods_holds_as_well(words, cli, tmp_path, limit):
    folder = tmp_path / "run"
    result = cli(*words(folder, "--max-calls", limit))
    assert result.status == 0 and "likelihoods of task take" in result.out
    assert scores(folder)["counts"]["lm_calls"] <= limit
    assert scores(folder)["scores"] == [] and episodes(folder) == []
    assert cli(*words(folder)).status == 0 and episodes(folder)


def test_a_line_that_a_kill_cut_is_run_again(whole, words, cli, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "provenance.json"):
        (folder / name).write_bytes((whole[0] / name).read_bytes())
    data = (whole[0] / FILE).read_bytes()
    (folder / FILE).write_bytes(data[: len(data) // 2])
    assert cli(*words(folder)).status == 0
    assert identities(episodes(folder)) == identities(episodes(whole[0]))


def test_another_evaluation_is_refused_with_what_differs(whole, words, cli):
    result = cli(*words(whole[0], "--seed", 3, "--samples", 2, "--temperature", 0.5))
    assert result.status == 2
    for part in ("seed 0 → 3", "samples 1 → 2", "name another folder"):
        assert part in result.err


def test_several_samples_need_a_temperature(words, cli, tmp_path):
    result = cli(*words(tmp_path / "run", "--samples", 2))
    assert result.status == 2 and "expected one above 0 for 2 samples" in result.err


def test_samples_give_pass_at_k(words, cli, tmp_path):
    folder = tmp_path / "run"
    result = cli(*words(folder, "--samples", 2, "--temperature", 1.0))
    assert result.status == 0 and "pass@2" in result.out
    assert {t.sample for t in episodes(folder)} == {0, 1}


def line_of(text, label):
    """A forecast's line."""
    return next(line for line in text.splitlines() if line.strip().startswith(label))


def test_a_forecast_runs_nothing_and_is_exact(whole, words, cli, tmp_path):
    folder = tmp_path / "run"
    result = cli(*words(folder, "--dry-run"))
    assert result.status == 0 and not folder.exists()
    own = [t for t in episodes(whole[0]) if t.choice == Choice((), 0)]
    line = line_of(result.out, "task: Default harness")
    assert f" {sum(t.prompt_tokens for t in own):,} " in f"{line} "
    assert " 4 " in line and "at most" in line
    whole_line = line_of(result.out, "all").replace(",", "").split()
    kept = episodes(whole[0])
    written = sum(not step.cached for trace in kept for step in trace.steps)
    read = 4 * len({trace.choice for trace in kept})  # likelihoods
    assert int(whole_line[1]) == len(kept)
    assert int(whole_line[2]) == written + read


def test_a_forecast_is_a_bound_where_episodes_may_go_on(words, cli, tmp_path):
    folder = tmp_path / "run"
    forecast = cli(*words(folder, "--dry-run", attempts=3))
    line = line_of(forecast.out, "task: Default harness")
    assert line.count("at most") == 3 and "12 (at most)" in line
    assert cli(*words(folder, attempts=3)).status == 0
    own = [t for t in episodes(folder) if t.choice == Choice((), 0)]
    assert 4 <= sum(len(t.steps) for t in own) <= 12


def test_a_pilot_is_kept_and_tells_what_will_be_written(whole, words, cli, tmp_path):
    folder = tmp_path / "run"
    result = cli(*words(folder, "--dry-run", "--pilot", 4))
    assert result.status == 0 and "from a pilot" in result.out
    kept = episodes(folder)
    assert identities(kept) == identities(episodes(whole[0]))  # of all four items
    line = line_of(result.out, "all")
    written = sum(t.new_tokens for t in kept)
    said = int(line.split()[-4].replace(",", ""))
    assert said == pytest.approx(written, abs=len(kept))


def test_show_reads_an_evaluation_and_an_episode(whole, cli):
    folder, _ = whole
    listed = cli("show", folder)
    assert listed.status == 0 and "--episode N" in listed.out
    first = next(read_episodes(folder))
    shown = cli("show", folder, "--episode", 0)
    assert shown.status == 0
    for part in (first.question, first.trace.reached.value, "attempt 1", "gold:"):
        assert part in shown.out
    missing = cli("show", folder, "--episode", 999)
    assert missing.status == 2 and "expected 0 to" in missing.err


KILLED = """
import os, signal, sys
from metaharness.cli import main
from metaharness.harness import episode_log
real, left = episode_log.EpisodeLog.append, [int(sys.argv[1])]
def append(self, trace, item):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, trace, item)
episode_log.EpisodeLog.append = append
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_killed_evaluation_loses_and_repeats_no_episode(whole, words, tmp_path):
    folder = tmp_path / "run"

    def run(kill_after):
        return subprocess.run(
            [sys.executable, "-c", KILLED, str(kill_after), *map(str, words(folder))],
            env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )

    seen = []
    for kept in (3, 2):
        assert run(kept).returncode == -signal.SIGKILL
        now = episodes(folder)
        assert now[: len(seen)] == seen and len(now) == len(seen) + kept
        seen = now
    done = run(10**6)
    assert done.returncode == 0, done.stderr
    assert f"{len(seen)} episodes were done before" not in done.stderr  # --quiet
    assert episodes(folder)[: len(seen)] == seen
    assert identities(episodes(folder)) == identities(episodes(whole[0]))
