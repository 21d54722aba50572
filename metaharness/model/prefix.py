"""Encode what many rows share, once: a prompt prefix, or a pool of candidates.

Both give a ``Context``. A *sequential* prefix is one causal text. A *gated pool*
(DESIGN 3) holds every candidate encoded in parallel: each attends to the shared head
(the system turn) and to itself, at right-aligned positions, so that its distance to
the question is the one that it has in a sequential prompt.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange, repeat

from metaharness.model.attention import Context
from metaharness.model.decoder import Decoder, run_decoder


class Prefix(NamedTuple):
    """A context with the mask of its real keys and the position of what follows.

    context: keys and values ``[layer, group, context, kv_head, head_dim]``.
    valid: bool ``[group, context]``, False on padding.
    end: int32 ``[group]``, the first position after it.
    """

    context: Context
    valid: jax.Array
    end: jax.Array


class Pool(NamedTuple):
    """Head and candidates of a gated pool, encoded once for each (theta, head).

    context: keys and values ``[layer, 1, context, kv_head, head_dim]``.
    owner: int32 ``[context]``: the candidate a key belongs to; ``num_candidates`` for
        the head's keys (weight 1) and ``num_candidates + 1`` for padding (weight 0).
    end: int32 scalar, the position of the question: head length + longest candidate.
    """

    context: Context
    owner: jax.Array
    end: jax.Array


def encode_prefix(
    decoder: Decoder,
    tokens: jax.Array,
    lengths: jax.Array,
    *,
    implementation: str = "xla",
) -> Prefix:
    """Encode one right-padded prefix a group: int32 ``[group, time]``, ``[group]``."""
    times = tokens.shape[1]
    row = tokens[:, None]
    positions = jnp.broadcast_to(jnp.arange(times), row.shape)
    _, own = run_decoder(decoder, row, positions, None, implementation=implementation)
    keys, values = (rearrange(x, "l g r t k d -> l g (r t) k d") for x in own)
    valid = jnp.arange(times) < lengths[:, None]
    return Prefix(Context(keys, values), valid, lengths)


def encode_pool(
    decoder: Decoder,
    head: jax.Array,
    head_length: jax.Array,
    candidates: jax.Array,
    lengths: jax.Array,
    *,
    implementation: str = "xla",
) -> Pool:
    """Encode every candidate in parallel after a shared head.

    Args:
        head: int32 ``[head]``, right-padded; head_length: int32 scalar, at least 1.
        candidates: int32 ``[candidate, time]``, right-padded.
        lengths: int32 ``[candidate]``; the longest decides where the question starts.
    """
    num, times = candidates.shape
    longest = lengths.max()
    prefix = encode_prefix(
        decoder, head[None], head_length[None], implementation=implementation
    )
    offset = head_length + longest - lengths
    positions = offset[:, None] + jnp.arange(times)
    _, own = run_decoder(
        decoder,
        candidates[None],
        positions[None],
        None,
        prefix.context,
        jnp.broadcast_to(
            prefix.valid.astype(jnp.float32), (1, num, prefix.valid.shape[-1])
        ),
        implementation=implementation,
    )
    own = (rearrange(x, "l g n t k d -> l g (n t) k d") for x in own)
    keys, values = (
        jnp.concatenate(pair, axis=2) for pair in zip(prefix.context, own, strict=True)
    )
    owner = repeat(jnp.arange(num), "n -> n t", t=times)
    owner = jnp.where(jnp.arange(times) < lengths[:, None], owner, num + 1)
    head_owner = jnp.where(prefix.valid[0], num, num + 1)
    owner = jnp.concatenate([head_owner, owner.reshape(-1)])
    return Pool(Context(keys, values), owner, head_length + longest)


def select_keys(pool: Pool, index: jax.Array, num_candidates: int) -> Pool:
    """The pool with the keys at ``index`` alone; an index past the end is padding.

    ``index``: int32 ``[key]``. Used to drop padding and candidates that a task may not
    use, so that no query reads them.
    """
    size = pool.owner.shape[0]
    at = jnp.minimum(index, size - 1)
    context = Context(*(x[:, :, at] for x in pool.context))
    owner = jnp.where(index < size, pool.owner[at], num_candidates + 1)
    return pool._replace(context=context, owner=owner)


def key_weights(pool: Pool, weights: jax.Array) -> jax.Array:
    """Candidate weights ``[..., candidate]`` -> key weights ``[..., context]``.

    Differentiable: a candidate's gradient is the sum over its keys.
    """
    ones = jnp.ones((*weights.shape[:-1], 1), weights.dtype)
    extended = jnp.concatenate([weights, ones, jnp.zeros_like(ones)], axis=-1)
    return extended[..., pool.owner]
