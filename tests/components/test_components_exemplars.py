"""Exemplars, their corrupted copies, and pools of mixed quality."""

from collections import Counter

import numpy as np
import pytest

from components import KINDS, Exemplar, as_exemplars, corrupt, mixed_pool

ITEMS = tuple(
    Exemplar(uid=f"sum:{i}", question=f"{i} + {i}", answer=str(2 * i), task="sum")
    for i in range(40)
)
STRANGERS = tuple(
    Exemplar(uid=f"gcd:{i}", question=f"gcd {i}", answer=str(i), task="gcd")
    for i in range(40)
)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_kind_and_text_are_checked():
    with pytest.raises(ValueError, match="expected a kind among right,"):
        Exemplar("a", "q", "a", kind="good")
    with pytest.raises(ValueError, match="expected text in 'answer'"):
        Exemplar("a", "q", "  ")


def test_items_become_right_exemplars_of_their_task():
    (first, *_) = as_exemplars(ITEMS, "sum")
    assert (first.uid, first.task, first.kind) == ("sum:0", "sum", "right")


def test_a_wrong_answer_is_another_items_answer():
    golds = {item.answer for item in ITEMS}
    for seed in range(50):
        bad = corrupt(ITEMS[3], "wrong_answer", ITEMS, rng(seed))
        assert bad.answer != ITEMS[3].answer and bad.answer in golds
        assert bad.kind == "wrong_answer" and bad.uid != ITEMS[3].uid


def test_a_wrong_answer_never_differs_in_case_only():
    others = [Exemplar("b", "q", "TRUE"), Exemplar("c", "q", "False")]
    for seed in range(20):
        bad = corrupt(Exemplar("a", "q", "True"), "wrong_answer", others, rng(seed))
        assert bad.answer == "False"


def test_a_wrong_format_keeps_the_right_answer_in_other_text():
    braces = Exemplar("a", "q", "{{x}}")
    for seed in range(20):
        bad = corrupt(braces, "wrong_format", ITEMS, rng(seed))
        assert "{{x}}" in bad.answer and bad.answer != "{{x}}"
        assert "{answer}" not in bad.answer


def test_no_other_answer_is_refused():
    same = [Exemplar(str(i), f"q{i}", "yes") for i in range(5)]
    with pytest.raises(ValueError, match="expected another exemplar with another"):
        corrupt(same[0], "wrong_answer", same, rng())


@pytest.mark.parametrize("num,share", [(16, 0.5), (15, 0.5), (7, 0.0), (9, 1.0)])
def test_a_mixed_pool_has_the_asked_share_of_right_exemplars(num, share):
    pool = mixed_pool(ITEMS, num, rng=rng(), share_right=share, off_task=STRANGERS)
    kinds = Counter(exemplar.kind for exemplar in pool)
    assert len(pool) == num == len({exemplar.uid for exemplar in pool})
    assert kinds["right"] == round(share * num)
    bad = [kinds[kind] for kind in KINDS[1:]]
    assert max(bad) - min(bad) <= 1
    answers = {item.question: item.answer for item in ITEMS}
    for exemplar in pool:
        if exemplar.kind == "right":
            assert exemplar.answer == answers[exemplar.question]
        assert (exemplar.task == "gcd") == (exemplar.kind == "off_task")


def test_a_mixed_pool_is_fixed_by_its_generator():
    def make(seed):
        return mixed_pool(ITEMS, 16, rng=rng(seed), off_task=STRANGERS)

    assert make(1) == make(1)
    assert make(1) != make(2)


def test_good_and_bad_are_not_told_apart_by_position():
    pools = [mixed_pool(ITEMS, 8, rng=rng(seed)) for seed in range(200)]
    right = np.array([[e.kind == "right" for e in pool] for pool in pools])
    assert np.all(np.abs(right.mean(0) - 0.5) < 5 * 0.5 / np.sqrt(200))


@pytest.mark.parametrize(
    "arguments,message",
    [
        (dict(num=41), "expected num between 1 and 40"),
        (dict(num=0), "expected num between 1 and 40"),
        (dict(num=4, share_right=1.5), "expected share_right in"),
        (dict(num=40, share_right=0.0, off_task=STRANGERS[:2]), "off-task exemplars"),
    ],
)
def test_what_cannot_be_mixed_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        mixed_pool(ITEMS, rng=rng(), **arguments)
