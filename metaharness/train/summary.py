"""From the numbers of a run to its report."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from metaharness.harness.slots import POLICIES, Choice
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.report_data import (
    Attribution,
    Candidate,
    Curve,
    Note,
    Prompt,
    Report,
    Series,
    SlotReport,
    Span,
    TrustRow,
    budget_rows,
)
from metaharness.train.compare import Compared, score_rows
from metaharness.train.diagnosis import diagnose
from metaharness.train.fitted import Fitted


def build_report(
    space: Space,
    fitted: Fitted,
    compared: Sequence[Compared],
    *,
    attribution: Sequence[Attribution] = (),
    counter: BudgetCounter,
    seed: int,
    command: str,
    notes: Sequence[Note],
    config: dict[str, Any],
    provenance: dict[str, Any],
    complete: bool = True,
) -> Report:
    """Fill the report with what was measured; what is missing is left out."""
    choices = fitted.choices(space)
    return Report(
        title=", ".join(task.name for task in space.tasks),
        model=space.model.name,
        command=command,
        seconds=counter.counts().seconds,
        scores=tuple(score_rows(compared, seed=seed)),
        attribution=tuple(attribution),
        trust=tuple(trust_rows(space, fitted)),
        curves=tuple(_curves(space, fitted)),
        slots=tuple(_slots(space, fitted, choices)),
        prompts=tuple(_prompts(space, choices)),
        budget=tuple(budget_rows(counter)),
        notes=(*notes, *diagnose(space, fitted)),
        config=config,
        provenance=provenance,
        complete=complete,
    )


def trust_rows(space: Space, fitted: Fitted) -> list[TrustRow]:
    """Per task: does the gate rank harnesses as sequential prompts do?"""
    if EXEMPLARS not in space.families:
        return []
    measured = [row for row in fitted.trace if "spearman" in row]
    if not measured:
        return []
    last = measured[-1]

    def fit(name: str, task: str) -> float | None:
        """A held-out fit needs two updates at least: one to fit, one to check."""
        return last[name][task] if name in last and len(measured) > 1 else None

    ranks, pairs = fitted.gate.spearman(), fitted.gate.num_pairs()
    return [
        TrustRow(
            task=task.name,
            spearman=float(ranks[i]) if np.isfinite(ranks[i]) else None,
            num_harnesses=pairs[i],
            slope_fit=fit("slope_r2", task.name),
            ridge_fit=fit("ridge_r2", task.name),
        )
        for i, task in enumerate(space.tasks)
    ]


def _series(
    space: Space, rows: Sequence[dict[str, Any]], name: str
) -> tuple[Series, ...]:
    """A number of the rows of updates, one line a task that has it."""
    series = []
    for task in space.tasks:
        own = [
            (row["step"], _number(row[name][task.name]))
            for row in rows
            if task.name in row.get(name, {})
        ]
        if own:
            x, y = zip(*own, strict=True)
            series.append(Series(name=task.name, x=x, y=y))
    return tuple(series)


def _curves(space: Space, fitted: Fitted) -> list[Curve]:
    trace = fitted.trace
    if not trace:
        return []
    spans, start = [], 0
    for at in range(1, len(trace) + 1):
        if at == len(trace) or trace[at]["kind"] != trace[start]["kind"]:
            spans.append(
                Span(trace[start]["kind"], trace[start]["step"], trace[at - 1]["step"])
            )
            start = at
    # an update that read no tokens itself has the loss of its episodes
    likelihoods = [row for row in trace if row["forward_tokens"]]
    curves = [
        Curve(title, unit, found, spans=tuple(spans))
        for title, unit, found in (
            (
                "Training loss of the drawn harnesses",
                "nats per answer",
                _series(space, likelihoods, "loss"),
            ),
            (
                "Reward of the drawn harnesses' episodes",
                "reward",
                _series(space, trace, "reward"),
            ),
        )
        if found
    ]
    if fitted.validations:
        steps = tuple(row["step"] for row in fitted.validations)
        curves.append(
            Curve(
                title="Validation loss of the likeliest harness",
                x_label="update",
                y_label="nats per answer",
                series=tuple(
                    Series(
                        name=task.name,
                        x=steps,
                        y=tuple(
                            _number(row["loss"][task.name])
                            for row in fitted.validations
                        ),
                    )
                    for task in space.tasks
                ),
            )
        )
    return curves


def _number(value: float | None) -> float:
    """What a row of metrics holds; it writes None for what is not a number."""
    return math.nan if value is None else value


def _slots(space: Space, fitted: Fitted, choices: Sequence[Choice]) -> list[SlotReport]:
    out = []
    for index, (task, choice) in enumerate(zip(space.tasks, choices, strict=True)):
        for slot, family in sorted(space.families.items()):
            mask = space.masks[slot][index]
            ids = np.flatnonzero(mask)
            place = {int(candidate): at for at, candidate in enumerate(ids)}
            start = np.full(len(ids), family.k / len(ids))
            history = [
                np.array(row["probabilities"][slot][task.name], float)[ids]
                for row in fitted.trace
            ]
            if slot == EXEMPLARS:
                shown = space.harness.template.pool[choice.template].exemplars
                chosen = choice.exemplars if shown else ()
            else:
                chosen = (getattr(choice, slot),)
            out.append(
                SlotReport(
                    task=task.name,
                    slot=slot,
                    k=family.k,
                    candidates=tuple(_candidate(space, slot, int(i)) for i in ids),
                    steps=(0, *(row["step"] for row in fitted.trace)),
                    probabilities=tuple(
                        tuple(map(float, p)) for p in (start, *history)
                    ),
                    chosen=tuple(place[i] for i in chosen),
                )
            )
    return out


def _candidate(space: Space, slot: str, index: int) -> Candidate:
    if slot == TEMPLATE:
        template = space.harness.template.pool[index]
        system = f"[system] {template.system}\n" if template.system else ""
        return Candidate(
            name=template.name,
            kind=f"{'chat' if template.chat else 'plain'}"
            f"{'' if template.exemplars else ', no exemplars'}",
            text=f"{system}{template.question}",
        )
    if slot in POLICIES:
        policy = space.harness.pool(slot)[index]
        return Candidate(name=policy.name, kind=slot, text=policy_text(policy))
    exemplar = space.harness.candidates[index]
    return Candidate(
        name=exemplar.uid,
        kind=exemplar.kind,
        text=f"{exemplar.question}\n→ {exemplar.answer}",
    )


def policy_text(policy: Any) -> str:
    """A policy in one line: its name, and what differs from the default."""
    plain = type(policy)("plain")
    changed = [
        f"{field.name} = {getattr(policy, field.name)!r}"
        for field in dataclasses.fields(policy)[1:]
        if getattr(policy, field.name) != getattr(plain, field.name)
    ]
    return f"{policy.name}: {', '.join(changed)}" if changed else policy.name


def _prompts(space: Space, choices: Sequence[Choice]) -> list[Prompt]:
    out = []
    for task, choice in zip(space.tasks, choices, strict=True):
        item = task.validation[0]
        template, exemplars = space.harness.parts(choice)
        ids = space.renderer.prompt(template, exemplars, item.question)
        out.append(
            Prompt(
                task=task.name,
                text=space.prompt_text(choice, item),
                num_tokens=len(ids),
                answer=item.answer,
            )
        )
    return out
