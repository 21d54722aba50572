"""Measured objective: the likelihood of gold answers under the sequential prompt."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaharness.harness.packing import Packs, take_packs
from metaharness.harness.tables import PromptTable, assemble_prefix
from metaharness.model.decoder import Decoder
from metaharness.model.likelihood import item_nats, item_scores
from metaharness.model.prefix import encode_prefix


class Batch(NamedTuple):
    """Which harness reads which packs: one group a harness.

    task: int32 ``[group]``; template: int32 ``[group]``; exemplars: int32
    ``[group, k]``, in prompt order; packs: int32 ``[group, pack]``.
    """

    task: jax.Array
    template: jax.Array
    exemplars: jax.Array
    packs: jax.Array


class Measured(NamedTuple):
    """Losses of a batch.

    nats: float32 ``[group, pack, slot]``, summed nats of each item's gold answer;
    real: bool, the same shape, False where a pack has no such item;
    tokens: int32 ``[group]``, tokens run through the model, padding not counted;
    exact: bool as ``nats``, greedy exact match of the gold answer, where asked for.
    """

    nats: jax.Array
    real: jax.Array
    tokens: jax.Array
    exact: jax.Array | None = None

    def loss(self) -> jax.Array:
        """Mean nats an item, float32 ``[group]``; 0 for a group without items."""
        return masked_mean(self.nats, self.real)


def masked_mean(nats: jax.Array, real: jax.Array) -> jax.Array:
    """Mean of ``[..., pack, slot]`` where ``real``, 0 where nothing is."""
    total = jnp.where(real, nats, 0.0).sum(axis=(-2, -1))
    return total / jnp.maximum(real.sum(axis=(-2, -1)), 1)


def measure(
    decoder: Decoder,
    table: PromptTable,
    packs: Packs,
    batch: Batch,
    *,
    width: int,
    chunk: int,
    implementation: str = "xla",
    with_exact: bool = False,
) -> Measured:
    """Likelihood of each group's items under its harness, each prefix encoded once.

    ``width``: tokens of the longest prefix (static). ``chunk``: groups run at once;
    memory grows with it, results do not depend on it. ``with_exact``: also say
    whether greedy decoding writes the gold answer (see ``likelihood.ItemScores``).
    """

    def one(group: Batch) -> Measured:
        tokens, length = assemble_prefix(
            table, group.template, group.exemplars, width=width
        )
        prefix = encode_prefix(
            decoder, tokens[None], length[None], implementation=implementation
        )
        rows, real, num_tokens = take_packs(
            packs, group.task, group.template, group.packs
        )
        score = item_scores if with_exact else item_nats
        scored = score(
            decoder,
            jax.tree.map(lambda x: x[None], rows),
            prefix.end,
            prefix.context,
            prefix.valid.astype(jnp.float32),
            num_items=real.shape[-1],
            implementation=implementation,
        )
        if not with_exact:
            return Measured(scored[0], real, length + num_tokens)
        return Measured(scored.nats[0], real, length + num_tokens, scored.exact[0])

    return jax.lax.map(one, batch, batch_size=chunk)
