"""What a report's numbers say, in sentences; the page and the terminal share them.

A difference is claimed only where its interval leaves zero out.
"""

import math
from collections import Counter
from typing import NamedTuple

from metaharness.runlog import formats
from metaharness.runlog.attribution_words import gain_sentence
from metaharness.runlog.report_data import (
    OVERALL,
    Report,
    ScoreRow,
    SlotReport,
    TrustRow,
    scores_by_task,
)
from metaharness.stats import Interval, correlation_interval

# Rank correlation of gated and sequential loss below which the gate's slope pointed
# elsewhere, on the embedded model; the gate is trusted where the interval is above it.
_SPEARMAN_MISLEADING = 0.5
# Share of held-out variance that a linear fit has to explain to be acted upon.
_FIT_USABLE = 0.3


class Headline(NamedTuple):
    lead: str  # one sentence
    better: bool | None  # than random harnesses; None where not shown
    points: tuple[str, ...]  # further sentences


class Verdict(NamedTuple):
    level: str  # trust | care | measure
    label: str  # two or three words
    text: str  # one sentence


def headline(report: Report) -> Headline:
    """What was learned, against random harnesses and zero-shot."""
    by_task = scores_by_task(report.scores)
    if not by_task:
        return Headline("No scores were written down for this run.", None, ())
    rows = {row.method: row for row in next(iter(by_task.values()))}
    learned = rows.get("mode") or rows.get("expected") or rows.get("sampled")
    if learned is None:
        return Headline("No learned harness was scored in this run.", None, ())
    lead, better = _against_random(learned)
    best = rows.get("best_random")
    if better and best and learned.loss.mean > best.loss.mean:
        # a gain over the average that random search finds as well is no gain
        lead, better = f"{lead[:-1]}, but not the best of them at equal cost.", None
    points = (
        _by_task(report, learned.method),
        _best_random(learned, best),
        _zero_shot(learned, rows.get("zero_shot")),
        _exact_match(learned, rows.get("random")),
        gain_sentence(report.attribution),
        _composition(report.slots),
    )
    return Headline(lead, better, tuple(point for point in points if point))


def trust_interval(row: TrustRow) -> Interval | None:
    """Rank correlation of a row with its 95% interval; None where not measured."""
    if not _known(row.spearman):
        return None
    return correlation_interval(row.spearman, row.num_harnesses)


def trust_verdict(row: TrustRow) -> Verdict:
    """Which signal may steer the search on this task."""
    correlation = trust_interval(row)
    if correlation is None:
        return Verdict(
            "measure",
            "Not measured",
            "Gated and sequential losses were not compared: rely on sequential losses.",
        )
    if correlation.mean < _SPEARMAN_MISLEADING:
        ridge = _known(row.ridge_fit) and row.ridge_fit >= _FIT_USABLE
        return Verdict(
            "measure",
            "Measured losses only",
            "The gate does not rank harnesses as the sequential loss does; "
            + (
                "a linear fit of measured losses can still be used."
                if ridge
                else "no linear fit holds either, so order or combinations matter."
            ),
        )
    if not correlation.low > _SPEARMAN_MISLEADING:
        return Verdict(
            "care",
            "With care",
            f"{row.num_harnesses} harnesses do not show that the gate ranks as the"
            " sequential loss does: a start, then measured losses decide.",
        )
    if _known(row.slope_fit) and row.slope_fit < _FIT_USABLE:
        return Verdict(
            "care",
            "With care",
            "The gate ranks harnesses well, but its slope explains little of the loss:"
            " a start, then measured losses decide.",
        )
    return Verdict(
        "trust",
        "Gate and slope" if _known(row.slope_fit) else "Gate",
        "Relaxed search follows the sequential loss on this task.",
    )


def slot_summary(slot: SlotReport) -> str:
    """How decided a slot is, and what kinds it chose."""
    if not slot.chosen:
        return "None shown: the chosen template leaves them out."
    size = len(slot.candidates)
    last = slot.probabilities[-1]
    uniform = formats.probability(slot.k / size)
    sentence = f"{slot.k} of {size} chosen. At random each has a chance of {uniform}"
    chances = [last[index] for index in slot.chosen]
    ends = [formats.probability(chance) for chance in (min(chances), max(chances))]
    sentence += f"; the chosen {'have' if slot.k > 1 else 'one has'} "
    sentence += " to ".join(dict.fromkeys(ends))
    kinds = Counter(slot.candidates[index].kind for index in slot.chosen)
    if any(kinds) and len({candidate.kind for candidate in slot.candidates}) > 1:
        listed = ", ".join(f"{num} {kind_label(kind)}" for kind, num in kinds.items())
        sentence += f" ({listed})"
    return sentence + "."


