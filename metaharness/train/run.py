"""Train and leave a run directory: updates, baselines, comparison, report."""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from metaharness.errors import InputError
from metaharness.harness.call_cache import FILE as CALLS
from metaharness.harness.call_cache import CallCache
from metaharness.harness.learned import Learned
from metaharness.harness.slots import Harness
from metaharness.harness.space import Space, build_space
from metaharness.model.adapter import FOLDER, adapted_digest
from metaharness.model.load import Model
from metaharness.model.lora_file import save_lora
from metaharness.runlog import provenance, report, table
from metaharness.runlog.budget import Budget, BudgetCounter
from metaharness.runlog.jsonfile import json_safe
from metaharness.runlog.report_data import Note, Report
from metaharness.runlog.rundir import RunDirectory, new_path
from metaharness.runlog.sinks import check_sinks
from metaharness.runlog.words import headline
from metaharness.tasks.task import Task
from metaharness.train.baselines import FILE as BASELINES
from metaharness.train.baselines import selected_json
from metaharness.train.config import TrainConfig
from metaharness.train.config_file import as_data
from metaharness.train.deploy import probabilities
from metaharness.train.diagnosis import theta_note
from metaharness.train.finalists import FILE as FINALISTS
from metaharness.train.finalists import settle_finalists, standing_json
from metaharness.train.fitted import Fitted
from metaharness.train.journal import Journal
from metaharness.train.label_fit import fit_biases
from metaharness.train.loop import INTERRUPTED, PHASE, fit
from metaharness.train.results import (
    Results,
    deployed_model,
    measure_results,
    writer_of,
)
from metaharness.train.resume import data_digests, open_to_resume
from metaharness.train.retry_guard import settle_retries
from metaharness.train.summary import build_report


@dataclass(frozen=True)
class Run:
    """A finished run.

    directory: where its files lie; harness: what was learned; report: all numbers;
    interrupted: True when Ctrl-C cut it short (``resume`` goes on).
    """

    directory: Path
    harness: Learned
    report: Report
    interrupted: bool

    def table(self) -> Any:
        """The score table, for ``rich.print``."""
        return table.score_table(self.report.scores)


def train(
    model: Model,
    task: Task | Sequence[Task],
    harness: Harness,
    config: TrainConfig | None = None,
    *,
    resume: str | Path | None = None,
) -> Run:
    """Learn a harness for one or several tasks, LoRA weights, or both.

    Everything that can be refused is refused before the run directory is made. Ctrl-C
    ends the work in hand; what was done so far is saved and reported.

    Args:
        model: base weights.
        task: one or several, trained together.
        harness: slots and pools.
        config: defaults where None; what a resumed run was started with, there.
        resume: run directory to go on with, from its newest checkpoint. The result is
            that of a run that was never stopped.

    Raises InputError (and its children) for what cannot be honoured.
    """
    tasks = (task,) if isinstance(task, Task) else tuple(task)
    check_names(tasks)
    digests = data_digests(model, tasks, harness)
    if resume is None:
        config = _as_called(config or TrainConfig(), tasks, model)
    else:
        if config is not None:
            config = _as_called(config, tasks, model)
        run, config = open_to_resume(Path(resume), config, digests)
    check_sinks(config.sinks)
    _check_samples(harness, config)
    space = build_space(
        model,
        harness,
        tasks,
        implementation=config.attention,
        guard_leaks=config.guards.leaks,
    )
    if resume is None:
        run = RunDirectory.create(
            config.out or new_path(Path("runs"), "train"),
            config=as_data(config),
            provenance=provenance.collect(argv=sys.argv, data=digests),
        )
    limits = Budget(
        max_tokens=config.max_tokens,
        max_seconds=config.max_seconds,
        max_calls=config.max_calls,
    )
    counter = BudgetCounter(limits={PHASE: limits})
    with (
        Journal(run, config, resume=resume is not None) as journal,
        CallCache(run.path / CALLS) if harness.policy_slots else nullcontext() as calls,
    ):
        fitted = fit(space, config, counter=counter, journal=journal, calls=calls)
        if fitted.stopped != INTERRUPTED:
            space, fitted = _settled(space, config, fitted, counter)
    results = Results(notes=[Note(text, "warning") for text in journal.notes])
    learned = learned_harness(space, fitted)
    run.write_json("harness.json", learned.as_json())
    if fitted.standing:
        run.write_json(FINALISTS, json_safe(standing_json(fitted.standing)))
    if fitted.state.theta is not None:
        save_lora(
            run.path / FOLDER,
            fitted.state.theta,
            config.lora,
            base=model.name,
            overwrite=True,
        )
        results.notes.append(theta_note(config))
    interrupted = fitted.stopped == INTERRUPTED
    if not interrupted:
        try:
            interrupted = not measure_results(space, config, fitted, counter, results)
        except KeyboardInterrupt:
            interrupted = True
    if results.searched:
        run.write_json(BASELINES, selected_json(tasks, results.searched))
    if interrupted:
        results.notes.append(
            Note(
                "Interrupted (Ctrl-C): what was measured until then is shown. Go on: "
                f"metaharness train --resume {shlex.quote(str(run.path))}",
                "warning",
            )
        )
    filled = build_report(
        space,
        fitted,
        results.compared,
        attribution=results.attribution,
        counter=counter,
        seed=config.seed,
        command=shlex.join(["metaharness", *sys.argv[1:]]),
        notes=results.notes,
        config=run.config,
        provenance=run.provenance,
        complete=not interrupted and not fitted.stopped,
    )
    report.write(filled, run)
    return Run(run.path, learned, filled, interrupted)


