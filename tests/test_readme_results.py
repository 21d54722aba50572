"""Every result in the README is one that the stored files hold."""

import pytest
from readme_tables import README, number, row, stored


@pytest.mark.parametrize(
    "label, method",
    [
        ("zero-shot", "zero_shot"),
        ("32 random", "random"),
        ("32 random, right exemplars only", "random_right"),
        ("learned, relaxed path only", "relaxed"),
        ("learned, default estimator only", "default"),
        ("learned, both", "both"),
    ],
)
def test_first_stage_rows(label: str, method: str) -> None:
    found = stored("experiments/results/first_stage-h200.json")["overall"][method]
    nats, minus, beats, minus_right, exact = row(label)
    assert number(nats) == pytest.approx(found["nats"]["mean"], abs=0.005)
    assert number(exact) == pytest.approx(found["exact_match"]["mean"], abs=0.006)
    if "seeds" not in found:
        assert not (minus or beats or minus_right)
        return
    assert found["seeds_passed"] == found["num_seeds"] == 5
    for cell, other in ((minus, "random"), (minus_right, "random_right")):
        gaps = [seed[other]["difference"] for seed in found["seeds"]]
        assert all(gap["high"] < 0 for gap in gaps)
        mean = sum(gap["mean"] for gap in gaps) / len(gaps)
        assert number(cell) == pytest.approx(mean, abs=0.0051)
    shares = [seed["random"]["share_beaten"] for seed in found["seeds"]]
    assert number(beats) == pytest.approx(100 * sum(shares) / len(shares), abs=0.5)


def test_gate_correlations() -> None:
    gate = stored("experiments/results/first_stage-h200.json")["gate"]
    for found in gate.values():
        assert f"{found['spearman']:.2f}".lstrip("0") in README


@pytest.mark.parametrize("task", ["number_sequence", "isomorphic_strings"])
def test_estimator_columns(task: str) -> None:
    found = stored("experiments/results/estimator_columns-h200.json")[task]
    rows = found["by_scale"]["0.0"]
    names = (
        "leave_one_out",
        "ridge_control_variate",
        "slope_unscaled",
        "ridge_alone",
        "default",
    )
    for cell, name in zip(row(task), names, strict=True):
        assert number(cell) == pytest.approx(rows[name]["cosine"]["value"], abs=0.0051)


RACE = "experiments/results/landscape_race-h200.json"


@pytest.mark.parametrize(
    "label, name",
    [
        ("`proxy`, plugged in", "proxy"),
        ("`linear_proxy` with slope (default)", "linear_proxy + slope"),
        ("`linear_proxy` without slope", "linear_proxy"),
        ("`perturbed_marginals`", "perturbed_marginals"),
        ("`linear_proxy`, unbiased", "linear_proxy unbiased"),
        ("`proxy`, unbiased", "proxy unbiased"),
        ("`reinforce`, leave-one-out", "reinforce"),
        ("`relax`", "relax"),
        ("`simple`", "simple"),
        ("`imle`", "imle"),
    ],
)
def test_cosines_on_a_real_landscape(label: str, name: str) -> None:
    found = {
        line["estimator"]: line
        for line in stored(RACE)["rows"]
        if (line["kind"], line["problem"], line.get("scale"))
        == ("gradient", "subset", 0)
    }
    cosine = found[name]["metrics"]["cosine_exemplars"]
    cell, needs = row(label)
    assert number(cell) == pytest.approx(cosine["mean"], abs=0.0051)
    assert cosine["high"] - cosine["low"] < 0.08
    assert len(found[name]["seeds"]["cosine"]) == 20
    whole = found["reinforce, 5 times the evaluations"]
    all_values = f"{whole['metrics']['cosine_exemplars']['mean']:.2f}".lstrip("0")
    claim = f"on all {whole['evaluations']} evaluations reaches {all_values}."
    assert claim in README
    past = found[name]["past_evaluations"]
    assert f"{past} older" in needs or "proxy" not in name


@pytest.mark.parametrize(
    "label, name",
    [
        ("successive halving", "successive halving from 4 items"),
        ("TPE (optuna), 32 items", "TPE, 32 items"),
        ("random search, 64 items", "random search, 64 items"),
        ("`relax`, ordered pairs", "relax"),
        ("`proxy`, ordered pairs", "proxy"),
        ("`linear_proxy`, ordered pairs", "linear_proxy"),
        ("`linear_proxy` with slope, ordered pairs", "linear_proxy + slope"),
    ],
)
def test_regret_on_a_real_landscape(label: str, name: str) -> None:
    found = next(
        line
        for line in stored(RACE)["rows"]
        if line["kind"] == "regret"
        and line["problem"] in ("ranking", "search")
        and line["estimator"] == name
    )
    curve = dict(zip(found["evaluations"], found["metrics"]["curve"], strict=True))
    for cost, cell in zip((800, 3200, 12800), row(label), strict=True):
        if cost in curve:
            assert number(cell) == pytest.approx(curve[cost]["mean"], abs=0.0006)
        else:
            assert cell == "not run"


def test_searches_win_the_race_at_its_end() -> None:
    lines = [line for line in stored(RACE)["rows"] if line["kind"] == "regret"]
    last = {
        search: min(
            line["metrics"]["regret"]["mean"]
            for line in lines
            if (line["problem"] == "search") == search
        )
        for search in (True, False)
    }
    assert last[True] < last[False]


