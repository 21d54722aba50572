"""Likelihood of gold answers after a shared context, on packed rows.

Several short items are packed into one row (segments keep them apart), so that short
and long questions share one shape, one trace and little padding.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaharness.model.attention import Context
from metaharness.model.decoder import Decoder, run_decoder, vocabulary_logits


class Rows(NamedTuple):
    """Packed items: question turn, then gold answer, one segment an item.

    tokens: int32 ``[..., row, time]``, right-padded.
    positions: int32 ``[..., row, time]``, counted from the start of the item.
    segments: int32 ``[..., row, time]``: 1, 2, ... along a row; 0 is padding.
    score_at: int32 ``[..., row, answer]``: the time whose *next* token is scored.
    targets: int32 ``[..., row, answer]``: that next token.
    owner: int32 ``[..., row, answer]``: the item that it belongs to, numbered from 0
        in each row; ``num_items`` on padding.
    """

    tokens: jax.Array
    positions: jax.Array
    segments: jax.Array
    score_at: jax.Array
    targets: jax.Array
    owner: jax.Array


def item_nats(
    decoder: Decoder,
    rows: Rows,
    start: jax.Array,
    context: Context,
    weights: jax.Array,
    *,
    num_items: int,
    implementation: str = "xla",
) -> jax.Array:
    """Summed nats of each item's gold answer tokens: ``[group, row, item]``.

    Arguments as those of ``item_scores``; items that a row lacks get 0.
    """
    hidden = scored_states(decoder, rows, start, context, weights, implementation)
    nats = target_nats(decoder, hidden, rows.targets)
    mine = rows.owner[..., None] == jnp.arange(num_items)
    return jnp.where(mine, nats[..., None], 0.0).sum(axis=2)


class ItemScores(NamedTuple):
    """Scores of gold answers ``[group, row, item]``.

    nats: float32, summed over the answer's tokens; exact: bool, whether each of its
    tokens is the likeliest one given the gold tokens before it, which is whether greedy
    decoding would write this answer first (ties go to the lowest id, as there).
    """

    nats: jax.Array
    exact: jax.Array


def item_scores(
    decoder: Decoder,
    rows: Rows,
    start: jax.Array,
    context: Context,
    weights: jax.Array,
    *,
    num_items: int,
    implementation: str = "xla",
) -> ItemScores:
    """Nats and exact match of each item's gold answer, from one forward pass.

    Args:
        decoder: weights.
        rows: packed items with leading axes ``[group, row]``.
        start: int32 ``[group]``, the position at which every item starts.
        context: what the rows of a group attend to, ``[layer, group, context, ...]``.
        weights: float32 ``[group, context]``, multiplicative key weights.
        num_items: items in a row, at most; items that a row lacks get 0 and True.
        implementation: of attention (static).
    """
    hidden = scored_states(decoder, rows, start, context, weights, implementation)
    logits = vocabulary_logits(decoder, hidden)
    missed = jnp.argmax(logits, axis=-1) != rows.targets
    mine = rows.owner[..., None] == jnp.arange(num_items)
    return ItemScores(
        jnp.where(mine, _nats(logits, rows.targets)[..., None], 0.0).sum(axis=2),
        ~(mine & missed[..., None]).any(axis=2),
    )


def target_nats(decoder: Decoder, hidden: jax.Array, targets: jax.Array) -> jax.Array:
    """Negative log-probability in nats of ``targets`` given hidden states."""
    return _nats(vocabulary_logits(decoder, hidden), targets)


def _nats(logits: jax.Array, targets: jax.Array) -> jax.Array:
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def scored_states(
    decoder: Decoder,
    rows: Rows,
    start: jax.Array,
    context: Context,
    weights: jax.Array,
    implementation: str,
) -> jax.Array:
    """States that predict the answers' tokens, ``[group, row, answer, hidden]``.

    Arguments as those of ``item_scores``.
    """
    groups, num_rows, times = rows.tokens.shape
    same = rows.segments[..., :, None] == rows.segments[..., None, :]
    mask = same & jnp.tril(jnp.ones((times, times), bool))
    hidden, _ = run_decoder(
        decoder,
        rows.tokens,
        rows.positions + start[:, None, None],
        mask,
        context,
        jnp.broadcast_to(weights[:, None], (groups, num_rows, weights.shape[-1])),
        implementation=implementation,
    )
    return jnp.take_along_axis(hidden, rows.score_at[..., None], axis=2)