def kind_label(kind: str) -> str:
    return kind.replace("_", " ")


def phase_label(phase: str) -> str:
    return phase.replace("/", " › ") if phase else "Whole run"


def _against_random(row: ScoreRow) -> tuple[str, bool | None]:
    change = row.difference
    if change is None or not _known(change.mean):
        loss = formats.number(row.loss.mean)
        return (
            f"The learned harness has a loss of {loss} nats per answer;"
            " no random harnesses were scored beside it.",
            None,
        )
    if change.high < 0:
        gain = Interval(-change.mean, -change.high, -change.low)
        return (
            "The learned harness beats random ones by"
            f" {formats.number(gain.mean)} nats per answer on unseen items"
            f" (95% interval {formats.bounds(gain)}).",
            True,
        )
    if change.low > 0:
        return (
            "The learned harness is worse than random ones by"
            f" {formats.number(change.mean)} nats per answer on unseen items"
            f" (95% interval {formats.bounds(change)}); do not deploy it.",
            False,
        )
    interval = formats.bounds(change, sign=True)
    told = f"95% interval {interval}" if interval else "one item, so no interval"
    return (
        "No difference between the learned harness and random ones is shown:"
        f" {formats.number(change.mean, sign=True)} nats per answer ({told}).",
        None,
    )


def _by_task(report: Report, method: str) -> str:
    rows = [
        row
        for row in report.scores
        if row.method == method and row.task != OVERALL and row.difference is not None
    ]
    if len(rows) < 2:
        return ""
    lower = [row for row in rows if row.difference.high < 0]
    higher = [row for row in rows if row.difference.low > 0]
    rest = [row.task for row in rows if row not in lower and row not in higher]
    parts = []
    if lower:
        parts.append(f"lower loss on {_with_differences(lower)}")
    if higher:
        parts.append(f"higher loss on {_with_differences(higher)}")
    if rest:
        parts.append(f"no difference shown on {_and(rest)}")
    return f"By task: {'; '.join(parts)}."


def _with_differences(rows: list[ScoreRow]) -> str:
    return _and(
        [
            f"{row.task} ({formats.number(row.difference.mean, sign=True)})"
            for row in rows
        ]
    )


def _best_random(learned: ScoreRow, best: ScoreRow | None) -> str:
    if best is None or not (_known(best.loss.mean) and _known(learned.loss.mean)):
        return ""
    change = learned.loss.mean - best.loss.mean
    side = "below" if change < 0 else "above"
    return (
        f"The best of {best.num_harnesses} random harnesses, found at equal token"
        f" cost, reaches {formats.number(best.loss.mean)} nats; the learned one is"
        f" {formats.number(abs(change))} {side} it."
    )


def _zero_shot(learned: ScoreRow, zero: ScoreRow | None) -> str:
    if zero is None or not (_known(zero.loss.mean) and _known(learned.loss.mean)):
        return ""
    return (
        f"Without any harness the loss is {formats.number(zero.loss.mean)} nats,"
        f" with the learned one {formats.number(learned.loss.mean)}."
    )


def _exact_match(learned: ScoreRow, random: ScoreRow | None) -> str:
    if learned.exact_match is None or not _known(learned.exact_match.mean):
        return ""
    now = _share_with_bounds(learned.exact_match)
    if random is None or random.exact_match is None:
        return f"Exact match: {now}."
    before = _share_with_bounds(random.exact_match)
    return f"Exact match: {before} with random harnesses, {now} with the learned one."


def _composition(slots: tuple[SlotReport, ...]) -> str:
    slots = tuple(s for s in slots if any(c.kind == "right" for c in s.candidates))
    pool = [candidate.kind for slot in slots for candidate in slot.candidates]
    chosen = [slot.candidates[i].kind for slot in slots for i in slot.chosen]
    if not chosen or set(pool) == {"right"}:
        return ""
    share = formats.percent(pool.count("right") / len(pool))
    return (
        f"Of {len(chosen)} chosen exemplars {chosen.count('right')} are right and from"
        f" the task; in the pools {share} are."
    )


def _share_with_bounds(share: Interval) -> str:
    interval = formats.percent_bounds(share)
    return formats.percent(share.mean) + (f" ({interval})" if interval else "")


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
