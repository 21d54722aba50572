"""Does the first stage find harnesses that beat random ones on held-out items?

    python -m experiments.first_stage --seeds 5 --out runs/first-stage

Question: the harness is trained with theta frozen, by the purely relaxed path, by the
default estimator, and by both together. Is each learned mode harness, scored by its
sequential prompt on test items, better than random harnesses of the same space, and
than random harnesses of right exemplars only?
Expected: better than the mean random harness with the paired 95% interval clear of
zero, and than at least 90% of 32 random ones, on at least 4 of 5 seeds.
Device and time: one H200, about 6 minutes; ``--quick`` is a smoke run for any machine.

Seeds decide draws and item order of the search; pools and splits are the same for all,
so the random harnesses are scored once. ``results.json`` holds every number printed.
"""

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.estimator_columns import ColumnsConfig, measure_columns
from metaharness import keys
from metaharness.harness.scoring import Scores, score_harnesses
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates
from metaharness.harness.space import EXEMPLARS, Space, build_space
from metaharness.model.load import load_model
from metaharness.runlog import jsonfile, provenance
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.progress import Progress
from metaharness.stats import mean_interval, paired_difference
from metaharness.tasks.registry import load_task
from metaharness.tasks.task import SplitSizes
from metaharness.train.compiled import compile_updates
from metaharness.train.config import DEFAULT_TASKS, EvalConfig, TrainConfig
from metaharness.train.deploy import mode_choices
from metaharness.train.gate import gate_agreement
from metaharness.train.loop import fit
from metaharness.train.search_config import SearchConfig

METHODS: dict[str, dict[str, Any]] = {
    "relaxed": {"warmup_steps": 0, "measured_steps": 0, "trust": -1.0},
    "default": {"warmup_steps": 0, "relaxed_steps": 0},
    "both": {},
}


@dataclass(frozen=True)
class FirstStageConfig:
    """Sizes of the experiment."""

    seeds: int = 5
    out: Path = Path("runs/first-stage")
    tasks: tuple[str, ...] = DEFAULT_TASKS
    model: str = "smollm2-135m"
    pool: int = 24
    """exemplars of each task, half of them right"""
    k: int = 4
    random_harnesses: int = 32
    test_items: int = 96
    train_items: int = 256
    warmup_steps: int = 3
    relaxed_steps: int = 30
    measured_steps: int = 24
    samples: int = 6
    packs: int = 4
    optimizer: str = "adam"
    learning_rate: float = 0.2
    generate: bool = True
    columns: bool = True
    """also measure the quality of gradient estimates on two tasks"""
    quick: bool = False
    """smoke run: tiny sizes, whose results mean nothing"""


def main(config: FirstStageConfig) -> dict[str, Any]:
    if config.quick:
        config = dataclasses.replace(
            config, seeds=1, tasks=config.tasks[:1], pool=6, k=2, random_harnesses=3,
            test_items=4, train_items=16, warmup_steps=1, relaxed_steps=1,
            measured_steps=1, packs=1,
        )  # fmt: skip
    started = time.monotonic()
    config.out.mkdir(parents=True, exist_ok=True)
    space = make_space(config)
    counter = BudgetCounter()
    random_any, random_right = _random_choices(space, config)
    learned: dict[str, list[list[Choice]]] = {}
    agreement = gate_agreement(
        space, num=max(config.random_harnesses * 4, 8), seed=0, counter=counter
    )
    compiled = compile_updates(space, _settings(config, {}))
    for method, changes in METHODS.items():
        learned[method] = [
            _search(space, config, changes, seed, method, counter, compiled)
            for seed in range(config.seeds)
        ]
    tasks, scores = _score(space, config, learned, random_any, random_right, counter)
    result: dict[str, Any] = {
        "config": json.loads(json.dumps(dataclasses.asdict(config), default=str)),
        "provenance": provenance.collect(
            argv=sys.argv,
            data={"model": space.model.digest}
            | {task.name: task.fingerprint for task in space.tasks},
        ),
        "gate": agreement,
        "tasks": tasks,
        "overall": overall(scores, config),
    }
    if config.columns:
        result["estimator_columns"] = measure_columns(
            ColumnsConfig(quick=config.quick, model=config.model), space.model
        )
    result["budget"] = {
        phase or "all": dataclasses.asdict(counter.counts(phase))
        for phase in counter.phases()
    }
    result["wall_s"] = time.monotonic() - started
    jsonfile.write_json(config.out / "results.json", result)
    _print(result)
    print(f"results: {config.out / 'results.json'}")
    return result


