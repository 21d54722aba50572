"""What a training says of itself: stopped early, saturated, nothing learned."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metaharness.harness.space import EXEMPLARS, Space
from metaharness.runlog.report_data import Note
from metaharness.train.config import TrainConfig
from metaharness.train.deploy import probabilities
from metaharness.train.fitted import Fitted
from metaharness.train.schedule import JOINT, RELAXED, TRAINS_PHI

# A slot whose likeliest candidate gained less than this over uniform learned nothing.
_MOVED = 0.02
# Probabilities this near to 0 or 1 are settled.
_SURE = 0.02
# Losses of one update, in nats, that differ by less than this say nothing.
_EQUAL = 1e-6


def diagnose(space: Space, fitted: Fitted) -> list[Note]:
    """Notes for the report, in words."""
    notes = [Note(text, "info") for text in fitted.notes]
    if fitted.stopped:
        notes.append(Note(f"Training stopped early: {fitted.stopped}.", "warning"))
    if not fitted.trace:
        return [*notes, Note("Nothing learned, because no step was done.", "warning")]
    notes += _rollbacks(fitted)
    rows = [row for row in fitted.trace if row["kind"] in TRAINS_PHI]
    if fitted.returned and fitted.watch.best_step <= 0:
        why = "the state before the first update validated best and was kept"
        if fitted.watch.best_step < 0:
            why = "no validation loss was a number"
        notes.append(Note(f"Nothing learned, because {why}.", "warning"))
    elif rows:
        notes += _slots(space, fitted, rows)
    if EXEMPLARS in space.families and any(r["kind"] == RELAXED for r in rows):
        notes.append(_relaxed(space, fitted))
    return notes


_LEARNED_FROM = {
    "sequential": "from sequential prompts of drawn harnesses, as they are deployed",
    "exact": "through the gate with exact keys: value and gradient are the gate's own",
    "stopped": "through the gate with stopped keys: the value is right, the gradient "
    "lacks the part that goes through the keys",
    "stale": "through the gate with stale keys: value and gradient belong to the "
    "weights of the last encoding",
}


def theta_note(config: TrainConfig) -> Note:
    """What the weights learned from, with the name of its approximation."""
    weights = config.weights
    gate = config.schedule.kind == JOINT and weights.through == "gate"
    how = _LEARNED_FROM[weights.cache if gate else "sequential"]
    return Note(f"The weights learned {how}.", "info")


def reason(rows: Sequence[dict[str, Any]], task: str) -> str:
    """Why the harness of a task did not move, from its updates of phi."""
    own = [row for row in rows if task in row["loss"]]
    if len(own) < 2:
        return "it was updated only once, the budget is too small"
    losses = [row["loss"][task] for row in own]
    if None in losses:  # how a row writes it
        return "some of its losses were not numbers"
    if _all_equal(own, task):
        if np.ptp(losses) < _EQUAL:
            return "all its losses were equal, so there is nothing to learn from"
        return (
            "within each update all drawn harnesses had the same loss, so no "
            "candidate had an advantage"
        )
    return "no candidate was consistently better; more steps or items may help"


def _all_equal(rows: Sequence[dict[str, Any]], task: str) -> bool:
    """Whether no update of a task saw a difference between its harnesses."""
    spreads = [row["spread"][task] for row in rows if task in row["loss"]]
    return all(spread is not None and spread < _EQUAL for spread in spreads)


def _slots(space: Space, fitted: Fitted, rows) -> list[Note]:
    notes = []
    learned = probabilities(space, fitted.state)
    for index, task in enumerate(space.tasks):
        for slot, family in space.families.items():
            allowed = space.masks[slot][index]
            chance = learned[slot][index][allowed]
            if len(chance) <= family.k:
                continue
            uniform = family.k / len(chance)
            if not np.isfinite(chance).all():
                notes.append(
                    Note(
                        f"{task.name}: slot {slot} has no probabilities any more; "
                        f"{reason(rows, task.name)}.",
                        "warning",
                    )
                )
            elif np.abs(chance - uniform).max() == 0:
                notes.append(
                    Note(
                        f"{task.name}: slot {slot} got no gradient at all; "
                        f"{reason(rows, task.name)}.",
                        "warning",
                    )
                )
            elif chance.max() - uniform < _MOVED:
                notes.append(
                    Note(
                        f"{task.name}: slot {slot} stayed near uniform (largest "
                        f"probability {chance.max():.2f}, uniform {uniform:.2f}); "
                        f"{reason(rows, task.name)}.",
                        "warning",
                    )
                )
            elif _all_equal(rows, task.name):
                # an optimiser that normalises makes steps of rounding errors
                notes.append(
                    Note(
                        f"{task.name}: slot {slot} moved without evidence; "
                        f"{reason(rows, task.name)}.",
                        "warning",
                    )
                )
            sure = np.mean((chance < _SURE) | (chance > 1 - _SURE))
            if sure > 0.9:
                notes.append(
                    Note(
                        f"{task.name}: slot {slot} is saturated, {sure:.0%} of its "
                        f"probabilities are within {_SURE} of 0 or 1; "
                        f"{_evidence(fitted, task.name)}.",
                        "info",
                    )
                )
    return notes


def _evidence(fitted: Fitted, task: str) -> str:
    """Whether that harness is better, as far as validation knows."""
    if len(fitted.validations) < 2:
        return "the table above says whether that harness is better"
    first, last = (fitted.validations[at]["loss"][task] for at in (0, -1))
    if first is None or last is None:
        return "a validation loss was not a number"
    return f"its validation loss went from {first:.2f} to {last:.2f} nats per answer"


def _rollbacks(fitted: Fitted) -> list[Note]:
    back = [row for row in fitted.validations if row["rolled_back"]]
    if not back:
        return []
    steps = ", ".join(str(row["step"]) for row in back)
    return [
        Note(
            f"Validation got worse by more than guards.rollback at update {steps}: "
            "training went back to the last good state there.",
            "warning",
        )
    ]


def _relaxed(space: Space, fitted: Fitted) -> Note:
    used = [t.name for t, on in zip(space.tasks, fitted.trusted, strict=True) if on]
    skipped = [t.name for t in space.tasks if t.name not in used]
    text = f"Relaxed steps were taken for {', '.join(used)}"
    if skipped:
        text += (
            f"; not for {', '.join(skipped)}, whose gate did not rank harnesses as "
            "sequential prompts do"
        )
    return Note(text + ".", "info")
