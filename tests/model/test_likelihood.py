"""Packed items are scored as each one alone, after the prefix of their own group."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import make_decoder, plain_log_probs, plain_nats

from metaharness.model.likelihood import Rows, item_nats, item_scores, target_nats
from metaharness.model.prefix import encode_prefix

PREFIXES = [[256, 11, 198, 257, 30], [256, 9]]
# [group][row][item]: question and answer.
ITEMS = [
    [[([3, 4, 8], [7]), ([17], [21, 22, 60]), ([5, 5], [1, 2])], [([40] * 6, [9, 1])]],
    [[([3, 4, 8], [7])], [([2, 9], [33, 4]), ([70, 71, 72], [8, 250, 8, 1])]],
]
TIMES, SCORED, SLOTS = 15, 8, 4


@pytest.fixture(scope="module")
def decoder():
    return make_decoder()


def pack(items, fill=0):
    """Rows by hand; padding holds ``fill``."""
    shape = (len(items), len(items[0]))
    rows = Rows(
        tokens=np.full((*shape, TIMES), fill, np.int32),
        positions=np.zeros((*shape, TIMES), np.int32),
        segments=np.zeros((*shape, TIMES), np.int32),
        score_at=np.zeros((*shape, SCORED), np.int32),
        targets=np.full((*shape, SCORED), fill, np.int32),
        owner=np.full((*shape, SCORED), SLOTS, np.int32),
    )
    for at in np.ndindex(shape):
        start = scored = 0
        for number, (question, answer) in enumerate(items[at[0]][at[1]]):
            ids = question + answer[:-1]
            here = slice(start, start + len(ids))
            rows.tokens[at][here] = ids
            rows.positions[at][here] = range(len(ids))
            rows.segments[at][here] = number + 1
            mine = slice(scored, scored + len(answer))
            rows.score_at[at][mine] = start + len(question) - 1 + np.arange(len(answer))
            rows.targets[at][mine] = answer
            rows.owner[at][mine] = number
            start, scored = here.stop, mine.stop
    return rows


@jax.jit
def score(decoder, rows):
    width = max(map(len, PREFIXES))
    tokens = np.array([p + [0] * (width - len(p)) for p in PREFIXES], np.int32)
    lengths = np.array([len(p) for p in PREFIXES], np.int32)
    prefix = encode_prefix(decoder, tokens, lengths)
    weights = prefix.valid.astype(jnp.float32)
    return item_nats(
        decoder, rows, prefix.end, prefix.context, weights, num_items=SLOTS
    )


def test_packed_items_equal_the_plain_model_one_by_one(decoder):
    nats = np.asarray(score(decoder, pack(ITEMS)))
    assert nats.shape == (2, 2, SLOTS)
    expected = np.zeros_like(nats)
    for group, row, item in np.ndindex(nats.shape):
        if item < len(ITEMS[group][row]):
            question, answer = ITEMS[group][row][item]
            prompt = PREFIXES[group] + question
            expected[group, row, item] = plain_nats(decoder, prompt, answer)
    np.testing.assert_allclose(nats, expected, rtol=1e-5)
    assert (nats[expected == 0] == 0).all(), "a missing item costs something"
    assert nats[0, 0, 0] != pytest.approx(nats[1, 0, 0]), "groups share a prefix"


def test_exact_is_the_plain_model_s_greedy_answer(decoder):
    def greedy(prompt, answer):
        log_p = plain_log_probs(decoder, [*prompt, *answer])
        at = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
        return [int(log_p[i].argmax()) for i in at]

    items = [[list(row) for row in group] for group in ITEMS]
    for group, row, item in ((0, 0, 1), (0, 1, 0), (1, 0, 0)):  # answers it would give
        question, answer = items[group][row][item]
        prompt, said = PREFIXES[group] + question, []
        for _ in answer:
            said.append(greedy(prompt, [*said, 0])[-1])
        items[group][row][item] = (question, said)
    question, said = items[0][0][1]
    items[0][0][0] = (question, [*said[:-1], said[-1] ^ 1])  # wrong in the last token

    @jax.jit
    def run(decoder, rows):
        width = max(map(len, PREFIXES))
        tokens = np.array([p + [0] * (width - len(p)) for p in PREFIXES], np.int32)
        prefix = encode_prefix(
            decoder, tokens, np.array([len(p) for p in PREFIXES], np.int32)
        )
        weights = prefix.valid.astype(jnp.float32)
        return item_scores(
            decoder, rows, prefix.end, prefix.context, weights, num_items=SLOTS
        )

    rows = pack(items)
    found = run(decoder, rows)
    np.testing.assert_allclose(found.nats, score(decoder, rows), rtol=1e-6)
    for group, row, item in np.ndindex(found.exact.shape):
        if item < len(items[group][row]):
            question, answer = items[group][row][item]
            expected = greedy(PREFIXES[group] + question, answer) == answer
            assert bool(found.exact[group, row, item]) == expected
    assert found.exact[0, 0, 1] and not found.exact[0, 0, 0]


def test_neighbours_and_padding_change_nothing(decoder):
    nats = score(decoder, pack(ITEMS))
    changed = [[list(row) for row in group] for group in ITEMS]
    changed[0][0][1] = ([18], [2, 3, 4])
    others = score(decoder, pack(changed, fill=77))
    same = np.ones(nats.shape, bool)
    same[0, 0, 1] = False
    assert (np.asarray(nats == others) == same).all()


def test_nats_are_those_of_the_log_softmax_in_at_least_float32():
    narrow = make_decoder(jnp.bfloat16)
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(3, 32)), jnp.bfloat16)
    targets = np.array([0, 5, 263])
    nats = jax.jit(target_nats)(narrow, hidden, targets)
    assert nats.dtype == jnp.float32
    table = np.asarray(narrow.embedding[...], np.float64)
    logits = np.asarray(hidden, np.float64) @ table.T
    expected = np.log(np.exp(logits).sum(-1)) - logits[np.arange(3), targets]
    np.testing.assert_allclose(nats, expected, rtol=1e-5)