def make_space(config: FirstStageConfig) -> Space:
    """The default families with larger pools than the main job's."""
    sizes = SplitSizes(config.pool + 8, config.train_items, 64, config.test_items)
    tasks = [load_task(name, sizes=sizes) for name in config.tasks]
    exemplars = Exemplars.from_tasks(
        tasks, pool=config.pool, k=config.k, share_right=0.5
    )
    harness = Harness(exemplars, Templates.named("short"))
    return build_space(load_model(config.model), harness, tasks)


def _random_choices(
    space: Space, config: FirstStageConfig
) -> tuple[list[list[Choice]], list[list[Choice]]]:
    right = np.array([e.kind == "right" for e in space.harness.candidates])
    every, good = [], []
    for task in range(space.num_tasks):
        rng = keys.host_generator(0, stage="test", step=task, purpose="random_harness")
        every.append(
            space.harness.random_choices(
                config.random_harnesses, task, space.num_tasks, rng
            )
        )
        ids = np.flatnonzero(right & space.masks[EXEMPLARS][task])
        good.append(
            [
                Choice(
                    tuple(int(i) for i in rng.choice(ids, config.k, replace=False)),
                    int(rng.integers(len(space.harness.template.pool))),
                )
                for _ in range(config.random_harnesses)
            ]
        )
    return every, good


def _settings(config: FirstStageConfig, changes: dict[str, Any]) -> TrainConfig:
    settings = {
        "warmup_steps": config.warmup_steps,
        "relaxed_steps": config.relaxed_steps,
        "measured_steps": config.measured_steps,
        "samples": config.samples,
        "packs": config.packs,
        "optimizer": config.optimizer,
        "learning_rate": config.learning_rate,
        "chunk": config.samples,
    }
    return TrainConfig(
        search=SearchConfig(**(settings | changes)),
        evaluation=EvalConfig(train_items=config.train_items),
    )


def _search(space, config, changes, seed, method, counter, compiled) -> list[Choice]:
    with counter.phase(method):
        own = dataclasses.replace(_settings(config, changes), seed=seed)
        fitted = fit(space, own, counter=counter, compiled=compiled)
    return mode_choices(space, fitted.state)


def _score(space, config, learned, random_any, random_right, counter):
    """Results by task, and the raw scores of every group of harnesses."""
    tasks, raw = {}, []
    with counter.phase("test"), Progress("test", total=space.num_tasks) as bar:
        for index, task in enumerate(space.tasks):
            groups = {
                "zero_shot": [Choice((), 0)],
                "random": random_any[index],
                "random_right": random_right[index],
            } | {m: [seed[index] for seed in runs] for m, runs in learned.items()}
            unique = list(dict.fromkeys(c for own in groups.values() for c in own))
            scores: Scores = score_harnesses(
                space,
                task,
                unique,
                task.test,
                generate=config.generate,
                counter=counter,
                harnesses_at_once=8 if jax.default_backend() == "gpu" else 2,
                items_at_once=config.test_items,
            )
            at = {c: i for i, c in enumerate(unique)}
            rows = {m: [at[c] for c in own] for m, own in groups.items()}
            nats = {m: scores.nats[own] for m, own in rows.items()}
            exact = None
            if scores.reward is not None:
                exact = {m: scores.reward[own] >= 0.99 for m, own in rows.items()}
            raw.append((nats, exact))
            tasks[task.name] = _summary(nats, exact)
            tasks[task.name]["chosen"] = {
                m: [_named(space, seed[index]) for seed in runs]
                for m, runs in learned.items()
            }
            bar.update(index + 1)
    return tasks, raw


