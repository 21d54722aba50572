"""Do tasks that are trained together want logits of their own, and what is shared?

    python -m experiments.mixed_tasks --data-dir DATA --out runs/mixed-tasks

Question: four tasks in one batch over one union pool: are logits ``shared +
delta[task]`` at least as good as shared logits on every task, and better on the mean?
And does a fifth task learn faster from what they share than from uniform logits, at
equal tokens?
Expected: own logits win, because an exemplar of the own task shows its answer's form.
The shared part prefers the four tasks' exemplars, so that it may mislead the fifth.
Device: one H200, some minutes. On a CPU: --quick, whose results mean nothing.

DATA holds instruction_induction/raw.jsonl.gz.
"""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tyro

from experiments.instruction_induction import load_instruction
from experiments.markdown import signed_interval, table_lines
from experiments.seeds import (
    SeedRuns,
    make_scorer,
    prepare_seeds,
    seed_modes,
    train_seeds,
)
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space, build_space
from metaharness.model.load import Model, load_model
from metaharness.runlog import jsonfile, provenance
from metaharness.runlog.progress import Progress
from metaharness.stats import mean_interval
from metaharness.tasks.normal import normal_question
from metaharness.tasks.task import Task
from metaharness.train.config import EvalConfig, TrainConfig
from metaharness.train.search_config import SearchConfig
from metaharness.train.state import Phi

TOGETHER = ("first_word_letter", "singular_to_plural", "letters_list", "num_to_verbal")
FIFTH = "second_word_letter"
CONDITIONING = ("shared", "task", "independent")


@dataclasses.dataclass(frozen=True)
class MixedTasksConfig:
    """Sizes are per task."""

    out: Path = Path("runs/mixed-tasks")
    data_dir: Path = Path("data")
    seeds: int = 5
    updates: int = 300
    fifth_updates: int = 100
    pool: int = 8
    k: int = 3
    samples: int = 6
    test_items: int = 100
    random_harnesses: int = 32
    phi_rate: float = 0.1
    shrinkage: float = 0.01
    model: str = "smollm2-135m"
    dtype: str = "bfloat16"
    attention: str = "xla"
    quick: bool = False
    """smoke run: tiny sizes, whose results mean nothing"""


def main(config: MixedTasksConfig) -> dict[str, Any]:
    if config.quick:
        config = dataclasses.replace(
            config, seeds=2, updates=3, fifth_updates=3, pool=3, k=2, test_items=4,
            random_harnesses=2, dtype="float32",
        )  # fmt: skip
    began = time.monotonic()
    config.out.mkdir(parents=True, exist_ok=True)
    model = load_model(config.model, dtype=config.dtype)
    tasks = [load_instruction(name, config.data_dir) for name in (*TOGETHER, FIFTH)]
    harness = union_harness(tasks, config)
    made = provenance.collect(argv=("experiments.mixed_tasks",), data={})
    result: dict[str, Any] = {
        "config": jsonfile.json_safe(
            {k: v for k, v in vars(config).items() if k not in ("out", "data_dir")}
        ),
        "provenance": jsonfile.json_safe(made),
    }
    shared = together(model, tasks[:-1], harness, config, result)
    jsonfile.write_json(config.out / "results.json", result)
    fifth(model, tasks[-1], harness, config, shared, result)
    result["wall_s"] = time.monotonic() - began
    jsonfile.write_json(config.out / "results.json", result)
    (config.out / "table.md").write_text(table(result) + "\n")
    print(table(result))
    print(f"results: {config.out / 'results.json'}")
    return result


def union_harness(tasks: list[Task], config: MixedTasksConfig) -> Harness:
    """One pool that every task may use; no word of it is an item that is reported on.

    The tasks share words, so a candidate of one task may ask what another one tests.
    """
    reported = {
        normal_question(item.question)
        for task in tasks
        for item in (*task.test, *task.validation)
    }
    clean = [
        dataclasses.replace(
            task,
            pool=tuple(
                item
                for item in task.pool
                if normal_question(item.question) not in reported
            ),
        )
        for task in tasks
    ]
    union = Exemplars.from_tasks(clean, pool=config.pool, k=config.k)
    return Harness(Exemplars(union.pool, config.k), Templates.named("short"))


