"""The three charts of the report page. Captions and legends are HTML, not in here."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from metaharness.runlog import formats, words
from metaharness.runlog.figure import STYLE, colour, new_figure, to_svg
from metaharness.runlog.report_data import METHODS, Curve, ScoreRow, SlotReport

_WIDTH = 340  # points; half the page's column
_CHARACTER_SHARE = 0.017  # of a chart's width, one letter of a stage's name
_LINES = ("c1", "c2", "c3", "c4", "c5", "c6")
# told apart by dashes as well as by colour
_KINDS = {
    "right": ("c1", "solid"),
    "wrong_answer": ("c2", (0, (4, 2))),
    "wrong_format": ("c3", (0, (1.2, 1.2))),
    "off_task": ("c6", (0, (5, 1.5, 1, 1.5))),
}


def series_colour(index: int) -> str:
    """CSS variable of a chart's line, by its place."""
    return _LINES[index % len(_LINES)]


def kind_colour(kind: str, kinds: Sequence[str]) -> str:
    """CSS variable of a candidate kind, where ``kinds`` are all that occur."""
    return _kind_style(kind, kinds)[0]


@matplotlib.rc_context(STYLE)
def differences_chart(rows: Sequence[ScoreRow], *, name: str) -> Markup:
    """Loss of each method minus the mean of random harnesses, on one task.

    The band is one standard deviation of the random harnesses around their mean.

    Args:
      rows: of one task, with a "random" row.
      name: unique on the page.
    """
    random = next(row for row in rows if row.method == "random")
    others = [row for row in rows if row.method != "random"]
    figure, axes = new_figure(_WIDTH, 34 + 19 * len(others))
    if random.spread:
        axes.axvspan(
            -random.spread, random.spread, color=colour("faint"), linewidth=0, gid="sd"
        )
    axes.axvline(0, color=colour("muted"), linewidth=0.9)
    titles = {"sd": f"random harnesses: sd {formats.number(random.spread)}"}
    for place, row in enumerate(others):
        change = row.difference
        centre = change.mean if change else row.loss.mean - random.loss.mean
        strong = row.method in ("mode", "sampled", "expected")
        ink = colour("accent" if strong else "muted")
        gid = f"row{place}"
        if change:
            axes.plot(
                [change.low, change.high], [place, place], color=ink, linewidth=1.8
            )
        axes.plot([centre], [place], "o", color=ink, markersize=5.5, gid=gid)
        titles[gid] = " ".join(
            (
                METHODS.get(row.method, row.method),
                formats.number(centre, sign=True),
                formats.bounds(change, sign=True),
            )
        )
    axes.set_yticks(
        range(len(others)), [METHODS.get(row.method, row.method) for row in others]
    )
    axes.set_ylim(len(others) - 0.5, -0.5)
    axes.grid(False)
    axes.grid(axis="x", color=colour("rule"), linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.tick_params(axis="y", colors=colour("ink"))
    label = f"{random.task}: difference to random harnesses in nats per answer. "
    return to_svg(
        figure, name=name, label=label + "; ".join(titles.values()), titles=titles
    )


@matplotlib.rc_context(STYLE)
def curve_chart(curve: Curve, *, name: str) -> Markup:
    """Lines with optional bands, and the schedule's stages along the top."""
    figure, axes = new_figure(_WIDTH, 190)
    titles = {}
    for place, series in enumerate(curve.series):
        ink = colour(series_colour(place))
        if series.low is not None and series.high is not None:
            axes.fill_between(
                series.x, series.low, series.high, color=ink, alpha=0.15, linewidth=0
            )
        gid = f"line{place}"
        axes.plot(
            series.x,
            series.y,
            color=ink,
            linewidth=1.5,
            marker="o" if np.isfinite(series.y).sum() == 1 else None,
            markersize=4,
            solid_capstyle="round",
            gid=gid,
        )
        titles[gid] = f"{series.name}: {_first_and_last(series.y)}"
    _mark_spans(axes, curve)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    _finish(axes, curve.x_label)
    return to_svg(
        figure,
        name=name,
        label=f"{curve.title}, {curve.y_label}. " + "; ".join(titles.values()),
        titles=titles,
    )


@matplotlib.rc_context(STYLE)
def slot_chart(slot: SlotReport, *, name: str) -> Markup:
    """Each candidate's chance of being chosen, over the run; the chosen stand out."""
    figure, axes = new_figure(_WIDTH, 190)
    kinds = [candidate.kind for candidate in slot.candidates]
    table = np.asarray(slot.probabilities, float)
    titles = {}
    # the chosen last, on top
    for index in sorted(range(len(kinds)), key=lambda index: index in slot.chosen):
        chosen = index in slot.chosen
        variable, dashes = _kind_style(kinds[index], kinds)
        gid = f"candidate{index}"
        axes.plot(
            slot.steps,
            table[:, index],
            color=colour(variable),
            linestyle=dashes,
            linewidth=1.7 if chosen else 0.8,
            alpha=1.0 if chosen else 0.45,
            marker="o" if len(slot.steps) == 1 else None,
            markersize=4,
            gid=gid,
        )
        titles[gid] = _candidate_title(slot, index)
    uniform = slot.k / len(kinds)
    axes.axhline(uniform, color=colour("muted"), linewidth=0.7, linestyle=(0, (2, 2)))
    axes.annotate(
        "at random",
        (1, uniform),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        color=colour("muted"),
        fontsize=9,
    )
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    _finish(axes, "update")
    top = sorted(range(len(kinds)), key=lambda index: -table[-1, index])[: slot.k]
    label = "; ".join(_candidate_title(slot, index) for index in top)
    return to_svg(
        figure,
        name=name,
        label=f"Chance of each candidate of {slot.slot}. Highest: {label}",
        titles=titles,
    )


def _mark_spans(axes, curve: Curve) -> None:
    """A dotted line where a stage begins, and its name above where it has the room."""
    if not curve.spans:
        return
    whole = max(span.stop for span in curve.spans) - min(s.start for s in curve.spans)
    for place, span in enumerate(curve.spans):
        if place:
            axes.axvline(
                span.start, color=colour("muted"), linewidth=0.7, linestyle=(0, (2, 2))
            )
        if span.stop - span.start < whole * len(span.name) * _CHARACTER_SHARE:
            continue
        axes.annotate(
            span.name,
            ((span.start + span.stop) / 2, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color=colour("muted"),
            fontsize=9,
        )


def _finish(axes, x_label: str) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.margins(x=0.02)
    axes.set_xlabel(x_label, color=colour("muted"), loc="right", labelpad=1)


def _first_and_last(values: Sequence[float]) -> str:
    known = [value for value in values if np.isfinite(value)]
    if not known:
        return "no values"
    return f"{known[0]:.3g} to {known[-1]:.3g}"


def _candidate_title(slot: SlotReport, index: int) -> str:
    candidate = slot.candidates[index]
    kind = f" ({words.kind_label(candidate.kind)})" if candidate.kind else ""
    chance = formats.probability(slot.probabilities[-1][index])
    return f"{candidate.name}{kind}: {chance}"


def _kind_style(kind: str, kinds: Sequence[str]):
    if kind in _KINDS:
        return _KINDS[kind]
    taken = {_KINDS[k][0] for k in kinds if k in _KINDS}
    free = [variable for variable in _LINES if variable not in taken]
    others = [k for k in dict.fromkeys(kinds) if k not in _KINDS]
    return free[others.index(kind) % len(free)], "solid"
