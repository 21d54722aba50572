"""The race's report: Markdown and one HTML page, every sentence from the results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.ticker import FuncFormatter, NullFormatter

import metaharness.runlog.figure as figure
from experiments.markdown import table_lines
from metaharness.runlog import formats, jsonfile
from metaharness.stats import Interval, paired_difference

_CSS = Path(figure.__file__).with_name("report.css")
_WIDTH = 340  # points
_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_DASHES = ("solid", (0, (4, 2)), (0, (1.2, 1.2)), (0, (5, 1.5, 1, 1.5)))
PROBLEM_WORDS = {
    "ranking": "ordered exemplars",
    "subset": "unordered exemplars",
    "whole": "whole harness as one choice",
    "search": "search without a gradient",
}


def write_report(out: Path, result: dict[str, Any]) -> None:
    """Write ``report.md`` and ``report.html`` into the folder."""
    result = jsonfile.json_safe(result)
    facts, findings = _facts(result), findings_of(result)
    tables = _tables(result)
    lines = ["# Estimators on a landscape", "", *facts, "", "## Findings", ""]
    lines += [f"- {text}" for text in findings]
    for title, head, rows in tables:
        lines += ["", *table_lines(title, head, rows)]
    jsonfile.write_text(out / "report.md", "\n".join(lines) + "\n")
    jsonfile.write_text(
        out / "report.html", _page(facts, findings, tables, _figures(result))
    )


def findings_of(result: dict[str, Any]) -> list[str]:
    """What the numbers say, in sentences."""
    out = []
    gradients = [row for row in result["rows"] if row["kind"] == "gradient"]
    for problem in dict.fromkeys(row["problem"] for row in gradients):
        for scale in dict.fromkeys(row["scale"] for row in gradients):
            own = [
                row
                for row in gradients
                if row["problem"] == problem and row["scale"] == scale
            ]
            out.append(_closest(own, problem, scale))
    regrets = [row for row in result["rows"] if row["kind"] == "regret"]
    learners = [row for row in regrets if row["problem"] != "search"]
    searches = [row for row in regrets if row["problem"] == "search"]
    if learners and searches:
        out += _winners(learners, searches)
    if result["gate"]:
        out.append(
            f"The gated loss of {result['gate']['harnesses']} random harnesses and "
            "their sequential loss have a Spearman correlation of "
            f"{formats.number(result['gate']['spearman'])}."
        )
    if result["left_out"]:
        out.append(f"{len(result['left_out'])} entries were left out; see the table.")
    return out


def _headline(row: dict) -> str:
    """The compared slot's cosine: the template slot is treated alike by all."""
    own = "cosine_exemplars"
    return own if own in row["metrics"] else "cosine"


def _closest(own: Sequence[dict], problem: str, scale: float) -> str:
    own = [row for row in own if not row["reference"]]
    metric = _headline(own[0])
    ranked = sorted(own, key=lambda row: -row["metrics"][metric]["mean"])
    best = ranked[0]
    slot = " of the exemplar slot" if metric != "cosine" else ""
    text = (
        f"{PROBLEM_WORDS[problem].capitalize()}, logits of scale {scale:g}: highest "
        f"mean cosine to the exact gradient{slot} {best['estimator']}, "
        f"{_interval(best['metrics'][metric])}"
    )
    if len(ranked) == 1:
        return text + "; nothing else was measured."
    second = ranked[1]
    gap = _difference(best["seeds"][metric], second["seeds"][metric])
    verdict = "clear of zero" if gap.low > 0 else "not clear of zero"
    return (
        f"{text}; next {second['estimator']}, {_interval(second['metrics'][metric])} "
        f"(difference {_interval(gap._asdict())}, {verdict})."
    )


def _winners(learners: Sequence[dict], searches: Sequence[dict]) -> list[str]:
    """Best learner against best search at the end, and at every smaller cost."""
    common = [
        cost
        for cost in searches[0]["evaluations"]
        if all(cost in row["evaluations"] for row in searches)
    ]
    words = []
    for cost in common:
        able = [row for row in learners if cost in row["evaluations"]]
        if not able:
            continue
        learner = min(able, key=lambda row: _regret(row, cost)["mean"])
        search = min(searches, key=lambda row: _regret(row, cost)["mean"])
        gap = _difference(_seeds(learner, cost), _seeds(search, cost))
        if gap.high < 0:
            verdict = "the learner wins"
        elif gap.low > 0:
            verdict = "the baseline wins"
        else:
            verdict = "no clear winner"
        words.append(
            f"At {cost:,} evaluations: lowest mean regret of the learners "
            f"{learner['estimator']} on {PROBLEM_WORDS[learner['problem']]}, "
            f"{_interval(_regret(learner, cost))} nats; of the searches "
            f"{search['estimator']}, {_interval(_regret(search, cost))}; difference "
            f"{_interval(gap._asdict())}: {verdict}."
        )
    beaten = [
        row
        for row in learners
        if row["evaluations"][-1] == common[-1]
        and row["metrics"]["regret"]["mean"]
        > min(own["metrics"]["regret"]["mean"] for own in searches)
    ]
    able = [row for row in learners if row["evaluations"][-1] == common[-1]]
    words.append(
        f"At the end {len(beaten)} of {len(able)} learners have a higher mean regret "
        "than the best search."
    )
    return words


