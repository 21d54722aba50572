"""One cell of a sweep: a run directory, from nothing or from where it was stopped.

FOLDER/cell.json    settings, state, result
FOLDER/train/       run of a learned method
FOLDER/evaluate/    run of the evaluation: episodes, prompts, scores
"""

import dataclasses
import gc
import shutil
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.sweep_grid import Cell
from benchmarks.sweep_result import over, summary
from metaharness import keys
from metaharness.errors import InputError
from metaharness.harness.file import load_harness_file
from metaharness.harness.from_file import build_harness, check_file_lengths
from metaharness.harness.grading import Sampling
from metaharness.harness.learned import load_learned
from metaharness.harness.slots import Choice, Harness
from metaharness.harness.space import build_space
from metaharness.model.adapter import has_adapter, with_adapter
from metaharness.model.load import Model, load_model
from metaharness.runlog import jsonfile
from metaharness.runlog.budget import BudgetCounter, Counts
from metaharness.runlog.report_data import METHODS, from_json
from metaharness.runlog.rundir import RunDirectory
from metaharness.tasks.registry import load_task
from metaharness.tasks.task import Task
from metaharness.train.attribution import seed_choice
from metaharness.train.baselines import read_best_random
from metaharness.train.compare import BEST_RANDOM, MODE, RANDOM, ZERO_SHOT
from metaharness.train.evaluate import (
    DEFAULT,
    Plan,
    bare_harness,
    run_evaluation,
)
from metaharness.train.evaluate_run import EvaluationRun, prompts, reached
from metaharness.train.finalists import DEPLOYMENT
from metaharness.train.loop import PHASE
from metaharness.train.metrics_row import VALIDATION
from metaharness.train.resume import data_digests
from metaharness.train.run import train

FILE = "cell.json"
PROMPT = ("item", "text", "template", "exemplars", "policies")
MEASURED = ("device", "commit", "changed")  # of the run's provenance
DONE, FAILED, STARTED, TODO = "done", "failed", "started", "to do"
_METHODS = {
    "zero_shot": ZERO_SHOT,
    "default": DEFAULT,
    "random": RANDOM,
    "learned": MODE,
}


class Loader:
    """Models and tasks, each read once: the tasks stay, of the models the last one."""

    def __init__(self) -> None:
        self._model: tuple[tuple[str, str], Model] | None = None
        self._tasks: dict[tuple[str, Path | None, int], Task] = {}

    def model(self, cell: Cell) -> Model:
        """Raises InputError where the cell's model has no path, or cannot be read."""
        if cell.model_path is None:
            raise InputError(
                f"model {cell.model}: expected its path, got a variable that is not "
                f"set; set it, or pass --model {cell.model}=PATH"
            )
        key = (cell.model_path, cell.settings.dtype)
        if self._model is None or self._model[0] != key:
            self._model = None
            gc.collect()  # room for the next one's weights
            self._model = (key, load_model(cell.model_path, dtype=cell.settings.dtype))
        return self._model[1]

    def task(self, cell: Cell) -> Task:
        """Raises TaskError."""
        key = (cell.source, cell.settings.data_dir, cell.seed)
        if key not in self._tasks:
            self._tasks[key] = load_task(
                cell.source, data_dir=cell.settings.data_dir, seed=cell.seed
            )
        return self._tasks[key]


def read_state(folder: Path) -> dict[str, Any]:
    """What is known of a cell: at least ``status``."""
    path = folder / FILE
    return jsonfile.read_json(path) if path.is_file() else {"status": TODO}


def run_cell(
    cell: Cell, folder: Path, loader: Loader, *, quiet: bool = False
) -> dict[str, Any]:
    """Run a cell, or what of it is missing; its state, which ``cell.json`` keeps.

    An error is part of the state. Ctrl-C goes through; the same call goes on later.
    """
    before = read_state(folder)
    state = {
        "settings": cell.identity(),
        "status": STARTED,
        "seconds": before.get("seconds", 0.0),
        "trained": before.get("trained", False),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "evaluate"):
        _drop_unborn(folder / name)
    jsonfile.write_json(folder / FILE, state)
    began = time.monotonic()
    try:
        result = _run(cell, folder, loader, state, quiet)
        state |= {"status": DONE, "result": result}
    except Exception as error:  # whatever it is: the other cells go on
        said = " ".join(str(error).split()) or type(error).__name__
        state |= {"status": FAILED, "error": said}
        (folder / "error.txt").write_text(traceback.format_exc())
    finally:
        state["seconds"] += time.monotonic() - began
        jsonfile.write_json(folder / FILE, state)
    return state


def _drop_unborn(run: Path) -> None:
    """Remove a run directory that a kill left without its configuration: it holds
    nothing yet, and would be refused."""
    if run.is_dir() and not (run / "config.json").is_file():
        shutil.rmtree(run)


