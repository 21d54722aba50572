"""Shared contexts: a prefix is the plain model, a gated pool exact at its vertices."""

import itertools
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import make_decoder, plain_nats

from metaharness.model.decoder import run_decoder, vocabulary_logits
from metaharness.model.likelihood import Rows, item_nats
from metaharness.model.prefix import (
    encode_pool,
    encode_prefix,
    key_weights,
    select_keys,
)

HEAD = [256, 11, 198, 257]
CANDIDATES = [[31, 7, 90], [5, 77, 12, 140, 9], [66, 201], [13, 8, 250, 41, 3]]
QUESTION, ANSWER = [40, 41, 17], [99, 23]
LONGEST, WIDTH = 5, 6
NUM = len(CANDIDATES)


@pytest.fixture(scope="module")
def decoder():
    return make_decoder()


def x64() -> AbstractContextManager:
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64()


def padded(rows, width, fill=0):
    return np.array([row + [fill] * (width - len(row)) for row in rows], np.int32)


def one_item(question=QUESTION, answer=ANSWER):
    """One row that holds one item; leading axes group and row."""
    num = len(answer)
    ids = np.array([[question + answer[:-1]]], np.int32)
    at = len(question) - 1 + np.arange(num)
    return Rows(
        tokens=ids,
        positions=np.arange(ids.shape[-1], dtype=np.int32)[None, None],
        segments=np.ones_like(ids),
        score_at=at.astype(np.int32)[None, None],
        targets=np.array([[answer]], np.int32),
        owner=np.zeros((1, 1, num), np.int32),
    )


@jax.jit
def encode(decoder, head, head_length, candidates, lengths):
    return encode_pool(decoder, head, head_length, candidates, lengths)


@jax.jit
def read_with_slope(decoder, pool, weights):
    """Nats of the one item under candidate weights, and their gradient."""

    def nats(weights):
        context, gate = pool.context, key_weights(pool, weights)[None]
        found = item_nats(
            decoder, one_item(), pool.end[None], context, gate, num_items=1
        )
        return found[0, 0, 0]

    return jax.value_and_grad(nats)(weights)


def read(decoder, pool, weights):
    return read_with_slope(decoder, pool, weights)[0]


def make_pool(decoder, chosen=range(NUM), *, fill=0):
    return encode(
        decoder,
        padded([HEAD], 6, fill)[0],
        np.int32(len(HEAD)),
        padded([CANDIDATES[i] for i in chosen], WIDTH, fill),
        np.array([len(CANDIDATES[i]) for i in chosen], np.int32),
    )


def k_hot(chosen):
    weights = np.zeros(NUM, np.float32)
    weights[list(chosen)] = 1
    return weights


@jax.jit
def masked_pass(decoder, chosen):
    """Nats of the item from one plain pass over everything, with a mask and no context.

    Blocks: head, every candidate, the item. A candidate sees head and itself, the item
    sees head, the chosen candidates and itself.
    """
    item = one_item()
    blocks = [HEAD, *CANDIDATES, item.tokens[0, 0].tolist()]
    block = np.concatenate([[b] * len(ids) for b, ids in enumerate(blocks)])
    end = len(HEAD) + LONGEST
    starts = [0, *(end - len(ids) for ids in CANDIDATES), end]
    at = [s + np.arange(len(b)) for s, b in zip(starts, blocks, strict=True)]
    positions = np.concatenate(at)
    own, other = block[:, None], block[None, :]
    causal = np.tril(np.ones((len(block),) * 2, bool))
    seen = jnp.concatenate([jnp.ones(1), chosen, jnp.ones(1)])[block] > 0
    mask = ((own == other) & causal) | ((other == 0) & (own > 0))
    mask = mask | ((own == NUM + 1) & (other <= NUM) & seen)
    hidden, _ = run_decoder(
        decoder,
        np.concatenate(blocks).astype(np.int32)[None, None],
        positions.astype(np.int32)[None, None],
        mask[None, None],
    )
    first = len(block) - item.tokens.shape[-1] + len(QUESTION) - 1
    logits = vocabulary_logits(decoder, hidden[0, 0, first:])
    log_p = jax.nn.log_softmax(logits)
    return -log_p[np.arange(len(ANSWER)), np.array(ANSWER)].sum()


def test_a_prefix_equals_the_plain_model_whatever_its_padding(decoder):
    @jax.jit
    def after(decoder, tokens, lengths):
        prefix = encode_prefix(decoder, tokens, lengths)
        weights = prefix.valid.astype(jnp.float32)
        rows = jax.tree.map(lambda x: jnp.repeat(x, 3, axis=0), one_item())
        nats = item_nats(
            decoder, rows, prefix.end, prefix.context, weights, num_items=1
        )
        return nats[:, 0, 0], prefix.end

    texts = [HEAD, HEAD + CANDIDATES[1] + CANDIDATES[0], HEAD[:1]]
    lengths = np.array([len(text) for text in texts], np.int32)
    for fill in (0, 77):
        nats, end = after(decoder, padded(texts, 14, fill), lengths)
        assert end.tolist() == lengths.tolist()
        expected = [plain_nats(decoder, text + QUESTION, ANSWER) for text in texts]
        np.testing.assert_allclose(nats, expected, rtol=1e-5)


