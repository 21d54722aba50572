"""The search loop: measured warm-up, relaxed where trusted, measured again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.harness.objective import Problem
from metaharness.harness.slots import Choice
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.metrics import MetricsLog
from metaharness.runlog.progress import Progress
from metaharness.train.config import SearchConfig
from metaharness.train.steps import (
    Steps,
    TrainState,
    chances,
    init_state,
    make_steps,
)
from metaharness.train.trust import GateRecord


@dataclass(frozen=True)
class Searched:
    """Result of a search.

    state: the last state; trace: one row a step (as in ``metrics.jsonl``); gate: pairs
    of gated and sequential losses; trusted: bool ``[task]``; stopped: why the search
    ended before its last step, or "".
    """

    state: TrainState
    trace: list[dict[str, Any]]
    gate: GateRecord
    trusted: np.ndarray
    stopped: str


def search(
    space: Space,
    config: SearchConfig,
    *,
    train_items: int,
    seed: int,
    counter: BudgetCounter,
    log: MetricsLog | None = None,
    steps: Steps | None = None,
    quiet: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Searched:
    """Train the harness logits; theta stays frozen.

    ``steps``: compiled updates of an earlier search of this space with the same
    settings but for the number of steps. Stops cleanly, with everything so far, when
    a budget is spent, when ``should_stop`` says so, and on Ctrl-C.
    """
    packs = space.pack("train", width=config.pack_width, limit=train_items)
    state = init_state(space, config, seed)
    problem = Problem(space.model.decoder, space.table, packs, None)
    gate = GateRecord(space.num_tasks)
    trusted = np.zeros((space.num_tasks,), bool)
    trace: list[dict[str, Any]] = []
    stopped = ""
    with (
        counter.phase("search"),
        Progress("search", total=config.num_steps, quiet=quiet) as bar,
    ):
        try:
            if EXEMPLARS in space.families:
                problem = problem._replace(cache=space.encode_pool())
                counter.add(
                    lm_calls=len(space.harness.candidates),
                    token_forwards=space.pool_tokens,
                )
            steps = steps or make_steps(space, config)
            for kind in _plan(space, config):
                stopped = counter.exceeded() or ("asked to" if should_stop() else "")
                if stopped:
                    break
                if kind == "relaxed":
                    if not trace or trace[-1]["kind"] != "relaxed":
                        trusted = gate.trusted(config.trust)
                    if not trusted.any():
                        continue
                    state, out = steps.relaxed(state, problem, jnp.asarray(trusted))
                else:
                    state, out = steps.measured(state, problem)
                out = jax.device_get(out)
                if out.gated is not None:
                    gate.add(out.gated, out.rows, out.template)
                row = _row(space, int(state.step), out, kind, gate, trusted)
                trace.append(row)
                if log is not None:
                    log.append(row)
                counter.add(
                    lm_calls=out.calls,
                    token_forwards=out.forward,
                    backward_tokens=out.backward,
                )
                shown = out.loss[trusted] if kind == "relaxed" else out.loss
                bar.update(len(trace), {"loss": float(shown.mean())})
        except KeyboardInterrupt:
            stopped = "interrupted (Ctrl-C)"
    return Searched(state, trace, gate, trusted, stopped)


def probabilities(space: Space, state: TrainState) -> dict[str, np.ndarray]:
    """Slot -> chance of each candidate to be chosen, ``[task, pool]``."""
    return jax.device_get(chances(space, state.logits))


def mode_choices(space: Space, state: TrainState) -> list[Choice]:
    """The likeliest harness of each task; exemplars in the order of their ids."""
    picked = {
        slot: np.asarray(
            family.distribution(
                state.logits[slot], jnp.asarray(space.masks[slot])
            ).mode()
        )
        for slot, family in space.families.items()
    }
    return _choices(space, picked)


def sampled_choices(
    space: Space, state: TrainState, num: int, key: jax.Array
) -> list[list[Choice]]:
    """``num`` harnesses of each task from the learned probabilities."""
    out = []
    for number in range(num):
        picked = {}
        for index, (slot, family) in enumerate(sorted(space.families.items())):
            law = family.distribution(
                state.logits[slot], jnp.asarray(space.masks[slot])
            )
            own = jax.random.fold_in(jax.random.fold_in(key, number), index)
            picked[slot] = np.asarray(law.sample(seed=own))
        out.append(_choices(space, picked))
    return [list(task) for task in zip(*out, strict=True)]


def _choices(space: Space, picked: dict[str, np.ndarray]) -> list[Choice]:
    out = []
    for task in range(space.num_tasks):
        shots: tuple[int, ...] = ()
        if EXEMPLARS in picked:
            shots = tuple(sorted(int(i) for i in picked[EXEMPLARS][task]))
        out.append(Choice(shots, int(picked[TEMPLATE][task].reshape(-1)[0])))
    return out


def _plan(space: Space, config: SearchConfig) -> list[str]:
    relaxed = config.relaxed_steps if EXEMPLARS in space.families else 0
    return (
        ["measured"] * config.warmup_steps
        + ["relaxed"] * relaxed
        + ["measured"] * config.measured_steps
    )


def _row(space, step, out, kind, gate, trusted) -> dict[str, Any]:
    names = [task.name for task in space.tasks]
    live = trusted if kind == "relaxed" else np.ones((len(names),), bool)

    def by_task(values) -> dict[str, float]:
        return {
            name: float(value)
            for name, value, on in zip(names, values, live, strict=True)
            if on
        }

    row: dict[str, Any] = {
        "step": step,
        "kind": kind,
        "loss": by_task(out.loss),
        "forward_tokens": int(out.forward),
        "backward_tokens": int(out.backward),
    }
    if kind == "measured" and EXEMPLARS in space.families:
        row["spearman"] = by_task(gate.spearman())
        for name, values in out.estimator[EXEMPLARS].items():
            row[name] = by_task(values)
    row["probabilities"] = {
        slot: {
            name: np.round(p, 5).tolist() for name, p in zip(names, own, strict=True)
        }
        for slot, own in out.probabilities.items()
    }
    return row
