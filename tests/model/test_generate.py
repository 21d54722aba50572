"""Generation agrees with plain forward passes, whatever the batch and the padding."""

import functools

import jax
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
# Shapes that every test shares, so that little is compiled.
PREFIX_WIDTH, WIDTH, ROOM, WHOLE = 8, 12, 6, 24


@pytest.fixture(scope="module")
def decoder():
    return random_decoder(jax.random.key(3), CONFIG)


def pad(rows, width):
    return np.array([row + [0] * (width - len(row)) for row in rows], np.int32)


@functools.partial(jax.jit, static_argnames="num_new")
def encode_and_read(decoder, prefix, prefix_length, tokens, lengths, *, num_new):
    encoded = encode_prefix(decoder, prefix, prefix_length)
    prompted = read_questions(decoder, encoded, tokens, lengths, num_new=num_new)
    return encoded, prompted


def read(decoder, prefix, questions, *, width=WIDTH):
    return encode_and_read(
        decoder,
        pad([prefix], PREFIX_WIDTH),
        np.array([len(prefix)], np.int32),
        pad(questions, width)[None],
        np.array([[len(q) for q in questions]], np.int32),
        num_new=ROOM,
    )


@functools.cache
def decode_with(**static):
    return jax.jit(make_decode(**static))


score_answers = jax.jit(answer_nats)


@jax.jit
def plain_logits(decoder, tokens):
    return decoder_logits(decoder, tokens)[0]


def next_logits(decoder, tokens):
    """Logits after each of the tokens: no cache, and padding that nothing sees."""
    return plain_logits(decoder, pad([tokens], WHOLE))[: len(tokens)]


def keys_for(rows, seed=0):
    return jax.random.split(jax.random.key(seed), rows)[None]


def greedy(decoder, questions, num_new, *, stop_ids=(), width=WIDTH, prefix=PREFIX):
    encoded, prompted = read(decoder, prefix, questions, width=width)
    decode = decode_with(max_new_tokens=num_new, stop_ids=stop_ids)
    out = decode(decoder, encoded, prompted, keys_for(len(questions)))
    return [
        list(map(int, out.tokens[0, i, : out.lengths[0, i]]))
        for i in range(len(questions))
    ], out


def full_forward(decoder, prompt, num_new):
    """Token by token with no cache at all."""
    tokens = list(prompt)
    for _ in range(num_new):
        tokens.append(int(next_logits(decoder, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def test_cached_generation_equals_full_forward_token_by_token(decoder):
    out, _ = greedy(decoder, QUESTIONS, 6)
    for question, tokens in zip(QUESTIONS, out, strict=True):
        assert tokens == full_forward(decoder, PREFIX + question, 6)


def test_a_batch_equals_each_row_alone(decoder):
    together, _ = greedy(decoder, QUESTIONS, 6)
    alone = [greedy(decoder, [question], 6)[0][0] for question in QUESTIONS]
    assert together == alone


def test_padding_changes_nothing(decoder):
    narrow, _ = greedy(decoder, QUESTIONS, 6)
    wide, _ = greedy(decoder, QUESTIONS, 6, width=19)
    assert narrow == wide


def test_shared_prefix_equals_repeated_prefix(decoder):
    shared, _ = greedy(decoder, QUESTIONS, 6)
    repeated, _ = greedy(
        decoder, [PREFIX[1:] + q for q in QUESTIONS], 6, prefix=PREFIX[:1]
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
    decode = decode_with(max_new_tokens=5, stop_ids=(), temperature=1.0)
    encoded, prompted = read(decoder, PREFIX, QUESTIONS)
    batch = decode(decoder, encoded, prompted, keys_for(3, seed=4))
    encoded, prompted = read(decoder, PREFIX, QUESTIONS[1:2])
    alone = decode(decoder, encoded, prompted, keys_for(3, seed=4)[:, 1:2])
    assert batch.tokens[0, 1].tolist() == alone.tokens[0, 0].tolist()
    again = decode(decoder, encoded, prompted, keys_for(3, seed=5)[:, 1:2])
    assert again.tokens.tolist() != alone.tokens.tolist()


def test_sampled_tokens_follow_the_softmax(decoder):
    rows = 4000
    encoded, prompted = read(decoder, PREFIX, [QUESTIONS[0]] * rows)
    decode = decode_with(max_new_tokens=1, stop_ids=(), temperature=0.7)
    out = decode(decoder, encoded, prompted, keys_for(rows))
    counts = np.bincount(np.asarray(out.tokens[0, :, 0]), minlength=61)
    logits = next_logits(decoder, PREFIX + QUESTIONS[0])[-1]
    expected = np.asarray(jax.nn.softmax(logits / 0.7)) * rows
    kept = expected > 5
    chi2 = ((counts - expected) ** 2 / expected)[kept].sum()
    assert chi2 < kept.sum() + 5 * np.sqrt(2 * kept.sum())


def test_answer_nats_equal_the_plain_forward_pass(decoder):
    answers = [[4, 9, 2], [30], [8, 8]]
    encoded, prompted = read(decoder, PREFIX, QUESTIONS)
    lengths = np.array([[len(a) for a in answers]], np.int32)
    nats = score_answers(decoder, encoded, prompted, pad(answers, 3)[None], lengths)
    for i, (question, answer) in enumerate(zip(QUESTIONS, answers, strict=True)):
        tokens = PREFIX + question + answer
        logp = np.asarray(jax.nn.log_softmax(next_logits(decoder, tokens)))
        at = np.arange(len(tokens) - len(answer) - 1, len(tokens) - 1)
        assert nats[0, i] == pytest.approx(float(-logp[at, answer].sum()), abs=1e-4)


def test_bad_limits_are_refused():
    with pytest.raises(ValueError, match="max_new_tokens"):
        make_decode(max_new_tokens=0, stop_ids=())
    with pytest.raises(ValueError, match="temperature"):
        make_decode(max_new_tokens=1, stop_ids=(), temperature=-1.0)
