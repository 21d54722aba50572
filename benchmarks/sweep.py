"""Benchmark sweep: tasks x models x methods x seeds from one grid file.

    python -m benchmarks.sweep benchmarks/grids/episodes.toml --out runs/episodes
    python -m benchmarks.sweep GRID.toml --out DIR --dry-run
    python -m benchmarks.sweep GRID.toml --out DIR --only "*/gsm8k/*" --model big=M.gguf

``benchmarks.sweep_grid`` says what a grid holds. A cell is one task, model, method and
seed; it has a run directory below DIR/cells. The same command goes on where it was
stopped: done cells are skipped, episodes and trainings that were cut short are gone on
with, failed cells are tried again. DIR/table.md and DIR/results.json are written after
each cell. Several processes may share DIR, each with cells of its own (``--only``).

On a GPU a short cell mostly compiles. JAX_COMPILATION_CACHE_DIR=FOLDER keeps programs
between processes; XLA_FLAGS=--xla_gpu_autotune_level=0 takes the first kernel in the
place of the fastest. Processes that share a GPU each need a share of its memory:
XLA_PYTHON_CLIENT_PREALLOCATE=false and XLA_PYTHON_CLIENT_MEM_FRACTION.

Methods: zero_shot is the bare question (no exemplars, instruction or policies; every
tool where only calls can be graded), default the first candidate of every slot of the
task's harness file, random the mean over harnesses drawn from its pools, learned the
likeliest harness (and the weights) that a training leaves, beside the best harness that
random search found for as many tokens.
"""

import fnmatch
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional, UseAppendAction

from benchmarks.sweep_cell import (
    DONE,
    FAILED,
    STARTED,
    Loader,
    read_state,
    run_cell,
)
from benchmarks.sweep_grid import Cell, read_grid
from benchmarks.sweep_table import (
    RESULTS,
    score_text,
    table,
    without_texts,
    write_tables,
)
from metaharness.errors import InputError
from metaharness.harness.episode_log import FILE as EPISODES
from metaharness.runlog.jsonfile import differences, json_safe, read_json, write_json

REFUSED, SOME_FAILED, INTERRUPTED = 2, 1, 130


@dataclass(frozen=True)
class Sweep:
    """What to run, and where it goes."""

    grid: Annotated[Path, Positional]
    """grid file (TOML)"""
    out: Path
    """folder of the sweep, new or to go on with"""
    only: str | None = None
    """run cells whose model/task/method/seed-N has this in it; * stands for anything"""
    model: UseAppendAction[tuple[str, ...]] = ()
    """NAME=PATH: where a model of the grid lies here"""
    data_dir: Path | None = None
    """folder with local copies of data sets, for tasks whose grid names none"""
    share: Path | None = None
    """also write results.json here without texts of data sets: prompts by SHA-256"""
    dry_run: bool = False
    """list the cells and what is done"""
    quiet: bool = False
    """no progress, only the table"""


def main(config: Sweep) -> int:
    """Run the sweep, print its table; 1 where cells failed, 130 after Ctrl-C.

    Raises InputError for what cannot be honoured, before anything is written.
    """
    cells = read_grid(
        config.grid, models=_models(config.model), data_dir=config.data_dir
    )
    chosen = _chosen(cells, config.only)
    states = _states(config.out, cells)
    _check_same(config.out, cells, states)
    if config.dry_run:
        for cell in chosen:
            print(f"{cell.id}: {_said(config.out, cell, states[cell.id])}")
        return 0
    config.out.mkdir(parents=True, exist_ok=True)
    if config.share is not None:
        config.share.parent.mkdir(parents=True, exist_ok=True)
    loader = Loader()
    try:
        for number, cell in enumerate(chosen, start=1):
            folder = _folder(config.out, cell)
            if read_state(folder)["status"] == DONE:
                continue
            _tell(config, f"[{number}/{len(chosen)}] {cell.id}")
            state = run_cell(cell, folder, loader, quiet=config.quiet)
            # read anew: other processes may have finished cells of theirs
            states = _states(config.out, cells)
            write_tables(config.out, config.grid, cells, states)
            _tell(config, f"    {_said(config.out, cell, state)}")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    states = _states(config.out, cells)
    write_tables(config.out, config.grid, cells, states)
    print(table(cells, states))
    print(f"results: {config.out / RESULTS}")
    if config.share is not None:
        write_json(config.share, without_texts(read_json(config.out / RESULTS)))
        print(f"to share: {config.share}")
    failed = any(states[cell.id]["status"] == FAILED for cell in chosen)
    return SOME_FAILED if failed else 0


def _folder(out: Path, cell: Cell) -> Path:
    return out / "cells" / cell.id


def _states(out: Path, cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    return {cell.id: read_state(_folder(out, cell)) for cell in cells}


def _models(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in given:
        name, equals, path = word.partition("=")
        if not (name and equals and path):
            raise InputError(f"model: expected NAME=PATH, got {word!r}; correct it")
        found[name] = path
    return found


def _chosen(cells: Sequence[Cell], only: str | None) -> list[Cell]:
    found = [c for c in cells if only is None or fnmatch.fnmatch(c.id, f"*{only}*")]
    if not found:
        raise InputError(
            f"only: expected cells that match it, got none for {only!r} (the first of "
            f"{len(cells)} is {cells[0].id}); change it"
        )
    return found


def _check_same(
    out: Path, cells: Sequence[Cell], states: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse cells that were run with other settings."""
    differing = []
    for cell in cells:
        old = states[cell.id].get("settings")
        if not old:
            continue
        # a model that is not known here is compared where it is
        ignored = ("model",) if cell.model_path is None else ()
        changed = differences(old, json_safe(cell.identity()), ignored=ignored)
        if changed:
            differing.append(f"{cell.id}: {', '.join(changed)}")
    if differing:
        raise InputError(
            f"{out}: expected the cells that it holds, got other settings for "
            f"{len(differing)} of them ({'; '.join(differing)}); restore the grid, or "
            "name another --out"
        )


def _said(out: Path, cell: Cell, state: Mapping[str, Any]) -> str:
    """A cell's state in words."""
    if state["status"] == DONE:
        result = state["result"]
        return f"done, {result['measure']} {score_text(result)}"
    if state["status"] == FAILED:
        return f"failed: {state['error']}"
    if state["status"] == STARTED:
        log = _folder(out, cell) / "evaluate" / EPISODES
        num = log.read_bytes().count(b"\n") if log.is_file() else 0
        return f"started, {num:,} episodes done"
    return state["status"]


def _tell(config: Sweep, text: str) -> None:
    if not config.quiet:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Sweep, description=__doc__)))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)
