"""The race against numbers by hand, on a landscape whose optimum is known."""

import dataclasses
import itertools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_landscape import made_landscape

import estimators as es
from experiments import landscape_baselines as searches
from experiments.landscape_file import save_landscape
from experiments.landscape_page import findings_of
from experiments.landscape_problems import Entry, Problem, entries
from experiments.landscape_race import RaceConfig, main
from experiments.landscape_rows import quality
from experiments.landscape_steps import estimate, learn, make_stepper
from metaharness.errors import InputError


@pytest.fixture(scope="module")
def landscape():
    return made_landscape()


def softmax(x):
    weights = np.exp(np.asarray(x, np.float64))
    return weights / weights.sum()


def expected_by_hand(problem, logits):
    """Plackett-Luce over places, or the elementary-symmetric law of a subset."""
    land = problem.landscape
    means = land.loss.mean(axis=1, dtype=np.float64)
    at = {
        (int(t), *map(int, shots)): mean
        for t, shots, mean in zip(land.template, land.shots, means, strict=True)
    }
    if problem.kind == "whole":
        return softmax(logits) @ means
    template, weight = softmax(logits["template"]), np.exp(logits["exemplars"])
    pool = range(len(weight))
    total = 0.0
    for first, second in itertools.permutations(pool, 2):
        if problem.kind == "ranking":
            chance = weight[first] / weight.sum()
            chance *= weight[second] / (weight.sum() - weight[first])
        else:
            pairs = itertools.combinations(pool, 2)
            norm = sum(weight[i] * weight[j] for i, j in pairs)
            chance = weight[first] * weight[second] / norm / 2  # either order
        for t, share in enumerate(template):
            total += share * chance * at[t, first, second]
    return total


@pytest.mark.parametrize("kind", ["ranking", "subset", "whole"])
def test_the_exact_gradient_is_that_of_the_enumerated_loss(landscape, kind):
    problem = Problem(kind, landscape)
    logits = jax.device_get(problem.normal(jax.random.key(3), 1.0))
    gradient = jax.device_get(jax.jit(jax.grad(problem.expected))(logits))
    logits = jax.tree.map(lambda x: x.astype(np.float64), logits)
    step = 1e-5

    def by_hand(slot, place, change):
        own = logits if slot is None else logits[slot]
        moved = own.copy()
        moved[place] += change
        return expected_by_hand(
            problem, moved if slot is None else logits | {slot: moved}
        )

    for slot in (None,) if kind == "whole" else ("template", "exemplars"):
        found = gradient if slot is None else gradient[slot]
        for place in range(0, len(found), 5 if kind == "whole" else 1):
            high, low = by_hand(slot, place, step), by_hand(slot, place, -step)
            slope = (high - low) / (2 * step)
            np.testing.assert_allclose(found[place], slope, 2e-3, 1e-6)


@pytest.mark.parametrize("kind", ["ranking", "subset", "whole"])
def test_the_mode_is_the_likeliest_harness(landscape, kind):
    problem = Problem(kind, landscape)
    logits = problem.normal(jax.random.key(1), 1.0)
    template, shots = problem.mode(logits)
    if kind == "whole":
        best = int(np.argmax(logits))
        assert int(template) == landscape.template[best]
        assert shots.tolist() == landscape.shots[best].tolist()
        return
    assert int(template) == int(np.argmax(logits["template"]))
    top = np.argsort(-np.asarray(logits["exemplars"]))[:2].tolist()
    assert shots.tolist() == (top if kind == "ranking" else sorted(top))


def test_all_entries_cost_at_most_what_is_asked(landscape):
    for kind in ("ranking", "subset", "whole"):
        problem = Problem(kind, landscape)
        field = entries(problem, evaluations=48, samples=4, past_steps=2)
        names = [entry.name for entry in field]
        assert len(set(names)) == len(names)
        fitting = {n for n, m in es.ESTIMATORS.items() if problem.learned.kind in m[1]}
        assert {name.split(",")[0].split(" ")[0] for name in names} == fitting
        for entry in field:
            if entry.refused:
                assert entry.estimator is None
                continue
            limit = 48 * 3 if entry.reference else 48
            per_row = {"values": 1, "slope": 1, "path": 2}[entry.needs]
            if kind == "whole" and entry.needs == "path":
                per_row = 2 * 2  # every template, forward and backward
            rows = entry.rows * per_row + 2 * (entry.needs == "slope")
            assert entry.cost == rows * entry.num_items <= limit
            more = rows * (entry.num_items + 1)
            assert more > limit or entry.num_items == landscape.num_items


