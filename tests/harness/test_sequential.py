"""The measured objective is the plain model on whole prompts, item by item."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import make_space, plain_nats

from metaharness.harness.sequential import Batch, Measured, masked_mean, measure
from metaharness.harness.slots import Choice

GROUPS, NUM_PACKS = 5, 2
run = functools.partial(jax.jit, static_argnames=("width", "chunk"))(measure)


@functools.cache
def space_of(k):
    return make_space(k)


@functools.cache
def packs_of(k):
    return space_of(k).pack("train", width=72, limit=5)


def batch_of(k):
    """Random harnesses of both tasks, each with packs of its own, and their choices."""
    rng = np.random.default_rng(k)
    task = np.arange(GROUPS) % 2
    harness = space_of(k).harness
    choices = [
        Choice(harness.random_choices(1, t, 2, rng)[0].exemplars, g % 3)
        for g, t in enumerate(task)
    ]
    total = packs_of(k).items.shape[1]
    packs = [rng.permutation(total)[:NUM_PACKS] for _ in range(GROUPS)]
    batch = Batch(
        jnp.asarray(task, jnp.int32),
        jnp.asarray([c.template for c in choices], jnp.int32),
        jnp.asarray([c.exemplars for c in choices], jnp.int32).reshape(GROUPS, k),
        jnp.asarray(np.array(packs), jnp.int32),
    )
    return batch, choices


def measured(k, *, chunk=GROUPS):
    space, (batch, _) = space_of(k), batch_of(k)
    out = run(
        space.model.decoder,
        space.table,
        packs_of(k),
        batch,
        width=space.width,
        chunk=chunk,
    )
    return jax.device_get(out)


@pytest.mark.parametrize("k", range(4))
def test_measure_is_the_plain_model_on_every_item(k):
    space, packs, (batch, choices) = space_of(k), packs_of(k), batch_of(k)
    found = measured(k)
    items = np.asarray(packs.items)
    assert items.shape[-1] > 1, "no row holds several items: nothing was tested"
    for group, choice in enumerate(choices):
        template, shown = space.harness.parts(choice)
        task = space.tasks[int(batch.task[group])]
        tokens = len(space.prefix_tokens(choice))  # the prefix is read once
        losses = []
        for place, pack in enumerate(np.asarray(batch.packs[group])):
            for slot, item in enumerate(items[int(batch.task[group]), pack]):
                assert found.real[group, place, slot] == (item >= 0)
                if item < 0:
                    continue
                one = task.train[item]
                prompt = space.renderer.prompt(template, shown, one.question)
                answer = space.renderer.answer(one.answer)
                losses.append(plain_nats(space.model.decoder, prompt, answer))
                np.testing.assert_allclose(
                    found.nats[group, place, slot], losses[-1], rtol=1e-5
                )
                asked = space.renderer.question(template, one.question)
                tokens += len(asked) + len(answer) - 1
        assert found.tokens[group] == tokens
        np.testing.assert_allclose(found.loss()[group], np.mean(losses), rtol=1e-5)
    assert np.ptp(found.loss()) > 0.1


def test_the_chunk_changes_nothing():
    expected, found = measured(2), measured(2, chunk=2)  # the last chunk is short
    np.testing.assert_allclose(found.nats, expected.nats, rtol=1e-5)
    assert (found.real == expected.real).all()
    assert (found.tokens == expected.tokens).all()


def test_the_mean_is_over_real_items_and_0_without_any():
    nats = np.array([[[1.0, 2.0], [6.0, np.nan]]] * 3, np.float32)
    real = np.array(
        [[[1, 1], [1, 0]], [[0, 1], [0, 0]], [[0, 0], [0, 0]]],
        bool,
    )
    np.testing.assert_allclose(masked_mean(nats, real), [3.0, 2.0, 0.0])
    out = Measured(jnp.asarray(nats), jnp.asarray(real), jnp.zeros(3, jnp.int32))
    np.testing.assert_allclose(out.loss(), [3.0, 2.0, 0.0])
