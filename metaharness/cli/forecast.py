"""What an evaluation will cost, before it is run."""

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table

from metaharness import keys
from metaharness.harness.episode import Job
from metaharness.harness.forecast import EXACT, Forecast, forecast, likelihoods
from metaharness.harness.grading import Sampling
from metaharness.harness.slots import Choice
from metaharness.harness.trace import Trace
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.report_data import METHODS
from metaharness.train.evaluate import Plan, run_evaluation
from metaharness.train.evaluate_run import EvaluationRun

if TYPE_CHECKING:
    from rich.console import Console


def print_forecast(
    console: "Console",
    plans: Sequence[Plan],
    sampling: Sampling,
    *,
    generate: bool = True,
    pilots: Sequence[Sequence[Trace]] = (),
) -> None:
    """A line for each task and method; pilots: finished episodes of each plan."""
    table = Table(
        box=box.SIMPLE,
        pad_edge=False,
        caption="identical requests of one harness are counted once; likelihoods: gold "
        "answers that are read beside the episodes",
        caption_justify="left",
    )
    for place, name in enumerate(("", "episodes", "calls", "prompt tokens", "written")):
        table.add_column(name, justify="right" if place else "left")
    total = None
    for place, plan in enumerate(plans):
        if not (generate and plan.graded):
            continue
        pilot = pilots[place] if pilots else ()
        costs = {one: _of(plan, one, sampling, pilot) for one in plan.choices}
        for method, choices in plan.methods.items():
            label = f"{plan.task.name}: {METHODS.get(method, method)}"
            own = [costs[choice] for choice in dict.fromkeys(choices)]
            table.add_row(label, *_cells(functools.reduce(operator.add, own)))
        # a harness that two methods share is run once
        whole = functools.reduce(operator.add, costs.values())
        if plan.has_gold:
            read = likelihoods(plan.space, plan.choices, plan.items)
            table.add_row(f"{plan.task.name}: likelihoods", *_cells(read))
            whole = whole + read
        total = whole if total is None else total + whole
    if total is None:
        console.print("No episodes: nothing is written, likelihoods alone are read.")
        return
    table.add_section()
    table.add_row("all", *_cells(total))
    console.print(table)


def run_pilot(
    console: "Console",
    plans: Sequence[Plan],
    sampling: Sampling,
    num: int,
    run: EvaluationRun,
    counter: BudgetCounter,
    *,
    tokens_at_once: int,
    quiet: bool,
) -> None:
    """Run ``num`` items of each plan, drawn at random, and forecast from them."""
    pilots = []
    for index, plan in enumerate(plans):
        rng = keys.host_generator(
            sampling.seed, stage="test", step=index, purpose="items"
        )
        some = sorted(
            rng.choice(len(plan.items), min(num, len(plan.items)), replace=False)
        )
        few = plan._replace(items=tuple(plan.items[i] for i in some))
        result = run_evaluation(
            [few],
            counter=counter,
            sampling=sampling,
            cache=run.cache,
            done=run.done,
            on_finish=run.keep,
            tokens_at_once=tokens_at_once,
            quiet=quiet,
        )
        grades = result.compared[0].grades if result.compared else None
        pilots.append(
            [t for rows in grades.traces for row in rows for t in row if t is not None]
            if grades
            else []
        )
    print_forecast(console, plans, sampling, pilots=pilots)
    console.print(f"The pilot's episodes are kept: --out {run.path}", soft_wrap=True)


def _of(
    plan: Plan, choice: Choice, sampling: Sampling, pilot: Sequence[Trace]
) -> Forecast:
    jobs = [
        Job(choice, item, sample, sampling.temperature, sampling.seed)
        for item in plan.items
        for sample in range(sampling.num)
    ]
    own = [trace for trace in pilot if trace.choice == choice]
    return forecast(plan.space, plan.task, jobs, own)


def _cells(one: Forecast) -> list[str]:
    def cell(value: float, known: str) -> str:
        text = f"{np.ceil(value):,.0f}"
        return text if known == EXACT else f"{text} ({known})"

    return [
        f"{one.episodes:,}",
        cell(one.calls, one.calls_known),
        cell(one.prompt_tokens, one.prompt_known),
        cell(one.new_tokens, one.new_known),
    ]
