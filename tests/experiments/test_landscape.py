"""A landscape holds what scoring one harness at a time gives, however it was made."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import make_model, make_task

from experiments import landscape as made_by
from experiments.landscape import LandscapeConfig, all_harnesses, build, main
from experiments.landscape_file import (
    FIELDS,
    Landscape,
    load_landscape,
    read_arrays,
    save_landscape,
    write_arrays,
)
from metaharness.errors import InputError, RunError
from metaharness.harness.scoring import score_harnesses
from metaharness.harness.slots import Choice
from metaharness.runlog.budget import BudgetCounter

TASK = make_task("sum", "+", lambda a, b: a + b)
SMALL = {"templates": 4, "pool": 3, "k": 2, "items": 3, "shard": 5, "chunk": 2}
EVALUATE = made_by.make_evaluate
COMPILED = {}


@pytest.fixture(autouse=True)
def compile_once(monkeypatch):
    """The jitted evaluation is kept between tests; its shapes are the same."""

    def evaluate(space, packs, **sizes):
        key = (space.tasks[0].name, *sizes.items(), packs.rows.tokens.shape)
        if key not in COMPILED:
            COMPILED[key] = EVALUATE(space, packs, **sizes)
        return COMPILED[key]

    monkeypatch.setattr(made_by, "make_evaluate", evaluate)


def run(out, **changes):
    config = LandscapeConfig(out=out, task="sum", **(SMALL | changes))
    return main(config, model=make_model(), task=TASK)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tmp_path_factory.mktemp("whole") / "one.npz"


@pytest.fixture
def landscape(whole):
    if not whole.exists():
        run(whole)
    return load_landscape(whole)


def test_every_value_is_that_of_scoring_the_harness_alone(landscape):
    space, items = build(
        LandscapeConfig(task="sum", **SMALL), model=make_model(), task=TASK
    )
    choices = [
        Choice(tuple(map(int, shots)), int(template))
        for template, shots in zip(landscape.template, landscape.shots, strict=True)
    ]
    assert len(set(choices)) == 4 * 6
    scores = score_harnesses(
        space, TASK, choices, items, generate=True, counter=BudgetCounter()
    )
    np.testing.assert_allclose(landscape.loss, scores.nats, rtol=1e-4)
    assert np.ptp(landscape.mean_losses) > 0.1
    np.testing.assert_array_equal(landscape.num_answer, scores.num_answer)
    # the answer is written first if and only if each of its tokens is the likeliest
    for row, texts in enumerate(scores.outputs):
        for column, text in enumerate(texts):
            written = text.startswith(items[column].answer)
            assert landscape.reward[row, column] == written


def test_the_header_says_what_was_evaluated(landscape):
    header = landscape.header
    assert set(FIELDS) <= set(header)
    assert header["templates"] == ["bare", "result_only", "question_answer"] + [
        "system_line"
    ]
    assert header["items"] == [item.uid for item in TASK.train[:3]]
    assert len({one["uid"] for one in header["exemplars"]}) == 3
    assert {one["kind"] for one in header["exemplars"]} > {"right"}
    assert header["identity"]["model_digest"] == make_model().digest
    assert header["num_tokens"] == landscape.tokens.sum() > 0
    assert landscape.families["exemplars"].num_outcomes == 6


def test_a_stopped_run_continues_to_the_same_file(landscape, whole, tmp_path, capsys):
    out = tmp_path / "again.npz"
    write, calls = made_by.write_arrays, []

    def stop_at_third(path, arrays):
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(path, arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made_by, "write_arrays", stop_at_third)
        with pytest.raises(SystemExit) as stopped:
            run(out)
    assert stopped.value.code == 130
    assert "The same command continues" in capsys.readouterr().out
    assert not out.exists()
    partial = tmp_path / "again.npz.partial"
    kept = sorted(path.name for path in partial.glob("shard-*"))
    assert kept == ["shard-000000.npz", "shard-000001.npz"]
    run(out, shard=7)  # the folder's own shard size stays
    assert "10 done before" in capsys.readouterr().out
    assert not partial.exists()
    ours, theirs = read_arrays(out), read_arrays(whole)
    headers = [json.loads(x.pop("header").tobytes()) for x in (ours, theirs)]
    for name, array in ours.items():
        assert array.tobytes() == theirs[name].tobytes(), name
    for header in headers:
        for free in ("seconds", "provenance", "config"):
            del header[free]
    assert headers[0] == headers[1]
    for path, arrays in ((tmp_path / "a", ours), (tmp_path / "b", theirs)):
        write_arrays(path, arrays)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_another_configuration_is_refused_by_name(landscape, whole, tmp_path):
    with pytest.raises(RunError, match=r"another configuration \(.*items 3 there, 2"):
        run(whole, items=2)
    partial = tmp_path / "new.npz.partial"
    partial.mkdir()
    begun = {"identity": landscape.header["identity"] | {"pool": 9}, "shard": 5}
    (partial / "state.json").write_text(json.dumps(begun))
    with pytest.raises(RunError, match="pool 9 there, 3 asked"):
        run(tmp_path / "new.npz")


def test_a_complete_file_is_not_made_again(landscape, whole, capsys, monkeypatch):
    monkeypatch.setattr(made_by, "make_evaluate", None)
    again = run(whole)
    assert "already complete" in capsys.readouterr().out
    np.testing.assert_array_equal(again.loss, landscape.loss)


@pytest.mark.parametrize("wrong", [{"k": 4}, {"items": 0}, {"templates": 9}])
def test_sizes_out_of_range_are_refused(tmp_path, wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        run(tmp_path / "x.npz", **wrong)


def test_a_changed_array_is_found(landscape, whole, tmp_path):
    arrays = read_arrays(whole)
    arrays["losses"] = arrays["losses"] + np.float32(1e-4)
    write_arrays(tmp_path / "x.npz", arrays)
    with pytest.raises(RunError, match="array losses is not the one"):
        load_landscape(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7}, "expected metaharness-landscape version 1, got .* 7"),
        ({"format": "other"}, "got other version 1"),
        ({"slots": None}, "slots missing"),
    ],
)
def test_another_header_is_refused(landscape, whole, tmp_path, change, message):
    arrays = read_arrays(whole)
    header = json.loads(arrays["header"].tobytes()) | change
    header = {name: value for name, value in header.items() if value is not None}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    write_arrays(tmp_path / "x.npz", arrays)
    with pytest.raises(RunError, match=message):
        load_landscape(tmp_path / "x.npz")


def test_a_missing_array_and_other_files_are_refused(landscape, whole, tmp_path):
    arrays = read_arrays(whole)
    del arrays["reward"]
    write_arrays(tmp_path / "x.npz", arrays)
    with pytest.raises(RunError, match="reward missing"):
        load_landscape(tmp_path / "x.npz")
    with pytest.raises(RunError, match="found none"):
        load_landscape(tmp_path / "absent.npz")
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(RunError, match="expected an .npz"):
        load_landscape(cut)
    np.save(tmp_path / "bare.npy", np.zeros(3))
    with pytest.raises(RunError, match="expected an .npz"):
        load_landscape(tmp_path / "bare.npy")


def test_lookups_are_the_table(landscape):
    template, shots = all_harnesses(4, 3, 2)
    order = np.random.default_rng(0).permutation(len(template))
    template, shots = template[order], shots[order]
    lookup = jax.jit(landscape.losses)
    means = landscape.loss.mean(axis=1)[order]
    np.testing.assert_allclose(lookup(template, shots), means, rtol=1e-6)
    some = jnp.array([2, 0])
    np.testing.assert_allclose(
        lookup(template, shots, some), landscape.loss[order][:, [2, 0]].mean(1), 1e-6
    )
    own = jnp.asarray(np.arange(len(order)) % 3)[:, None]
    expected = landscape.loss[order, np.arange(len(order)) % 3]
    np.testing.assert_allclose(lookup(template, shots, own), expected, 1e-6)
    twice = lookup(jnp.zeros(1, jnp.int32), jnp.ones((1, 2), jnp.int32))
    assert np.isnan(twice).all()


def test_regret_and_percentile_know_the_optimum(landscape):
    best = landscape.best
    at = landscape.template[best], landscape.shots[best]
    assert landscape.regret(*at) == 0
    assert landscape.percentile(*at) == 23 / 24
    worst = landscape.mean_losses.argmax()
    at = landscape.template[worst], landscape.shots[worst]
    assert landscape.percentile(*at) == 0
    np.testing.assert_allclose(landscape.regret(*at), np.ptp(landscape.mean_losses))


def test_what_is_saved_is_what_is_loaded(landscape, tmp_path):
    changed = dataclasses.replace(landscape, loss=landscape.loss * 2)
    save_landscape(tmp_path / "x.npz", changed)
    again = load_landscape(tmp_path / "x.npz")
    assert isinstance(again, Landscape)
    np.testing.assert_array_equal(again.loss, landscape.loss * 2)
