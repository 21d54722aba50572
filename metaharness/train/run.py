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
from metaharness.model.adapter import FOLDER, adapted_digest, adapted_model
from metaharness.model.complete import Completer
from metaharness.model.load import Model
from metaharness.model.lora_file import save_lora
from metaharness.runlog import provenance, report, table
from metaharness.runlog.budget import Budget, BudgetCounter
from metaharness.runlog.report_data import Attribution, Note, Report
from metaharness.runlog.rundir import RunDirectory, new_path
from metaharness.runlog.sinks import check_sinks
from metaharness.runlog.words import headline
from metaharness.tasks.task import Task
from metaharness.train.attribution import attribute, seed_choice
from metaharness.train.baselines import (
    RANDOM_SEARCH,
    Selected,
    episode_items,
    episode_search,
    random_search,
)
from metaharness.train.compare import Compared, compare, deployed_key, generates
from metaharness.train.config import TrainConfig
from metaharness.train.config_file import as_data
from metaharness.train.deploy import probabilities, sampled_choices
from metaharness.train.diagnosis import theta_note
from metaharness.train.fitted import Fitted
from metaharness.train.journal import Journal
from metaharness.train.label_fit import fit_biases
from metaharness.train.loop import INTERRUPTED, PHASE, fit
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


@dataclass
class _Results:
    """What was measured after training, as far as it came."""

    compared: list[Compared] = dataclasses.field(default_factory=list)
    attribution: list[Attribution] = dataclasses.field(default_factory=list)
    notes: list[Note] = dataclasses.field(default_factory=list)


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
        if harness.retry and fitted.stopped != INTERRUPTED:
            fitted = settle_retries(
                space,
                config,
                fitted,
                _writer(space, config, fitted),
                counter=counter,
                cache=None if config.schedule.trains_weights else calls,
            )
        if (
            any(policy.constrain for policy in harness.output)
            and fitted.stopped != INTERRUPTED
        ):
            space, fitted = fit_biases(
                space, config, fitted, _writer(space, config, fitted), counter=counter
            )
    results = _Results([], [], [Note(text, "warning") for text in journal.notes])
    learned = learned_harness(space, fitted)
    run.write_json("harness.json", learned.as_json())
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
            interrupted = not _measure(space, config, fitted, counter, results)
        except KeyboardInterrupt:
            interrupted = True
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


def learned_harness(space: Space, fitted: Fitted) -> Learned:
    """The learned probabilities and the likeliest harness of each task."""
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


def _writer(space: Space, config: TrainConfig, fitted: Fitted) -> Completer:
    """What writes the answers of the finished run."""
    model = space.model
    if fitted.state.theta is not None:
        model = adapted_model(model, fitted.state.theta, config.lora)
    return Completer(
        model,
        tokens_at_once=config.episodes.tokens_at_once,
        implementation=space.implementation,
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


def _measure(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    counter: BudgetCounter,
    results: _Results,
) -> bool:
    """Comparison and attribution, into ``results``; False when Ctrl-C cut it short.

    Where weights were trained, every harness of the comparison reads the trained ones,
    so that it compares harnesses; what the weights bring is the attribution's.
    """
    theta = fitted.state.theta
    deployed, adapted = space, None
    if theta is not None:
        model = adapted_model(space.model, theta, config.lora)
        deployed, adapted = dataclasses.replace(space, model=model), model.decoder
        results.notes.append(
            Note(
                "Every row of the score table reads the trained weights; what the "
                "weights brought is under “What brought the gain”.",
                "info",
            )
        )
    whole = _compare(deployed, config, fitted, counter, results)
    if whole and (theta is not None or space.harness.policy_slots):
        results.attribution += attribute(
            space,
            adapted,
            seed_choices=[seed_choice(space, i) for i in range(space.num_tasks)],
            learned=fitted.choices(space),
            config=config.evaluation,
            seed=config.seed,
            counter=counter,
            quiet=config.quiet,
        )
    return whole


def _compare(
    space: Space,
    config: TrainConfig,
    fitted: Fitted,
    counter: BudgetCounter,
    results: _Results,
) -> bool:
    """Random search at the tokens of training, then all methods on test items."""
    notes = results.notes
    spent = counter.counts(PHASE)
    tried: list[Selected]
    num_items = config.evaluation.validation_items
    if space.harness.policy_slots:
        num_items = episode_items(config)
        tried = episode_search(
            space,
            config,
            Completer(space.model, implementation=space.implementation),
            max_tokens=max(spent.token_passes, 1),
            counter=counter,
            cache=None,
        )
    else:
        tried = random_search(
            space,
            items=config.evaluation.validation_items,
            num_packs=config.evaluation.validation_packs,
            pack_width=config.search.pack_width,
            max_tokens=max(spent.token_passes, 1),
            chunk=config.search.chunk,
            seed=config.seed,
            counter=counter,
            quiet=config.quiet,
        )
    numbers = sorted({len(one.choices) for one in tried})
    numbers = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    notes.append(
        Note(
            f"Best random harness: the best of {numbers} a task on "
            f"up to {num_items} validation items, for "
            f"{counter.counts(RANDOM_SEARCH).token_passes:,} tokens; training used "
            f"{spent.token_passes:,} ({spent.token_forwards:,} forward, "
            f"{spent.backward_tokens:,} backward).",
            "info",
        )
    )
    evaluation = config.evaluation
    long = [
        task.name
        for task in space.tasks
        if evaluation.generate and task.scorer and not generates(evaluation, task)
    ]
    if long:
        notes.append(
            Note(
                f"No exact match for {', '.join(long)}: answers may take more than "
                f"{evaluation.generate_tokens} tokens; to have them written, raise "
                "evaluation.generate_tokens.",
                "info",
            )
        )
    results.compared = compare(
        space,
        evaluation,
        learned=fitted.choices(space),
        sampled=sampled_choices(
            space,
            fitted.state,
            config.evaluation.sampled_harnesses,
            deployed_key(config.seed),
        ),
        best_random=tried,
        seed=config.seed,
        counter=counter,
        quiet=config.quiet,
    )
    return len(results.compared) == space.num_tasks


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
