"""Figures as SVG that belongs to the page: its colours, its fonts, its dark mode.

Matplotlib lays the figure out in stand-in colours, which become CSS variables of the
page. Text stays text, so that it can be read aloud, searched and copied.
"""

import io
import re
from collections.abc import Mapping

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# CSS variable -> stand-in; any distinct colours do
_COLOURS = {
    "ink": "#010101",
    "muted": "#020202",
    "faint": "#030303",
    "rule": "#040404",
    "accent": "#050505",
    "good": "#060606",
    "warn": "#070707",
    "c1": "#080808",
    "c2": "#090909",
    "c3": "#0a0a0a",
    "c4": "#0b0b0b",
    "c5": "#0c0c0c",
    "c6": "#0d0d0d",
}
# for `matplotlib.rc_context` around everything that makes a figure
STYLE = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.parse_math": False,  # a "$" in a task's text is a dollar
}
_POINTS_PER_INCH = 72
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_ROLE = 'xmlns:xlink="http://www.w3.org/1999/xlink" role="img"'


def colour(name: str) -> str:
    """Stand-in for the page's CSS variable ``--name``."""
    return _COLOURS[name]


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Figure and axes without frame, in the page's style.

    Args:
      width, height: in points; the page scales the figure to its column.
    """
    figure = Figure(
        figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH),
        layout="constrained",
    )
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02)
    axes = figure.add_subplot()
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colour("rule"))
    axes.tick_params(colors=colour("muted"), length=0, pad=4)
    axes.grid(axis="y", color=colour("rule"), linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def to_svg(
    figure: Figure, *, name: str, label: str, titles: Mapping[str, str] | None = None
) -> Markup:
    """Inline SVG of a figure.

    Args:
      figure: from `new_figure`.
      name: unique on the page; letters, digits and dashes.
      label: what the figure shows, for readers who cannot see it.
      titles: text on hover for each artist with that gid.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    svg = buffer.getvalue()
    for pattern, replacement in (
        (r"^.*?<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf"<svg \1 {_ROLE}>"),
        (r"<style.*?</style>", ""),  # would hold for the whole page
        (r"font-family: [^;\"]*;? ?", ""),
        (r'\bid="', f'id="{name}-'),
        (r'(url\(|href=")#', rf"\1#{name}-"),
    ):
        svg = re.sub(pattern, replacement, svg, flags=re.DOTALL)
    for variable, stand_in in _COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{variable})")
    svg = svg.replace(_ROLE, f'{_ROLE} aria-label="{escape(label)}"', 1)
    for gid, text in (titles or {}).items():
        opening = f'<g id="{name}-{gid}">'
        svg = svg.replace(opening, f"{opening}<title>{escape(text)}</title>", 1)
    return Markup(svg)
