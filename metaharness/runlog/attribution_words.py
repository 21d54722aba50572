"""What brought the gain, in sentences; the page and the terminal share them.

An effect is claimed, or called the larger one, only where its interval leaves zero out.
"""

from collections.abc import Sequence

from metaharness.runlog import formats
from metaharness.runlog.report_data import Attribution, Divergence, overall_first
from metaharness.stats import Interval


def gain_sentence(rows: Sequence[Attribution]) -> str:
    """The first sentence of all tasks together, or of the only one; "" without rows."""
    if not rows:
        return ""
    return gain_sentences(overall_first(rows)[0])[0]


def gain_sentences(row: Attribution) -> tuple[str, ...]:
    """What training brought and which part of it; then which is larger, and overlap."""
    if row.effect("total") is None:
        said = (_rewards(row), _harness_only(row))
    else:
        said = (_parts(row), _larger(row), _overlap(row), _rewards(row))
    return tuple(sentence for sentence in said if sentence)


def divergence_sentence(moved: Divergence) -> str:
    """How far the weights moved."""
    kl = formats.number(moved.kl.mean, 4)
    if 0 < moved.kl.mean < 0.00005:
        kl = "below 0.0001"
    interval = formats.bounds(moved.kl, 4)
    told = f" ({interval})" if interval else ""
    return (
        "KL divergence of the adapted model from the base model, with the learned"
        f" harness: {kl} nats per answer token{told}, mean over"
        f" {formats.number(moved.num_tokens, 0)} tokens of"
        f" {formats.number(moved.num_items, 0)} validation items."
    )


def is_better(change: Interval) -> bool | None:
    """True where the loss falls, False where it rises, None where neither is shown."""
    if change.high < 0:
        return True
    return False if change.low > 0 else None


def _parts(row: Attribution) -> str:
    total = row.effect("total").loss
    harness = _part("the harness alone", "s", row.effect("harness_at_base").loss)
    if _unchanged(row):
        harness = "the harness is the one that it started from"
    weights = _part("the weights alone", "", row.effect("weights_at_seed").loss)
    better = is_better(total)
    if better is None:
        return (
            f"No effect of both together is shown: {_nats(total)}; {harness} and"
            f" {weights}."
        )
    if better:
        return (
            f"Of the {_nats(total)} that both together bring, {harness} and {weights}."
        )
    return f"Both together raise the loss by {_nats(total)}: {harness} and {weights}."


def _part(name: str, ending: str, change: Interval) -> str:
    better = is_better(change)
    mean, interval = formats.number(change.mean, sign=True), _interval(change)
    if better is None:
        return f"for {name} no effect is shown ({mean}, {interval})"
    verb = "bring" if better else "raise"
    loss = "" if better else " it by"
    return f"{name} {verb}{ending}{loss} {mean} ({interval})"


def _larger(row: Attribution) -> str:
    """Which part brings more, where that part and the difference of both are shown."""
    harness = is_better(row.effect("harness_at_base").loss)
    weights = is_better(row.effect("weights_at_seed").loss)
    if not (harness or weights) or _unchanged(row):
        return ""
    change = row.effect("harness_against_weights").loss
    better = is_better(change)
    if better and harness:
        return f"The harness alone brings more than the weights alone: {_nats(change)}."
    if better is False and weights:
        return (
            "The weights alone bring more than the harness alone:"
            f" {_nats(_negative(change))}."
        )
    return (
        "Which of the two brings more is not shown: harness minus weights is"
        f" {_nats(change)}."
    )


def _overlap(row: Attribution) -> str:
    """Whether the parts add up; nothing where neither side is shown."""
    change = row.effect("interaction").loss
    better = is_better(change)
    if better is None:
        return ""
    size = _negative(change) if better else change
    side, why = ("below", ": each helps the other") if better else ("above", "")
    parts = (row.effect("harness_at_base"), row.effect("weights_at_seed"))
    if not better and all(is_better(part.loss) for part in parts):
        why = ": in part they do the same"
    return (
        f"Both together end {formats.number(size.mean)} nats"
        f" ({formats.bounds(size)}) {side} what each alone adds up to{why}."
    )


def _rewards(row: Attribution) -> str:
    """Which slots change the reward of episodes, where some episodes were run."""
    graded = [slot for slot in row.slots if slot.reward is not None]
    if not graded:
        return ""
    # a reward is better where it rises
    shown = [slot for slot in graded if is_better(_negative(slot.reward)) is not None]
    if not shown:
        names = ", ".join(slot.slot for slot in graded)
        return f"No effect of {names} on the reward of an episode is shown."
    parts = [
        f"{slot.slot} {formats.number(slot.reward.mean, sign=True)}"
        f" ({_interval(slot.reward)})"
        for slot in shown
    ]
    return f"Reward of an episode, all else learned: {', '.join(parts)}."


def _harness_only(row: Attribution) -> str:
    effect = row.effect("harness_at_base")
    if effect is None:
        return "No effects were written down for this task."
    if _unchanged(row):
        return "The harness is the one that it started from; no weights were trained."
    better = is_better(effect.loss)
    if better is None:
        said = "No effect of the learned harness is shown:"
    else:
        said = f"The learned harness {'brings' if better else 'raises the loss by'}"
    return f"{said} {_nats(effect.loss)}; no weights were trained."


def _unchanged(row: Attribution) -> bool:
    return bool(row.slots) and all(slot.same_choice for slot in row.slots)


def _negative(change: Interval) -> Interval:
    return Interval(-change.mean, -change.high, -change.low)


def _nats(change: Interval) -> str:
    mean = formats.number(change.mean, sign=True)
    return f"{mean} nats per answer ({_interval(change)})"


def _interval(change: Interval) -> str:
    return formats.bounds(change, sign=True) or "no interval"
