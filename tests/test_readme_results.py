"""Every result in the README is one that the stored files hold."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def stored(name: str) -> dict:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def row(first_cell: str) -> list[str]:
    """Cells of the README's table row that begins with this cell."""
    lines = [x for x in README.splitlines() if x.startswith(f"| {first_cell} |")]
    assert len(lines) == 1, f"expected one row {first_cell!r} in README, got {lines}"
    return [cell.strip() for cell in lines[0].strip("|").split("|")][1:]


def number(cell: str) -> float:
    return float(cell.replace("−", "-").replace(",", "").rstrip("%").split()[0])


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


@pytest.mark.parametrize("price", ["0.2", "4", "10"])
def test_retry_rows(price: str) -> None:
    rows = stored("experiments/results/retry_policy.json")["rows"]
    own = [found for found in rows if f"{found['token_price']:g}" == price]
    before = README[: README.index("deployed on a real task")]
    lines = [x for x in before.splitlines() if x.startswith(f"| {price} | ")]
    (cells,) = (x.strip("|").split("|") for x in lines if "attempt" in x)
    loss, best, once = (float(cell) for cell in cells[2:])
    for found in own:
        assert found["deployed"] == found["best"], "the table says 3 of 3"
        assert loss == pytest.approx(found["loss"], abs=0.0006)
        assert best == pytest.approx(found["best_loss"], abs=0.0006)
        assert once == pytest.approx(found["once_loss"], abs=0.0006)
    assert len(own) == 3


@pytest.mark.parametrize(
    "label, bias",
    [
        ("none", "none"),
        ("contextual calibration, no training items", "contextual"),
        ("fitted on 48 training items", "fitted"),
    ],
)
def test_label_bias_rows(label: str, bias: str) -> None:
    data = stored("experiments/results/label_bias.json")
    (found,) = (row for row in data["rows"] if row["bias"] == bias)
    right, sd, ends = row(label)
    told = [number(cell.strip("()")) for cell in right.split() if cell != "to"]
    for value, name in zip(told, ("mean", "low", "high"), strict=True):
        assert value == pytest.approx(found["right"][name], abs=0.0051)
    assert number(sd) == pytest.approx(found["sd"], abs=0.0006)
    worst, best = ends.split(" to ")
    assert number(worst) == pytest.approx(min(found["by_selection"]), abs=0.0051)
    assert number(best) == pytest.approx(max(found["by_selection"]), abs=0.0051)
    assert data["config"]["train_items"] == 48 and data["config"]["test_items"] == 100


@pytest.mark.parametrize("place, price", [(0, "0.2"), (1, "2"), (2, "10")])
def test_retries_on_the_real_task(place: int, price: str) -> None:
    data = stored("experiments/results/retry_task.json")
    found = data["rows"][place]
    policies = {one["policy"]: one for one in data["frontier"]}
    lines = README[README.index("deployed on a real task") :].splitlines()
    line = next(x for x in lines if x.startswith(f"| {price} |"))
    said, loss, second, once = [cell.strip() for cell in line.strip("|").split("|")][1:]
    for split in ("train", "test"):
        assert found["deployed"] == found[split]["best"] and found[split]["excess"] == 0
    names = {
        "5, sure": "five attempts until sure",
        "3, sure": "three attempts until sure",
        "once": "one attempt",
    }
    policy, odds = said.split(": ")
    assert policy == names[found["deployed"]]
    right, _, _, tokens, _ = odds.split()
    own = policies[found["deployed"]]
    assert float(right) == pytest.approx(own["reward"]["mean"], abs=0.0051)
    assert int(tokens) == pytest.approx(own["tokens"], abs=0.6)
    losses = sorted(found["test"]["losses"].values())
    for word, value in zip(
        (loss, second, once), (*losses[:2], found["test"]["once_loss"]), strict=True
    ):
        assert float(word) == pytest.approx(value, abs=0.00051)
    config = data["config"]
    assert (config["updates"], config["rows"]) == (600, 32)
    assert not data["provenance"]["changed"]


