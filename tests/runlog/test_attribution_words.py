"""What brought the gain: only what an interval shows is said, and parts are named."""

import dataclasses
import math

import pytest
from sample_report import sample_report

from metaharness.runlog import words
from metaharness.runlog.attribution_words import (
    divergence_sentence,
    gain_sentence,
    gain_sentences,
)
from metaharness.runlog.report_data import (
    OVERALL,
    Attribution,
    Divergence,
    Effect,
    SlotEffect,
)
from metaharness.stats import Interval

GAIN, LESS = Interval(-2.0, -2.5, -1.5), Interval(-0.75, -1.0, -0.5)
LOSS, OPEN = Interval(0.5, 0.25, 0.75), Interval(-0.1, -0.4, 0.2)
ALONE = Interval(-1.0, math.nan, math.nan)


def row(
    harness=GAIN,
    weights=LESS,
    against=OPEN,
    total=GAIN,
    interaction=OPEN,
    *,
    same=False,
    task="t",
):
    effects = {
        "harness_at_base": harness,
        "weights_at_seed": weights,
        "harness_against_weights": against,
        "total": total,
        "interaction": interaction,
    }
    return Attribution(
        task,
        8,
        (),
        tuple(Effect(name, loss) for name, loss in effects.items() if loss),
        (SlotEffect("exemplars", same, GAIN), SlotEffect("template", True, OPEN)),
    )


def test_both_parts_of_a_gain_are_named_with_their_intervals():
    assert gain_sentences(row()) == (
        "Of the −2.00 nats per answer (−2.50 to −1.50) that both together bring, the"
        " harness alone brings −2.00 (−2.50 to −1.50) and the weights alone bring"
        " −0.75 (−1.00 to −0.50).",
        "Which of the two brings more is not shown: harness minus weights is −0.10"
        " nats per answer (−0.40 to +0.20).",
    )


@pytest.mark.parametrize(
    ("harness", "weights", "against", "said"),
    [
        (GAIN, LESS, GAIN, "The harness alone brings more than the weights alone: −2"),
        (GAIN, OPEN, GAIN, "The harness alone brings more"),
        (LESS, GAIN, LOSS, "The weights alone bring more than the harness alone: −0.5"),
        (LESS, LESS, OPEN, "Which of the two brings more is not shown"),
        # the weights lose to a harness that is not shown to gain: nobody brings more
        (OPEN, LESS, GAIN, "Which of the two brings more is not shown"),
        (GAIN, OPEN, LOSS, "Which of the two brings more is not shown"),
        (ALONE, LESS, LOSS, "The weights alone bring more"),
    ],
)
def test_a_winner_is_named_where_it_is_shown(harness, weights, against, said):
    assert gain_sentences(row(harness, weights, against))[1].startswith(said)


@pytest.mark.parametrize("parts", [(OPEN, OPEN), (LOSS, OPEN), (ALONE, ALONE)])
def test_without_a_shown_part_there_is_no_winner(parts):
    assert len(gain_sentences(row(*parts, GAIN))) == 1


@pytest.mark.parametrize(
    ("total", "start"),
    [
        (OPEN, "No effect of both together is shown: −0.10"),
        (ALONE, "No effect of both together is shown: −1.00 nats per answer (no int"),
        (
            LOSS,
            "Both together raise the loss by +0.50 nats per answer (+0.25 to +0.75)",
        ),
    ],
)
def test_a_total_that_is_no_gain_is_not_called_one(total, start):
    sentence = gain_sentences(row(LOSS, OPEN, total=total))[0]
    assert sentence.startswith(start)
    assert "the harness alone raises it by +0.50 (+0.25 to +0.75)" in sentence
    assert (
        "for the weights alone no effect is shown (−0.10, −0.40 to +0.20)" in sentence
    )


def test_overlap_and_help_are_told_where_shown():
    assert gain_sentences(row(interaction=LOSS))[-1] == (
        "Both together end 0.50 nats (0.25 to 0.75) above what each alone adds up to:"
        " in part they do the same."
    )
    # two parts that do not both gain have no gain in common
    assert gain_sentences(row(weights=OPEN, interaction=LOSS))[-1] == (
        "Both together end 0.50 nats (0.25 to 0.75) above what each alone adds up to."
    )
    assert gain_sentences(row(interaction=LESS))[-1] == (
        "Both together end 0.75 nats (0.50 to 1.00) below what each alone adds up to:"
        " each helps the other."
    )
    assert not any("adds up" in said for said in gain_sentences(row()))


def test_an_unchanged_harness_has_no_part_and_wins_nothing():
    zero = Interval(0.0, 0.0, 0.0)
    (said,) = gain_sentences(row(zero, LESS, LOSS, LESS, zero, same=True))
    assert "the harness is the one that it started from and the weights alone" in said
    alone = row(zero, None, None, None, None, same=True)
    assert gain_sentences(alone) == (
        "The harness is the one that it started from; no weights were trained.",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (GAIN, "The learned harness brings −2.00 nats per answer (−2.50 to −1.50);"),
        (LOSS, "The learned harness raises the loss by +0.50"),
        (OPEN, "No effect of the learned harness is shown: −0.10"),
    ],
)
def test_a_harness_alone_is_told_without_weights(change, said):
    (sentence,) = gain_sentences(row(change, None, None, None, None))
    assert sentence.startswith(said)
    assert sentence.endswith("no weights were trained.")


def test_the_headline_tells_of_all_tasks_or_of_the_first():
    other = row(OPEN, OPEN, OPEN, OPEN)
    everything = row(task=OVERALL)
    assert gain_sentence([other, everything]) == gain_sentences(everything)[0]
    assert gain_sentence([other]) == gain_sentences(other)[0]
    assert gain_sentence([]) == ""
    sample = sample_report()
    assert gain_sentence(sample.attribution) in words.headline(sample).points


def test_divergence_keeps_small_numbers_apart_from_zero():
    def said(*kl):
        return divergence_sentence(Divergence(Interval(*kl), 32, 1210))

    assert "0.0412 nats per answer token (0.0305 to 0.0531)" in said(
        0.0412, 0.0305, 0.0531
    )
    assert "1,210 tokens of 32 validation items" in said(0.0412, 0.0305, 0.0531)
    assert ": below 0.0001 nats" in said(0.00002, 0.00001, 0.00003)
    assert ": 0.0000 nats" in said(0.0, 0.0, 0.0)
    assert "nats per answer token, mean" in said(0.2, math.nan, math.nan)


def graded(slot, low, high):
    """A slot whose reward changes by the middle of an interval."""
    change = Interval((low + high) / 2, low, high)
    return SlotEffect(slot, False, Interval(0.0, 0.0, 0.0), reward=change)


def test_rewards_are_claimed_where_their_interval_leaves_zero_out():
    """A reward is better where it rises; a loss of it is said as well."""
    slots = (graded("output", 0.2, 0.4), graded("retry", -0.1, 0.1))
    said = gain_sentences(dataclasses.replace(row(), slots=slots))[-2:]
    assert any("output +0.30 (+0.20 to +0.40)" in one for one in said)
    assert not any("retry" in one for one in said)
    slots = (graded("tools", -0.4, -0.2), graded("retry", -0.1, 0.1))
    said = gain_sentences(dataclasses.replace(row(), slots=slots))
    assert any("tools −0.30 (−0.40 to −0.20)" in one for one in said)
    slots = (graded("output", -0.1, 0.2), graded("retry", -0.1, 0.1))
    said = gain_sentences(dataclasses.replace(row(), slots=slots))
    assert "No effect of output, retry on the reward of an episode is shown." in said
