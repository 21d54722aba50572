"""Which retry policy is worth its tokens for the embedded model on a real task?

Question: singular_to_plural (instruction induction), two fixed exemplars, an answer
    must be one word. Every retry policy of experiments.retry_policy is run on the same
    items and seeds, many times each, so that the best one at a price is known: on the
    items that training learns from, and on test items. Does training, with the guard
    that a retry must earn more than it costs (checked on validation items), deploy one
    within 1% of it?
    The choice among finalists is left out: what training finds by itself is judged.
Command: python -m experiments.retry_task --data-dir DIR --out DIR
Expected: the policy changes with the price. The truth has an interval here; the
    difference of deployed and best is paired by item. Fewer and larger steps
    (--updates 300 --rows 16 --learning-rate 0.15) deployed "3, same" at a price of 2.
Device: one GPU, some minutes (texts are written once for all prices).
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import tyro

from components.exemplars import as_exemplars
from components.output_policy import OutputPolicy
from components.templates import Template
from experiments.instruction_induction import load_instruction
from experiments.markdown import signed_interval, table_lines
from experiments.retry_policy import POLICIES, config
from metaharness import keys
from metaharness.harness.call_cache import FILE, CallCache
from metaharness.harness.grading import Sampling, grade_harnesses
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates
from metaharness.harness.space import Space, build_space
from metaharness.model.complete import Completer
from metaharness.model.load import load_model
from metaharness.runlog import provenance
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.jsonfile import json_safe, write_json
from metaharness.stats import mean_interval, paired_difference
from metaharness.train.deploy import mode_choices
from metaharness.train.loop import fit
from metaharness.train.retry_guard import settle_retries

SPLITS = ("train", "test")
PRICES = (0.2, 2.0, 10.0)
"""Reward that 1,000 tokens cost."""


@dataclasses.dataclass(frozen=True)
class RetryTaskConfig:
    """Where the data is and results go, and how much is run."""

    data_dir: Path
    """folder with instruction_induction/raw.jsonl.gz"""
    out: Path
    """folder of the results: results.json, results.md; texts are kept in it"""
    model: str = "smollm2-135m"
    task: str = "singular_to_plural"
    updates: int = 600
    """updates of each price"""
    batch: int = 16
    """training items of an update"""
    rows: int = 32
    """drawn policies of an update"""
    learning_rate: float = 0.05
    """of the logits"""
    items: int = 200
    """items of each split that the truth is measured on, at most; training learns from
    as many"""
    samples: int = 8
    """episodes of each item and policy there"""
    seed: int = 0
    tokens_at_once: int = 16384
    """tokens of one batch of generation"""


def make_space(options: RetryTaskConfig) -> Space:
    """Two fixed exemplars, one template, a check that wants one word."""
    task = load_instruction(options.task, options.data_dir)
    shots = Exemplars(as_exemplars(task.pool[:2], task.name), 2)
    harness = Harness(
        shots,
        Templates((Template("bare"),)),
        output=(OutputPolicy("one word", extract="first_line", pattern="[A-Za-z]+"),),
        retry=POLICIES,
    )
    return build_space(load_model(options.model), harness, [task])


def main(options: RetryTaskConfig) -> None:
    """Run the experiment; what was written before is not written again."""
    options.out.mkdir(parents=True, exist_ok=True)
    space = make_space(options)
    (task,) = space.tasks
    writer = Completer(space.model, tokens_at_once=options.tokens_at_once)
    counter = BudgetCounter()
    choices = [Choice((0, 1), 0, retry=at) for at in range(len(POLICIES))]
    with CallCache(options.out / FILE) as cache:
        with counter.phase("truth"):
            truth = {
                split: grade_harnesses(
                    space,
                    task,
                    choices,
                    task.splits()[split][: options.items],
                    writer,
                    counter=counter,
                    sampling=Sampling(options.samples, 1.0, options.seed + 1),
                    cache=cache,
                )
                for split in SPLITS
            }
        print(f"truth: {counter.counts().seconds:.0f} s", file=sys.stderr)
        rows = []
        for price in PRICES:
            settings = config(
                price,
                updates=options.updates,
                seed=options.seed,
                items=options.batch,
                rows=options.rows,
            )
            settings = dataclasses.replace(
                settings,
                quiet=False,
                search=dataclasses.replace(
                    settings.search, learning_rate=options.learning_rate
                ),
                evaluation=dataclasses.replace(
                    settings.evaluation, train_items=options.items
                ),
            )
            fitted = fit(space, settings, counter=counter, writer=writer, calls=cache)
            (likeliest,) = mode_choices(space, fitted.state)
            settled = settle_retries(
                space, settings, fitted, writer, counter=counter, cache=cache
            )
            (choice,) = settled.choices(space)
            row = {
                "token_price": price,
                "deployed": POLICIES[choice.retry].name,
                "likeliest": POLICIES[likeliest.retry].name,
            }
            for split, grades in truth.items():
                losses = grades.table(lambda trace, price=price: trace.loss(price))
                row[split] = _against(choice.retry, losses, options.seed)
            rows.append(row)
            print(f"price {price:g}: {rows[-1]['deployed']}", file=sys.stderr)
    rng = keys.host_generator(options.seed, stage="test", step=0, purpose="bootstrap")
    reward = truth["test"].table(lambda trace: trace.reward)
    tokens = truth["test"].table(lambda trace: float(trace.tokens))
    write_json(
        options.out / "results.json",
        json_safe(
            {
                "config": {
                    **dataclasses.asdict(options),
                    "out": None,
                    "data_dir": None,
                },
                "rows": rows,
                "frontier": [
                    {
                        "policy": policy.name,
                        "reward": mean_interval(reward[at], rng=rng),
                        "tokens": float(tokens[at].mean()),
                    }
                    for at, policy in enumerate(POLICIES)
                ],
                "provenance": provenance.collect(
                    argv=(), data={task.name: task.fingerprint}
                ),
            }
        ),
    )
    text = "\n".join(_table(rows))
    (options.out / "results.md").write_text(text + "\n", encoding="utf-8")
    print(text)


def _against(deployed: int, losses: np.ndarray, seed: int) -> dict:
    """The deployed policy beside the best one; losses: float ``[policy, item]``."""
    means = losses.mean(axis=1)
    best = int(means.argmin())
    rng = keys.host_generator(seed, stage="test", step=1, purpose="bootstrap")
    return {
        "best": POLICIES[best].name,
        "loss": float(means[deployed]),
        "best_loss": float(means[best]),
        "excess": float(means[deployed] / means[best] - 1),
        "once_loss": float(means[0]),
        "losses": {
            policy.name: float(mean)
            for policy, mean in zip(POLICIES, means, strict=True)
        },
        "difference": paired_difference(losses[deployed], losses[best], rng=rng),
    }


def _table(rows: list[dict]) -> list[str]:
    head = ["price of 1,000 tokens", "likeliest", "deployed"]
    for split in SPLITS:
        head += [f"best on {split} items", "its loss", "deployed", "difference"]
    lines = []
    for row in rows:
        line = [f"{row['token_price']:g}", row["likeliest"], row["deployed"]]
        for split in SPLITS:
            own = row[split]
            line += [
                own["best"],
                f"{own['best_loss']:.3f}",
                f"{own['loss']:.3f} ({own['excess']:+.1%})",
                signed_interval(own["difference"]._asdict()),
            ]
        lines.append(line)
    return table_lines("Retries on a real task", head, lines)


if __name__ == "__main__":
    main(tyro.cli(RetryTaskConfig, description=__doc__))
