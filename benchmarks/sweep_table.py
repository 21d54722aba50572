"""What a sweep has measured so far, as a table and as JSON."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sweep_cell import DONE, FAILED
from benchmarks.sweep_grid import Cell
from experiments.markdown import signed_interval, table_lines
from metaharness.runlog import jsonfile
from metaharness.train.compare import BEST_RANDOM

RESULTS = "results.json"
HEAD = (
    "model", "task", "method", "seed", "score (95% interval)", "measure",
    "sd over harnesses", "items", "harnesses", "calls an episode",
    "tokens an episode", "training tokens", "best random at equal tokens",
    "over best random", "seconds",
)  # fmt: skip


def write_tables(
    out: Path, grid: Path, cells: Sequence[Cell], states: Mapping[str, dict[str, Any]]
) -> None:
    """Write table.md and results.json of the cells in ``states``, by id."""
    (out / "table.md").write_text(table(cells, states) + "\n")
    done = [cell for cell in cells if states[cell.id]["status"] == DONE]
    jsonfile.write_json(
        out / RESULTS,
        {
            "grid": grid.name,
            "complete": len(done) == len(cells),
            "num_cells": len(cells),
            "num_done": len(done),
            "cells": [
                {
                    "id": cell.id,
                    "model": cell.model,
                    "task": cell.task,
                    "method": cell.method.name,
                    "seed": cell.seed,
                    "run": f"cells/{cell.id}",
                    **_portable(states[cell.id]),
                }
                for cell in cells
            ],
        },
    )


def without_texts(results: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of results.json that holds no text of a data set: prompts by SHA-256."""

    def hashed(value: Any) -> Any:
        if isinstance(value, Mapping):
            own = {name: hashed(held) for name, held in value.items()}
            prompt = own.get("prompt")
            if isinstance(prompt, dict) and "text" in prompt:
                text = prompt.pop("text").encode()
                prompt["text_sha256"] = hashlib.sha256(text).hexdigest()
            return own
        return [hashed(held) for held in value] if isinstance(value, list) else value

    return hashed(results)


def _portable(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state without the place of the model's file on this machine."""
    settings = state.get("settings", {})
    kept = {name: value for name, value in settings.items() if name != "model"}
    return {**state, "settings": kept} if settings else dict(state)


def table(cells: Sequence[Cell], states: Mapping[str, dict[str, Any]]) -> str:
    """One line a cell that was run; says how many are missing."""
    rows = [
        _row(cell, states[cell.id])
        for cell in cells
        if states[cell.id]["status"] in (DONE, FAILED)
    ]
    text = "\n".join(table_lines("Sweep", HEAD, rows))
    count = [states[cell.id]["status"] for cell in cells].count
    if count(DONE) < len(cells):
        text += f"\n\npartial: {count(DONE)} of {len(cells)} cells"
        text += f", {count(FAILED)} failed" if count(FAILED) else ""
    return text


def _row(cell: Cell, state: Mapping[str, Any]) -> list[str]:
    first = [cell.model, cell.task, cell.method.name, str(cell.seed)]
    if state["status"] == FAILED:
        said = f"failed: {state['error']}"
        return [*first, said, *[""] * (len(HEAD) - len(first) - 1)]
    result = state["result"]
    episodes = result["num_episodes"]
    training = result.get("training_tokens")
    searched, over = result.get(BEST_RANDOM), result.get("over_best_random")
    return [
        *first,
        score_text(result),
        result["measure"],
        "" if result["sd"] is None else _number(result["sd"], result["measure"]),
        f"{result['num_items']:,}",
        str(result["num_harnesses"]),
        f"{result['calls'] / episodes:.2f}",
        f"{result['tokens'] / episodes:,.0f}",
        "" if training is None else f"{training:,}",
        score_text(searched) if searched else "",
        signed_interval(over) if over else "",
        f"{state['seconds']:.0f}",
    ]


def score_text(result: Mapping[str, Any]) -> str:
    """Mean and bounds of a cell's score."""
    score, measure = result["score"], result["measure"]
    mean, low, high = (_number(score[key], measure) for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def _number(value: float | None, measure: str) -> str:
    if value is None:
        return "–"
    return f"{value:.1%}" if measure == "exact match" else f"{value:.3f}"
