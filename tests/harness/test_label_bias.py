"""Label bias: the fit finds what was put in, and calibration equalises."""

import numpy as np
import pytest
from tiny_space import make_model, make_tasks, plain_nats

from components.output_policy import OutputPolicy
from metaharness.errors import HarnessError
from metaharness.harness.episode import Job
from metaharness.harness.episodes import run_episodes
from metaharness.harness.label_bias import (
    contextual_bias,
    fit_label_bias,
    label_nats,
    learn_label_bias,
)
from metaharness.harness.slots import Choice, Harness, Templates
from metaharness.harness.space import build_space
from metaharness.model.complete import Completer
from metaharness.runlog.budget import BudgetCounter

ITEMS = make_tasks()[0].train + make_tasks()[0].test
LABELS = tuple(sorted({item.answer for item in ITEMS})[:3])


def log_softmax(scores):
    return scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)


def test_a_known_bias_is_found():
    """Labels drawn from softmax(bias - nats): the fit is their maximum likelihood."""
    rng = np.random.default_rng(0)
    bias = np.array([1.5, -1.0, -0.5])
    nats = rng.normal(size=(20_000, 3)) * 2
    chance = np.exp(log_softmax(bias - nats))
    gold = (chance.cumsum(1) > rng.random((len(nats), 1))).argmax(1)
    found = fit_label_bias(nats, gold)
    np.testing.assert_allclose(found, bias - bias.mean(), atol=0.06)
    assert found.sum() == pytest.approx(0, abs=1e-6)


def test_the_fit_is_a_minimum():
    rng = np.random.default_rng(1)
    nats, gold = rng.normal(size=(30, 4)) * 3, rng.integers(0, 3, 30)  # label 3: never
    found = fit_label_bias(nats, gold)

    def loss(bias):
        log_p = log_softmax(bias - nats)[np.arange(30), gold]
        return -log_p.mean() + 0.0005 * (bias**2).sum()

    assert np.isfinite(found).all() and found[3] == found.min()
    for _ in range(50):
        assert loss(found) <= loss(found + 0.05 * rng.normal(size=4)) + 1e-5


def test_calibration_makes_empty_questions_even():
    nats = np.array([[1.0, 2.0, 4.0]])
    shifted = contextual_bias(nats) - nats
    np.testing.assert_allclose(shifted, shifted[0, 0], atol=1e-12)


@pytest.fixture(scope="module")
def space():
    policy = OutputPolicy("labels", labels=LABELS, constrain=True)
    harness = Harness(None, Templates.named("short"), output=(policy,))
    return build_space(make_model(), harness, make_tasks()[:1])


def test_nats_are_those_of_the_model(space):
    choice = Choice((), 1)
    nats = label_nats(
        space,
        choice,
        LABELS,
        ["1+2", "3+4"],
        Completer(space.model),
        counter=BudgetCounter(),
    )
    template = space.harness.template.pool[1]
    for row, question in zip(nats, ("1+2", "3+4"), strict=True):
        prompt = space.renderer.prompt(template, (), question)
        for value, label in zip(row, LABELS, strict=True):
            expected = plain_nats(
                space.model.decoder, prompt, space.model.tokenizer.encode(label)
            )
            assert value == pytest.approx(expected, rel=1e-4)


def test_a_learned_bias_is_what_episodes_then_use(space):
    task, writer, counter = space.tasks[0], Completer(space.model), BudgetCounter()
    items = [item for item in ITEMS if item.answer in LABELS]
    learned = learn_label_bias(space, Choice((), 0), items, writer, counter=counter)
    assert learned.bias != () and counter.counts().lm_calls == len(items)

    def right(policy):
        harness = Harness(None, space.harness.template, output=(policy,))
        own = build_space(space.model, harness, [task])
        jobs = [Job(Choice((), 0), item) for item in items]
        done = run_episodes(own, task, jobs, writer, counter=BudgetCounter())
        return sum(trace.reward for trace in done.traces)

    assert right(learned) >= right(space.harness.output[0])


def test_a_policy_that_writes_freely_is_refused(space):
    harness = Harness(None, space.harness.template)
    own = build_space(space.model, harness, space.tasks)
    with pytest.raises(HarnessError, match="chooses among labels"):
        learn_label_bias(own, Choice((), 0), (), None, counter=BudgetCounter())
