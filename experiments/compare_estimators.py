"""Which gradient estimator to trust: all of them against exact gradients.

    python -m experiments.compare_estimators --quick --out runs/estimators

Question: with the exact gradient known by enumeration, how biased and how noisy is one
step of each estimator, what does it cost, and how fast does it learn? Every member of
``estimators.ESTIMATORS`` that fits a problem is measured, with some variants; one that
fails is reported.
Expected: unbiased estimators stay at their Monte-Carlo floor; straight-through stops
at wrong interior points; a linear fit as control variate has the lowest variance at
equal cost where the loss is nearly linear.
Device and time: two CPU cores, 3 minutes with ``--quick``, else up to 30 minutes.
Results are written after every measurement: a run that was stopped goes on when it is
started again with the same ``--out``.
"""

import contextlib
import dataclasses
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from experiments.microscope import cells, recall, recall_model
from experiments.microscope.chains import Programs
from experiments.microscope.polynomial import METHODS, PolynomialConfig
from experiments.microscope.problems import (
    TOYS,
    Problem,
    landscape_problem,
    toy_problem,
)
from experiments.microscope.report import write_report
from experiments.microscope.variants import check_names, variants_of
from metaharness.errors import RunError
from metaharness.runlog import jsonfile, provenance
from metaharness.runlog.progress import Progress

QUICK_SIZES = cells.Sizes(
    instances=2, chains=12, warmup=16, measured=80, swept=24, learned=200
)
QUICK_PROBLEMS = (
    "quadratic_1_of_8",
    "tanh_network_1_of_8",
    "bernoulli",
    "tanh_network_5_of_10",
    "tanh_network_ordered_3_of_6",
    "polynomial",
)
QUICK_RECALL = 300
"""Steps of training the recall model in a quick run that asks for it."""
AHEAD = 2
"""Programs that a quick run compiles while another runs."""
POLYNOMIAL, RECALL = "polynomial", "recall"


@dataclass(frozen=True)
class CompareConfig:
    """What is compared, and how long."""

    out: Path = Path("runs/estimators")
    """folder of the results; one that holds some goes on"""
    quick: bool = False
    """small sizes and fewer problems: a look, not evidence"""
    estimators: tuple[str, ...] = ()
    """names or labels; all where none is given"""
    problems: tuple[str, ...] = ()
    """all where none is given"""
    landscape: Path | None = None
    """file of measured losses, added as a problem"""
    sizes: cells.Sizes | None = None
    """how much is measured; by ``quick`` where not given"""
    polynomial: PolynomialConfig = field(default_factory=PolynomialConfig)
    seed: int = 0


class Cell(NamedTuple):
    """One measurement to make."""

    estimator: str
    problem: str
    measure: Callable[[], dict[str, Any]]
    prepare: Callable[[], Any] = lambda: None


def resolve(config: CompareConfig) -> CompareConfig:
    """The configuration with every default filled in.

    Raises:
      ValueError: an estimator or a problem that is not known.
    """
    check_names(config.estimators)
    sizes = config.sizes or (QUICK_SIZES if config.quick else cells.Sizes())
    names = [*TOYS, RECALL, POLYNOMIAL]
    unknown = sorted(set(config.problems) - set(names))
    if unknown:
        raise ValueError(
            f"problems {', '.join(unknown)}: unknown; use some of {', '.join(names)}."
        )
    problems = config.problems or (QUICK_PROBLEMS if config.quick else tuple(names))
    bits = config.polynomial
    if config.quick and bits == PolynomialConfig():
        bits = PolynomialConfig(steps=600)
    return dataclasses.replace(config, sizes=sizes, problems=problems, polynomial=bits)


def compare(config: CompareConfig, *, quiet: bool = False) -> dict[str, Any]:
    """Measures what is not measured yet; returns what results.json holds.

    Raises:
      RunError: the folder holds results of another configuration.
    """
    config = resolve(config)
    config.out.mkdir(parents=True, exist_ok=True)
    results = _opened(config)
    before, began = results["seconds"], time.monotonic()
    problems = _problems(config, results, quiet)
    results["about"] |= {problem.name: problem.about for problem in problems}
    todo = list(_cells(config, problems))
    rows = {
        (row["estimator"], row["problem"]): row
        for row in results["rows"]
        if "error" not in row  # what failed is tried again
    }
    with Progress("estimators", total=len(todo), quiet=quiet) as bar:
        for number, cell in enumerate(todo, start=1):
            if config.quick:  # elsewhere it would disturb the times
                _look_ahead(todo[number - 1 : number + AHEAD], rows)
            if (cell.estimator, cell.problem) not in rows:
                rows[cell.estimator, cell.problem] = _measured(cell)
                results["rows"] = list(rows.values())
                results["seconds"] = before + time.monotonic() - began
                jsonfile.write_json(config.out / "results.json", results)
            bar.update(number)
    write_report(config.out, results)
    return results