def _run(
    cell: Cell, folder: Path, loader: Loader, state: dict[str, Any], quiet: bool
) -> dict[str, Any]:
    task, model = loader.task(cell), loader.model(cell)
    items = task.splits()[cell.settings.split][: cell.settings.limit]
    kind, spent, beside = cell.method.kind, {}, {}
    if kind == "learned":
        run = _trained(cell, folder / "train", task, model, state, quiet)
        jsonfile.write_json(folder / FILE, state)
        spent = _training_counts(run)
        learned = load_learned(run)
        harness, choices = learned.harness, [learned.choice(task.name)]
        # by the training's random search, for as many tokens
        searched = read_best_random(run).get(task.name)
        beside = {BEST_RANDOM: [searched]} if searched else {}
        if has_adapter(run):
            model = with_adapter(model, run)
    elif kind == "zero_shot":
        harness, choices = bare_harness([task]), [Choice((), 0)]
    else:
        harness, choices = _harness(cell, task, model), []
    space = build_space(model, harness, [task])
    if kind == "default":
        choices = [seed_choice(space, 0)]
    elif kind == "random":
        rng = keys.host_generator(
            cell.seed, stage="test", step=0, purpose="random_harness"
        )
        choices = harness.random_choices(cell.method.num, 0, 1, rng)
    method = _METHODS[kind]
    plan = Plan(space, items, {method: choices, **beside})
    settings = cell.settings
    with EvaluationRun(
        folder / "evaluate", cell.identity(), data_digests(model, [task], harness)
    ) as evaluation:
        result = run_evaluation(
            [plan],
            counter=BudgetCounter(),
            sampling=Sampling(settings.samples, settings.temperature, cell.seed),
            cache=evaluation.cache,
            done=evaluation.done,
            on_finish=evaluation.keep,
            tokens_at_once=settings.tokens_at_once,
            quiet=quiet,
        )
        evaluation.write([plan], result)
    endings = reached(result.compared[0])
    asked = {
        one["method"]: {key: one[key] for key in PROMPT} for one in prompts([plan])
    }

    def described(method: str) -> dict[str, Any]:
        ended = endings.get(METHODS.get(method, method), {})
        own = summary(result, method)
        return {**own, "reached": ended, "prompt": asked[method]}

    found = {
        **described(method),
        "measured": {name: evaluation.provenance[name] for name in MEASURED},
        "max_new_tokens": task.max_new_tokens,
        "stop": list(task.stop),
        **spent,
    }
    if beside:
        found[BEST_RANDOM] = described(BEST_RANDOM)
        found["over_best_random"] = over(result, method, BEST_RANDOM, cell.seed)
    return jsonfile.json_safe(found)


def _harness(cell: Cell, task: Task, model: Model) -> Harness:
    file = load_harness_file(cell.harness_file)
    harness = build_harness(file, [task], seed=cell.seed)
    check_file_lengths(file, harness, model)
    return harness


def _trained(
    cell: Cell,
    out: Path,
    task: Task,
    model: Model,
    state: dict[str, Any],
    quiet: bool,
) -> Path:
    """The run directory of the cell's training, gone on with where it was stopped."""
    if state["trained"] or _complete(out):
        state["trained"] = True
        return out
    started = (out / "config.json").is_file()
    config = dataclasses.replace(
        cell.method.train,
        task=(cell.source,),
        model=cell.model_path,
        harness=cell.harness_file,
        data_dir=cell.settings.data_dir,
        out=out,
        seed=cell.seed,
        dtype=cell.settings.dtype,
        quiet=quiet,
    )
    harness = _harness(cell, task, model)
    run = train(
        model,
        task,
        harness,
        None if started else config,
        resume=out if started else None,
    )
    if run.interrupted:
        raise KeyboardInterrupt
    state["trained"] = True  # a budget may have ended it: it is not to go on
    return out


def _complete(run: Path) -> bool:
    report = run / "report.json"
    return report.is_file() and from_json(jsonfile.read_json(report)).complete


def _training_counts(run: Path) -> dict[str, Any]:
    report = from_json(jsonfile.read_json(run / "report.json"))
    # what decides on the harness to deploy is part of it, as for random search
    rows = [row.counts for row in report.budget if row.phase in (PHASE, DEPLOYMENT)]
    if not rows:
        return {}
    counts = sum(rows, start=Counts())
    trace = RunDirectory.open(run).read_metrics()
    return {
        "training_updates": sum(row["kind"] != VALIDATION for row in trace),
        "training_calls": counts.lm_calls,
        "training_tokens": counts.token_passes,
        "training_seconds": counts.seconds,
    }
