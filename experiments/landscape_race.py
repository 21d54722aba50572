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
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
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
    Problem,
    entries,
)
from experiments.landscape_rows import (
    gradient_rows,
    learned_rows,
    make_settings,
    named,
    searched_row,
)
from experiments.landscape_steps import make_stepper
from metaharness.errors import InputError
from metaharness.model.load import Model
from metaharness.runlog import jsonfile, provenance
from metaharness.runlog.progress import Progress
from metaharness.tasks.task import Task


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
    settings = {problem.kind: make_settings(config, problem) for problem in problems}
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
                result["left_out"].append(named(entry) | {"why": reason})
            else:
                stepper = make_stepper(entry, landscape.table, gate)
                own = settings[entry.problem.kind]
                result["rows"] += gradient_rows(config, entry, stepper, own)
                if not entry.reference:
                    result["rows"] += learned_rows(config, landscape, entry, stepper)
            save()
            bar.update(number + 1)
        for number, (name, search) in enumerate(searches.items()):
            try:
                result["rows"].append(searched_row(config, landscape, name, search))
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


def cli() -> None:
    """Command line; wrong input is one line and status 2."""
    try:
        main(tyro.cli(RaceConfig, description=__doc__))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    cli()
