"""The tables for the terminal; the page shows the same numbers."""

import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metaharness.runlog import formats
from metaharness.runlog.report_data import (
    METHODS,
    OVERALL,
    Attribution,
    CellScore,
    Effect,
    ScoreRow,
    SlotEffect,
    overall_first,
    scores_by_task,
)
from metaharness.stats import Interval

_COLUMNS = (
    "",
    "loss",
    "against random",
    "exact match",
    "reward",
    "prompt\ntokens",
    "episode\ntokens",
    "seconds",
)


def score_table(rows: Sequence[ScoreRow]) -> Table:
    """Rows by task; about 105 characters wide. Columns that no row fills are left out.

    Losses in nats per gold answer, with the deviation over harnesses where there are
    several. Ranges are 95% intervals: of the paired difference to random harnesses and
    of the share of exact matches.
    """
    by_task = scores_by_task(rows)
    cells = {task: [_cells(row) for row in group] for task, group in by_task.items()}
    shown = [
        place
        for place in range(len(_COLUMNS))
        if any(c[place] != formats.UNKNOWN for group in cells.values() for c in group)
    ]
    table = Table(
        caption="loss: nats per gold answer on unseen items; ranges: 95% intervals",
        caption_justify="left",
        box=box.SIMPLE,
        pad_edge=False,
    )
    for place in shown:
        table.add_column(
            _COLUMNS[place],
            justify="right" if place else "left",
            vertical="bottom",
            # an interval may go below its mean in a narrow terminal
            no_wrap=place > 3,
        )
    for task, group in by_task.items():
        label = "all tasks" if task == OVERALL else task
        table.add_row(Text(f"{label} ({group[0].num_items} items)", style="italic"))
        for row, texts in zip(group, cells[task], strict=True):
            style = "bold" if row.method == "mode" else ""
            table.add_row(*(Text(texts[place], style=style) for place in shown))
        table.add_section()
    return table


def reached_table(counts: Mapping[str, Mapping[str, int]]) -> Table:
    """Where episodes ended, by method: label -> boundary -> number of episodes."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("episodes that ended")
    for label in counts:
        table.add_column(label, justify="right")
    for name in dict.fromkeys(name for own in counts.values() for name in own):
        cells = [f"{own.get(name, 0):,}" for own in counts.values()]
        if any(own.get(name) for own in counts.values()):
            table.add_row(name, *cells)
    return table


def attribution_table(rows: Sequence[Attribution]) -> Table:
    """Loss by weights and harness, and what each brings; about 105 characters wide.

    A line under each task's losses has what the weights bring, a column beside them
    what the harness brings.
    """
    table = Table(
        caption="loss: nats per gold answer on test items; effects below 0 are better;"
        " ranges: 95% intervals",
        caption_justify="left",
        box=box.SIMPLE,
        pad_edge=False,
    )
    for place, name in enumerate(
        ("", "seed harness", "learned harness", "harness brings")
    ):
        table.add_column(name, justify="right" if place else "left")
    for row in overall_first(rows):
        label = "all tasks" if row.task == OVERALL else row.task
        table.add_row(Text(f"{label} ({row.num_items} items)", style="italic"))
        for line in _attribution_lines(row):
            table.add_row(*map(Text, line))
        table.add_section()
    return table


def _attribution_lines(row: Attribution) -> list[tuple[str, str, str, str]]:
    lines = []
    for weights in ("base", "adapted"):
        pair = [row.cell(weights, harness) for harness in ("seed", "learned")]
        if any(pair):
            brings = _effect(row.effect(f"harness_at_{weights}"))
            lines.append((f"{weights} weights", *map(_cell, pair), brings))
    if row.effect("total"):
        names = ("weights_at_seed", "weights_at_learned")
        lines.append(("weights bring", *(_effect(row.effect(n)) for n in names), ""))
        lines.append(("both together", "", "", _effect(row.effect("total"))))
        extra = _effect(row.effect("interaction"))
        lines.append(("both, beyond the sum", "", "", extra))
    for slot in row.slots:
        lines.append((f"effect of {slot.slot}", "", "", _effect(slot)))
        if slot.reward is not None:
            more = _difference(slot.reward)
            lines.append(("  on the reward", "", "", more))
            lines.append(("  on tokens of an episode", "", "", _tokens(slot.tokens)))
    if row.divergence:
        kl = formats.number(row.divergence.kl.mean, 4)
        interval = formats.bounds(row.divergence.kl, 4)
        text = f"{kl} ({interval})" if interval else kl
        lines.append(("KL to base, nats/token", "", "", text))
    return lines


def _cell(cell: CellScore | None) -> str:
    if cell is None:
        return formats.UNKNOWN
    text = formats.number(cell.loss.mean)
    if cell.exact_match is None:
        return text
    return f"{text}, {formats.percent(cell.exact_match.mean)} exact"


def _effect(effect: Effect | SlotEffect | None) -> str:
    if isinstance(effect, SlotEffect) and effect.same_choice:
        return "same choice"
    return _difference(effect.loss if effect else None)


def _tokens(change: Interval | None) -> str:
    if change is None:
        return formats.UNKNOWN
    interval = formats.bounds(change, 0, sign=True)
    mean = formats.number(change.mean, 0, sign=True)
    return f"{mean} ({interval})" if interval else mean


def wide_console() -> Console:
    """Standard output, wide enough for the table where it is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=108)


def method_label(row: ScoreRow) -> str:
    """The method in words, with the number of harnesses behind the row."""
    label = METHODS.get(row.method, row.method)
    if row.method == "best_random":
        return f"{label} of {row.num_harnesses}"
    if row.num_harnesses > 1:
        return f"{label}, mean of {row.num_harnesses}"
    return label


def loss_text(row: ScoreRow) -> str:
    """Mean loss, with the deviation over harnesses where there are several."""
    text = formats.number(row.loss.mean)
    return f"{text} ± {formats.number(row.spread)}" if row.spread else text


def _cells(row: ScoreRow) -> list[str]:
    return [
        method_label(row),
        loss_text(row),
        _difference(row.difference),
        _share(row.exact_match),
        _reward(row),
        formats.number(row.prompt_tokens or None, 0),
        formats.number(row.episode_tokens, 0),
        formats.number(row.seconds, 1),
    ]


def _reward(row: ScoreRow) -> str:
    """Of episodes; not where answers are right or wrong alone: it is the share beside
    it then."""
    reward, exact = row.reward, row.exact_match
    if reward is None or row.episode_tokens is None:
        return formats.UNKNOWN
    if exact and math.isclose(reward.mean, exact.mean):
        return formats.UNKNOWN
    interval = formats.bounds(reward)
    return formats.number(reward.mean) + (f" ({interval})" if interval else "")


def _share(share: Interval | None) -> str:
    if share is None:
        return formats.UNKNOWN
    interval = formats.percent_bounds(share)
    return formats.percent(share.mean) + (f" ({interval})" if interval else "")


def _difference(change: Interval | None) -> str:
    if change is None:
        return formats.UNKNOWN
    mean = formats.number(change.mean, sign=True)
    interval = formats.bounds(change, sign=True)
    return f"{mean} ({interval})" if interval else mean
