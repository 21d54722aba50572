"""How far the gate agrees with sequential prompts, over random harnesses."""

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import TEMPLATES, equal_lengths, make_model, make_tasks

from metaharness.harness.objective import Losses
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import build_space
from metaharness.keys import host_generator
from metaharness.runlog.budget import BudgetCounter
from metaharness.stats import spearman
from metaharness.train import gate
from metaharness.train.gate import gate_agreement

NUM = 8


@pytest.fixture(scope="module")
def measured():
    """One exemplar of equal lengths a prompt: gated and sequential losses are equal."""
    harness = Harness(Exemplars(equal_lengths(9), 1), Templates(TEMPLATES[:1]))
    space = build_space(make_model(), harness, make_tasks())
    counter = BudgetCounter()
    return space, counter, gate_agreement(space, num=NUM, seed=0, counter=counter)


def test_agreement_is_perfect_where_the_two_losses_are_equal(measured):
    _, _, found = measured
    assert set(found) == {"sum", "swap"}
    for row in found.values():
        assert row["spearman"] == pytest.approx(1.0)
        assert row["low"] == pytest.approx(1.0) == row["high"]
        assert row["num_harnesses"] == NUM and row["sequential_sd"] > 0.01


def test_it_is_counted_in_a_phase_of_its_own(measured):
    space, counter, _ = measured
    counts = counter.counts("gate")
    items = sum(len(task.validation) for task in space.tasks)
    assert counts.lm_calls > 0
    # Each harness reads prefix and items once in order, and items once gated.
    assert counts.token_forwards > space.pool_tokens + 2 * NUM * items
    assert counts.backward_tokens == 0


def test_the_interval_holds_a_correlation_of_the_same_harnesses(space, monkeypatch):
    """Losses from the exemplars' ids: the gate confuses two of them."""
    seen = []

    def sequential(problem, template, shots, packs, active, **static):
        seen.append(shots)
        loss = shots.sum(axis=-1).astype(jnp.float32)
        return Losses(loss, jnp.ones(2, jnp.int32))

    def gated(problem, template, weights, packs, active, **static):
        worth = jnp.arange(8.0) % 4 // 2 * 10 + jnp.arange(8.0) // 4
        return Losses(weights @ worth, jnp.ones(2, jnp.int32))

    monkeypatch.setattr(gate, "measured_losses", sequential)
    monkeypatch.setattr(gate, "gated_losses", gated)
    found = gate_agreement(space, num=40, seed=0, counter=BudgetCounter())
    for task, row in enumerate(found.values()):
        assert row["low"] < row["spearman"] < row["high"]
        assert 0.5 < row["spearman"] < 0.99
        rng = host_generator(0, stage="validation", step=task, purpose="draw")
        drawn = space.harness.random_choices(40, task, 2, rng)
        shots = np.array([choice.exemplars for choice in drawn])
        expected = spearman(shots.sum(1), (shots % 4 // 2).sum(1))
        assert row["spearman"] == pytest.approx(expected)
        assert row["sequential_sd"] == pytest.approx(shots.sum(1).std(ddof=1))
    assert len(seen) == 1  # traced once
