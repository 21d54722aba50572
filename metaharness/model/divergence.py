"""How far a model's next-token distributions lie from another's, on gold answers."""

import chex
import jax
import jax.numpy as jnp

from metaharness.model.decoder import Decoder, vocabulary_logits
from metaharness.model.likelihood import Rows, scored_states
from metaharness.model.prefix import Prefix


def kl_nats(logits: jax.Array, base_logits: jax.Array) -> jax.Array:
    """KL(p || base) in nats of next-token distributions, over the whole vocabulary.

    Both ``[..., vocab]``, returns ``[...]``; computed in at least float32. Logits that
    are the same bit for bit give exactly 0.
    """
    chex.assert_equal_shape([logits, base_logits])
    wide = jnp.promote_types(logits.dtype, jnp.float32)
    log_p = jax.nn.log_softmax(logits.astype(wide), axis=-1)
    log_base = jax.nn.log_softmax(base_logits.astype(wide), axis=-1)
    return (jnp.exp(log_p) * (log_p - log_base)).sum(axis=-1)


def item_divergence(
    decoder: Decoder,
    base: Decoder,
    rows: Rows,
    prefix: Prefix,
    base_prefix: Prefix,
    *,
    num_items: int,
    implementation: str = "xla",
) -> jax.Array:
    """KL(decoder || base) in nats, summed over the tokens of each item's gold answer.

    Memory grows with ``group x row x answer x vocab``, twice; run few rows at once.

    Args:
        decoder: weights, with an adapter merged or beside them.
        base: weights that it is compared with.
        rows: packed items with leading axes ``[group, row]``.
        prefix: what the rows of a group attend to, encoded by ``decoder``.
        base_prefix: the same tokens, encoded by ``base``.
        num_items: items in a row, at most (static).
        implementation: of attention (static).

    Returns:
        float32 ``[group, row, item]``; items that a row lacks get 0.
    """

    def logits(model: Decoder, read: Prefix) -> jax.Array:
        weights = read.valid.astype(jnp.float32)
        states = scored_states(
            model, rows, read.end, read.context, weights, implementation
        )
        return vocabulary_logits(model, states)

    nats = kl_nats(logits(decoder, prefix), logits(base, base_prefix))
    mine = rows.owner[..., None] == jnp.arange(num_items)
    return jnp.where(mine, nats[..., None], 0.0).sum(axis=2)
