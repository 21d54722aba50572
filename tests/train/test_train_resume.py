"""A run goes on only as the run that it was, and ends as if never stopped."""

import dataclasses
import json
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from loss_tables import additive, compile_on_tables, patch_objectives

from metaharness.cli.train import Train
from metaharness.errors import InputError, RunError
from metaharness.harness.space import EXEMPLARS
from metaharness.train import loop
from metaharness.train import run as run_module
from metaharness.train.compiled import Validated
from metaharness.train.config import TrainConfig
from metaharness.train.config_file import as_data, check_same, read_config
from metaharness.train.stage_config import CheckpointConfig, GuardConfig

TABLE = additive(
    [[1.0, 0.4], [0.2, 1.2]],
    [[2.0, 0.2, 1.5, 0.4, 9, 9, 9, 9], [9, 9, 9, 9, 0.3, 1.1, 1.3, 0.1]],
)
SAME = ("metrics.jsonl", "harness.json")
# Orbax leaves a closed event loop behind where a file is broken.
BROKEN = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def functions(space, settings):
    """Updates on the table; validation is best where logits are of a certain size."""

    @jax.jit
    def validate(phi, theta, problem):
        logits = phi.logits()[EXEMPLARS]
        size = jnp.sqrt((logits**2).sum(axis=1) / 4)
        return Validated(jnp.abs(size - 1.5), jnp.full((2,), 7), jnp.int32(2))

    with pytest.MonkeyPatch.context() as patch:
        patch_objectives(patch, space, TABLE)
        yield compile_on_tables(space, settings)._replace(validate=validate)


@pytest.fixture(scope="module")
def settings(config):
    search = dataclasses.replace(config.search, warmup_steps=5, measured_steps=3)
    guards = GuardConfig(mask_rate=0.2, validate_every=3, rollback=0.3)
    return dataclasses.replace(
        config,
        search=search,
        guards=guards,
        checkpoint=CheckpointConfig(every=4, keep=2),
    )


@pytest.fixture
def start(space, settings, functions, monkeypatch):
    """`train` on the table; of the report only its numbers are written."""
    monkeypatch.setattr(run_module, "build_space", lambda *_, **__: space)
    monkeypatch.setattr(run_module, "measure_results", lambda *_: True)
    monkeypatch.setattr(
        run_module.report,
        "write",
        lambda filled, run: run.write_json("report.json", filled),
    )

    def run(folder, *, step=None, resume=None, model=None, tasks=None, harness=None,
            config=settings, **changed):  # fmt: skip
        made = functions
        if step is not None:
            updates = {kind: step(real) for kind, real in functions.updates.items()}
            made = functions._replace(updates=updates)
        monkeypatch.setattr(loop, "compile_updates", lambda *_: made)
        if config is not None:
            config = dataclasses.replace(config, out=folder, **changed)
        return run_module.train(
            model or space.model,
            tasks or space.tasks,
            harness or space.harness,
            config,
            resume=resume,
        )

    return run


@pytest.fixture
def whole(start, tmp_path):
    run = start(tmp_path / "whole")
    assert not run.interrupted
    return run


@pytest.fixture
def stopped(start, tmp_path, space):
    """A run that its budget stopped between two checkpoints."""
    run = start(tmp_path / "stopped", max_tokens=space.pool_tokens + 1000)
    assert any("stopped early: train: " in note.text for note in run.report.notes)
    return run


def rows(folder):
    return [json.loads(r) for r in (folder / SAME[0]).read_text().splitlines()]


def assert_same(run, whole):
    for name in SAME:
        one, two = ((x.directory / name).read_bytes() for x in (run, whole))
        assert one == two, name
    assert spent(run) == spent(whole)


def spent(run):
    return {row.phase: row.counts.token_passes for row in run.report.budget}


