"""From the numbers of a run to its report."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaharness.harness.slots import Choice
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.report_data import (
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
from metaharness.train.search import Searched, mode_choices, probabilities

# A slot whose likeliest candidate gained less than this over uniform learned nothing.
_MOVED = 0.02


def build_report(
    space: Space,
    searched: Searched,
    compared: Sequence[Compared],
    *,
    counter: BudgetCounter,
    seed: int,
    command: str,
    notes: Sequence[Note],
    config: dict[str, Any],
    provenance: dict[str, Any],
) -> Report:
    """Fill the report with what was measured; what is missing is left out."""
    choices = mode_choices(space, searched.state)
    return Report(
        title=", ".join(task.name for task in space.tasks),
        model=space.model.name,
        command=command,
        seconds=counter.counts().seconds,
        scores=tuple(score_rows(compared, seed=seed)),
        trust=tuple(trust_rows(space, searched)),
        curves=tuple(_curves(space, searched)),
        slots=tuple(_slots(space, searched, choices)),
        prompts=tuple(_prompts(space, choices)),
        budget=tuple(budget_rows(counter)),
        notes=(*notes, *diagnose(space, searched)),
        config=config,
        provenance=provenance,
    )


def trust_rows(space: Space, searched: Searched) -> list[TrustRow]:
    """Per task: does the gate rank harnesses as sequential prompts do?"""
    if EXEMPLARS not in space.families:
        return []
    measured = [row for row in searched.trace if row["kind"] == "measured"]
    if not measured:
        return []
    last = measured[-1]
    ranks, pairs = searched.gate.spearman(), searched.gate.num_pairs()
    return [
        TrustRow(
            task=task.name,
            spearman=float(ranks[i]) if np.isfinite(ranks[i]) else None,
            num_harnesses=pairs[i],
            slope_fit=_known(last["slope_r2"][task.name], measured),
            ridge_fit=_known(last["ridge_r2"][task.name], measured),
        )
        for i, task in enumerate(space.tasks)
    ]


def _known(value: float, measured: list[dict[str, Any]]) -> float | None:
    """A held-out fit needs at least two measured steps: one to fit, one to check."""
    return value if len(measured) > 1 else None


def diagnose(space: Space, searched: Searched) -> list[Note]:
    """Why nothing was learned, and where probabilities are saturated."""
    notes = []
    if searched.stopped:
        notes.append(Note(f"The search stopped early: {searched.stopped}.", "warning"))
    if not searched.trace:
        return [*notes, Note("Nothing learned, because no step was done.", "warning")]
    learned = probabilities(space, searched.state)
    for index, task in enumerate(space.tasks):
        for slot, family in space.families.items():
            chance = learned[slot][index][space.masks[slot][index]]
            uniform = family.k / len(chance)
            if len(chance) > family.k and chance.max() - uniform < _MOVED:
                reason = _reason(searched, task.name)
                notes.append(
                    Note(
                        f"{task.name}: slot {slot} stayed near uniform (largest "
                        f"probability {chance.max():.2f}, uniform {uniform:.2f}); "
                        f"{reason}.",
                        "warning",
                    )
                )
            sure = np.mean((chance < 0.02) | (chance > 0.98))
            if sure > 0.9 and len(chance) > family.k:
                notes.append(
                    Note(
                        f"{task.name}: slot {slot} is saturated, {sure:.0%} of its "
                        "probabilities are within 0.02 of 0 or 1; the table above "
                        "says whether that harness is better.",
                        "info",
                    )
                )
    if EXEMPLARS in space.families and any(
        row["kind"] == "relaxed" for row in searched.trace
    ):
        used = [
            t.name for t, on in zip(space.tasks, searched.trusted, strict=True) if on
        ]
        skipped = [t.name for t in space.tasks if t.name not in used]
        text = f"Relaxed steps were taken for {', '.join(used)}"
        if skipped:
            text += (
                f"; not for {', '.join(skipped)}, whose gate did not rank harnesses as "
                "sequential prompts do"
            )
        notes.append(Note(text + ".", "info"))
    return notes


def _reason(searched: Searched, task: str) -> str:
    losses = [row["loss"][task] for row in searched.trace if task in row["loss"]]
    if len(losses) < 2:
        return "it was updated only once, the budget is too small"
    if np.ptp(losses) < 1e-6:
        return "all its losses were equal, so there is nothing to learn from"
    return "no candidate was consistently better; more steps or items may help"


def _curves(space: Space, searched: Searched) -> list[Curve]:
    trace = searched.trace
    if not trace:
        return []
    series = []
    for task in space.tasks:
        own = [
            (r["step"], r["loss"][task.name]) for r in trace if task.name in r["loss"]
        ]
        if own:
            x, y = zip(*own, strict=True)
            series.append(Series(name=task.name, x=x, y=y))
    spans, start = [], 0
    for at in range(1, len(trace) + 1):
        if at == len(trace) or trace[at]["kind"] != trace[start]["kind"]:
            spans.append(
                Span(trace[start]["kind"], trace[start]["step"], trace[at - 1]["step"])
            )
            start = at
    return [
        Curve(
            title="Training loss of the drawn harnesses",
            x_label="update",
            y_label="nats per answer",
            series=tuple(series),
            spans=tuple(spans),
        )
    ]


def _slots(
    space: Space, searched: Searched, choices: Sequence[Choice]
) -> list[SlotReport]:
    out = []
    for index, (task, choice) in enumerate(zip(space.tasks, choices, strict=True)):
        for slot, family in sorted(space.families.items()):
            mask = space.masks[slot][index]
            ids = np.flatnonzero(mask)
            place = {int(candidate): at for at, candidate in enumerate(ids)}
            start = np.full(len(ids), family.k / len(ids))
            history = [
                np.array(row["probabilities"][slot][task.name])[ids]
                for row in searched.trace
            ]
            chosen = choice.exemplars if slot == EXEMPLARS else (choice.template,)
            out.append(
                SlotReport(
                    task=task.name,
                    slot=slot,
                    k=family.k,
                    candidates=tuple(_candidate(space, slot, int(i)) for i in ids),
                    steps=(0, *(row["step"] for row in searched.trace)),
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
            kind="chat" if template.chat else "plain",
            text=f"{system}{template.question}",
        )
    exemplar = space.harness.candidates[index]
    return Candidate(
        name=exemplar.uid,
        kind=exemplar.kind,
        text=f"{exemplar.question}\n→ {exemplar.answer}",
    )


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