def test_shorter_training_on_the_real_task() -> None:
    data = stored("experiments/results/retry_task-short.json")
    _, middle, _ = data["rows"]
    assert data["config"]["updates"] == 300 and middle["deployed"] == "3, same"
    text = " ".join(README.split())
    for split, said in (
        ("train", "by 1.4% on the items that it learned from"),
        ("test", "by 7.7% on test items"),
    ):
        assert middle[split]["best"] == "3, sure" and said in text
        share = float(said.split("%")[0].split()[-1])
        assert share == pytest.approx(100 * middle[split]["excess"], abs=0.051)


SWEEP = "benchmarks/results/episodes-h200.json"
TASKS = {
    "GSM8K": "gsm8k",
    "HumanEval, pass@1": "humaneval",
    "HotpotQA, F1": "hotpotqa",
    "MuSiQue, EM": "musique",
    "BFCL simple": "bfcl_simple",
    "tau2 retail": "tau2_retail",
}


@pytest.mark.parametrize("model", ["Qwen", "SmolLM2"])
@pytest.mark.parametrize("label", TASKS)
def test_rows_of_the_sweep(model: str, label: str) -> None:
    name = {"Qwen": "qwen2.5-coder-0.5b", "SmolLM2": "smollm2-135m"}[model]
    cells = {cell["id"]: cell["result"] for cell in stored(SWEEP)["cells"]}
    zero_shot, default, random, learned = (
        cells[f"{name}/{TASKS[label]}/{method}/seed-0"]
        for method in ("zero_shot", "default", "random", "learned")
    )
    found = row(f"{model}, {label} ({learned['num_items']:,})")
    percent = learned["measure"] == "exact match"

    def same(word: str, value: float, *, points: bool = False) -> None:
        scale = 100 if percent else 1
        told = float(word.strip("()+%").replace("−", "-"))
        assert told == pytest.approx(scale * value, abs=0.051 if percent else 0.00051)
        assert word.strip("()").endswith("%") == (percent and not points)

    same(found[0], zero_shot["score"]["mean"])
    same(found[1], default["score"]["mean"])
    mean, _, spread = found[2].split()
    same(mean, random["score"]["mean"])
    same(spread, random["sd"])
    assert random["num_harnesses"] == 8
    for cell, interval, points in (
        (found[3], learned["score"], False),
        (found[5], learned["over_best_random"], True),
    ):
        mean, low, _, high = cell.split()
        for word, key in ((mean, "mean"), (low, "low"), (high, "high")):
            same(word, interval[key], points=points)
    same(found[4], learned["best_random"]["score"]["mean"])


def test_words_about_the_sweep() -> None:
    data = stored(SWEEP)
    cells = {cell["id"]: cell for cell in data["cells"]}
    assert data["complete"] and len(cells) == 48 and "all 48 cells" in README
    commits = {cell["result"]["measured"]["commit"] for cell in cells.values()}
    assert len(commits) == 1
    assert not any(cell["result"]["measured"]["changed"] for cell in cells.values())
    learned = [c["result"] for c in cells.values() if c["method"] == "learned"]
    over = [result["over_best_random"] for result in learned]
    assert all(one["low"] <= 0 for one in over)
    (lost,) = [one for one in over if one["high"] < 0]
    gsm8k = cells["qwen2.5-coder-0.5b/gsm8k/learned/seed-0"]["result"]
    assert gsm8k["over_best_random"] == lost
    assert next(iter(gsm8k["reached"])) == "out of tool calls"
    assert gsm8k["training_updates"] == 5 and "minutes were 5 updates" in README
    best = cells["qwen2.5-coder-0.5b/gsm8k/zero_shot/seed-0"]["result"]["score"]
    for name in ("default", "random", "learned"):
        other = cells[f"qwen2.5-coder-0.5b/gsm8k/{name}/seed-0"]["result"]["score"]
        assert other["high"] < best["low"]
    hotpot = cells["qwen2.5-coder-0.5b/hotpotqa/learned/seed-0"]["result"]
    for result in (hotpot, hotpot["best_random"]):
        assert result["prompt"]["policies"]["tools"]["tools"] == ["search"]
        assert result["calls"] == result["num_episodes"]  # one call: no tool was used
    for cell in cells.values():
        if cell["task"] == "tau2_retail":
            assert cell["result"]["score"]["mean"] == pytest.approx(2 / 40)
        elif cell["model"] == "smollm2-135m":
            assert cell["result"]["score"]["mean"] < 0.1
        assert "text" not in cell["result"]["prompt"]