def _facts(result: dict[str, Any]) -> list[str]:
    land, config = result["landscape"], result["config"]
    best = land["best_harness"]
    return [
        f"{land['harnesses']:,} harnesses x {land['items']} items of {land['task']}, "
        f"{land['model']}: mean loss {land['mean']:.3f} nats an answer, best "
        f"{land['best']:.3f} (template {best['template']}, exemplars "
        f"{', '.join(best['exemplars'])}), worst {land['worst']:.3f}.",
        f"One evaluation is one harness on one item, a backward pass counts as one "
        f"more. A step costs at most {config['evaluations']}, the whole landscape "
        f"{land['evaluations']:,}. {config['seeds']} seeds; 95% bootstrap intervals "
        f"over seeds. Estimates are made after {config['past_steps']} steps at the "
        f"same logits that fill windows and fits, {config['repeats']} estimates a "
        "seed. Learning rates "
        f"{', '.join(f'{rate:g}' for rate in config['learning_rates'])} for all, "
        "chosen on other seeds.",
    ]


def _tables(result) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    gradients = [row for row in result["rows"] if row["kind"] == "gradient"]
    regrets = [row for row in result["rows"] if row["kind"] == "regret"]
    gradients.sort(
        key=lambda row: (
            list(PROBLEM_WORDS).index(row["problem"]),
            row["scale"],
            -row["metrics"][_headline(row)]["mean"],
        )
    )
    regrets.sort(key=lambda row: row["metrics"]["regret"]["mean"])
    head = ("problem", "scale", "estimator", "cosine, exemplar slot",
            "cosine, all slots", "relative squared error, all slots",
            "harnesses x items a step", "evaluations a step", "before")  # fmt: skip
    first = [
        (
            PROBLEM_WORDS[row["problem"]],
            f"{row['scale']:g}",
            row["estimator"],
            _interval(row["metrics"].get("cosine_exemplars")),
            _interval(row["metrics"]["cosine"]),
            _interval(row["metrics"]["error"]),
            f"{row['harnesses_a_step']} x {row['items_a_step']}",
            f"{row['evaluations']:,}",
            f"{row['past_evaluations']:,}",
        )
        for row in gradients
    ]
    second = [
        (
            PROBLEM_WORDS[row["problem"]],
            row["estimator"],
            f"{row['evaluations'][-1]:,}",
            _interval(row["metrics"]["regret"]),
            formats.number(row["metrics"]["median_regret"], 3),
            formats.percent(row["metrics"]["percentile"], 1),
            formats.percent(row["metrics"]["optimum_found"]),
            f"{row['learning_rate']:g}" if "learning_rate" in row else "",
        )
        for row in regrets
    ]
    out = [
        ("Cosine to the exact gradient", head, first),
        (
            "Regret of the deployed harness",
            (
                "problem",
                "method",
                "evaluations",
                "mean regret, nats",
                "median",
                "harnesses that are worse",
                "optimum found",
                "learning rate",
            ),  # fmt: skip
            second,
        ),
    ]
    if result["left_out"]:
        rows = [
            (PROBLEM_WORDS[row["problem"]], row["estimator"], row["why"])
            for row in result["left_out"]
        ]
        out.append(("Left out", ("problem", "estimator", "why"), rows))
    return out


@matplotlib.rc_context(figure.STYLE)
def _figures(result) -> list[tuple[str, str, Markup, list[tuple[str, str]]]]:
    """(caption, unit, SVG, legend) of every figure."""
    out = []
    gradients = [row for row in result["rows"] if row["kind"] == "gradient"]
    for problem in dict.fromkeys(row["problem"] for row in gradients):
        own = [row for row in gradients if row["problem"] == problem]
        out.append(_cosine_figure(own, problem))
    regrets = [row for row in result["rows"] if row["kind"] == "regret"]
    searches = [row for row in regrets if row["problem"] == "search"]
    for problem in dict.fromkeys(row["problem"] for row in regrets):
        if problem != "search":
            own = [row for row in regrets if row["problem"] == problem]
            out.append(_regret_figure(own, searches, problem))
    return out