def test_every_vertex_of_the_gate_is_one_pass_over_the_chosen(decoder):
    pool = make_pool(decoder)
    found, expected = [], []
    for size in range(NUM + 1):
        for chosen in itertools.combinations(range(NUM), size):
            found.append(float(read(decoder, pool, k_hot(chosen))))
            expected.append(float(masked_pass(decoder, k_hot(chosen))))
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    assert np.ptp(found) > 0.5, "candidates make no difference, nothing was tested"


@pytest.mark.parametrize("chosen", [(1, 2), (0, 3)])
def test_k_hot_weights_equal_a_pool_of_only_the_chosen(decoder, chosen):
    gated = read(decoder, make_pool(decoder), k_hot(chosen))
    alone = read(decoder, make_pool(decoder, chosen), np.ones(2, np.float32))
    np.testing.assert_allclose(gated, alone, rtol=1e-6)


@pytest.mark.parametrize("candidate", [1, 3])
def test_the_longest_candidate_alone_equals_the_sequential_prompt(decoder, candidate):
    gated = read(decoder, make_pool(decoder), k_hot([candidate]))
    prompt = HEAD + CANDIDATES[candidate] + QUESTION
    np.testing.assert_allclose(gated, plain_nats(decoder, prompt, ANSWER), rtol=1e-4)


def test_padding_of_head_and_candidates_is_never_read(decoder):
    weights = np.array([0.4, 1.0, 0.0, 0.6], np.float32)
    value, slope = read_with_slope(decoder, make_pool(decoder), weights)
    other, other_slope = read_with_slope(decoder, make_pool(decoder, fill=123), weights)
    assert other == value and (other_slope == slope).all()


def test_owners_and_end(decoder):
    pool = make_pool(decoder)
    owner = [NUM] * 4 + [NUM + 1] * 2
    for candidate, ids in enumerate(CANDIDATES):
        owner += [candidate] * len(ids) + [NUM + 1] * (WIDTH - len(ids))
    assert pool.owner.tolist() == owner
    assert int(pool.end) == len(HEAD) + LONGEST
    weights = key_weights(pool, np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    expected = np.array([0.1, 0.2, 0.3, 0.4, 1.0, 0.0], np.float32)[owner]
    assert weights.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "weights",
    [[0.2, 0.5, 0.3, 0.7], [1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]],
    ids=["interior", "k-hot", "zero"],
)
def test_the_slope_equals_finite_differences(weights):
    with x64():
        wide = make_decoder(jnp.float64)
        pool = make_pool(wide)
        weights = np.array(weights, np.float64)
        value, slope = read_with_slope(wide, pool, weights)
        assert value.dtype == slope.dtype == jnp.float64
        step = 1e-7
        for i, direction in enumerate(np.eye(NUM)):
            up, far, down = (
                float(read(wide, pool, weights + size * step * direction))
                for size in (1, 2, -1)
            )
            numeric = (up - down) / (2 * step)
            if weights[i] == 0:  # one-sided, second order: weights are not negative
                numeric = (-3 * float(value) + 4 * up - far) / (2 * step)
            assert slope[i] == pytest.approx(numeric, rel=1e-5, abs=1e-6)
        assert (np.abs(slope) > 1e-3).all(), "flat: nothing was tested"


def test_bfloat16_is_finite_down_to_tiny_weights():
    narrow = make_decoder(jnp.bfloat16)
    pool = make_pool(narrow)
    for scale in (0.0, 1e-8, 1e-4, 1.0):
        for weights in (np.full(NUM, scale), [scale, 1.0, 0.0, scale]):
            value, slope = read_with_slope(
                narrow, pool, np.asarray(weights, np.float32)
            )
            assert jnp.isfinite(value) and jnp.isfinite(slope).all()


def test_selected_keys_are_read_and_the_others_are_gone(decoder):
    pool = make_pool(decoder)
    owner = np.asarray(pool.owner)
    kept = np.flatnonzero((owner == NUM) | (owner == 1) | (owner == 2))
    past = len(owner) - len(kept)  # places past the end are padding
    index = np.array([*kept, *(len(owner) + np.arange(past))], np.int32)
    full = pool._replace(owner=pool.owner.at[-1].set(3))  # the last key is a real one
    part = jax.jit(select_keys, static_argnums=2)(full, index, NUM)
    assert part.owner.tolist() == [*owner[kept], *[NUM + 1] * past]
    weights = np.array([0.0, 0.3, 0.9, 0.0], np.float32)
    expected, slope = read_with_slope(decoder, pool, weights)
    value, part_slope = read_with_slope(decoder, part, weights)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(part_slope[1:3], slope[1:3], rtol=1e-4)
    assert part_slope[0] == part_slope[3] == 0 and abs(slope[0]) > 1e-3