def test_the_mean_estimate_is_the_exact_gradient(landscape):
    problem = Problem("ranking", landscape)
    entry = next(
        entry
        for entry in entries(problem, evaluations=24, samples=8, past_steps=0)
        if entry.name == "reinforce"
    )
    assert entry.num_items == 3 < landscape.num_items
    keys = jax.random.split(jax.random.key(0), 512)
    logits = problem.normal(jax.random.key(5), 1.0)
    exact = jax.jit(jax.grad(problem.expected))(logits)
    spread = jax.tree.map(lambda x: jnp.broadcast_to(x, (512, *x.shape)), logits)
    stepper = make_stepper(entry, landscape.table)
    found = estimate(entry, stepper, keys, spread, past_steps=0, repeats=4)
    for slot, gradient in found.items():
        rows = gradient.reshape(-1, gradient.shape[-1])
        error = rows.std(axis=0) / len(rows) ** 0.5
        assert (abs(rows.mean(axis=0) - exact[slot]) < 5 * error + 1e-6).all()
        assert (error < 0.1 * np.linalg.norm(exact[slot])).all(), "no power"


def test_quality_is_cosine_and_error_by_hand():
    found = np.array([[[1.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, -2.0]]])
    exact = np.array([[2.0, 0.0], [0.0, 1.0]])
    metrics, seeds = quality(found, exact)
    np.testing.assert_allclose(seeds["cosine"], [(1 + 2**-0.5) / 2, (0 - 1) / 2])
    np.testing.assert_allclose(seeds["error"], [(1 / 4 + 2 / 4) / 2, (1 + 9) / 2])
    assert metrics["cosine"]["mean"] == pytest.approx(np.mean(seeds["cosine"]))
    slots = {"a": found, "b": 0 * found}
    _, both = quality(slots, {"a": exact, "b": exact})
    assert both["cosine_a"] == seeds["cosine"] and both["cosine_b"] == [0, 0]
    # all slots in one vector: the truth is longer by a slot that is missed
    np.testing.assert_allclose(both["cosine"], np.array(seeds["cosine"]) / 2**0.5)


def test_learning_deploys_the_optimum_without_noise():
    landscape = made_landscape(noise=0.0)
    problem = Problem("ranking", landscape)
    entry = next(
        entry
        for entry in entries(problem, evaluations=96, samples=16, past_steps=0)
        if entry.name == "reinforce"
    )
    stepper = make_stepper(entry, landscape.table)
    keys = jax.random.split(jax.random.key(0), 8)
    run = learn(entry, stepper, keys, 0.3, steps=60)
    regret = landscape.regret(run.template, run.shots)
    assert regret.shape == (60, 8)
    assert (regret[-1] < 1e-9).mean() >= 0.75
    assert regret[0].mean() > 0.2