def _look_ahead(coming: list[Cell], rows: dict[tuple[str, str], Any]) -> None:
    """Compiles what is measured next while this is measured."""
    for cell in coming:
        if (cell.estimator, cell.problem) not in rows:
            # what fails here fails again when it is measured, and is reported then
            with contextlib.suppress(Exception):
                cell.prepare()


def _opened(config: CompareConfig) -> dict[str, Any]:
    """Results of an earlier start, or new ones.

    Raises:
      RunError: the folder holds results of another configuration.
    """
    settings = jsonfile.json_safe(dataclasses.asdict(config))
    settings.pop("out")
    # these choose cells, and change none
    chosen = {name: settings.pop(name) for name in ("estimators", "problems")}
    path = config.out / "results.json"
    found: dict[str, Any] = {"rows": [], "seconds": 0.0, "about": {}}
    if path.exists():
        found = jsonfile.read_json(path)
        old = {k: v for k, v in found["config"].items() if k not in chosen}
        if old != settings:
            differing = sorted(k for k in settings if old.get(k) != settings[k])
            raise RunError(
                f"{path}: made with another configuration ({', '.join(differing)}); "
                "name another --out or delete it."
            )
    data = {}
    if config.landscape:
        held = config.landscape.read_bytes()
        data["landscape"] = hashlib.sha256(held).hexdigest()
    return {
        "rows": found["rows"],
        "config": settings | chosen,
        "provenance": jsonfile.json_safe(provenance.collect(argv=sys.argv, data=data)),
        "seconds": found["seconds"],
        "about": found["about"],
        "skipped": [],
    }


def _problems(
    config: CompareConfig, results: dict[str, Any], quiet: bool
) -> list[Problem]:
    found = [
        toy_problem(name, config.sizes.instances, config.seed)
        for name in config.problems
        if name in TOYS
    ]
    if RECALL in config.problems:
        found.append(
            recall.problem(
                config.sizes.instances,
                config.out,
                config.seed,
                steps=QUICK_RECALL if config.quick else recall_model.STEPS,
                quiet=quiet,
            )
        )
    else:
        results["skipped"].append(
            f"The recall pool was left out, as a model is trained for it: add it with "
            f"--problems {RECALL}."
        )
    if config.landscape:
        found.append(
            landscape_problem(config.landscape, config.sizes.instances, config.seed)
        )
    return found


def _cells(config: CompareConfig, problems: list[Problem]) -> Iterator[Cell]:
    programs = Programs(
        config.sizes.instances, config.sizes.chains, optimize=not config.quick
    )
    for problem in problems:
        for variant in variants_of(
            problem.family,
            path=problem.soft is not None,
            only=config.estimators,
            quick=config.quick,
        ):

            def measure(variant=variant, problem=problem) -> dict[str, Any]:
                return cells.measure_cell(
                    programs, variant, problem, config.sizes, config.seed
                )

            def prepare(variant=variant, problem=problem) -> None:
                programs.prepare(variant, problem)

            yield Cell(variant.label, problem.name, measure, prepare)
    if POLYNOMIAL in config.problems:
        for method in METHODS:
            if config.estimators and method.name not in config.estimators:
                continue
            if config.quick and method.options.get("tau", 1.0) != 1.0:
                continue

            def learn(method=method) -> dict[str, Any]:
                return cells.polynomial_row(method, config.polynomial)

            yield Cell(method.label, POLYNOMIAL, learn)


def _measured(cell: Cell) -> dict[str, Any]:
    """A row; a failure is a row as well."""
    try:
        return jsonfile.json_safe(cell.measure())
    except Exception as error:  # any member may fail in its own way
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        print(f"{cell.estimator} on {cell.problem}: {text}", file=sys.stderr)
        return {"estimator": cell.estimator, "problem": cell.problem, "error": text}


def main(config: CompareConfig) -> None:
    try:
        results = compare(config)
    except ValueError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(f"stopped; the same command goes on from {config.out}/results.json")
    failed = sum("error" in row for row in results["rows"])
    print(
        f"{len(results['rows'])} measurements, {failed} failed: "
        f"{config.out / 'report.html'}, {config.out / 'table.md'}"
    )


if __name__ == "__main__":
    main(tyro.cli(CompareConfig, description=__doc__))