def test_a_larger_budget_goes_on_from_a_spent_one(start, whole, stopped, functions):
    kinds = [row["kind"] for row in rows(whole.directory)]
    assert kinds.count("measured") == 8 and kinds.count("relaxed") == 2
    assert kinds.count("validation") == 5
    done = [row["step"] for row in rows(stopped.directory) if row["kind"] != kinds[0]]
    assert max(done) == 5
    back = [row["step"] for row in rows(whole.directory) if row.get("rolled_back")]
    assert back == [6, 9], "to the state of update 3, which only a checkpoint holds"
    resumed = start(None, resume=stopped.directory, max_tokens=10**9, quiet=True)
    assert_same(resumed, whole)
    for step in (*functions.updates.values(), functions.validate):
        assert step._cache_size() == 1, "restored arrays are those of a new run"
    assert resumed.report.complete


def test_a_run_that_is_stopped_again_and_again_is_the_whole_one(start, whole, tmp_path):
    folder = tmp_path / "run"
    for number in range(1, 99):
        limit = int(spent(whole)["train"] * number / 4)
        run = start(
            None if number > 1 else folder,
            resume=folder if number > 1 else None,
            max_tokens=limit,
        )
        if run.report.complete:
            break
    assert number == 4, "the last quarter"
    assert_same(run, whole)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_after_the_update_in_hand(start, whole, tmp_path, times):
    """The second one at once; both runs go on as if nothing had been."""
    handler = signal.getsignal(signal.SIGINT)
    calls = []

    def interrupted(real):
        def update(*arguments):
            calls.append(real)
            if len(calls) == 6:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
            return real(*arguments)

        return update

    run = start(tmp_path / "run", step=interrupted)
    assert run.interrupted and signal.getsignal(signal.SIGINT) is handler
    done = [row for row in rows(run.directory) if row["kind"] != "validation"]
    assert len(done) == (6 if times == 1 else 5)
    resumed = start(None, resume=run.directory)
    assert not resumed.interrupted
    assert_same(resumed, whole)


@BROKEN
def test_a_damaged_checkpoint_costs_time_and_no_more(start, whole, stopped):
    newest = max((stopped.directory / "checkpoints").iterdir(), key=lambda p: p.name)
    next((newest / "arrays" / "d").iterdir()).unlink()
    resumed = start(None, resume=stopped.directory)
    assert any("is damaged" in note.text for note in resumed.report.notes)
    assert_same(resumed, whole)


def test_without_a_checkpoint_a_run_starts_again(start, whole, stopped):
    for path in (stopped.directory / "checkpoints").iterdir():
        path.rename(stopped.directory / f"away-{path.name}")
    resumed = start(None, resume=stopped.directory)
    assert any("starts at its beginning" in n.text for n in resumed.report.notes)
    assert_same(resumed, whole)


def test_another_configuration_is_refused_by_name(start, stopped, settings):
    other = dataclasses.replace(settings.search, learning_rate=0.25, samples=6)
    before = (stopped.directory / SAME[0]).read_bytes()
    with pytest.raises(InputError) as refused:
        start(None, resume=stopped.directory, seed=3, search=other)
    said = str(refused.value)
    assert "3 other values" in said and "seed 0 → 3" in said
    assert "search.learning_rate 0.5 → 0.25" in said
    assert "search.samples 4 → 6" in said
    assert (stopped.directory / SAME[0]).read_bytes() == before


def test_a_resumed_run_needs_no_configuration(start, stopped, whole, space):
    """Its own is taken: with the limit that stopped it, it stops again at once."""
    before = (stopped.directory / SAME[0]).read_bytes()
    again = start(None, resume=stopped.directory, config=None)
    assert any("stopped early" in note.text for note in again.report.notes)
    assert (stopped.directory / SAME[0]).read_bytes() == before


def test_other_contents_are_refused_by_name(start, stopped, space):
    first, second = space.tasks
    weights = dataclasses.replace(space.model, digest="1" * 64)
    with pytest.raises(InputError, match="other contents for model;"):
        start(None, resume=stopped.directory, model=weights)
    edited = dataclasses.replace(first, fingerprint="1" * 64)
    with pytest.raises(InputError, match="other contents for sum;"):
        start(None, resume=stopped.directory, tasks=(edited, second))
    fewer = dataclasses.replace(
        space.harness.template, pool=space.harness.template.pool[:1]
    )
    pools = dataclasses.replace(space.harness, template=fewer)
    with pytest.raises(InputError, match="other contents for harness;"):
        start(None, resume=stopped.directory, harness=pools)


