"""Batched generation after a shared prefix: jitted prefill, then a decode loop.

A group's few-shot prefix is read once for all of its rows (it is the context of every
attention call); each row holds only its own question and what it generated.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaharness.model.decoder import (
    Cache,
    Decoder,
    empty_cache,
    run_decoder,
    vocabulary_logits,
)
from metaharness.model.likelihood import target_nats
from metaharness.model.prefix import Prefix


class Prompted(NamedTuple):
    """Rows whose question has been read.

    cache: own keys and values; the first ``question`` slots hold the question.
    last: ``[group, row, hidden]``, the state that predicts the first answer token.
    lengths: int32 ``[group, row]``, tokens of each question (at least 1).
    width: int32 scalar, slots kept for the questions; answers start there.
    """

    cache: Cache
    last: jax.Array
    lengths: jax.Array
    width: jax.Array


class Generated(NamedTuple):
    """What each row generated.

    tokens: int32 ``[group, row, new]``, right-padded with 0; no stop token.
    lengths: int32 ``[group, row]``.
    stopped: bool ``[group, row]``: True if a stop token ended it, False at the limit.
    """

    tokens: jax.Array
    lengths: jax.Array
    stopped: jax.Array


def read_questions(
    decoder: Decoder,
    prefix: Prefix,
    tokens: jax.Array,
    lengths: jax.Array,
    *,
    num_new: int,
    implementation: str = "xla",
) -> Prompted:
    """Run right-padded questions int32 ``[group, row, question]`` after the prefix.

    ``num_new`` slots are kept free for an answer or for generated tokens.
    """
    groups, rows, width = tokens.shape
    cache = empty_cache(decoder, groups, rows, width + num_new)
    positions = prefix.end[:, None, None] + jnp.arange(width)
    causal = jnp.arange(width)[:, None] >= jnp.arange(width + num_new)
    hidden, cache = run_decoder(
        decoder,
        tokens,
        jnp.broadcast_to(positions, tokens.shape),
        jnp.broadcast_to(causal, (groups, rows, *causal.shape)),
        prefix.context,
        _row_weights(prefix, rows),
        cache=cache,
        slot=0,
        implementation=implementation,
    )
    last = jnp.take_along_axis(hidden, (lengths - 1)[..., None, None], axis=2)
    return Prompted(cache, last[:, :, 0], lengths, jnp.int32(width))


def answer_nats(
    decoder: Decoder,
    prefix: Prefix,
    prompted: Prompted,
    answers: jax.Array,
    answer_lengths: jax.Array,
) -> jax.Array:
    """Summed nats float32 ``[group, row]`` of right-padded answers after questions.

    ``answers``: int32 ``[group, row, answer]``, at most the ``num_new`` slots kept.
    """
    num = answers.shape[2]
    hidden = prompted.last[:, :, None]
    if num > 1:
        later, _ = _advance(decoder, prefix, prompted, answers[..., :-1], 0)
        hidden = jnp.concatenate([hidden, later], axis=2)
    nats = target_nats(decoder, hidden, answers)
    return jnp.where(jnp.arange(num) < answer_lengths[..., None], nats, 0.0).sum(-1)


def make_decode(
    *,
    max_new_tokens: int,
    stop_ids: tuple[int, ...],
    temperature: float = 0.0,
) -> Callable[[Decoder, Prefix, Prompted, jax.Array], Generated]:
    """A decode loop ``(decoder, prefix, prompted, keys) -> Generated``; jit it.

    Args:
        max_new_tokens: limit for each row, at least 1.
        stop_ids: any of these ends a row and is not part of its output.
        temperature: 0 is greedy, else logits are divided by it and sampled.

    ``keys``: typed keys ``[group, row]``, one a row, so that a row's sample does not
    depend on its batch (unused when greedy).
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: expected at least 1, got {max_new_tokens}")
    if temperature < 0:
        raise ValueError(f"temperature: expected 0 or more, got {temperature}")
    stops = jnp.asarray(stop_ids or (-1,), jnp.int32)

    def choose(decoder, hidden, keys, step):
        logits = vocabulary_logits(decoder, hidden)
        if temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)

        def draw(key, row):
            return jax.random.categorical(
                jax.random.fold_in(key, step), row / temperature
            )

        return jax.vmap(jax.vmap(draw))(keys, logits).astype(jnp.int32)

    def decode(decoder, prefix, prompted, keys) -> Generated:
        def unfinished(carry):
            step, done = carry[0], carry[-1]
            return (step < max_new_tokens) & ~done.all()

        def advance(carry):
            step, cache, hidden, out, lengths, done = carry
            token = choose(decoder, hidden, keys, step)
            done = done | (token[..., None] == stops).any(-1)
            token = jnp.where(done, 0, token)
            out = jax.lax.dynamic_update_index_in_dim(out, token, step, axis=2)
            lengths = lengths + ~done
            state = prompted._replace(cache=cache)
            hidden, cache = _advance(decoder, prefix, state, token[..., None], step)
            return step + 1, cache, hidden[:, :, 0], out, lengths, done

        shape = prompted.lengths.shape
        carry = (
            jnp.int32(0),
            prompted.cache,
            prompted.last,
            jnp.zeros((*shape, max_new_tokens), jnp.int32),
            jnp.zeros(shape, jnp.int32),
            jnp.zeros(shape, bool),
        )
        _, _, _, out, lengths, done = jax.lax.while_loop(unfinished, advance, carry)
        return Generated(out, lengths, done)

    return decode


def _advance(decoder, prefix, prompted, tokens, step):
    """Run ``tokens [group, row, time]`` as the answer's tokens ``step``, ..."""
    groups, rows, num = tokens.shape
    slots = jnp.arange(prompted.cache.keys.shape[3])
    first = prompted.width + step
    question = slots < prompted.lengths[..., None, None]
    answer = (slots >= prompted.width) & (slots <= first + jnp.arange(num)[:, None])
    start = prefix.end[:, None] + prompted.lengths + step
    return run_decoder(
        decoder,
        tokens,
        start[..., None] + jnp.arange(num),
        jnp.broadcast_to(question | answer, (groups, rows, num, slots.shape[0])),
        prefix.context,
        _row_weights(prefix, rows),
        cache=prompted.cache,
        slot=first,
    )


def _row_weights(prefix: Prefix, rows: int) -> jax.Array:
    weights = prefix.valid.astype(jnp.float32)[:, None]
    return jnp.broadcast_to(weights, (weights.shape[0], rows, weights.shape[-1]))
