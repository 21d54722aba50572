"""Generation agrees with plain forward passes, whatever the batch and the padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaharness.model.config import DecoderConfig
from metaharness.model.decoder import decoder_logits, random_decoder
from metaharness.model.generate import answer_nats, make_decode, read_questions
from metaharness.model.prefix import encode_prefix

CONFIG = DecoderConfig(
    architecture="qwen2",
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    qkv_bias=True,
)
PREFIX = [5, 9, 2, 33, 7]
QUESTIONS = [[3, 4, 8, 1], [17], [21, 22, 60, 2, 9, 11, 40]]


@pytest.fixture(scope="module")
def decoder():
    return random_decoder(jax.random.key(3), CONFIG)


def pad(rows, width):
    return np.array([row + [0] * (width - len(row)) for row in rows], np.int32)


def read(decoder, prefix, questions, num_new, width=None):
    tokens = pad(questions, width or max(map(len, questions)))
    lengths = np.array([[len(q) for q in questions]], np.int32)
    encoded = encode_prefix(
        decoder, pad([prefix], len(prefix) + 3), np.array([len(prefix)])
    )
    return encoded, read_questions(
        decoder, encoded, tokens[None], lengths, num_new=num_new
    )


def keys_for(rows, seed=0):
    return jax.random.split(jax.random.key(seed), rows)[None]


def greedy(decoder, questions, num_new, *, stop_ids=(), width=None, prefix=PREFIX):
    encoded, prompted = read(decoder, prefix, questions, num_new, width)
    decode = make_decode(max_new_tokens=num_new, stop_ids=stop_ids)
    out = jax.jit(decode)(decoder, encoded, prompted, keys_for(len(questions)))
    return [
        list(map(int, out.tokens[0, i, : out.lengths[0, i]]))
        for i in range(len(questions))
    ], out


def full_forward(decoder, prompt, num_new):
    """Token by token with no cache at all."""
    tokens = list(prompt)
    for _ in range(num_new):
        logits = decoder_logits(decoder, jnp.asarray([tokens]))
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_cached_generation_equals_full_forward_token_by_token(decoder):
    out, _ = greedy(decoder, QUESTIONS, 6)
    for question, tokens in zip(QUESTIONS, out, strict=True):
        assert tokens == full_forward(decoder, PREFIX + question, 6)


def test_a_batch_equals_each_row_alone(decoder):
    together, _ = greedy(decoder, QUESTIONS, 5)
    alone = [greedy(decoder, [question], 5)[0][0] for question in QUESTIONS]
    assert together == alone


def test_padding_changes_nothing(decoder):
    assert (
        greedy(decoder, QUESTIONS, 5)[0] == greedy(decoder, QUESTIONS, 5, width=19)[0]
    )


def test_shared_prefix_equals_repeated_prefix(decoder):
    shared, _ = greedy(decoder, QUESTIONS, 5)
    repeated, _ = greedy(
        decoder, [PREFIX[1:] + q for q in QUESTIONS], 5, prefix=PREFIX[:1]
    )
    assert shared == repeated


def test_stop_ids_end_a_row_and_are_left_out(decoder):
    free, _ = greedy(decoder, QUESTIONS, 6)
    stops = (free[0][2], free[1][4])
    stopped, out = greedy(decoder, QUESTIONS, 6, stop_ids=stops)
    for before, after, flag in zip(free, stopped, out.stopped[0], strict=True):
        first = next((i for i, t in enumerate(before) if t in stops), None)
        assert after == before[:first]
        assert bool(flag) == (first is not None)


def test_token_limit_is_exact(decoder):
    for limit in (1, 3):
        out, generated = greedy(decoder, QUESTIONS, limit)
        assert [len(tokens) for tokens in out] == [limit] * 3
        assert not generated.stopped.any()


def test_a_row_samples_the_same_alone_and_in_a_batch(decoder):
    decode = make_decode(max_new_tokens=5, stop_ids=(), temperature=1.0)
    keys = keys_for(3, seed=4)
    encoded, prompted = read(decoder, PREFIX, QUESTIONS, 5)
    batch = decode(decoder, encoded, prompted, keys)
    encoded, prompted = read(decoder, PREFIX, QUESTIONS[1:2], 5)
    alone = decode(decoder, encoded, prompted, keys[:, 1:2])
    assert batch.tokens[0, 1].tolist() == alone.tokens[0, 0].tolist()
    again = decode(decoder, encoded, prompted, keys_for(3, seed=5)[:, 1:2])
    assert again.tokens.tolist() != alone.tokens.tolist()


def test_sampled_tokens_follow_the_softmax(decoder):
    rows = 4000
    encoded, prompted = read(decoder, PREFIX, [QUESTIONS[0]] * rows, 1)
    decode = make_decode(max_new_tokens=1, stop_ids=(), temperature=0.7)
    out = decode(decoder, encoded, prompted, keys_for(rows))
    counts = np.bincount(np.asarray(out.tokens[0, :, 0]), minlength=61)
    logits = decoder_logits(decoder, jnp.asarray([PREFIX + QUESTIONS[0]]))[0, -1]
    expected = np.asarray(jax.nn.softmax(logits / 0.7)) * rows
    kept = expected > 5
    chi2 = ((counts - expected) ** 2 / expected)[kept].sum()
    assert chi2 < kept.sum() + 5 * np.sqrt(2 * kept.sum())


def test_answer_nats_equal_the_plain_forward_pass(decoder):
    answers = [[4, 9, 2], [30], [8, 8]]
    encoded, prompted = read(decoder, PREFIX, QUESTIONS, 4)
    lengths = np.array([[len(a) for a in answers]])
    nats = answer_nats(decoder, encoded, prompted, pad(answers, 3)[None], lengths)
    for i, (question, answer) in enumerate(zip(QUESTIONS, answers, strict=True)):
        tokens = PREFIX + question + answer
        logp = jax.nn.log_softmax(decoder_logits(decoder, jnp.asarray([tokens]))[0])
        at = np.arange(len(tokens) - len(answer) - 1, len(tokens) - 1)
        assert nats[0, i] == pytest.approx(float(-logp[at, answer].sum()), abs=1e-4)


def test_bad_limits_are_refused():
    with pytest.raises(ValueError, match="max_new_tokens"):
        make_decode(max_new_tokens=0, stop_ids=())
    with pytest.raises(ValueError, match="temperature"):
        make_decode(max_new_tokens=1, stop_ids=(), temperature=-1.0)
