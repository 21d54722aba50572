"""The README's results of graded episodes are those of the stored files."""

import pytest
from readme_tables import README, number, row, stored


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
