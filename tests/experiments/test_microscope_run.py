"""The command end to end on one tiny problem: files, resuming, failures."""

import dataclasses
import json

import pytest

from experiments import compare_estimators as command
from experiments.compare_estimators import CompareConfig, compare
from experiments.microscope import cells
from metaharness.errors import RunError

SIZES = cells.Sizes(
    instances=2, chains=4, warmup=2, measured=10, swept=5, learned=60, learning_rate=0.2
)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return CompareConfig(
        out=tmp_path_factory.mktemp("compare") / "run",
        quick=True,
        estimators=("exact", "straight_through"),
        problems=("bernoulli",),
        sizes=SIZES,
    )


@pytest.fixture(scope="module")
def first(config):
    return compare(config, quiet=True)


def read(config):
    return json.loads((config.out / "results.json").read_text())


def test_a_run_leaves_results_a_page_and_a_table(config, first):
    found = read(config)
    assert [(row["estimator"], row["problem"]) for row in found["rows"]] == [
        ("exact", "bernoulli"),
        ("straight_through", "bernoulli"),
    ]
    exact, through = found["rows"]
    assert exact["relative_bias"] < 1e-5 and exact["cosine"] == pytest.approx(1)
    assert exact["evaluations"] == 2 and through["evaluations"] == 8
    assert through["relative_bias"] > 0.5 and through["instances_biased"] == 2
    assert len(through["by_tau"]) == len(cells.SWEEP_TAUS)
    assert exact["final_gap"] < through["final_gap"]
    assert exact["wall_us_per_step"] > 0
    assert found["config"]["seed"] == 0 and found["provenance"]["packages"]["jax"]
    page = (config.out / "report.html").read_text()
    assert "straight_through has a relative bias above its floor on 1 of 1" in page
    assert "recall pool was left out" in page
    assert "| straight_through | 8 |" in (config.out / "table.md").read_text()


def test_what_is_done_is_not_measured_again(config, first, monkeypatch):
    def never(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(command, "_measured", never)
    again = compare(config, quiet=True)
    assert again["rows"] == json.loads(json.dumps(first["rows"]))
    # fewer estimators, another problem: the rest stays in the file
    less = dataclasses.replace(config, estimators=("exact",))
    assert len(compare(less, quiet=True)["rows"]) == 2


def test_another_configuration_is_refused(config, first):
    with pytest.raises(RunError, match=r"another configuration \(seed\)"):
        compare(dataclasses.replace(config, seed=1), quiet=True)


def test_a_stop_keeps_what_is_done_and_a_failure_is_a_row(
    config, first, tmp_path, monkeypatch, capsys
):
    fresh = dataclasses.replace(config, out=tmp_path / "run")
    calls = []

    def measure(programs, variant, problem, sizes, seed):
        calls.append(variant.label)
        if variant.label == "exact":
            raise ValueError("no such luck")
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {**first["rows"][1], "estimator": variant.label}

    monkeypatch.setattr(cells, "measure_cell", measure)
    with pytest.raises(KeyboardInterrupt):
        compare(fresh, quiet=True)
    (row,) = read(fresh)["rows"]
    assert row["error"] == "ValueError: no such luck"
    assert "exact on bernoulli" in capsys.readouterr().err
    # the failed one is tried again, the stopped one for the first time
    results = compare(fresh, quiet=True)
    assert calls[2:] == ["exact", "straight_through"]
    assert "could not be measured" in (fresh.out / "report.html").read_text()
    assert len(results["rows"]) == 2


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"estimators": ("newton",)}, "estimators newton: unknown"),
        ({"problems": ("chess",)}, "problems chess: unknown"),
    ],
)
def test_unknown_names_are_refused(config, changes, message):
    with pytest.raises(ValueError, match=message):
        compare(dataclasses.replace(config, **changes), quiet=True)


def test_slopes_through_a_model_are_measured_over_fewer_steps():
    sizes = cells.Sizes().cheaper()
    assert (sizes.warmup, sizes.measured, sizes.swept) == (0, 37, 3)
    assert 0 < sizes.learned <= 100 and cells.Sizes().learned == 500
    values = cells.Sizes().with_model()
    assert (values.measured, values.swept) == (300, 30)
    assert (values.warmup, values.learned) == (64, 500)
    assert sizes.chains == cells.Sizes().chains
    assert cells.Sizes(learned=10).cheaper().learned % cells.RECORDS == 0