def _named(space: Space, choice: Choice) -> dict[str, Any]:
    template, exemplars = space.harness.parts(choice)
    return {"template": template.name, "exemplars": [e.uid for e in exemplars]}


def _summary(nats, exact) -> dict[str, Any]:
    """Groups of harnesses on the same items: nats ``[harness, item]`` by group."""
    rng = np.random.default_rng(0)
    out: dict[str, Any] = {}
    for group, values in nats.items():
        row: dict[str, Any] = {
            "nats": mean_interval(values, rng=rng)._asdict(),
            "sd": float(values.mean(axis=1).std(ddof=1)) if len(values) > 1 else None,
        }
        if exact is not None:
            hits = exact[group].astype(float)
            row["exact_match"] = mean_interval(hits, rng=rng)._asdict()
        if group in METHODS:
            row["seeds"] = [_against(own, nats, rng) for own in values]
        out[group] = row
    return out


def _against(own: np.ndarray, nats, rng) -> dict[str, Any]:
    """One learned harness against both groups of random ones, paired by item."""
    row: dict[str, Any] = {"nats": float(own.mean())}
    for group in ("random", "random_right"):
        others = nats[group]
        difference = paired_difference(own, others.mean(axis=0), rng=rng)
        row[group] = {
            "difference": difference._asdict(),
            "share_beaten": float((own.mean() < others.mean(axis=1)).mean()),
        }
    return row


def overall(scores, config: FirstStageConfig) -> dict[str, Any]:
    """All tasks together: every item counts once; harness r is row r of every task."""
    groups = scores[0][0]
    nats = {g: np.concatenate([own[g] for own, _ in scores], axis=1) for g in groups}
    exact = None
    if scores[0][1] is not None:
        exact = {
            g: np.concatenate([own[g] for _, own in scores], axis=1) for g in groups
        }
    out = _summary(nats, exact)
    for method in METHODS:
        seeds = out[method]["seeds"]
        out[method]["seeds_passed"] = sum(
            seed["random"]["difference"]["high"] < 0
            and seed["random"]["share_beaten"] >= 0.9
            for seed in seeds
        )
        out[method]["num_seeds"] = config.seeds
    return out


def _print(result: dict[str, Any]) -> None:
    table = Table(title="Learned mode harness against random ones (nats an answer)")
    against = ("minus random", "beats", "minus random right", "beats")
    for name in ("task", "method", "nats", "exact", *against):
        table.add_column(name)
    for task, rows in {**result["tasks"], "overall": result["overall"]}.items():
        for group, row in rows.items():
            if group == "chosen":
                continue
            cells = [task, group, f"{row['nats']['mean']:.3f}"]
            hit = row.get("exact_match")
            cells.append(f"{hit['mean']:.2f}" if hit else "-")
            for other in ("random", "random_right"):
                seeds = [seed[other] for seed in row.get("seeds", [])]
                gaps = [seed["difference"] for seed in seeds]
                clear = sum(gap["high"] < 0 for gap in gaps)
                mean = np.mean([gap["mean"] for gap in gaps]) if gaps else np.nan
                beaten = np.mean([seed["share_beaten"] for seed in seeds] or [np.nan])
                cells += [f"{mean:+.3f} ({clear}/{len(gaps)})" if gaps else "-"]
                cells += [f"{beaten:.0%}" if seeds else "-"]
            table.add_row(*cells)
    console = Console(width=120)
    console.print(table)
    for method in METHODS:
        row = result["overall"][method]
        console.print(
            f"{method}: {row['seeds_passed']} of {row['num_seeds']} seeds better than "
            "the mean random harness (interval clear of zero) and than 90% of them"
        )
    for task, row in result["gate"].items():
        console.print(f"gate, {task}: Spearman {row['spearman']:.2f}")


if __name__ == "__main__":
    main(tyro.cli(FirstStageConfig, description=__doc__))
