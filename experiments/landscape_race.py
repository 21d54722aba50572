"""Which estimator should be trusted on a real model's loss, and which search wins?

    python -m experiments.landscape_race runs/landscape.npz --out runs/race
    python -m experiments.landscape_race runs/landscape.npz --out runs/race --gate

Questions, on a landscape (``experiments.landscape``) whose optimum is known:
  a. How close is one step's estimate to the exact gradient, at equal evaluations (one
     is one harness on one item, a backward pass counts as one more)? Steps see a random
     item batch; windows and fits have first seen ``past_steps`` steps at these logits.
  b. How far above the optimum is the deployed harness, against evaluations spent? Adam
     on logits with the same learning rates for all, each chosen on seeds of its own,
     against random search, successive halving and TPE.
Expected: estimators that reuse old evaluations have the highest cosine; whether any
beats the searches is the question. The report says who won.
Device and time: values-only members take minutes on 2 CPU cores for 2,208 harnesses x
64 items; ``--gate`` also runs the members that read the relaxed objective, with the
real model: one H200.

``--out`` gets ``results.json`` (after every estimator), ``report.md``, ``report.html``.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.landscape_baselines import baselines
from experiments.landscape_file import Landscape, load_landscape
from experiments.landscape_gate import make_gate
from experiments.landscape_page import write_report
from experiments.landscape_problems import (
    PATH,
    PROBLEMS,
    SLOPE,
    VALUES,
    Entry,
    Problem,
    entries,
)
from experiments.landscape_steps import Stepper, estimate, learn, make_stepper
from metaharness.errors import InputError
from metaharness.model.load import Model
from metaharness.runlog import jsonfile, provenance
from metaharness.runlog.progress import Progress
from metaharness.stats import mean_interval
from metaharness.tasks.task import Task

_CHOICE_SEEDS = 1000
"""Learning rates are chosen on seeds from here on."""


@dataclass(frozen=True)
class RaceConfig:
    """Sizes of the race."""

    landscape: Annotated[Path, tyro.conf.Positional]
    """landscape file"""
    out: Path = Path("runs/race")
    seeds: int = 20
    problems: tuple[str, ...] = PROBLEMS
    needs: tuple[str, ...] = (VALUES, SLOPE, PATH)
    """members that need these: values, slope, path; without values no searches"""
    results: tuple[Path, ...] = ()
    """results.json of earlier races on this landscape, whose rows join the report"""
    evaluations: int = 128
    """a step may cost at most this many"""
    samples: int = 16
    """harnesses a step"""
    past_steps: int = 4
    """steps at the same logits before an estimate counts"""
    repeats: int = 8
    """estimates of each seed"""
    scales: tuple[float, ...] = (0.0, 1.0)
    """standard deviations of the logits at which gradients are estimated"""
    steps: int = 100
    """of a learning run"""
    learning_rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    gate: bool = False
    """also members that read the relaxed objective (real model)"""
    gate_chunk: int = 0
    """rows run at once through the gate; 0: 2 on a CPU, 32 elsewhere"""
    gate_precision: str = "default"
    """of the gate's float32 matrix products: "highest", or "default" (TF32 on GPUs)"""
    gate_steps: int = 25
    """steps of learning runs through the gate, at most; 0: as ``steps``"""
    gate_paths_learn: bool = False
    """learning runs of members with a path too (a long job)"""
    data_dir: Path | None = None
    quick: bool = False
    """smoke run: tiny sizes, whose results mean nothing"""

    def __post_init__(self) -> None:
        for name in ("seeds", "evaluations", "samples", "repeats", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1")
        if self.gate_precision not in ("highest", "default"):
            raise InputError(
                "gate_precision: expected highest or default, got "
                f"{self.gate_precision!r}"
            )
        unknown = set(self.needs) - {VALUES, SLOPE, PATH}
        if unknown:
            raise InputError(
                f"needs: expected some of {VALUES}, {SLOPE}, {PATH}, got "
                f"{', '.join(sorted(unknown))}"
            )
        unknown = set(self.problems) - set(PROBLEMS)
        if unknown:
            raise InputError(
                f"problems: expected some of {', '.join(PROBLEMS)}, got "
                f"{', '.join(sorted(unknown))}"
            )


def main(
    config: RaceConfig, *, model: Model | None = None, task: Task | None = None
) -> dict[str, Any]:
    """Race everything; the results, as written."""
    if config.quick:
        config = dataclasses.replace(
            config, seeds=2, repeats=2, steps=3, learning_rates=(0.3,), past_steps=1
        )
    started = time.monotonic()
    config.out.mkdir(parents=True, exist_ok=True)
    landscape = load_landscape(config.landscape)
    gate = None
    result = _start(config, landscape)
    if config.gate:
        chunk = config.gate_chunk or (2 if jax.default_backend() == "cpu" else 32)
        gate = make_gate(
            landscape,
            chunk=chunk,
            precision=config.gate_precision,
            data_dir=config.data_dir,
            model=model,
            task=task,
        )
        num = min(256, len(landscape.template))
        result["gate"] = {"spearman": gate.agreement(num, 0), "harnesses": num}
    problems = [Problem(kind, landscape) for kind in config.problems]
    settings = {problem.kind: _settings(config, problem) for problem in problems}
    field = [
        entry
        for problem in problems
        for entry in entries(
            problem,
            evaluations=config.evaluations,
            samples=config.samples,
            past_steps=config.past_steps,
        )
        if entry.needs in config.needs
    ]
    searches = baselines(
        landscape.num_items,
        max(min(config.evaluations // config.samples, landscape.num_items), 1),
    )

    def save():
        result["wall_s"] = time.monotonic() - started
        jsonfile.write_json(config.out / "results.json", result)

    if VALUES not in config.needs:
        searches = {}
    _join(config, landscape, result)

    with Progress("race", total=len(field) + len(searches)) as bar:
        for number, entry in enumerate(field):
            reason = entry.refused
            if not reason and entry.needs != VALUES and gate is None:
                reason = "reads the relaxed objective; run with --gate"
            if reason:
                result["left_out"].append(_named(entry) | {"why": reason})
            else:
                stepper = make_stepper(entry, landscape.table, gate)
                own = settings[entry.problem.kind]
                result["rows"] += _cosines(config, entry, stepper, own)
                if not entry.reference:
                    result["rows"] += _learned(config, landscape, entry, stepper)
            save()
            bar.update(number + 1)
        for number, (name, search) in enumerate(searches.items()):
            try:
                result["rows"].append(_searched(config, landscape, name, search))
            except InputError as error:
                row = {"estimator": name, "problem": "search", "why": str(error)}
                result["left_out"].append(row)
            save()
            bar.update(len(field) + number + 1)
    write_report(config.out, result)
    print(f"{config.out}: results.json, report.md, report.html")
    return result


def _start(config: RaceConfig, landscape: Landscape) -> dict[str, Any]:
    header = landscape.header
    means = landscape.mean_losses
    return {
        "config": jsonfile.json_safe(config),
        "provenance": provenance.collect(
            argv=sys.argv,
            data={
                "landscape": header["sha256"]["losses"],
                "model": header["identity"]["model_digest"],
            },
        ),
        "landscape": {
            "task": header["config"]["task"],
            "model": header["config"]["model"],
            "harnesses": len(means),
            "items": landscape.num_items,
            "evaluations": landscape.loss.size,
            "best": float(means.min()),
            "mean": float(means.mean()),
            "worst": float(means.max()),
            "best_harness": _harness(landscape, landscape.best),
        },
        "gate": None,
        "left_out": [],
        "rows": [],
    }


def _join(config: RaceConfig, landscape: Landscape, result: dict[str, Any]) -> None:
    """Rows of earlier races, first; their left-out members only where none has run."""
    digest = landscape.header["sha256"]["losses"]
    for path in config.results:
        earlier = jsonfile.read_json(path)
        if earlier["provenance"]["data"]["landscape"] != digest:
            raise InputError(f"{path}: a race on another landscape")
        result["rows"] += earlier["rows"]
        result["left_out"] += earlier["left_out"]
        result["gate"] = result["gate"] or earlier["gate"]
    ran = {(row["problem"], row["estimator"]) for row in result["rows"]}
    result["left_out"] = [
        row
        for row in result["left_out"]
        if (row["problem"], row["estimator"]) not in ran
    ]


def _harness(landscape: Landscape, at: int) -> dict[str, Any]:
    header = landscape.header
    return {
        "template": header["templates"][landscape.template[at]],
        "exemplars": [header["exemplars"][i]["uid"] for i in landscape.shots[at]],
    }


def _named(entry: Entry) -> dict[str, Any]:
    return {
        "estimator": entry.name,
        "problem": entry.problem.kind,
        "needs": entry.needs,
    }


def _keys(seeds: Sequence[int]) -> jax.Array:
    return jax.vmap(jax.random.key)(jnp.asarray(list(seeds)))


def _cosines(
    config: RaceConfig, entry: Entry, stepper: Stepper, settings: "Settings"
) -> list[dict[str, Any]]:
    """One row a scale: means over estimates for each seed, intervals over seeds."""
    found = estimate(
        entry,
        stepper,
        settings.keys,
        settings.logits,
        past_steps=config.past_steps,
        repeats=config.repeats,
    )
    rows = []
    for number, scale in enumerate(config.scales):
        part = slice(number * config.seeds, (number + 1) * config.seeds)
        metrics, seeds = quality(
            jax.tree.map(lambda x, part=part: x[:, part], found),
            jax.tree.map(lambda x, part=part: x[part], settings.exact),
        )
        rows.append(
            _named(entry)
            | {
                "kind": "gradient",
                "scale": scale,
                "harnesses_a_step": entry.rows,
                "items_a_step": entry.num_items,
                "evaluations": entry.cost,
                "past_evaluations": (
                    0
                    if entry.needs == PATH or entry.reference
                    else config.past_steps * entry.cost
                ),
                "reference": entry.reference,
                "metrics": metrics,
                "seeds": seeds,
            }
        )
    return rows


class Settings(NamedTuple):
    """Where a problem's gradients are estimated: every seed at every scale.

    keys ``[scale * seed]``; logits and exact gradients over the same axis.
    """

    keys: jax.Array
    logits: Any
    exact: Any


def _settings(config: RaceConfig, problem: Problem) -> Settings:
    seeds = list(range(config.seeds))
    unit = jax.vmap(lambda key: problem.normal(jax.random.fold_in(key, 0), 1.0))(
        _keys(seeds)
    )
    logits = jax.tree.map(
        lambda x: jnp.concatenate([scale * x for scale in config.scales]), unit
    )
    exact = jax.jit(lambda x: jax.lax.map(jax.grad(problem.expected), x))(logits)
    # the same noise at every scale
    keys = jax.vmap(jax.random.fold_in, (0, None))(_keys(seeds * len(config.scales)), 1)
    return Settings(keys, logits, jax.device_get(exact))


def quality(found: Any, exact: Any) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Cosine and relative squared error of gradients ``[repeat, seed]`` over slots.

    Returns metrics with intervals over seeds, and each seed's means. Cosine of a zero
    estimate is 0. "cosine" and "error" are those of all slots together.
    """
    slots = {"": (found, exact)}
    if isinstance(found, dict):
        slots = {f"_{slot}": (found[slot], exact[slot]) for slot in sorted(found)}
        joined = [
            np.concatenate([np.asarray(part[slot]) for slot in sorted(part)], axis=-1)
            for part in (found, exact)
        ]
        slots = {"": tuple(joined)} | slots
    metrics, seeds = {}, {}
    rng = np.random.default_rng(0)
    for end, (guess, truth) in slots.items():
        guess, truth = np.asarray(guess, np.float64), np.asarray(truth, np.float64)
        size = np.linalg.norm(truth, axis=-1)
        norms = np.linalg.norm(guess, axis=-1) * size
        dot = (guess * truth).sum(axis=-1)
        cosine = np.where(norms > 0, dot / np.where(norms > 0, norms, 1), 0)
        error = ((guess - truth) ** 2).sum(axis=-1) / np.maximum(size**2, 1e-30)
        for name, values in (("cosine", cosine), ("error", error)):
            by_seed = values.mean(axis=0)
            seeds[name + end] = by_seed.tolist()
            metrics[name + end] = mean_interval(by_seed, rng=rng)._asdict()
    return metrics, seeds


def _grid(config: RaceConfig) -> np.ndarray:
    """Evaluations at which regret is read: doubling, up to the whole run."""
    total = config.steps * config.evaluations
    count = max(int(np.log2(config.steps)), 0) + 1
    halved = total / 2.0 ** np.arange(count)[::-1]
    return np.unique(np.maximum(halved.astype(int), config.evaluations))


def _learned(
    config: RaceConfig, landscape: Landscape, entry: Entry, stepper: Stepper
) -> list[dict[str, Any]]:
    """One row: regret of the deployed harness at every cost of the grid."""
    if entry.needs == PATH and not config.gate_paths_learn:
        return []
    steps = config.steps
    if entry.needs != VALUES and config.gate_steps:
        steps = min(steps, config.gate_steps)
    grid = _grid(config)
    grid = grid[grid <= steps * config.evaluations]
    at = np.minimum(grid // entry.cost, steps) - 1  # steps that a budget pays for

    seeds = [*range(config.seeds), *range(_CHOICE_SEEDS, _CHOICE_SEEDS + config.seeds)]
    found = []
    for rate in config.learning_rates:
        run = learn(entry, stepper, _keys(seeds), rate, steps=steps)
        found.append(landscape.regret(run.template[at], run.shots[at]).T)
    found = np.stack(found)  # [rate, seed, budget]
    chosen = int(found[:, config.seeds :, -1].mean(axis=1).argmin())
    row = _regret_row(landscape, grid, found[chosen, : config.seeds])
    return [
        _named(entry)
        | {"kind": "regret", "learning_rate": config.learning_rates[chosen]}
        | row
    ]


def _searched(config: RaceConfig, landscape: Landscape, name: str, search) -> dict:
    grid = _grid(config)
    deployed = np.stack(
        [search(landscape, grid, np.random.default_rng(s)) for s in range(config.seeds)]
    )
    regret = landscape.mean_losses[deployed] - landscape.mean_losses.min()
    return {
        "estimator": name,
        "problem": "search",
        "needs": VALUES,
        "kind": "regret",
    } | _regret_row(landscape, grid, regret)


def _regret_row(
    landscape: Landscape, grid: np.ndarray, regret: np.ndarray
) -> dict[str, Any]:
    """Regret ``[seed, budget]`` as means, medians and intervals over seeds."""
    rng = np.random.default_rng(0)
    ordered = np.sort(landscape.mean_losses) - landscape.mean_losses.min()
    worse = 1 - np.searchsorted(ordered, regret[:, -1], side="right") / len(ordered)
    curve = [mean_interval(column, rng=rng)._asdict() for column in regret.T]
    return {
        "evaluations": grid.tolist(),
        "metrics": {
            "regret": curve[-1],
            "median_regret": float(np.median(regret[:, -1])),
            "percentile": float(worse.mean()),
            "optimum_found": float((regret[:, -1] <= 1e-9).mean()),
            "curve": curve,
            "median_curve": np.median(regret, axis=0).tolist(),
        },
        "seeds": {"regret": regret.tolist()},
    }


def cli() -> None:
    """Command line; wrong input is one line and status 2."""
    try:
        main(tyro.cli(RaceConfig, description=__doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    cli()
