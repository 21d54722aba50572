"""Batched generation after a shared prefix: jitted prefill, then a decode loop.

A group's few-shot prefix is read once for all of its rows (it is the context of every
attention call); each row holds only its own question and what it generated.
"""

from collections.abc import Callable
from functools import partial
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
    nats: float32 ``[group, row, new]``, negative log-probability of each token at
        temperature 1; after the last one that of the stop token, 0 beyond.
    """

    tokens: jax.Array
    lengths: jax.Array
    stopped: jax.Array
    nats: jax.Array


class Decoding(NamedTuple):
    """Rows in the middle of being written; other arrays as in ``Generated``.

    cache: own keys and values; hidden: ``[group, row, hidden]``, what predicts the next
    token; done: bool ``[group, row]``, ended by a stop token or by the caller; stopped:
    ended by a stop token; step: int32, tokens written so far.
    """

    cache: Cache
    hidden: jax.Array
    tokens: jax.Array
    lengths: jax.Array
    nats: jax.Array
    done: jax.Array
    stopped: jax.Array
    step: jax.Array


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


def start_decoding(prompted: Prompted, max_new_tokens: int) -> Decoding:
    """Nothing written yet, room for ``max_new_tokens``."""
    shape = prompted.lengths.shape
    return Decoding(
        prompted.cache,
        prompted.last,
        jnp.zeros((*shape, max_new_tokens), jnp.int32),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros((*shape, max_new_tokens), jnp.float32),
        jnp.zeros(shape, bool),
        jnp.zeros(shape, bool),
        jnp.int32(0),
    )


def make_advance(
    *, stop_ids: tuple[int, ...], greedy: bool = False
) -> Callable[..., Decoding]:
    """Go on writing: ``(decoder, prefix, prompted, decoding, keys, temperature, until)
    -> Decoding``; jit it.

    Args:
        stop_ids: any of these ends a row and is not part of its output.
        greedy: every row takes the likeliest token; keys and temperature are not read.

    ``keys``: typed keys ``[group, row]``, one a row, so that a row's sample does not
    depend on its batch; ``temperature``: float32 ``[group, row]``, 0 is greedy, else
    logits are divided by it and sampled; ``until``: int32, stops after so many tokens
    in all (at most the room that there is), or when every row is done.
    """
    stops = jnp.asarray(stop_ids or (-1,), jnp.int32)

    def choose(logits, keys, temperature, step):
        likeliest = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        if greedy:
            return likeliest

        def draw(key, row, heat):
            heat = jnp.where(heat > 0, heat, 1.0)
            key = jax.random.fold_in(key, step)
            return jax.random.categorical(key, row / heat).astype(jnp.int32)

        def sampled():
            drawn = jax.vmap(jax.vmap(draw))(keys, logits, temperature)
            return jnp.where(temperature > 0, drawn, likeliest)

        return jax.lax.cond((temperature > 0).any(), sampled, lambda: likeliest)

    def advance(decoder, prefix, prompted, decoding, keys, temperature, until):
        def unfinished(now):
            return (now.step < until) & ~now.done.all()

        def write(now):
            logits = vocabulary_logits(decoder, now.hidden).astype(jnp.float32)
            token = choose(logits, keys, temperature, now.step)
            found = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
            nats = jax.nn.logsumexp(logits, axis=-1) - found
            nats = jnp.where(now.done, 0.0, nats)
            ends = (token[..., None] == stops).any(-1) & ~now.done
            done = now.done | ends
            token = jnp.where(done, 0, token)
            put = partial(jax.lax.dynamic_update_index_in_dim, index=now.step, axis=2)
            out = put(now.tokens, token)
            nats = put(now.nats, nats)
            state = prompted._replace(cache=now.cache)
            hidden, cache = _advance(decoder, prefix, state, token[..., None], now.step)
            return Decoding(
                cache,
                hidden[:, :, 0],
                out,
                now.lengths + ~done,
                nats,
                done,
                now.stopped | ends,
                now.step + 1,
            )

        return jax.lax.while_loop(unfinished, write, decoding)

    return advance


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

    ``keys``: see ``make_advance``.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: expected at least 1, got {max_new_tokens}")
    if temperature < 0:
        raise ValueError(f"temperature: expected 0 or more, got {temperature}")
    advance = make_advance(stop_ids=stop_ids, greedy=temperature == 0)

    def decode(decoder, prefix, prompted, keys) -> Generated:
        start = start_decoding(prompted, max_new_tokens)
        heat = jnp.full(prompted.lengths.shape, temperature, jnp.float32)
        end = advance(decoder, prefix, prompted, start, keys, heat, max_new_tokens)
        return Generated(end.tokens, end.lengths, end.stopped, end.nats)

    return decode


def _advance(decoder, prefix, prompted, tokens, step):
    """Run ``tokens [group, row, time]`` as the answer's tokens ``step``, ..."""
    groups, rows, num = tokens.shape
    slots = jnp.arange(prompted.cache.keys.shape[4])
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