def _settled(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    counter: BudgetCounter,
) -> tuple[Space, Fitted]:
    """What is deployed: which harness, whether it retries, the bias of its labels.
    Ctrl-C leaves what was settled until then."""
    trained = dataclasses.replace(space, model=deployed_model(space, config, fitted))
    writer = writer_of(trained.model, config)
    try:
        fitted = settle_finalists(trained, config, fitted, writer, counter=counter)
        if space.harness.retry:
            fitted = settle_retries(space, config, fitted, writer, counter=counter)
        if any(policy.constrain for policy in space.harness.output):
            space, fitted = fit_biases(space, config, fitted, writer, counter=counter)
    except KeyboardInterrupt:
        fitted = dataclasses.replace(fitted, stopped=INTERRUPTED)
    return space, fitted


def learned_harness(space: Space, fitted: Fitted) -> Learned:
    """The learned probabilities and the deployed harness of each task."""
    names = [task.name for task in space.tasks]
    chances = probabilities(space, fitted.state)
    digest = space.model.digest
    if fitted.state.theta is not None:
        digest = adapted_digest(digest, fitted.state.theta)
    return Learned(
        space.harness,
        dict(zip(names, fitted.choices(space), strict=True)),
        {
            slot: {
                name: tuple(map(float, row))
                for name, row in zip(names, chance, strict=True)
            }
            for slot, chance in chances.items()
        },
        space.model.name,
        digest,
    )


def print_run(run: Run, console: Console | None = None) -> None:
    """The score table, what was learned in words, and where the report lies."""
    console = console or table.wide_console()
    if run.report.scores:
        console.print(run.table())
    if run.report.attribution:
        console.print(table.attribution_table(run.report.attribution))
    said = headline(run.report)
    for sentence in (said.lead, *said.points):
        console.print(sentence, markup=False)
    for note in run.report.notes:
        style = "yellow" if note.kind == "warning" else "dim"
        console.print(note.text, style=style, markup=False)
    console.print(f"\nreport: {run.directory / 'report.html'}", soft_wrap=True)


def check_names(tasks: Sequence[Task]) -> None:
    """Refuse no task, and two of one name. Raises InputError."""
    names = [task.name for task in tasks]
    if len(set(names)) != len(names) or not names:
        raise InputError(
            "tasks: expected one or more of different names, got "
            f"{', '.join(names) or 'none'}; rename a file or leave one out"
        )


def _as_called(config: TrainConfig, tasks: Sequence[Task], model: Model) -> TrainConfig:
    """The config with the tasks and the model that were really given."""
    names = [task.name for task in tasks]
    if [Path(task).name.split(".")[0] for task in config.task] != names:
        config = dataclasses.replace(config, task=tuple(names))
    return dataclasses.replace(config, model=model.name)


def _check_samples(harness: Harness, config: TrainConfig) -> None:
    templates = len(harness.template.pool)
    for name, least in (("samples", 2 * templates), ("relaxed_samples", templates)):
        found = getattr(config.search, name)
        if found < least and harness.exemplars:
            raise InputError(
                f"search.{name}: expected at least {least} for {templates} templates, "
                f"got {found}; raise it or use fewer templates"
            )