def settings(conditioning: str, updates: int, config: MixedTasksConfig) -> TrainConfig:
    return TrainConfig(
        search=SearchConfig(
            warmup_steps=updates,
            relaxed_steps=0,
            measured_steps=0,
            samples=config.samples,
            packs=1 if config.quick else 2,
            learning_rate=config.phi_rate,
            conditioning=conditioning,
            shrinkage=config.shrinkage,
            chunk=config.samples,
        ),
        evaluation=EvalConfig(train_items=256),
    )


def together(
    model: Model,
    tasks: list[Task],
    harness: Harness,
    config: MixedTasksConfig,
    result: dict[str, Any],
) -> Phi:
    """Train the four tasks with each kind of logits; what ``task`` shares, by seed."""
    space = build_space(model, harness, tasks, implementation=config.attention)
    own = {kind: settings(kind, config.updates, config) for kind in CONDITIONING}
    score = make_scorer(space, own["task"], pack_width=128, limit=config.test_items)
    seeds = range(config.seeds)
    with ThreadPoolExecutor() as pool:
        ready = dict(
            zip(
                CONDITIONING,
                pool.map(lambda kind: prepare_seeds(space, own[kind], seeds), own),
                strict=True,
            )
        )
    nats, exact, runs = {}, {}, {}
    for kind in CONDITIONING:
        with Progress(f"logits: {kind}", total=config.updates) as bar:
            runs[kind] = train_seeds(ready.pop(kind), shown=bar.update)
        modes = seed_modes(space, runs[kind])
        scores = [
            score(None, [[choices[at] for choices in modes]], at)
            for at in range(len(tasks))
        ]
        nats[kind] = [one.nats[0] for one in scores]
        exact[kind] = [one.exact[0].astype(float) for one in scores]
    rng = np.random.default_rng(0)
    random = random_scores(space, score, config)
    result["together"] = {
        "tasks": [task.name for task in tasks],
        "loss": {
            kind: [mean_interval(x, rng=rng) for x in own] for kind, own in nats.items()
        },
        "exact_match": {
            kind: [mean_interval(x, rng=rng) for x in own]
            for kind, own in exact.items()
        },
        "random": [mean_interval(x, rng=rng) for x in random],
        "difference": {
            kind: _differences(nats[kind], nats["shared"], rng)
            for kind in CONDITIONING
            if kind != "shared"
        },
        "tokens": {
            kind: {"forward": run.forward, "backward": run.backward}
            for kind, run in runs.items()
        },
        "train_s": {kind: run.train_s for kind, run in runs.items()},
    }
    phi = runs["task"].state.phi
    fresh = {slot: jnp.zeros_like(x[:, :1]) for slot, x in phi.delta.items()}
    return Phi(phi.shared, fresh)


def _differences(own, other, rng) -> dict[str, Any]:
    """Paired by seed and item: each task, and the mean of the tasks' losses."""
    pairs = [a - b for a, b in zip(own, other, strict=True)]
    shortest = min(pair.shape[1] for pair in pairs)
    mean = np.mean([pair[:, :shortest] for pair in pairs], axis=0)
    return {
        "by_task": [mean_interval(pair, rng=rng) for pair in pairs],
        "mean": mean_interval(mean, rng=rng),
    }


def random_scores(space: Space, score, config: MixedTasksConfig) -> list[np.ndarray]:
    """Nats of random harnesses, ``[task][harness, item]``."""
    rng = np.random.default_rng(1)
    out = []
    for task in range(space.num_tasks):
        drawn = space.harness.random_choices(
            config.random_harnesses, task, space.num_tasks, rng
        )
        # the scorer's seed axis holds the harnesses
        out.append(score(None, [drawn], task).nats[0])
    return out