def test_a_finished_run_is_refused(start, whole):
    with pytest.raises(RunError, match="found a finished one"):
        start(None, resume=whole.directory)


def test_what_is_no_run_is_refused(start, stopped, tmp_path):
    with pytest.raises(RunError, match="expected a run directory, found none"):
        start(None, resume=tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"found no config.json"):
        start(None, resume=tmp_path / "empty")
    path = stopped.directory / "config.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"speed": 9}))
    with pytest.raises(RunError, match="unknown fields speed; start a new run"):
        start(None, resume=stopped.directory, config=None)
    path.write_text(json.dumps(data | {"search": data["search"] | {"tau": 0.0}}))
    with pytest.raises(RunError, match="configuration of this version, got search.tau"):
        start(None, resume=stopped.directory, config=None)


OTHER = {
    "task": ("a", "b.jsonl"),
    "model": "m",
    "dtype": "bfloat16",
    "attention": "cudnn",
    "harness": Path("some/harness.toml"),
    "data_dir": Path("/data"),
    "out": Path("runs/x"),
    "max_seconds": 2.5,
    "max_tokens": 7,
    "max_calls": 8,
    "sinks": ("tensorboard",),
    "slots.share_right": 0.25,
    "slots.templates": "all",
    "schedule.kind": "joint",
    "search.estimator": "relax",
    "search.relaxed_estimator": "simple",
    "search.conditioning": "task",
    "search.optimizer": "adam",
    "search.decay": "cosine",
    "weights.through": "gate",
    "weights.cache": "stale",
    "weights.decay": "constant",
    "guards.rollback": None,
    "lora.targets": ("v_proj", "o_proj"),
}


def changed(value, path=""):
    """A configuration with another value in every field (text only by ``OTHER``)."""
    if path in OTHER:
        return OTHER[path]
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return type(value)(
            **{
                name: changed(getattr(value, name), f"{path}.{name}".lstrip("."))
                for name in names
            }
        )
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value + 0.125 if isinstance(value, float) else value


def leaves(data, path=""):
    for name, value in data.items():
        at = f"{path}.{name}".lstrip(".")
        yield from leaves(value, at) if isinstance(value, dict) else [(at, value)]


FREE = {"out", "quiet", "sinks", "max_seconds", "max_tokens", "max_calls"} | {
    "checkpoint.every",
    "checkpoint.keep",
}


@pytest.mark.parametrize("config", [TrainConfig(), changed(TrainConfig())])
def test_a_configuration_comes_back_from_its_file(config):
    data = json.loads(json.dumps(as_data(config)))
    assert read_config(data, source="x") == config
    command = Train(**vars(config), resume=Path("run"))
    assert as_data(command) == as_data(config)


def test_every_field_counts_but_those_that_change_no_number():
    one, two = TrainConfig(), changed(TrainConfig())
    old, new = (dict(leaves(as_data(config))) for config in (one, two))
    differing = {name for name in old if old[name] != new[name]}
    assert len(differing) > 60 and differing >= FREE
    with pytest.raises(InputError) as refused:
        check_same(one, two)
    said = str(refused.value)
    assert f"got {len(differing - FREE)} other values" in said
    for name in differing - FREE:
        assert f"{name} {old[name]!r} → {new[name]!r}" in said
    free = {name: getattr(two, name) for name in FREE if "." not in name}
    check_same(one, dataclasses.replace(one, **free, checkpoint=two.checkpoint))


@pytest.mark.parametrize("wrong", [{"search": 3}, {"lora": {"targets": 5}}])
def test_a_field_of_another_form_is_refused(wrong):
    with pytest.raises(RunError, match="x: expected a configuration of this version"):
        read_config(as_data(TrainConfig()) | wrong, source="x")
