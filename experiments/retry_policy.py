"""Does training find the retry policy that is worth its tokens?

Question: a simulated model whose odds are known gives every retry policy an exact
    expected loss at a price of tokens. Does the policy that training deploys come
    within 1% of the best, at several prices, and does it stop retrying once a retry
    costs more than it earns?
Command: python -m experiments.retry_policy --out DIR
Expected: yes at every price; attempts fall as the price rises. Found: see the table
    that it writes.
Device: CPU, some eight minutes.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import tyro

from components.output_policy import OutputPolicy
from components.retry_policy import RetryPolicy
from components.templates import Template
from experiments.markdown import table_lines
from experiments.simulated_model import (
    Expected,
    Roll,
    SimulatedModel,
    enumerate_policy,
)
from metaharness.harness.slots import Choice, Harness, Templates
from metaharness.harness.space import Space, build_space
from metaharness.model.load import Model, load_model
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.jsonfile import write_json
from metaharness.tasks.task import Item, Task, fingerprint
from metaharness.train.config import EvalConfig, TrainConfig
from metaharness.train.deploy import mode_choices
from metaharness.train.episode_config import EpisodeConfig
from metaharness.train.loop import fit
from metaharness.train.search_config import SearchConfig

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 - after the backend is chosen

PRICES = (0.2, 4.0, 10.0)
"""Reward that 1,000 tokens cost."""

POLICIES = (
    RetryPolicy("once"),
    RetryPolicy("2, same", 2),
    RetryPolicy("3, same", 3),
    RetryPolicy("5, same", 5),
    RetryPolicy("3, sure", 3, min_confidence=0.6),
    RetryPolicy("5, sure", 5, min_confidence=0.6),
    RetryPolicy("2, feedback", 2, how="feedback"),
    RetryPolicy("4, feedback", 4, how="feedback"),
)

# An attempt of an easy and of a hard question: right or wrong, sure or not, or text
# that no rule can read.
ODDS = {
    "easy": (
        Roll(0.55, "7", 0.9, 12),
        Roll(0.10, "7", 0.4, 12),
        Roll(0.05, "8", 0.4, 12),
        Roll(0.30, "I would say", 0.5, 12),
    ),
    "hard": (
        Roll(0.15, "7", 0.9, 12),
        Roll(0.10, "7", 0.4, 12),
        Roll(0.25, "8", 0.4, 12),
        Roll(0.50, "I would say", 0.5, 12),
    ),
}


class Row(NamedTuple):
    """One price and seed: what was deployed, and what is best."""

    token_price: float
    seed: int
    deployed: str
    best: str
    loss: float
    best_loss: float
    once_loss: float
    attempts: int

    @property
    def excess(self) -> float:
        """Loss above the best one's, as a share of it."""
        return self.loss / self.best_loss - 1


def make_space(model: Model) -> Space:
    """Sixteen questions of each kind; one template, the retry slot, a digit to read."""
    items = [
        Item(f"{kind}{i}", f"A {kind} question, number {i}: 3 + 4?", "7")
        for i in range(16)
        for kind in ODDS
    ]
    splits = {
        "pool": tuple(items[:1]),
        "train": tuple(items),
        "validation": tuple(items[:2]),
        "test": tuple(items[:2]),
    }
    task = Task(
        "dice",
        **splits,
        scorer=lambda text, item: float(text == item.answer),
        max_new_tokens=16,
        stop=(),
        fingerprint=fingerprint(splits),
        source="made here",
    )
    harness = Harness(
        None,
        Templates((Template("bare"),)),
        output=(OutputPolicy("digit", pattern=r"\d"),),
        retry=POLICIES,
    )
    return build_space(model, harness, [task], guard_leaks=False)


def odds_of(text: str) -> Sequence[Roll]:
    """The dice of the question that a prompt holds."""
    return ODDS["hard" if "A hard question" in text else "easy"]


def expected(space: Space, price: float) -> list[Expected]:
    """Exact expectations of every policy, mean of both kinds of questions."""
    out = []
    for retry in range(len(POLICIES)):
        kinds = [
            enumerate_policy(space, item, Choice((), 0, retry=retry), rolls, price)
            for item, rolls in zip(space.tasks[0].train[:2], ODDS.values(), strict=True)
        ]
        out.append(Expected(*np.mean(kinds, axis=0).tolist()))
    return out


