"""Which of harness and weights brings the gain, and does their order matter?

    python -m experiments.both_stages --data-dir DATA --out runs/both-stages

Question: on tasks where the harness matters to the embedded model, on one where it
should not, and on GSM8K with a pool of mixed quality: what do phi alone, theta alone,
both one after the other and both at once bring, at an equal number of updates? Also the
first ablation script: one estimator swapped per slot.
Expected: phi brings much on the first two, little on the third; theta brings most
where an answer's form is to be learned, and makes the choice of exemplars matter less.
Device: one H200, some ten minutes. On a CPU: --quick, whose results mean nothing.

DATA holds instruction_induction/raw.jsonl.gz and gsm8k/. Cells (task x method) are
appended to results.json as they are done; a second run goes on with those missing. The
stored cells were made side by side on four GPUs, each process with its own tasks or
methods, and joined.
"""

import dataclasses
import functools
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.instruction_induction import load_instruction
from experiments.markdown import signed_interval, table_lines
from experiments.seeds import (
    Prepared,
    SeedRuns,
    make_scorer,
    prepare_seeds,
    seed_modes,
    train_seeds,
)
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space, build_space
from metaharness.model.load import Model, load_model
from metaharness.model.lora_config import LoraConfig
from metaharness.runlog import jsonfile, provenance
from metaharness.runlog.progress import Progress
from metaharness.stats import mean_interval
from metaharness.tasks.registry import load_task
from metaharness.tasks.task import SplitSizes, Task
from metaharness.train.attribution import seed_choice
from metaharness.train.config import EvalConfig, TrainConfig
from metaharness.train.search_config import SearchConfig
from metaharness.train.stage_config import ScheduleConfig, WeightsConfig

GSM8K = "gsm8k"
TASKS = ("first_word_letter", "singular_to_plural", "larger_animal", GSM8K)
METHODS: dict[str, str] = {
    "phi": "harness alone",
    "theta": "weights alone",
    "two_stage": "harness, then in turns",
    "simultaneous": "both at once",
    "phi_reinforce": "harness alone, exemplars by leave-one-out",
    "phi_drawn_template": "harness alone, templates drawn",
}
CELLS = {
    "base_seed": "base weights, seed harness",
    "base_learned": "base weights, learned harness",
    "adapted_seed": "adapted weights, seed harness",
    "adapted_learned": "adapted weights, learned harness",
    "without_exemplars": "seed's exemplars put back",
    "without_template": "seed's template put back",
}
EFFECTS = {
    "harness_at_base": ("base_learned", "base_seed"),
    "weights_at_seed": ("adapted_seed", "base_seed"),
    "harness_at_adapted": ("adapted_learned", "adapted_seed"),
    "weights_at_learned": ("adapted_learned", "base_learned"),
    "total": ("adapted_learned", "base_seed"),
    "exemplars": ("adapted_learned", "without_exemplars"),
    "template": ("adapted_learned", "without_template"),
}


@dataclasses.dataclass(frozen=True)
class BothStagesConfig:
    """Sizes are per task."""

    out: Path = Path("runs/both-stages")
    data_dir: Path = Path("data")
    tasks: tuple[str, ...] = TASKS
    methods: tuple[str, ...] = tuple(METHODS)
    seeds: int = 5
    updates: int = 300
    pool: int = 24
    k: int = 3
    samples: int = 6
    test_items: int = 256
    rank: int = 8
    phi_rate: float = 0.1
    theta_rate: float = 5e-4
    model: str = "smollm2-135m"
    dtype: str = "bfloat16"
    attention: str = "xla"
    quick: bool = False
    """smoke run: tiny sizes, whose results mean nothing"""