def fifth(
    model: Model,
    task: Task,
    harness: Harness,
    config: MixedTasksConfig,
    shared: Phi,
    result: dict[str, Any],
) -> None:
    """A task that was not trained on: from the shared part, and from uniform logits."""
    space = build_space(model, harness, [task], implementation=config.attention)
    own = settings("independent", config.fifth_updates, config)
    score = make_scorer(space, own, pack_width=128, limit=config.test_items)
    seeds = range(config.seeds)
    rng = np.random.default_rng(2)
    curves: dict[str, Any] = {}
    nats = {}
    for name, start in (("shared", shared), ("uniform", None)):
        prepared = prepare_seeds(space, own, seeds, start=start)
        with Progress(f"fifth task from {name}", total=config.fifth_updates) as bar:
            runs = train_seeds(prepared, shown=bar.update)
        cells = [_mode(space, runs, at) for at in range(len(runs.steps))]
        if start is not None:
            first = _top(space, np.asarray(start.shared[EXEMPLARS]),
                         np.asarray(start.shared[TEMPLATE]))  # fmt: skip
        else:
            first = [Choice(tuple(range(config.k)), 0)] * config.seeds
        found = score(None, [first, *cells], 0)
        nats[name] = found.nats
        curves[name] = {
            "updates": [0, *runs.steps],
            "loss": [mean_interval(x, rng=rng) for x in found.nats],
            "exact_match": [
                mean_interval(x.astype(float), rng=rng) for x in found.exact
            ],
            "tokens": runs.forward + runs.backward,
            "train_s": runs.train_s,
        }
    result["fifth"] = {
        "task": task.name,
        "curves": curves,
        "random": mean_interval(random_scores(space, score, config)[0], rng=rng),
        "difference": [
            mean_interval(a - b, rng=rng)
            for a, b in zip(nats["shared"], nats["uniform"], strict=True)
        ],
    }


def _mode(space: Space, runs: SeedRuns, at: int) -> list[Choice]:
    """The likeliest harness of every seed when probabilities were kept."""
    return _top(
        space, runs.chances[EXEMPLARS][at][:, 0], runs.chances[TEMPLATE][at][:, 0]
    )


def _top(space: Space, exemplars: np.ndarray, template: np.ndarray) -> list[Choice]:
    """Likeliest harness of each row; chances and logits rank candidates alike."""
    k = space.harness.k
    return [
        Choice(
            tuple(sorted(int(i) for i in np.argsort(-row, kind="stable")[:k])),
            int(np.argmax(own)),
        )
        for row, own in zip(exemplars, template, strict=True)
    ]


def table(result: dict[str, Any]) -> str:
    """Both questions, with intervals; the verdicts are computed."""
    found = jsonfile.json_safe(result)
    own = found["together"]
    rows = []
    for at, name in enumerate(own["tasks"]):
        rows.append(
            [
                name,
                f"{own['random'][at]['mean']:.2f}",
                *(
                    f"{own['loss'][kind][at]['mean']:.2f} "
                    f"({own['exact_match'][kind][at]['mean']:.0%})"
                    for kind in CONDITIONING
                ),
                signed_interval(own["difference"]["task"]["by_task"][at]),
            ]
        )
    rows.append(
        ["mean", "", "", "", "", signed_interval(own["difference"]["task"]["mean"])]
    )
    head = ("task", "random", *CONDITIONING, "task - shared")
    lines = table_lines("Four tasks, one pool: nats (exact match)", head, rows)
    fifth = found["fifth"]
    updates = fifth["curves"]["shared"]["updates"]
    rows = [
        [
            str(update),
            f"{fifth['curves']['shared']['loss'][at]['mean']:.2f}",
            f"{fifth['curves']['uniform']['loss'][at]['mean']:.2f}",
            signed_interval(fifth["difference"][at]),
        ]
        for at, update in enumerate(updates)
    ]
    head = ("updates", "from shared", "from uniform", "difference")
    lines += ["", *table_lines(f"Fifth task, {fifth['task']}: nats", head, rows)]
    return "\n".join([*lines, "", verdict(found)])


def verdict(found: dict[str, Any]) -> str:
    """What the intervals say."""
    own = found["together"]["difference"]["task"]
    worse = [
        name
        for name, row in zip(found["together"]["tasks"], own["by_task"], strict=True)
        if row["low"] > 0
    ]
    said = (
        f"Own logits are worse than shared ones on {', '.join(worse)}"
        if worse
        else "Own logits are worse than shared ones on no task"
    )
    mean = own["mean"]
    if mean["high"] < 0:
        said += f" and better on the mean ({signed_interval(mean)})."
    else:
        said += f"; on the mean no gain is shown ({signed_interval(mean)})."
    last = found["fifth"]["difference"][-1]
    half = found["fifth"]["difference"][len(found["fifth"]["difference"]) // 2]
    for when, row in (("halfway", half), ("at the end", last)):
        if row["high"] < 0:
            said += f" Starting from what is shared is better {when} "
        elif row["low"] > 0:
            said += f" Starting from what is shared is worse {when} "
        else:
            said += f" Starting from what is shared makes no difference shown {when} "
        said += f"({signed_interval(row)})."
    return said


if __name__ == "__main__":
    main(tyro.cli(MixedTasksConfig, description=__doc__))