def config(
    price: float, *, updates: int, seed: int, items: int = 16, rows: int = 16
) -> TrainConfig:
    """Training of the retry slot from sampled episodes alone."""
    return TrainConfig(
        task=("retries",),
        seed=seed,
        quiet=True,
        search=SearchConfig(
            warmup_steps=0,
            relaxed_steps=0,
            measured_steps=updates,
            samples=rows,
            learning_rate=0.15,
            decay="cosine",
        ),
        episodes=EpisodeConfig(
            items=items,
            temperature=1.0,
            token_price=price,
            prompt_loss="episode",
            at_once=1024,
        ),
        evaluation=EvalConfig(train_items=32, validation_items=64),
    )


def learn(
    space: Space, price: float, truth: Sequence[Expected], *, updates: int, seed: int
) -> Row:
    """Train once and compare what would be deployed with the best policy."""
    writer = SimulatedModel(
        odds_of, lambda ids: space.model.tokenizer.decode(list(ids))
    )
    settings = config(price, updates=updates, seed=seed)
    fitted = fit(space, settings, counter=BudgetCounter(), writer=writer)
    (choice,) = mode_choices(space, fitted.state)
    losses = [one.loss for one in truth]
    best = int(np.argmin(losses))
    return Row(
        token_price=price,
        seed=seed,
        deployed=POLICIES[choice.retry].name,
        best=POLICIES[best].name,
        loss=losses[choice.retry],
        best_loss=losses[best],
        once_loss=losses[0],
        attempts=POLICIES[choice.retry].attempts,
    )


def draw_frontier(truth: Sequence[Expected], rows: Sequence[Row], path: Path) -> None:
    """Accuracy against tokens: every policy, and those deployed at each price."""
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    tokens, rewards = [one.tokens for one in truth], [one.reward for one in truth]
    axes.scatter(tokens, rewards, color="0.6", zorder=2)
    for policy, x, y in zip(POLICIES, tokens, rewards, strict=True):
        axes.annotate(policy.name, (x, y), xytext=(5, -9), textcoords="offset points")
    names = [policy.name for policy in POLICIES]
    for color, price in zip(("C0", "C1", "C3"), PRICES, strict=True):
        deployed = {names.index(r.deployed) for r in rows if r.token_price == price}
        axes.scatter(
            [tokens[i] for i in deployed],
            [rewards[i] for i in deployed],
            s=110,
            facecolors="none",
            edgecolors=color,
            linewidths=2,
            label=f"deployed at {price:g} for 1,000 tokens",
            zorder=3,
        )
    axes.set_xlabel("tokens an episode (exact expectation)")
    axes.set_ylabel("right answers (exact expectation)")
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    plt.rcParams["svg.hashsalt"] = "retry"  # the same file from the same data
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


@dataclasses.dataclass(frozen=True)
class RetryConfig:
    """Where results go, and how much is run."""

    out: Path
    """folder of the results: results.json, results.md, frontier.svg"""
    updates: int = 300
    """updates a run"""
    seeds: int = 3
    """runs of each price"""


def main(options: RetryConfig) -> None:
    """Run the experiment."""
    options.out.mkdir(parents=True, exist_ok=True)
    space = make_space(load_model("smollm2-135m"))
    rows = []
    for price in PRICES:
        truth = expected(space, price)
        for seed in range(options.seeds):
            row = learn(space, price, truth, updates=options.updates, seed=seed)
            rows.append(row)
            print(
                f"price {price:g}, seed {seed}: {row.deployed} ({row.loss:.4f}), best "
                f"{row.best} ({row.best_loss:.4f})",
                file=sys.stderr,
            )
    write_json(
        options.out / "results.json",
        {
            "rows": [{**row._asdict(), "excess": row.excess} for row in rows],
            "frontier": [
                {"policy": policy.name, "reward": one.reward, "tokens": one.tokens}
                for policy, one in zip(POLICIES, truth, strict=True)
            ],
            "policies": [dataclasses.asdict(policy) for policy in POLICIES],
            "updates": options.updates,
        },
    )
    draw_frontier(truth, rows, options.out / "frontier.svg")
    lines = table_lines(
        "Retry policies",
        ("price of 1,000 tokens", "seed", "deployed", "best", "loss", "best loss"),
        [
            (
                f"{row.token_price:g}",
                str(row.seed),
                row.deployed,
                row.best,
                f"{row.loss:.4f}",
                f"{row.best_loss:.4f}",
            )
            for row in rows
        ],
    )
    table = "\n".join(lines)
    (options.out / "results.md").write_text(table + "\n", encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main(tyro.cli(RetryConfig, description=__doc__))
