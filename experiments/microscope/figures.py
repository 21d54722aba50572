"""The figures of the report, as SVG in the page's own colours."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from metaharness.runlog.figure import STYLE, colour, new_figure, to_svg

_WIDTH, _HEIGHT = 340, 230  # points
LINES = ("c1", "c2", "c3", "c4", "c5", "c6")
_DASHES = ("solid", (0, (4, 2)), (0, (1.2, 1.2)), (0, (5, 1.5, 1, 1.5)))
_LOWEST = 1e-4
"""Values below are drawn here: rounding, or none at all."""


def line_style(place: int) -> tuple[str, Any]:
    """CSS variable and dashes of a line, by its place in the legend."""
    return LINES[place % len(LINES)], _DASHES[place // len(LINES) % len(_DASHES)]


@matplotlib.rc_context(STYLE)
def bias_variance(rows: Sequence[dict[str, Any]], *, name: str) -> Markup:
    """Relative bias against relative variance, numbered as ``rows``.

    A hollow mark is a bias that cannot be told from none: it stands at its Monte-Carlo
    floor. Along a dotted line the squared error of one step is the same.
    """
    figure, axes = new_figure(_WIDTH, _HEIGHT + 20)
    titles = {}
    for number, row in enumerate(rows, start=1):
        variance, bias = row["relative_variance"], row["relative_bias"]
        if not _finite(variance, bias):
            continue
        seen = is_biased(row)
        x = max(variance, _LOWEST)
        y = max(bias if seen else min(bias, row["bias_floor"]), _LOWEST)
        ink = colour("c2" if row["unbiased"] is False else "c1")
        gid = f"point{number}"
        axes.plot(
            [x], [y], "o", color=ink, markersize=5, gid=gid,
            markerfacecolor=ink if seen else "none",
        )  # fmt: skip
        axes.annotate(
            str(number), (x, y), xytext=(4, 3), textcoords="offset points",
            fontsize=8, color=colour("ink"),
        )  # fmt: skip
        titles[gid] = (
            f"{row['estimator']}: variance {variance:.3g}, bias {bias:.2g}, "
            f"floor {row['bias_floor']:.2g}"
        )
    _log_scale(axes, x=True, y=True)
    _iso_error(axes)
    axes.set_xlabel("relative variance", color=colour("muted"), loc="right")
    axes.set_ylabel("relative bias", color=colour("muted"), loc="top")
    return to_svg(
        figure, name=name, label="; ".join(titles.values()) or "empty", titles=titles
    )


@matplotlib.rc_context(STYLE)
def lines(
    series: Sequence[dict[str, Any]],
    *,
    name: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
) -> Markup:
    """One line for each series: ``label``, ``x``, ``y``, perhaps ``low`` and ``high``.

    Lines are told apart by ``line_style`` of their place.
    """
    figure, axes = new_figure(_WIDTH, _HEIGHT)
    titles = {}
    for place, one in enumerate(series):
        variable, dashes = line_style(place)
        x, y = _numbers(one["x"]), _numbers(one["y"])
        low = _LOWEST if log_y else -np.inf
        if one.get("low") is not None:
            axes.fill_between(
                x,
                np.maximum(_numbers(one["low"]), low),
                np.maximum(_numbers(one["high"]), low),
                color=colour(variable),
                alpha=0.12,
                linewidth=0,
            )
        gid = f"line{place}"
        axes.plot(
            x, np.maximum(y, low), color=colour(variable), linestyle=dashes,
            linewidth=1.4, gid=gid, marker="o" if len(x) < 8 else None, markersize=3,
        )  # fmt: skip
        known = y[np.isfinite(y)]
        ends = f"{known[0]:.3g} to {known[-1]:.3g}" if len(known) else "no values"
        titles[gid] = f"{one['label']}: {ends}"
    _log_scale(axes, x=log_x, y=log_y)
    axes.margins(x=0.02)
    axes.set_xlabel(x_label, color=colour("muted"), loc="right", labelpad=1)
    axes.set_ylabel(y_label, color=colour("muted"), loc="top")
    return to_svg(
        figure, name=name, label="; ".join(titles.values()) or "empty", titles=titles
    )


def is_biased(row: dict[str, Any]) -> bool:
    """Whether a bias above its floor was seen on more than half of the instances."""
    return 2 * row["instances_biased"] > row["instances"]


def _log_scale(axes: Any, *, x: bool, y: bool) -> None:
    """Plain numbers at powers of ten; within one decade at 2 and 5 as well."""
    for axis, wanted, name in ((axes.xaxis, x, "x"), (axes.yaxis, y, "y")):
        if not wanted:
            continue
        getattr(axes, f"set_{name}scale")("log")
        low, high = axis.get_view_interval()
        steps = (1.0,) if high > 30 * low else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=steps, numticks=7))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())


def _iso_error(axes: Any) -> None:
    """Dotted lines of equal variance + bias^2."""
    x_limits, y_limits = axes.get_xlim(), axes.get_ylim()
    for error in (1e-3, 1e-2, 1e-1, 1.0, 10.0):
        bias = np.geomspace(1e-6, 0.9999, 200) * np.sqrt(error)
        axes.plot(
            error - bias**2, bias, color=colour("muted"), linewidth=0.6,
            linestyle=(0, (1.2, 2)),
        )  # fmt: skip
    axes.set_xlim(*x_limits)
    axes.set_ylim(*y_limits)


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    """Floats; None, as JSON has it, becomes NaN."""
    return np.array([np.nan if v is None else v for v in values], float)


def _finite(*values: Any) -> bool:
    return all(value is not None and np.isfinite(value) for value in values)
