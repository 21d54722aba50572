"""Rows of ``metrics.jsonl``: an update, a validation."""

from typing import Any

import numpy as np

from metaharness.harness.space import EXEMPLARS, Space
from metaharness.train.episode_update import Graded
from metaharness.train.guards import Verdict
from metaharness.train.schedule import EPISODES, JOINT, MEASURED
from metaharness.train.steps import Updated
from metaharness.train.trust import GateRecord

VALIDATION = "validation"
"""``kind`` of a validation's row; an update's is its own kind."""


def update_row(
    space: Space,
    step: int,
    out: Updated,
    kind: str,
    gate: GateRecord,
    active: np.ndarray,
    graded: Graded | None = None,
) -> dict[str, Any]:
    """Losses by task, tokens, metrics of the exemplars' estimator, probabilities; of
    episodes also their reward, tokens, attempts and tool calls, means over the draw,
    and the metrics of the policies' estimators; where real harnesses were drawn for
    phi, each with its loss."""
    names = [task.name for task in space.tasks]

    def by_task(values) -> dict[str, float]:
        return {
            name: float(value)
            for name, value, on in zip(names, values, active, strict=True)
            if on
        }

    row: dict[str, Any] = {
        "step": step,
        "kind": kind,
        "loss": by_task(out.loss),
        "spread": by_task(out.rows.std(axis=1)),
        "forward_tokens": int(out.forward),
        "backward_tokens": int(out.backward),
    }
    if out.theta_grad is not None:
        row["theta_grad"] = float(out.theta_grad)
    if graded is not None:
        row["episode_loss"] = by_task(graded.loss.mean(axis=1))
        for name in ("reward", "tokens", "attempts", "tool_calls"):
            row[name] = by_task(getattr(graded, name))
        row["policies"] = {
            slot: {
                name: by_task(values) for name, values in out.estimator[slot].items()
            }
            for slot in space.harness.policy_slots
        }
    if kind in (MEASURED, JOINT, EPISODES) and EXEMPLARS in space.families:
        row["spearman"] = by_task(gate.spearman())
        for name, values in out.estimator[EXEMPLARS].items():
            row[name] = by_task(values)
    if out.outcomes is not None:
        row["drawn"] = {
            name: _drawn(out, graded, task)
            for task, (name, on) in enumerate(zip(names, active, strict=True))
            if on
        }
    row["probabilities"] = {
        slot: {
            name: np.round(p, 5).tolist() for name, p in zip(names, own, strict=True)
        }
        for slot, own in out.probabilities.items()
    }
    return row


def _drawn(out: Updated, graded: Graded | None, task: int) -> list[dict[str, Any]]:
    """Each harness that was drawn for a task: ids by slot, and its loss."""
    losses = out.rows[task] if graded is None else graded.loss[task]
    return [
        {
            **{slot: own[task][row].tolist() for slot, own in out.outcomes.items()},
            "loss": float(loss),
        }
        for row, loss in enumerate(losses)
    ]


def validation_row(
    space: Space, step: int, loss: np.ndarray, verdict: Verdict
) -> dict[str, Any]:
    """Loss of the likeliest harness by task, and what the guard did."""
    return {
        "step": step,
        "kind": VALIDATION,
        "loss": {
            task.name: float(value)
            for task, value in zip(space.tasks, loss, strict=True)
        },
        "best": verdict.watch.best,
        "best_step": verdict.watch.best_step,
        "rolled_back": verdict.roll_back,
    }
