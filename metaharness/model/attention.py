"""Attention over a weighted shared context and a row's own tokens.

One operation serves every forward pass of the project. A *context* holds keys and
values that all rows of a group attend to (a system turn, a few-shot prefix, a whole
pool of exemplars), each key with a weight ``w >= 0`` on its exponentiated score; a
row's own tokens always have weight 1::

    out = sum_s w_s exp(q.k_s) v_s / sum_s w_s exp(q.k_s)

Weights of 0 and 1 give plain attention over the keys with weight 1, so a shared prefix
is the same code as a gated pool. The form is multiplicative, not a bias ``log w``: its
gradient is finite at ``w = 0``, where ``d out / d w_i = exp(s_i) (v_i - out) / Z``.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange, repeat

# Queries that are scored at a time: memory for scores then grows with the text, not
# with its square.
QUERIES_AT_ONCE = 512
# Scores of keys that may not be attended to. Finite, so that no gradient is NaN.
EXCLUDED = -1e30
# An excluded key (w = 0) may have a score far above every included one; its mass is
# 0 in the value, and in the gradient its exponent is bounded by this (e^60 = 1e26).
MAX_EXPONENT = 60.0
# The fused path carries log w in the key; a weight of 0 becomes this log weight.
LOG_ZERO = -64.0


class Context(NamedTuple):
    """Keys and values shared by the rows of a group, already rotated.

    keys, values: ``[layer, group, context, kv_head, head_dim]`` (without the layer
    axis inside a layer).
    """

    keys: jax.Array
    values: jax.Array


def attend(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None,
    context: Context | None = None,
    weights: jax.Array | None = None,
    *,
    implementation: str = "xla",
) -> jax.Array:
    """Attend to the group's weighted context and to the row's own keys.

    Args:
        query: ``[group, row, time, head, head_dim]``.
        keys, values: the row's own, ``[group, row, key, kv_head, head_dim]``.
        mask: bool ``[group, row, time, key]``, True where attention is allowed;
            every query must be allowed at least one own key. None is plain causal
            attention to as many own keys as there are queries.
        context: shared keys and values, ``[group, context, kv_head, head_dim]``.
        weights: float32 ``[group, row, context]``, at least 0; required with a context.
        implementation: ``xla`` (any platform, exact gradients everywhere) or ``cudnn``
            (GPU, bfloat16 or float16: fused; the gradient in a weight of exactly 0 is
            0, so interior weights are needed where a slope is wanted).

    Returns:
        ``[group, row, time, head, head_dim]`` in the query's dtype.
    """
    if (context is None) != (weights is None):
        raise ValueError("attend: expected context and weights together or neither")
    if mask is None and (implementation == "xla" or context is not None):
        shape = (*query.shape[:3], keys.shape[2])
        mask = jnp.broadcast_to(jnp.tril(jnp.ones(shape[2:], bool)), shape)
    if implementation == "xla":
        rest = (keys, values, context, weights)
        if query.shape[2] <= QUERIES_AT_ONCE:
            return _attend_xla(query, mask, *rest)
        return _in_turns(lambda *part: _attend_xla(*part, *rest), query, mask)
    if implementation == "cudnn":
        return _attend_cudnn(query, keys, values, mask, context, weights)
    raise ValueError(f"implementation: expected xla or cudnn, got {implementation!r}")


def _in_turns(attend_part, query, mask):
    """``attend_part(query, mask)`` for some queries after others; for a gradient the
    scores are computed again."""
    times = query.shape[2]
    num = -(-times // QUERIES_AT_ONCE)
    fill = ((0, 0), (0, 0), (0, num * QUERIES_AT_ONCE - times))
    query = jnp.pad(query, (*fill, (0, 0), (0, 0)))
    mask = jnp.pad(mask, (*fill, (0, 0)), mode="edge")
    parts = (rearrange(x, "g r (n t) ... -> n g r t ...", n=num) for x in (query, mask))
    attend_part = jax.checkpoint(attend_part)
    out = jax.lax.map(lambda part: attend_part(*part), tuple(parts))
    return rearrange(out, "n g r t h d -> g r (n t) h d")[:, :, :times]


def _attend_xla(query, mask, keys, values, context, weights):
    kv_heads = keys.shape[-2]
    wide = jnp.promote_types(query.dtype, jnp.float32)
    dot = functools.partial(jnp.einsum, preferred_element_type=wide)
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    query = rearrange(query, "g r t (k h) d -> g k r t h d", k=kv_heads)
    own = dot("gkrthd,grskd->gkrths", query, keys)
    own = jnp.where(mask[:, None, :, :, None, :], own, EXCLUDED)
    top = own.max(axis=-1, keepdims=True)
    if context is not None:
        # Fold rows, times and grouped heads into one matrix product per kv head: the
        # context is read once for all of them.
        shape = query.shape[2:5]
        folded = rearrange(query, "g k r t h d -> g k (r t h) d")
        shared = dot("gknd,gckd->gknc", folded, context.keys)
        shared = shared.reshape(*shared.shape[:2], *shape, shared.shape[-1])
        gate = weights[:, None, :, None, None, :]
        reachable = jnp.where(gate > 0, shared, EXCLUDED)
        top = jnp.maximum(top, reachable.max(axis=-1, keepdims=True))
    top = jax.lax.stop_gradient(top)
    own = jnp.exp(own - top)
    total = own.sum(axis=-1, keepdims=True)
    out = dot("gkrths,grskd->gkrthd", own.astype(values.dtype), values)
    if context is not None:
        shared = gate * jnp.exp(jnp.minimum(shared - top, MAX_EXPONENT))
        total = total + shared.sum(axis=-1, keepdims=True)
        mass = rearrange(shared, "g k r t h c -> g k (r t h) c").astype(values.dtype)
        mixed = dot("gknc,gckd->gknd", mass, context.values)
        out = out + mixed.reshape(out.shape)
    out = out / total
    return rearrange(out, "g k r t h d -> g r t (k h) d").astype(values.dtype)


def _attend_cudnn(query, keys, values, mask, context, weights):
    groups, rows = query.shape[:2]
    kv_heads, head_dim = keys.shape[-2:]
    scale = head_dim**-0.5
    query, keys, values = (
        rearrange(x, "g r s k d -> (g r) s k d") for x in (query, keys, values)
    )
    if mask is not None:
        # one copy a head: under vmap the fused kernel reshapes it to as many
        mask = repeat(mask, "g r t s -> (g r) h t s", h=query.shape[-2])
    if context is not None:
        # log w rides in two extra dimensions of the key (a high and a low part, so
        # that bfloat16 does not round it) against ones in the query; its gradient
        # falls out of the kernel's dK.
        log_weights = jnp.log(jnp.maximum(weights, jnp.exp(LOG_ZERO))) / scale
        gate = repeat(log_weights, "g r c -> (g r) c k 1", k=kv_heads)
        high = gate.astype(keys.dtype)
        low = (gate - high.astype(jnp.float32)).astype(keys.dtype)
        shared_keys, shared_values = (
            repeat(x, "g c k d -> (g r) c k d", r=rows) for x in context
        )
        shared_keys = jnp.concatenate([shared_keys, high, low], axis=-1)
        ones = jnp.ones((*query.shape[:-1], 2), query.dtype)
        query = jnp.concatenate([query, ones], axis=-1)
        width = -(-query.shape[-1] // 8) * 8  # fused kernels want a multiple of 8
        keys = jnp.concatenate([_widen(shared_keys, width), _widen(keys, width)], 1)
        values = jnp.concatenate([shared_values, values], axis=1)
        query, values = _widen(query, width), _widen(values, width)
        mask = jnp.pad(
            mask, ((0, 0),) * 3 + ((weights.shape[-1], 0),), constant_values=True
        )
    times = query.shape[1]
    # the kernel's backward wants even lengths; what is added at the end is masked
    odd_query, odd_key = times % 2, keys.shape[1] % 2
    query = jnp.pad(query, ((0, 0), (0, odd_query), (0, 0), (0, 0)))
    keys, values = (
        jnp.pad(x, ((0, 0), (0, odd_key), (0, 0), (0, 0))) for x in (keys, values)
    )
    if mask is not None:
        mask = jnp.pad(mask, ((0, 0), (0, 0), (0, 0), (0, odd_key)))
        mask = jnp.pad(mask, ((0, 0), (0, 0), (0, odd_query), (0, 0)), mode="edge")
    out = jax.nn.dot_product_attention(
        query,
        keys,
        values,
        mask=mask,
        is_causal=mask is None,
        scale=scale,
        implementation="cudnn",
    )
    out = out[:, :times, :, :head_dim]
    return rearrange(out, "(g r) t h d -> g r t h d", g=groups)


def _widen(x: jax.Array, width: int) -> jax.Array:
    """Pad the head dimension with zeros up to ``width``."""
    return jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, width - x.shape[-1]),))
