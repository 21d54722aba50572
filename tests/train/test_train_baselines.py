"""Random search: within its tokens, on validation items, the best of what it tried."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaharness.harness.sequential import Batch, measure
from metaharness.runlog.budget import BudgetCounter
from metaharness.train import baselines
from metaharness.train.baselines import random_search

ITEMS, NUM_PACKS, WIDTH, CHUNK = 4, 2, 64, 4


@pytest.fixture(scope="module")
def packs(space):
    return space.pack("validation", width=WIDTH, limit=ITEMS)


@pytest.fixture(scope="module")
def compiled(space):
    @jax.jit
    def run(decoder, table, packs, batch):
        return measure(decoder, table, packs, batch, width=space.width, chunk=CHUNK)

    return run


@pytest.fixture(scope="module")
def try_random(space):
    def run(max_tokens, *, seed=0):
        counter = BudgetCounter()
        found = random_search(
            space,
            items=ITEMS,
            num_packs=NUM_PACKS,
            pack_width=WIDTH,
            max_tokens=max_tokens,
            chunk=CHUNK,
            seed=seed,
            counter=counter,
            quiet=True,
        )
        return found, counter.counts("random search")

    return functools.cache(run)


def tokens_of(space, packs, task, choice):
    read = np.asarray(packs.num_tokens)[task, choice.template, :NUM_PACKS].sum()
    return len(space.prefix_tokens(choice)) + int(read)


def losses_of(space, compiled, packs, task, choices):
    """Losses of any number of choices, in blocks of one shape."""
    out = []
    index = jnp.tile(jnp.arange(NUM_PACKS, dtype=jnp.int32), (CHUNK, 1))
    for start in range(0, len(choices), CHUNK):
        block = (choices[start : start + CHUNK] * CHUNK)[:CHUNK]
        batch = Batch(
            jnp.full((CHUNK,), task, jnp.int32),
            jnp.asarray([c.template for c in block], jnp.int32),
            jnp.asarray([c.exemplars for c in block], jnp.int32),
            index,
        )
        found = compiled(space.model.decoder, space.table, packs, batch)
        out += np.asarray(found.loss()).tolist()
    return out[: len(choices)]


def test_the_best_has_the_smallest_validation_loss(space, compiled, packs, try_random):
    found, _ = try_random(4000)
    for task, selected in enumerate(found):
        assert len(selected.choices) > 8
        expected = losses_of(space, compiled, packs, task, selected.choices)
        np.testing.assert_allclose(selected.losses, expected, rtol=1e-5)
        best = expected[selected.choices.index(selected.best)]
        assert best == pytest.approx(min(expected))
        for choice in selected.choices:
            assert space.masks["exemplars"][task][list(choice.exemplars)].all()


@pytest.mark.parametrize("max_tokens", [1500, 4000])
def test_the_budget_is_kept_and_used(space, packs, try_random, max_tokens):
    found, counts = try_random(max_tokens)
    spent = [
        sum(tokens_of(space, packs, task, choice) for choice in selected.choices)
        for task, selected in enumerate(found)
    ]
    assert counts.token_passes == counts.token_forwards == sum(spent) <= max_tokens
    dearest = space.width + int(np.asarray(packs.num_tokens)[..., :NUM_PACKS].max()) * 2
    assert spent[0] > max_tokens // 2 - dearest, "one more harness could be tried"
    assert sum(spent) > max_tokens - dearest
    items = (np.asarray(packs.items)[:, :NUM_PACKS] >= 0).sum(axis=(1, 2))
    tried = [len(selected.choices) for selected in found]
    assert counts.lm_calls == sum(n * i for n, i in zip(tried, items, strict=True))


def test_one_harness_of_each_task_is_tried_whatever_it_costs(try_random):
    found, _ = try_random(1)
    assert [len(selected.choices) for selected in found] == [1, 1]


def test_the_harnesses_depend_on_the_seed_and_not_on_the_budget(try_random):
    (few, _), (many, _), (other, _) = (
        try_random(tokens, seed=seed)
        for tokens, seed in ((1500, 0), (4000, 0), (1500, 1))
    )
    assert many[0].choices[: len(few[0].choices)] == few[0].choices
    assert other[0].choices[:1] != few[0].choices[:1]


@pytest.mark.parametrize("calls", [0, 1])
def test_ctrl_c_keeps_what_was_tried(try_random, monkeypatch, calls):
    left = itertools.count(calls, -1)
    real = baselines.batch_of

    def breaking(*arguments):
        if next(left) == 0:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(baselines, "batch_of", breaking)
    if calls == 0:  # nothing to keep
        with pytest.raises(KeyboardInterrupt):
            try_random(4001)
        return
    found, _ = try_random(4001)
    assert len(found[0].choices) == calls * CHUNK
    assert found[0].best in found[0].choices