def test_speed_rows() -> None:
    found = stored("benchmarks/results/speed-h200.json")["results"]
    peer, ours, ratio = row("forward, 32 × 256 tokens")
    assert number(peer) == pytest.approx(found["forward"]["peer_ms"], abs=0.05)
    assert number(ours) == pytest.approx(found["forward"]["ours_ms"], abs=0.05)
    assert number(ratio) == pytest.approx(found["forward"]["ratio"], abs=0.05)
    other = stored("benchmarks/results/speed-h200-random-weights.json")["results"]
    slower = other["forward"]
    claim = f"{slower['peer_ms']:.1f} ms, a ratio of {slower['ratio']:.1f}"
    assert claim in " ".join(README.split())
    peer, ours, ratio = row("greedy generation, 512-token prefix, 256 rows × 128 new")
    speed = found["generate"]
    assert number(peer) == pytest.approx(speed["peer_tokens_per_s"], abs=0.5)
    assert number(ours) == pytest.approx(speed["ours_tokens_per_s"], abs=0.5)
    assert number(ratio) == pytest.approx(speed["ratio"], abs=0.05)
    gradient = found["pool_gradient"]
    label = f"gradient to a pool of 48 exemplars ({gradient['keys']:,} keys)"
    assert number(row(label)[1]) == pytest.approx(gradient["ours_ms"], abs=0.5)


def test_cost_of_an_estimator() -> None:
    text = " ".join(README.split())
    shares = {
        device: [
            (line["family"], line["share"])
            for line in stored(f"benchmarks/results/estimator-cost-{device}.json")[
                "rows"
            ]
        ]
        for device in ("cpu", "h200")
    }
    assert max(share for _, share in shares["cpu"]) < 0.002
    below = sum(share < 0.02 for _, share in shares["h200"])
    assert f"there {below} of {len(shares['h200'])} members and families" in text
    worst = max(share for family, share in shares["h200"] if family == "subset")
    assert f"subsets take up to {100 * worst:.0f}%" in text
    assert worst == max(share for _, share in shares["h200"])


def two(cell: str) -> tuple[float, float]:
    """Nats and percent of a cell such as ``0.71, 91%``; percent 0 without one."""
    nats, _, share = cell.partition(", ")
    return float(nats), float(share.rstrip("%") or 0)


@pytest.mark.parametrize(
    ("label", "task"),
    [
        ("first_word_letter", "first_word_letter"),
        ("singular_to_plural", "singular_to_plural"),
        ("larger_animal", "larger_animal"),
        ("gsm8k (likelihood)", "gsm8k"),
    ],
)
def test_both_stages_rows(label: str, task: str) -> None:
    cells = stored("experiments/results/both_stages-h200.json")["cells"]
    own = {c["method"]: c["cells"] for c in cells if c["task"] == task}
    shown = [two(cell) for cell in row(label)]
    columns = [("phi", "base_seed")] + [
        (method, "adapted_learned")
        for method in ("phi", "theta", "two_stage", "simultaneous")
    ]
    for (nats, share), (method, cell) in zip(shown, columns, strict=True):
        found = own[method][cell]
        assert nats == pytest.approx(found["loss"]["mean"], abs=0.0051)
        exact = 100 * found["exact_match"]["mean"]
        assert share == pytest.approx(exact, abs=0.51)


def shown_interval(value: dict) -> str:
    text = f"{value['mean']:+.2f} ({value['low']:+.2f} to {value['high']:+.2f})"
    return text.replace("-", "−")


def test_both_stages_sentences() -> None:
    result = stored("experiments/results/both_stages-h200.json")
    cells = {(c["task"], c["method"]): c for c in result["cells"]}
    assert len(cells) == 24 and result["config"]["seeds"] == 5
    assert {c["updates"] for c in cells.values()} == {300}
    flat = " ".join(README.split())
    two_stage = cells["singular_to_plural", "two_stage"]["effects"]
    for effect in ("harness_at_base", "harness_at_adapted"):
        said = shown_interval(two_stage[effect]).replace(" (", " nats (", 1)
        assert said in flat or shown_interval(two_stage[effect]) in flat
    gsm8k = cells["gsm8k", "two_stage"]["effects"]
    for effect in ("harness_at_base", "harness_at_adapted"):
        assert f"{gsm8k[effect]['mean']:.2f}".replace("-", "−") in flat
    theta = cells["gsm8k", "theta"]
    last = sum(theta["loss_curve"][-10:]) / 10
    assert f"(training loss {last:.0f}, test " in flat
    assert f"test {theta['cells']['adapted_learned']['loss']['mean']:.0f})" in flat
    animal = cells["larger_animal", "phi"]["effects"]["total"]
    assert shown_interval(animal) in flat
    worse = cells["larger_animal", "theta"]["cells"]
    assert worse["adapted_learned"]["loss"]["mean"] > worse["base_seed"]["loss"]["mean"]


def test_mixed_tasks_rows() -> None:
    found = stored("experiments/results/mixed_tasks-h200.json")
    own = found["together"]
    for at, name in enumerate(own["tasks"]):
        random, shared, task, difference = row(f"{name}, one of four")
        assert number(random) == pytest.approx(own["random"][at]["mean"], abs=0.0051)
        for cell, kind in ((shared, "shared"), (task, "task")):
            mean = own["loss"][kind][at]["mean"]
            assert number(cell) == pytest.approx(mean, abs=0.0051)
        assert difference == shown_interval(own["difference"]["task"]["by_task"][at])
    assert row("mean of four")[-1] == shown_interval(own["difference"]["task"]["mean"])
    fifth = found["fifth"]
    gaps = fifth["difference"]
    assert fifth["curves"]["shared"]["updates"][-1] == 100
    assert gaps[0]["high"] > 0 and all(gap["low"] > 0 for gap in gaps[1:])
    assert all(gap["mean"] > 0 for gap in gaps)
    assert shown_interval(gaps[-1]) in README
