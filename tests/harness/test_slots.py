"""Slots: pools are checked when built, tasks keep to their own candidates."""

import collections

import numpy as np
import pytest
from tiny_space import TEMPLATES, equal_lengths, make_tasks

from components.exemplars import Exemplar
from components.templates import Template
from metaharness.errors import HarnessError
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates

POOL = equal_lengths(5)
OWN = ((True, True, True, False, False), (False, False, True, True, True))


def test_a_union_pool_allows_each_task_its_own_block():
    tasks = make_tasks()
    slot = Exemplars.from_tasks(tasks, pool=4, k=2, share_right=0.5)
    assert slot.allowed_mask(2).tolist() == [[True] * 4 + [False] * 4] + [
        [False] * 4 + [True] * 4
    ]
    for number, task in enumerate(tasks):
        block = slot.pool[4 * number : 4 * number + 4]
        assert all(e.uid.startswith(f"{task.name}:") for e in block)
        kinds = [e.kind for e in block]
        assert kinds.count("right") == 2
        gold = {item.question: item.answer for item in task.pool}
        for e in block:
            assert (gold.get(e.question) == e.answer) == (e.kind == "right")
            assert (e.task != task.name) == (e.kind == "off_task")


def test_one_task_may_use_its_whole_pool():
    slot = Exemplars.from_task(make_tasks()[0], pool=6, k=3)
    assert slot.allowed == () and slot.allowed_mask(1).all()
    assert {e.kind for e in slot.pool} == {"right"}
    assert slot.allowed_mask(3).shape == (3, 6)


def test_the_pool_depends_on_the_seed_alone():
    make = [
        Exemplars.from_tasks(make_tasks(), pool=5, k=2, share_right=0.4, seed=seed)
        for seed in (3, 3, 4)
    ]
    assert make[0] == make[1] != make[2]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Exemplars((), 1), "at least 1 candidate"),
        (lambda: Exemplars((POOL[0], POOL[0]), 1), "positions 0 and 1"),
        (lambda: Exemplars(POOL, 0), "k between 1 and 5"),
        (lambda: Exemplars(POOL, 6), "k between 1 and 5"),
        (lambda: Exemplars(POOL, 4, OWN), "k between 1 and 3"),
        (lambda: Exemplars(POOL, 1, ((True, False),)), "5 allowed flags"),
        (lambda: Exemplars(POOL, 2, OWN).allowed_mask(3), "3 tasks, got 2"),
        (
            lambda: Exemplars((POOL[0], Exemplar("x", "0*9", "00")), 1),
            "same text in 'e0' and 'x'",
        ),
        (lambda: Exemplars.from_tasks(make_tasks(), pool=99, k=1), "exemplars of sum"),
        (lambda: Templates(()), "at least 1 candidate"),
        (lambda: Templates((Template("a"), Template("b"))), "same text"),
        (lambda: Templates.named("none"), "a set among"),
    ],
)
def test_what_cannot_be_a_slot_is_refused(build, said):
    with pytest.raises(ValueError, match=said):
        build()


def test_refusals_are_harness_errors():
    with pytest.raises(HarnessError):
        Exemplars(POOL, 9)


def test_a_choice_names_a_template_and_exemplars_in_order():
    harness = Harness(Exemplars(POOL, 2), Templates(TEMPLATES))
    template, shown = harness.parts(Choice((3, 0), 2))
    assert template is TEMPLATES[2] and shown == (POOL[3], POOL[0])
    bare = Harness(None, Templates(TEMPLATES))
    assert bare.k == 0 and bare.candidates == ()
    assert bare.parts(Choice((), 1)) == (TEMPLATES[1], ())


def test_random_choices_are_uniform_over_what_the_task_may_use():
    harness = Harness(Exemplars(POOL, 2, OWN), Templates(TEMPLATES))
    drawn = harness.random_choices(3600, 1, 2, np.random.default_rng(5))
    seen = collections.Counter(drawn)
    ordered = [(a, b) for a in (2, 3, 4) for b in (2, 3, 4) if a != b]
    assert set(seen) == {Choice(pair, t) for pair in ordered for t in range(3)}
    expected = 3600 / 18
    chi2 = sum((n - expected) ** 2 / expected for n in seen.values())
    assert chi2 < 17 + 5 * np.sqrt(2 * 17)


def test_random_choices_without_exemplars_vary_the_template():
    harness = Harness(None, Templates(TEMPLATES))
    drawn = harness.random_choices(40, 0, 1, np.random.default_rng(0))
    assert {choice.exemplars for choice in drawn} == {()}
    assert {choice.template for choice in drawn} == {0, 1, 2}