def main(config: BothStagesConfig) -> dict[str, Any]:
    if config.quick:
        config = dataclasses.replace(
            config, seeds=2, updates=6, pool=5, k=2, test_items=4, rank=2,
            dtype="float32",
        )  # fmt: skip
    config.out.mkdir(parents=True, exist_ok=True)
    path = config.out / "results.json"
    result = _opened(path, config)
    model = load_model(config.model, dtype=config.dtype)
    for name in config.tasks:
        todo = [
            method
            for method in config.methods
            if not any(_is(cell, name, method) for cell in result["cells"])
        ]
        if not todo:
            continue
        space = make_space(model, name, config)
        score = make_scorer(
            space,
            settings("two_stage", name, config),
            pack_width=512 if name == GSM8K else 128,
            limit=config.test_items,
        )
        with ThreadPoolExecutor() as pool:  # compilation takes most of the time
            ready = pool.map(
                functools.partial(_prepare, space, name, config),
                todo,
            )
            prepared = dict(zip(todo, ready, strict=True))
        for method in todo:
            cell = run_cell(space, name, method, config, score, prepared.pop(method))
            result["cells"].append(cell)
            jsonfile.write_json(path, result)
            (config.out / "table.md").write_text(table(result) + "\n")
    print(table(result))
    print(f"results: {path}")
    return result


def make_space(model: Model, name: str, config: BothStagesConfig) -> Space:
    """One task; half of GSM8K's pool is bad on purpose, the others are all right."""
    task = load(name, config)
    exemplars = Exemplars.from_task(
        task,
        pool=config.pool,
        k=config.k,
        share_right=0.5 if name == GSM8K else 1.0,
    )
    harness = Harness(exemplars, Templates.named("short"))
    return build_space(model, harness, [task], implementation=config.attention)


def load(name: str, config: BothStagesConfig) -> Task:
    if name != GSM8K:
        return load_instruction(name, config.data_dir)
    sizes = SplitSizes(pool=48, train=256, validation=64, test=config.test_items)
    return load_task(GSM8K, data_dir=config.data_dir, sizes=sizes)


def settings(method: str, name: str, config: BothStagesConfig) -> TrainConfig:
    """The training that a method stands for."""
    third = config.updates // 3
    harness = {"kind": "harness"}
    schedules = {
        "theta": ({"kind": "weights", "steps": config.updates}, 1),
        "two_stage": (
            {
                "kind": "two-stage",
                "steps": config.updates - third,
                "harness_block": 1,
                "weights_block": 3,
            },
            third,
        ),
        "simultaneous": ({"kind": "joint", "steps": config.updates}, 1),
    }
    schedule, measured = schedules.get(method, (harness, config.updates))
    swapped = {
        "phi_reinforce": {"estimator": "reinforce"},
        "phi_drawn_template": {"template_estimator": "reinforce"},
    }
    long = name == GSM8K
    return TrainConfig(
        schedule=ScheduleConfig(**schedule),
        search=SearchConfig(
            warmup_steps=measured,
            relaxed_steps=0,
            measured_steps=0,
            samples=config.samples,
            packs=1 if config.quick else 2,
            pack_width=512 if long else 128,
            learning_rate=config.phi_rate,
            chunk=2 if long else config.samples,
            **swapped.get(method, {}),
        ),
        weights=WeightsConfig(
            samples=config.samples, learning_rate=config.theta_rate, warmup_updates=10
        ),
        lora=LoraConfig(rank=config.rank, alpha=2.0 * config.rank),
        evaluation=EvalConfig(train_items=256),
    )


def _prepare(space: Space, name: str, config, method: str) -> Prepared:
    return prepare_seeds(space, settings(method, name, config), range(config.seeds))


def run_cell(
    space: Space,
    name: str,
    method: str,
    config: BothStagesConfig,
    score,
    prepared: Prepared,
) -> dict[str, Any]:
    """Train every seed, score the 2 x 2 and the slots put back, on the test items."""
    began = time.monotonic()
    train = settings(method, name, config)
    with Progress(f"{name}, {method}", total=config.updates) as bar:
        runs = train_seeds(prepared, shown=bar.update)
    seed = [seed_choice(space, 0)] * config.seeds
    learned = seed
    if train.schedule.trains_harness:
        learned = [choices[0] for choices in seed_modes(space, runs)]
    cells = cell_scores(score, runs, seed, learned)
    rng = np.random.default_rng(0)
    return {
        "task": name,
        "method": method,
        "seeds": config.seeds,
        "updates": len(runs.losses),
        "num_items": cells["base_seed"][0].shape[1],
        "cells": {key: _summary(*value, rng) for key, value in cells.items()},
        "effects": {
            effect: mean_interval(cells[one][0] - cells[other][0], rng=rng)
            for effect, (one, other) in EFFECTS.items()
        },
        "effects_exact": {
            effect: mean_interval(cells[one][1] - cells[other][1], rng=rng)
            for effect, (one, other) in EFFECTS.items()
        },
        "chosen": [_named(space, choice) for choice in learned],
        "forward_tokens": runs.forward,
        "backward_tokens": runs.backward,
        "train_s": runs.train_s,
        "compile_s": runs.compile_s,
        "wall_s": time.monotonic() - began,
        "loss_curve": np.round(runs.losses.mean(axis=(1, 2), dtype=float), 3),
        "steps": runs.steps,
        "chances": {
            slot: np.round(values.mean(axis=1, dtype=float)[:, 0], 4)
            for slot, values in runs.chances.items()
        },
    }