def test_random_search_is_the_running_minimum_of_what_it_saw(landscape):
    budgets = np.array([1, 4, 11, 48, 10**6])
    found = searches.random_search(
        landscape, budgets, np.random.default_rng(4), num_items=2
    )
    rng = np.random.default_rng(4)
    order, items = rng.permutation(24), rng.permutation(6)[:2]
    seen = landscape.loss[order][:, items].mean(axis=1)
    for budget, at in zip(budgets, found, strict=True):
        num = min(max(budget // 2, 1), 24)
        assert at == order[np.argmin(seen[:num])]


def test_successive_halving_spends_its_budget_and_no_more(landscape):
    # 24 harnesses on 1 item, 12 on 1 more, 6 on 2 more, 3 on 2 more
    assert searches.halving_cost(24, 6, 1) == 24 + 12 + 12 + 6
    assert searches.halving_cost(1, 6, 1) == 1
    rng = np.random.default_rng
    found = searches.successive_halving(
        landscape, np.array([54]), rng(0), first_items=1
    )
    order, items = rng(0).permutation(24), None
    draw = rng(0)
    order, items = draw.permutation(24), draw.permutation(6)
    alive = list(order)
    for shown in (1, 2, 4, 6):
        means = landscape.loss[alive][:, items[:shown]].mean(axis=1)
        ranked = [alive[i] for i in np.argsort(means, kind="stable")]
        alive = ranked if shown == 6 else ranked[: (len(alive) + 1) // 2]
    assert found[0] == alive[0]


def test_tpe_beats_chance_and_needs_optuna(landscape, monkeypatch):
    pytest.importorskip("optuna")
    budgets = np.array([6, 6 * 20])
    regrets = np.array(
        [
            landscape.mean_losses[
                searches.tpe_search(
                    landscape, budgets, np.random.default_rng(seed), num_items=6
                )
            ]
            for seed in range(4)
        ]
    )
    assert regrets[:, 1].mean() < regrets[:, 0].mean()
    assert (regrets[:, 1] < np.quantile(landscape.mean_losses, 0.25)).all()
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match="pip install optuna"):
        searches.tpe_search(landscape, budgets, np.random.default_rng(0), num_items=6)


@pytest.fixture(scope="module")
def raced(landscape, tmp_path_factory):
    """A race of one problem and two of its estimators."""
    folder = tmp_path_factory.mktemp("race")
    save_landscape(folder / "made.npz", landscape)
    config = RaceConfig(
        folder / "made.npz",
        out=folder / "out",
        seeds=3,
        problems=("ranking",),
        evaluations=24,
        samples=4,
        past_steps=1,
        repeats=2,
        steps=4,
        learning_rates=(0.1, 0.3),
    )
    kept = ("exact", "reinforce", "linear_proxy")
    with pytest.MonkeyPatch.context() as patch:
        for name in set(es.ESTIMATORS) - set(kept):
            patch.delitem(es.ESTIMATORS, name)
        result = main(config)
    return folder / "out", json.loads((folder / "out/results.json").read_text()), result


@pytest.mark.slow
def test_a_race_writes_rows_reports_and_what_was_left_out(raced, landscape):
    out, stored, _ = raced
    rows = stored["rows"]
    gradients = [row for row in rows if row["kind"] == "gradient"]
    assert {row["estimator"] for row in gradients} == {
        "reinforce",
        "reinforce, 2 times the evaluations",
        "linear_proxy",
        "linear_proxy unbiased",
        "exact",
    }
    exact = [row for row in gradients if row["estimator"] == "exact"]
    assert all(row["evaluations"] == 24 for row in exact)  # all harnesses, one item
    for row in gradients:
        assert len(row["seeds"]["cosine"]) == 3
        assert -1 <= row["metrics"]["cosine"]["mean"] <= 1
    regrets = [row for row in rows if row["kind"] == "regret"]
    # a step reads all items here, so both random searches are one
    assert sum(row["problem"] == "search" for row in regrets) == 4
    for row in regrets:
        curve = np.array(row["seeds"]["regret"])
        assert curve.shape == (3, len(row["evaluations"])) and (curve >= 0).all()
        np.testing.assert_allclose(
            row["metrics"]["regret"]["mean"], curve[:, -1].mean()
        )
    why = {row["estimator"]: row["why"] for row in stored["left_out"]}
    assert "run with --gate" in why["linear_proxy + slope"]
    page, text = (out / "report.html").read_text(), (out / "report.md").read_text()
    assert page.count("<svg") == 2 and "Left out" in text
    assert "mathdefault" not in page
    best = landscape.header["exemplars"][landscape.shots[landscape.best][0]]["uid"]
    assert best in text


@pytest.mark.slow
def test_the_report_says_who_won(raced):
    _, stored, _ = raced
    learner = next(
        row
        for row in stored["rows"]
        if row["kind"] == "regret" and row["problem"] == "ranking"
    )
    search = next(row for row in stored["rows"] if row["problem"] == "search")

    def told(learner_regret, search_regret):
        rows = []
        for row, regret in ((learner, learner_regret), (search, search_regret)):
            seeds = np.broadcast_to(np.asarray(regret)[:, None], (3, 1)).tolist()
            mean = {"mean": float(np.mean(regret)), "low": 0.0, "high": 1.0}
            metrics = row["metrics"] | {"curve": [mean], "regret": mean}
            rows.append(
                row
                | {"evaluations": [96], "metrics": metrics, "seeds": {"regret": seeds}}
            )
        return " ".join(findings_of(stored | {"rows": rows}))

    assert "the learner wins" in told([0.1, 0.2, 0.3], [0.5, 0.6, 0.8])
    lost = told([0.5, 0.6, 0.8], [0.1, 0.2, 0.3])
    assert "the baseline wins" in lost and "1 of 1 learners have a higher" in lost
    assert "no clear winner" in told([0.1, 0.9, 0.5], [0.5, 0.1, 0.9])


@pytest.mark.slow
def test_rows_of_an_earlier_race_join_the_report(raced, landscape, tmp_path):
    out, stored, _ = raced
    config = RaceConfig(
        out.parent / "made.npz",
        out=tmp_path / "joined",
        seeds=3,
        problems=("ranking",),
        needs=("slope",),
        evaluations=24,
        samples=4,
        results=(out / "results.json",),
    )
    joined = main(config)
    assert json.loads(json.dumps(joined["rows"])) == stored["rows"]
    missing = {row["estimator"] for row in joined["left_out"]}
    assert "linear_proxy + slope" in missing and "linear_proxy" not in missing
    assert "reinforce" in (tmp_path / "joined/report.md").read_text()
    other = json.loads((out / "results.json").read_text())
    other["provenance"]["data"]["landscape"] = "another"
    (tmp_path / "other.json").write_text(json.dumps(other))
    with pytest.raises(InputError, match="a race on another landscape"):
        main(dataclasses.replace(config, results=(tmp_path / "other.json",)))


def test_wrong_settings_are_refused(tmp_path):
    with pytest.raises(InputError, match="problems: expected some of ranking"):
        RaceConfig(tmp_path / "x", problems=("trees",))
    with pytest.raises(InputError, match="needs: expected some of values"):
        RaceConfig(tmp_path / "x", needs=("luck",))
    with pytest.raises(InputError, match="seeds"):
        RaceConfig(tmp_path / "x", seeds=0)


def test_an_entry_without_its_gate_is_refused(landscape):
    field = entries(
        Problem("subset", landscape), evaluations=48, samples=4, past_steps=0
    )
    simple = next(entry for entry in field if entry.name == "simple")
    assert isinstance(simple, Entry)
    with pytest.raises(ValueError, match="reads the gate"):
        make_stepper(simple, landscape.table)