def _cosine_figure(rows: Sequence[dict], problem: str):
    scales = list(dict.fromkeys(row["scale"] for row in rows))
    names = sorted(
        dict.fromkeys(row["estimator"] for row in rows),
        key=lambda name: (
            -max(
                row["metrics"]["cosine"]["mean"]
                for row in rows
                if row["estimator"] == name
            )
        ),
    )
    drawn, axes = figure.new_figure(_WIDTH, 40 + 20 * len(names))
    titles = {}
    for row in rows:
        scale = scales.index(row["scale"])
        place = names.index(row["estimator"]) + 0.26 * (scale - (len(scales) - 1) / 2)
        ink = figure.colour(_COLOURS[scale % len(_COLOURS)])
        interval = row["metrics"][_headline(row)]
        gid = f"row{len(titles)}"
        if interval["low"] is not None:
            axes.plot(
                [interval["low"], interval["high"]],
                [place, place],
                color=ink,
                linewidth=1.8,
            )
        axes.plot([interval["mean"]], [place], "o", color=ink, markersize=5, gid=gid)
        titles[gid] = (
            f"{row['estimator']}, scale {row['scale']:g}: {_interval(interval)}"
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False)
    axes.grid(axis="x", color=figure.colour("rule"), linewidth=0.6)
    axes.tick_params(axis="y", colors=figure.colour("ink"))
    label = f"Cosine, {PROBLEM_WORDS[problem]}. " + "; ".join(titles.values())
    svg = figure.to_svg(drawn, name=f"cosine-{problem}", label=label, titles=titles)
    legend = [
        (_COLOURS[i % len(_COLOURS)], f"logits of scale {scale:g}")
        for i, scale in enumerate(scales)
    ]
    slot = "" if _headline(rows[0]) == "cosine" else " of the exemplar slot"
    caption = f"Cosine to the exact gradient{slot}: {PROBLEM_WORDS[problem]}"
    return caption, "mean and 95% interval over seeds", svg, legend


def _regret_figure(rows: Sequence[dict], searches: Sequence[dict], problem: str):
    drawn, axes = figure.new_figure(_WIDTH, 240)
    titles, legend = {}, []
    for place, row in enumerate([*rows, *searches]):
        variable = _COLOURS[place % len(_COLOURS)]
        dashes = _DASHES[(place // len(_COLOURS)) % len(_DASHES)]
        search = row["problem"] == "search"
        means = [point["mean"] for point in row["metrics"]["curve"]]
        gid = f"line{place}"
        axes.plot(
            row["evaluations"],
            means,
            color=figure.colour(variable),
            linestyle=dashes,
            linewidth=1.1 if search else 1.6,
            marker="s" if search else None,
            markersize=3,
            gid=gid,
        )
        titles[gid] = f"{row['estimator']}: {_interval(row['metrics']['regret'])}"
        legend.append((variable, row["estimator"]))
    axes.set_xscale("log")
    # matplotlib's own powers of ten are mathematics, which an SVG of text cannot show
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=0)
    axes.set_xlabel("evaluations", color=figure.colour("muted"), loc="right")
    label = f"Regret against cost, {PROBLEM_WORDS[problem]}. At the end: " + "; ".join(
        titles.values()
    )
    svg = figure.to_svg(drawn, name=f"regret-{problem}", label=label, titles=titles)
    caption = f"Regret of the deployed harness: {PROBLEM_WORDS[problem]}"
    return caption, "mean over seeds, nats; squares are searches", svg, legend


def _page(facts, findings, tables, figures) -> str:
    out = Markup()
    for fact in facts:
        out += Markup("<p>{}</p>").format(fact)
    items = Markup("").join(Markup("<li>{}</li>").format(text) for text in findings)
    out += Markup(
        '<section><h2>Findings</h2><ul class="points">{}</ul></section>'
    ).format(items)
    charts = Markup("")
    for caption, unit, svg, legend in figures:
        keys = Markup("").join(
            Markup('<li style="--key: var(--{})">{}</li>').format(*pair)
            for pair in legend
        )
        charts += Markup(
            '<figure><figcaption>{} <span class="unit">{}</span></figcaption>{}'
            '<ul class="legend">{}</ul></figure>'
        ).format(caption, unit, svg, keys)
    out += Markup('<section><div class="charts">{}</div></section>').format(charts)
    for title, head, rows in tables:
        cells = Markup("").join(Markup("<th>{}</th>").format(name) for name in head)
        body = Markup("").join(
            Markup("<tr>{}</tr>").format(
                Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row)
            )
            for row in rows
        )
        out += Markup(
            '<section><h2>{}</h2><div class="scroll"><table><thead><tr>{}</tr>'
            "</thead><tbody>{}</tbody></table></div></section>"
        ).format(title, cells, body)
    css = Markup(_CSS.read_text(encoding="utf-8"))
    return str(
        Markup(
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            "<title>Estimators on a landscape</title><style>{}</style></head><body>"
            "<header><h1>Estimators on a landscape</h1></header><main>{}</main>"
            "</body></html>\n"
        ).format(css, out)
    )


def _regret(row: dict, cost: int) -> dict[str, float]:
    return row["metrics"]["curve"][row["evaluations"].index(cost)]


def _seeds(row: dict, cost: int) -> list[float]:
    at = row["evaluations"].index(cost)
    return [seed[at] for seed in row["seeds"]["regret"]]


def _difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    return paired_difference(first, second, rng=np.random.default_rng(0))


def _interval(interval: dict[str, float] | None) -> str:
    if interval is None or interval["mean"] is None:
        return formats.UNKNOWN
    text = formats.number(interval["mean"], 3)
    if interval["low"] is None or not np.isfinite(interval["low"]):
        return text
    own = formats.bounds(Interval(**interval), 3)
    return f"{text} ({own})"
