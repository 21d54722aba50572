"""The relaxed objective: sequential where it can be, with slopes that are gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import TEMPLATES, equal_lengths, make_model, make_tasks

from components.exemplars import Exemplar
from metaharness.harness.relaxed import (
    PoolCache,
    SoftBatch,
    attach_slope,
    encode_pools,
    loss_and_slope,
    measure_relaxed,
    task_keys,
)
from metaharness.harness.sequential import Batch, measure
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import build_space
from metaharness.model.prefix import Pool

# The first task's candidates all have the length of the longest, the second's do not.
OTHERS = (("8~1", "1"), ("2", "2, 5"), ("36", "7"))
POOL = equal_lengths(3) + tuple(
    Exemplar(f"o{i}", q, a) for i, (q, a) in enumerate(OTHERS)
)
ALLOWED = ((True,) * 3 + (False,) * 3, (False,) * 3 + (True,) * 3)
# One group for each of the first task's candidates and templates.
CANDIDATE, TEMPLATE = (x.ravel() for x in np.mgrid[:3, :3])
GROUPS = 9

encode = jax.jit(encode_pools)
relaxed = functools.partial(jax.jit, static_argnames="chunk")(measure_relaxed)
with_slope = functools.partial(jax.jit, static_argnames="chunk")(loss_and_slope)
sequential = functools.partial(jax.jit, static_argnames=("width", "chunk"))(measure)


@jax.jit
@functools.partial(jax.grad, has_aux=True)
def gradient(weights, arguments, batch):
    out = measure_relaxed(*arguments, batch, weights, chunk=GROUPS)
    return out.loss().sum(), (out.loss(), out.tokens)


@pytest.fixture(scope="module")
def space():
    harness = Harness(Exemplars(POOL, 1, ALLOWED), Templates(TEMPLATES))
    return build_space(make_model(), harness, make_tasks())


@pytest.fixture(scope="module")
def arguments(space):
    """decoder, cache, table, packs."""
    pool = encode(space.model.decoder, space.table)
    keys = task_keys(space.table, np.array(ALLOWED))
    packs = space.pack("train", width=64, limit=5)
    return space.model.decoder, PoolCache(pool, jnp.asarray(keys)), space.table, packs


def soft_batch(task):
    packs = np.tile(np.array([1, 0], np.int32), (GROUPS, 1))
    return SoftBatch(
        jnp.full((GROUPS,), task, jnp.int32), jnp.asarray(TEMPLATE, jnp.int32), packs
    )


def interior(seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.1, 0.9, (GROUPS, 6)).astype(np.float32)
    weights[0, 1] = weights[5, 4] = 0  # the boundary too
    return weights


def test_one_exemplar_of_the_longest_length_is_the_sequential_prompt(space, arguments):
    """Through every template, whatever the lengths that another template gives."""
    decoder, _, table, packs = arguments
    gated = relaxed(
        *arguments, soft_batch(0), jax.nn.one_hot(CANDIDATE, 6), chunk=GROUPS
    )
    index = soft_batch(0).packs
    batch = Batch(
        jnp.zeros(GROUPS, jnp.int32),
        jnp.asarray(TEMPLATE, jnp.int32),
        jnp.asarray(CANDIDATE[:, None], jnp.int32),
        index,
    )
    plain = sequential(decoder, table, packs, batch, width=space.width, chunk=GROUPS)
    np.testing.assert_allclose(gated.nats, plain.nats, rtol=1e-4)
    assert (gated.real == plain.real).all()
    read = np.asarray(packs.num_tokens)[0, TEMPLATE[:, None], index].sum(1)
    assert gated.tokens.tolist() == read.tolist()  # the pool itself was read before
    by_candidate = np.asarray(gated.loss()).reshape(3, 3)
    assert np.ptp(by_candidate, axis=0).min() > 0.01
    assert np.ptp(by_candidate, axis=1).min() > 0.01


@pytest.mark.parametrize("task", [0, 1])
def test_the_slope_is_the_gradient_of_the_loss(arguments, task):
    weights = interior(task)
    expected, (loss, tokens) = gradient(weights, arguments, soft_batch(task))
    found = with_slope(*arguments, soft_batch(task), weights, chunk=GROUPS)
    np.testing.assert_allclose(found[0], loss, rtol=1e-5)
    np.testing.assert_allclose(found[1], expected, rtol=1e-3, atol=1e-4)
    assert (found[2] == tokens).all()
    mine = np.array(ALLOWED[task])
    assert (np.asarray(found[1])[:, ~mine] == 0).all()
    assert (np.abs(found[1])[:, mine] > 1e-5).all()


def test_a_candidate_of_another_task_is_not_read(arguments):
    weights = interior()
    other = weights.copy()
    other[:, 3:] = 5.0
    first = relaxed(*arguments, soft_batch(0), weights, chunk=GROUPS)
    second = relaxed(*arguments, soft_batch(0), other, chunk=GROUPS)
    assert (first.nats == second.nats).all()
    other[:, 2] = 5.0
    third = relaxed(*arguments, soft_batch(0), other, chunk=GROUPS)
    assert (first.loss() != third.loss()).all()


def test_the_chunk_changes_nothing(arguments):
    whole = with_slope(*arguments, soft_batch(1), interior(), chunk=GROUPS)
    parts = with_slope(*arguments, soft_batch(1), interior(), chunk=3)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_task_keys_are_the_heads_and_the_allowed_candidates(space, arguments):
    pool, index = arguments[1]
    owner, index = np.asarray(pool.owner), np.asarray(index)
    for style in range(owner.shape[0]):
        for task, allowed in enumerate(ALLOWED):
            keys = index[style, task]
            real = keys[keys < owner.shape[1]]
            assert (keys[: len(real)] == real).all(), "padding comes last"
            own = np.flatnonzero(allowed)
            mine = np.isin(owner[style], [*own, len(POOL)])  # its own, and the head
            assert real.tolist() == np.flatnonzero(mine).tolist()
    widest = max(
        (row < owner.shape[1]).sum() for row in index.reshape(-1, index.shape[-1])
    )
    assert index.shape[-1] == widest, "every query would read padding"


def test_each_style_is_encoded_as_its_own_pool(space, arguments):
    pool = arguments[1].pool
    assert isinstance(pool, Pool) and pool.end.shape == (2,)
    lengths = np.asarray(space.table.head_lengths)
    longest = np.asarray(space.table.shot_lengths).max(axis=1)
    assert longest[0] != longest[1]
    assert pool.end.tolist() == (lengths + longest).tolist()


def test_an_attached_slope_is_the_gradient_and_leaves_the_value():
    weights = jnp.asarray(interior())
    loss = jnp.arange(GROUPS, dtype=jnp.float32)
    slope = jnp.asarray(interior(1))
    value, pull = jax.vjp(lambda w: attach_slope(w, loss, slope), weights)
    assert value.tolist() == loss.tolist()
    (gradient,) = pull(2 * jnp.ones(GROUPS))
    np.testing.assert_allclose(gradient, 2 * slope)
    # The parts are constants: nothing flows to them.
    grad = jax.grad(lambda *a: attach_slope(weights, *a).sum(), argnums=(0, 1))
    assert not any(np.asarray(part).any() for part in grad(loss, slope))