def cell_scores(score, runs: SeedRuns, seed, learned) -> dict[str, tuple]:
    """Cell -> nats and exact match, each ``[seed, item]``."""
    put_back = [
        [own._replace(exemplars=seed[0].exemplars) for own in learned],
        [own._replace(template=seed[0].template) for own in learned],
    ]
    theta = runs.state.theta
    base = score(None, [seed, learned, *put_back], 0)
    last = base if theta is None else score(theta, [seed, learned, *put_back], 0)
    rows = (
        (base, 0), (base, 1), (last, 0), (last, 1), (last, 2), (last, 3)
    )  # fmt: skip
    return {
        name: (scores.nats[at], scores.exact[at].astype(float))
        for name, (scores, at) in zip(CELLS, rows, strict=True)
    }


def _summary(nats: np.ndarray, exact: np.ndarray, rng) -> dict[str, Any]:
    return {
        "loss": mean_interval(nats, rng=rng),
        "exact_match": mean_interval(exact, rng=rng),
        "loss_by_seed": nats.mean(axis=1),
        "exact_by_seed": exact.mean(axis=1),
    }


def _named(space: Space, choice) -> dict[str, Any]:
    template, exemplars = space.harness.parts(choice)
    return {TEMPLATE: template.name, EXEMPLARS: [e.uid for e in exemplars]}


def _is(cell: dict[str, Any], task: str, method: str) -> bool:
    return (cell["task"], cell["method"]) == (task, method)


def _opened(path: Path, config: BothStagesConfig) -> dict[str, Any]:
    """A new result, or one with cells of the same configuration to go on with."""
    free = ("out", "data_dir", "tasks", "methods")
    own = {
        name: value
        for name, value in jsonfile.json_safe(config).items()
        if name not in free
    }
    if path.is_file():
        found = jsonfile.read_json(path)
        if found["config"] != own:
            sys.exit(f"{path}: has cells of another configuration; name another --out")
        return found
    made = provenance.collect(argv=("experiments.both_stages",), data={})
    return {"config": own, "provenance": jsonfile.json_safe(made), "cells": []}


def table(result: dict[str, Any]) -> str:
    """One line a cell; says where some are missing."""
    done = {(cell["task"], cell["method"]) for cell in result["cells"]}
    missing = [(t, m) for t in TASKS for m in METHODS if (t, m) not in done]
    rows = []
    for cell in jsonfile.json_safe(result["cells"]):
        cells, effects = cell["cells"], cell["effects"]
        rows.append(
            [
                cell["task"],
                METHODS[cell["method"]],
                *(_loss(cells[name]) for name in list(CELLS)[:4]),
                signed_interval(effects["total"]),
                f"{np.mean(cell['loss_curve'][-10:]):.2f}",
                f"{cell['forward_tokens'] / 1e6:.2f} + "
                f"{cell['backward_tokens'] / 1e6:.2f}",
                f"{cell['train_s']:.0f}",
            ]
        )
    head = (
        "task", "trained", "base, seed", "base, learned", "adapted, seed",
        "adapted, learned", "total effect", "training, last 10",
        "Mtokens fwd + bwd a seed", "s, all seeds",
    )  # fmt: skip
    text = "\n".join(table_lines("Both stages", head, rows))
    if missing:
        text += f"\n\nPartial: {len(missing)} of {len(TASKS) * len(METHODS)} cells are "
        text += "missing (" + ", ".join(" ".join(pair) for pair in missing) + ")."
    return text


def _loss(cell: dict[str, Any]) -> str:
    return f"{cell['loss']['mean']:.2f} ({cell['exact_match']['mean']:.0%})"


if __name__ == "__main__":
    main(tyro.cli(BothStagesConfig, description=__doc__))
