"""The report page and the Markdown table, made from the results alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from experiments.markdown import table_lines
from experiments.microscope import figures, metrics
from experiments.microscope.claims import by_problem, claims_by_topic
from metaharness.runlog import jsonfile

COLUMNS = {
    "evaluations": "Evaluations a step",
    "relative_bias": "Relative bias",
    "bias_floor": "Floor",
    "relative_variance": "Relative variance",
    "cosine": "Cosine",
    "descent": "P(descends)",
    "variance_x_cost": "Variance x cost",
    "wall_us_per_step": "µs a step",
    "steps_to_1_percent": "Steps to 1 %",
    "evaluations_to_1_percent": "Evaluations to 1 %",
    "final_gap": "Final gap",
    "mode_regret": "Regret of the mode",
}
_COLOURED = 6
_STYLES = Path(__file__).parents[2] / "metaharness" / "runlog" / "report.css"


def write_report(out: Path, results: Mapping[str, Any]) -> None:
    """Writes report.html and table.md into a folder.

    Args:
      out: exists.
      results: as in results.json.
    """
    jsonfile.write_text(out / "report.html", render(results))
    jsonfile.write_text(out / "table.md", markdown(results["rows"]))


def render(results: Mapping[str, Any]) -> str:
    """The page as HTML text."""
    rows = results["rows"]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("experiments.microscope", package_path="."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    measured = {
        problem: own
        for problem, own in by_problem(_measured(rows)).items()
        if problem != "polynomial"
    }
    sizes = results["config"]["sizes"]
    return environment.get_template("report.html.j2").render(
        css=Markup(_STYLES.read_text(encoding="utf-8")),
        facts=[
            f"{len(rows)} measurements",
            f"{sizes['instances']} instances of each problem",
            f"{sizes['instances'] * sizes['chains']} runs",
            f"{results['seconds']:.0f} s",
        ],
        above_floor=metrics.ABOVE_FLOOR,
        claims=claims_by_topic(rows),
        skipped=results.get("skipped", ()),
        columns=list(COLUMNS.values()),
        problems=[
            {
                "name": problem,
                "about": results.get("about", {}).get(problem, ""),
                "figures": _figures(problem, own),
                "table": [
                    (row["estimator"], [_cell(row, key) for key in COLUMNS])
                    for row in own
                ],
            }
            for problem, own in measured.items()
        ],
        bits=_bits(_measured(rows)),
        reproduce=sorted(
            _flat({"config": results["config"], **results.get("provenance", {})})
        ),
    )


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """One Markdown table for each problem."""
    parts = []
    for problem, own in by_problem(_measured(rows)).items():
        if problem == "polynomial":
            bits = _bits(own)
            head = ["Estimator", *(f"power {power}" for power in bits["powers"])]
            body = [
                [label, *(" ".join(filter(None, pair)) for pair in cells)]
                for label, cells in bits["table"]
            ]
            parts += table_lines(f"{problem}, {bits['steps']} steps", head, body)
            parts.append("")
            continue
        body = [
            [row["estimator"], *(_cell(row, key) for key in COLUMNS)] for row in own
        ]
        parts += [*table_lines(problem, ["Estimator", *COLUMNS.values()], body), ""]
    failed = [row for row in rows if "error" in row]
    if failed:
        body = [[row["estimator"], row["problem"], row["error"]] for row in failed]
        parts += [*table_lines("failed", ["Estimator", "Problem", "Error"], body), ""]
    return "\n".join(parts)


def _measured(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if "error" not in row]


def _figures(problem: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = [
        {
            "title": "Bias and variance",
            "unit": "numbers as in the table; hollow: no bias seen; orange: not"
            " stated unbiased",
            "svg": figures.bias_variance(rows, name=f"plane-{problem}"),
            "legend": [],
        }
    ]
    best = sorted(rows, key=_rank)[:_COLOURED]
    curves = []
    for row in best:
        curve = row["curve"]
        steps = np.arange(1, len(curve["median"])) * curve["every"]
        curves.append(
            {
                "label": row["estimator"],
                "x": steps * row["evaluations"],
                "y": curve["median"][1:],
                "low": curve["low"][1:],
                "high": curve["high"][1:],
            }
        )
    found.append(
        _lines(
            "Learning curves",
            f"gap to the optimum; the {len(best)} lowest at the end, median and"
            " quartiles",
            curves,
            name=f"curves-{problem}",
            x_label="evaluations",
            y_label="gap",
            log_x=True,
            log_y=True,
        )
    )
    swept = [row for row in rows if row.get("by_tau")]
    if swept:
        series = [
            {
                "label": row["estimator"],
                "x": [one["tau"] for one in row["by_tau"]],
                "y": [one["relative_variance"] for one in row["by_tau"]],
            }
            for row in swept
        ]
        found.append(
            _lines(
                "Variance against temperature",
                "relative variance of one step",
                series,
                name=f"tau-{problem}",
                x_label="temperature",
                y_label="relative variance",
                log_x=True,
                log_y=True,
            )
        )
    sharp = sorted(
        (row for row in rows if row["member"] != "exact"),
        key=lambda row: -(row["cosine"] or 0),
    )
    series = [
        {
            "label": row["estimator"],
            "x": [one["entropy"] for one in row["by_scale"]],
            "y": [one["cosine"] for one in row["by_scale"]],
        }
        for row in [row for row in sharp if row["default"]][: 2 * _COLOURED]
    ]
    found.append(
        _lines(
            "Cosine against entropy",
            "of one step, members at their defaults",
            series,
            name=f"entropy-{problem}",
            x_label="entropy, share of uniform",
            y_label="mean cosine",
        )
    )
    return found


def _lines(title: str, unit: str, series: list, *, name: str, **more: Any) -> dict:
    marks = ("——", "– –", "· ·", "– ·")
    legend = []
    for place, one in enumerate(series):
        ink, _ = figures.line_style(place)
        mark = marks[place // len(figures.LINES) % len(marks)]
        legend.append((ink, mark, one["label"]))
    svg = figures.lines(series, name=name, **more)
    return {"title": title, "unit": unit, "svg": svg, "legend": legend}


def _rank(row: Mapping[str, Any]) -> tuple[float, float]:
    gap, reached = row["final_gap"], row["evaluations_to_1_percent"]
    return (
        np.inf if reached is None else reached,
        np.inf if gap is None else gap,
    )


def _bits(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    own = [row for row in rows if row["problem"] == "polynomial"]
    if not own:
        return None
    return {
        "steps": own[0]["steps"],
        "powers": [f"{one['power']:g}" for one in own[0]["powers"]],
        "table": [
            (
                row["estimator"],
                [
                    (
                        f"{one['loss']:.4f}",
                        ""
                        if one["difference"] is None
                        else f"({one['difference']:+.4f})",
                    )
                    for one in row["powers"]
                ],
            )
            for row in own
        ],
    }


def _cell(row: Mapping[str, Any], key: str) -> str:
    value = row[key]
    if value is None or not np.isfinite(value):
        return "–"
    if key in ("steps_to_1_percent", "evaluations_to_1_percent", "evaluations"):
        return f"{value:.0f}"
    if key in ("cosine", "descent"):
        return f"{value:.3f}"
    return "0" if abs(value) < 5e-6 else f"{value:.3g}"


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [
            pair
            for key, item in value.items()
            for pair in _flat(item, f"{path}.{key}" if path else key)
        ]
    return [(path, value if isinstance(value, str) else jsonfile.dumps(value))]
