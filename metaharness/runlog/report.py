"""The report page of a run: one HTML file that needs nothing else.

`write` puts two files into the run directory: report.json, the numbers, and
report.html, the page made from them. The template does layout only; sentences come
from `words`, numbers from `formats`, charts from `charts`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from metaharness.runlog import (
    attribution_words,
    charts,
    formats,
    jsonfile,
    table,
    words,
)
from metaharness.runlog.report_data import (
    EFFECTS,
    OVERALL,
    Attribution,
    Report,
    ScoreRow,
    SlotReport,
    from_json,
    overall_first,
    scores_by_task,
)
from metaharness.runlog.rundir import RunDirectory
from metaharness.stats import Interval

_DATA = "report.json"
_NUM_CANDIDATES_SHOWN = 8
_COMPARED = ("harness_against_weights", "interaction")  # effects of effects


def write(report: Report, run: RunDirectory) -> Path:
    """Writes report.json and report.html; returns the page's path."""
    # the numbers last: they say that the run is finished
    jsonfile.write_text(run.report_file, render(report))
    run.write_json(_DATA, report)
    return run.report_file


def load(path: str | os.PathLike) -> Report:
    """The report of a run directory, from its report.json.

    Raises:
      RunError: there is none, or another version wrote it.
    """
    return from_json(jsonfile.read_json(Path(path) / _DATA))


def render(report: Report) -> str:
    """The page as HTML text; parts that the report leaves out are not on it."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("metaharness.runlog", package_path="."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": formats.number,
        "bounds": formats.bounds,
        "percent": formats.percent,
        "percent_bounds": formats.percent_bounds,
        "points": formats.points,
        "points_bounds": formats.points_bounds,
        "probability": formats.probability,
        "duration": formats.duration,
        "kind": words.kind_label,
        "phase": words.phase_label,
        "method": table.method_label,
        "loss": table.loss_text,
        "task": lambda task: "All tasks" if task == OVERALL else task,
    }
    return environment.get_template("report.html.j2").render(
        report=report,
        headline=words.headline(report),
        score_groups=_score_groups(report),
        episodes=any(row.episode_tokens for row in report.scores),
        attribution=[_attribution(row) for row in overall_first(report.attribution)],
        notes=sorted(report.notes, key=lambda note: note.kind != "warning"),
        trust=[
            (row, words.trust_interval(row), words.trust_verdict(row))
            for row in report.trust
        ],
        curves=[_curve(report, place) for place in range(len(report.curves))],
        slots=[_slot(slot, place) for place, slot in enumerate(report.slots)],
        config=list(_flat(report.config)),
        provenance=list(_flat(report.provenance)),
    )


def _score_groups(report: Report) -> list[dict[str, Any]]:
    """One group a task: its rows, and its chart where random harnesses were scored."""
    return [
        {"task": task, "rows": rows, "chart": _chart(rows, place)}
        for place, (task, rows) in enumerate(scores_by_task(report.scores).items())
    ]


def _chart(rows: list[ScoreRow], place: int) -> Markup | None:
    methods = {row.method for row in rows}
    if "random" not in methods or len(methods) == 1:
        return None
    return charts.differences_chart(rows, name=f"scores{place}")


def _attribution(row: Attribution) -> dict[str, Any]:
    """Sentences, scores by weights and harness, and effects with their classes."""
    effects = [effect for name in EFFECTS if (effect := row.effect(name))]
    weights = dict.fromkeys(cell.weights for cell in row.cells)
    episodes = any(slot.reward for slot in row.slots)
    return {
        "row": row,
        "sentences": attribution_words.gain_sentences(row),
        "cells": [
            (name, [row.cell(name, harness) for harness in ("seed", "learned")])
            for name in weights
        ],
        # which part is larger, and whether they overlap, is neither good nor bad
        "effects": [
            (
                EFFECTS[effect.name],
                effect,
                "" if effect.name in _COMPARED else _side(effect.loss),
            )
            for effect in effects
        ],
        "slots": [(slot, _side(slot.loss)) for slot in row.slots],
        # of episodes the reward says more than the share of full ones
        "graded": any(effect.exact_match for effect in effects) and not episodes,
        "episodes": episodes,
        "moved": row.divergence
        and attribution_words.divergence_sentence(row.divergence),
    }


def _side(change: Interval) -> str:
    """Class of a difference of losses: coloured where its interval leaves 0 out."""
    better = attribution_words.is_better(change)
    return {True: "better-number", False: "worse-number", None: ""}[better]


def _curve(report: Report, place: int) -> dict[str, Any]:
    curve = report.curves[place]
    return {
        "curve": curve,
        "chart": charts.curve_chart(curve, name=f"curve{place}"),
        "legend": [
            (charts.series_colour(index), series.name)
            for index, series in enumerate(curve.series)
        ],
    }


def _slot(slot: SlotReport, place: int) -> dict[str, Any]:
    """Chart, legend and candidates by falling chance; the chosen are always shown."""
    last = slot.probabilities[-1]
    kinds = [candidate.kind for candidate in slot.candidates]
    order = sorted(range(len(last)), key=lambda index: -last[index])
    top = order[: max(_NUM_CANDIDATES_SHOWN, slot.k)]
    rows = [
        {
            "candidate": slot.candidates[index],
            "chance": last[index],
            "place": slot.chosen.index(index) + 1 if index in slot.chosen else None,
            "colour": charts.kind_colour(kinds[index], kinds),
            "shown": index in top or index in slot.chosen,
        }
        for index in order
    ]
    return {
        "slot": slot,
        "summary": words.slot_summary(slot),
        "chart": charts.slot_chart(slot, name=f"slot{place}"),
        "legend": [
            (charts.kind_colour(kind, kinds), words.kind_label(kind))
            for kind in dict.fromkeys(kinds)
            if kind
        ],
        "has_kinds": len(set(kinds)) > 1,
        "shown": [row for row in rows if row["shown"]],
        "hidden": [row for row in rows if not row["shown"]],
    }


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested dicts and lists of dicts, with dotted names."""
    value = jsonfile.json_safe(value)
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _flat(item, f"{path}[{index}]")
    elif path:
        yield path, value if isinstance(value, str) else jsonfile.dumps(value)
