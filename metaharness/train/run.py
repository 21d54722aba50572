"""Train a harness and leave a run directory: search, baselines, comparison, report."""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from rich.console import Console

from metaharness.errors import InputError
from metaharness.harness.learned import Learned
from metaharness.harness.slots import Harness
from metaharness.harness.space import Space, build_space
from metaharness.model.load import Model
from metaharness.runlog import provenance, report, table
from metaharness.runlog.budget import Budget, BudgetCounter
from metaharness.runlog.report_data import Note, Report
from metaharness.runlog.rundir import RunDirectory, new_path
from metaharness.runlog.words import headline
from metaharness.tasks.task import Task
from metaharness.train.baselines import Selected, random_search
from metaharness.train.compare import Compared, compare, deployed_key, generates
from metaharness.train.config import TrainConfig
from metaharness.train.search import (
    Searched,
    mode_choices,
    probabilities,
    sampled_choices,
    search,
)
from metaharness.train.summary import build_report


@dataclass(frozen=True)
class Run:
    """A finished run.

    directory: where its files lie; harness: what was learned; report: all numbers;
    interrupted: True when Ctrl-C cut it short.
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
) -> Run:
    """Learn a harness for one or several tasks (first stage: theta stays frozen).

    Everything that can be refused is refused before the run directory is made. Ctrl-C
    ends the work in hand; what was done so far is saved and reported.

    Raises InputError (and its children) for what cannot be honoured.
    """
    tasks = (task,) if isinstance(task, Task) else tuple(task)
    check_names(tasks)
    config = _as_called(config or TrainConfig(), tasks, model)
    _check_samples(harness, config)
    space = build_space(model, harness, tasks, implementation=config.attention)
    resolved = dataclasses.asdict(config)
    made = provenance.collect(
        argv=sys.argv,
        data={"model": model.digest, **{t.name: t.fingerprint for t in tasks}},
    )
    run = RunDirectory.create(
        config.out or new_path(Path("runs"), "train"), config=resolved, provenance=made
    )
    counter = BudgetCounter(
        limits={
            "search": Budget(
                max_tokens=config.max_tokens, max_seconds=config.max_seconds
            )
        }
    )
    with run.metrics() as log:
        searched = search(
            space,
            config.search,
            train_items=config.evaluation.train_items,
            seed=config.seed,
            counter=counter,
            log=log,
            quiet=config.quiet,
        )
    learned = learned_harness(space, searched)
    run.write_json("harness.json", learned.as_json())
    _save_checkpoint(run, searched)
    notes: list[Note] = []
    compared: list[Compared] = []
    interrupted = searched.stopped.startswith("interrupted")
    if not interrupted:
        try:
            compared, cut = _compare(space, config, searched, counter, notes)
        except KeyboardInterrupt:
            cut = True
        interrupted = cut
    if interrupted:
        notes.append(
            Note(
                "Interrupted (Ctrl-C): what was measured until then is shown.",
                "warning",
            )
        )
    filled = build_report(
        space,
        searched,
        compared,
        counter=counter,
        seed=config.seed,
        command=shlex.join(["metaharness", *sys.argv[1:]]),
        notes=notes,
        config=run.config,
        provenance=run.provenance,
    )
    report.write(filled, run)
    return Run(run.path, learned, filled, interrupted)


def learned_harness(space: Space, searched: Searched) -> Learned:
    """The learned probabilities and the likeliest harness of each task."""
    names = [task.name for task in space.tasks]
    chances = probabilities(space, searched.state)
    return Learned(
        space.harness,
        dict(zip(names, mode_choices(space, searched.state), strict=True)),
        {
            slot: {
                name: tuple(map(float, row))
                for name, row in zip(names, chance, strict=True)
            }
            for slot, chance in chances.items()
        },
        space.model.name,
        space.model.digest,
    )


def print_run(run: Run, console: Console | None = None) -> None:
    """The score table, what was learned in words, and where the report lies."""
    console = console or table.wide_console()
    if run.report.scores:
        console.print(run.table())
    said = headline(run.report)
    for sentence in (said.lead, *said.points):
        console.print(sentence, markup=False)
    for note in run.report.notes:
        style = "yellow" if note.kind == "warning" else "dim"
        console.print(note.text, style=style, markup=False)
    console.print(f"\nreport: {run.directory / 'report.html'}", soft_wrap=True)


def _compare(
    space: Space,
    config: TrainConfig,
    searched: Searched,
    counter: BudgetCounter,
    notes: list[Note],
) -> tuple[list[Compared], bool]:
    spent = counter.counts("search")
    tried: list[Selected] = random_search(
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
            f"up to {config.evaluation.validation_items} validation items, for "
            f"{counter.counts('random search').token_passes:,} tokens; the search used "
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
    compared = compare(
        space,
        evaluation,
        learned=mode_choices(space, searched.state),
        sampled=sampled_choices(
            space,
            searched.state,
            config.evaluation.sampled_harnesses,
            deployed_key(config.seed),
        ),
        best_random=tried,
        seed=config.seed,
        counter=counter,
        quiet=config.quiet,
    )
    return compared, len(compared) < space.num_tasks


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


def _save_checkpoint(run: RunDirectory, searched: Searched) -> None:
    """The last training state, with Orbax; the key as its raw data."""
    state = searched.state._replace(root=jax.random.key_data(searched.state.root))
    with ocp.StandardCheckpointer() as saver:
        saver.save((run.checkpoints / str(int(searched.state.step))).absolute(), state)
