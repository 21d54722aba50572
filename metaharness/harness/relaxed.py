"""Relaxed objective: likelihood as a differentiable function of pool weights.

Every candidate is encoded in parallel once; questions attend to all of them through
multiplicative weights (``model.attention``). At a k-hot weight this is exactly the
model with those exemplars as parallel context; the gap to the sequential prompt is
measured and reported with every run.
"""

from typing import NamedTuple

import jax
import numpy as np

from metaharness.harness.packing import Packs, take_packs
from metaharness.harness.sequential import Measured, masked_mean
from metaharness.harness.tables import PromptTable
from metaharness.model.attention import Context
from metaharness.model.decoder import Decoder
from metaharness.model.likelihood import item_nats
from metaharness.model.prefix import Pool, encode_pool, key_weights, select_keys


class PoolCache(NamedTuple):
    """Encoded pools, one for each style, and the keys that each task reads.

    pool: ``Pool`` with a leading style axis; index: int32 ``[style, task, key]``.
    """

    pool: Pool
    index: jax.Array


class SoftBatch(NamedTuple):
    """Which soft harness reads which packs.

    task, template: int32 ``[group]``; packs: int32 ``[group, pack]``.
    """

    task: jax.Array
    template: jax.Array
    packs: jax.Array


def encode_pools(
    decoder: Decoder, table: PromptTable, *, implementation: str = "xla"
) -> Pool:
    """Encode the whole candidate pool under every style (leading axis: style)."""

    def one(args: tuple[jax.Array, ...]) -> Pool:
        return encode_pool(decoder, *args, implementation=implementation)

    return jax.lax.map(
        one, (table.heads, table.head_lengths, table.shots, table.shot_lengths)
    )


def task_keys(table: PromptTable, allowed: np.ndarray) -> np.ndarray:
    """Keys that each task reads: int32 ``[style, task, key]``, compacted.

    allowed: bool ``[task, candidate]``. Host-side; padding points past the end.
    """
    head, longest = table.heads.shape[1], table.shots.shape[2]
    num = table.shots.shape[1]
    past = head + num * longest
    rows = []
    for style in range(table.heads.shape[0]):
        lengths = np.asarray(table.shot_lengths[style])
        head_keys = np.arange(int(table.head_lengths[style]))
        for flags in allowed:
            parts = [
                head + candidate * longest + np.arange(lengths[candidate])
                for candidate in np.flatnonzero(flags)
            ]
            rows.append(np.concatenate([head_keys, *parts]))
    width = max(map(len, rows))
    out = np.full((len(rows), width), past, np.int32)
    for at, keys in enumerate(rows):
        out[at, : len(keys)] = keys
    return out.reshape(table.heads.shape[0], len(allowed), width)


def measure_relaxed(
    decoder: Decoder,
    cache: PoolCache,
    table: PromptTable,
    packs: Packs,
    batch: SoftBatch,
    weights: jax.Array,
    *,
    chunk: int,
    implementation: str = "xla",
) -> Measured:
    """Likelihood of each group's items under soft weights float32 ``[group, pool]``."""

    def one(args: tuple[SoftBatch, jax.Array]) -> Measured:
        group, soft = args
        return _measure_one(
            decoder, cache, table, packs, group, soft, implementation=implementation
        )

    return jax.lax.map(one, (batch, weights), batch_size=chunk)


def loss_and_slope(
    decoder: Decoder,
    cache: PoolCache,
    table: PromptTable,
    packs: Packs,
    batch: SoftBatch,
    weights: jax.Array,
    *,
    chunk: int,
    implementation: str = "xla",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean loss ``[group]``, its gradient ``[group, pool]``, tokens ``[group]``.

    Forward and backward run chunk by chunk, so that memory does not grow with the
    number of groups.
    """

    def one(args: tuple[SoftBatch, jax.Array]):
        group, soft = args

        def loss(w: jax.Array):
            measured = _measure_one(
                decoder, cache, table, packs, group, w, implementation=implementation
            )
            return masked_mean(measured.nats, measured.real), measured.tokens

        (value, tokens), slope = jax.value_and_grad(loss, has_aux=True)(soft)
        return value, slope, tokens

    return jax.lax.map(one, (batch, weights), batch_size=chunk)


def attach_slope(weights: jax.Array, loss: jax.Array, slope: jax.Array) -> jax.Array:
    """``loss [group]`` as a function of ``weights [group, pool]`` with this slope.

    A forward pass that already computed the slopes becomes differentiable: the value
    is ``loss``, the gradient ``slope``.
    """
    fixed = jax.lax.stop_gradient
    linear = ((weights - fixed(weights)) * fixed(slope)).sum(axis=-1)
    return fixed(loss) + linear


def _measure_one(
    decoder, cache, table, packs, group, soft, *, implementation
) -> Measured:
    style = table.style_of[group.template]
    pool = jax.tree.map(lambda x: x[style], cache.pool)
    pool = select_keys(pool, cache.index[style, group.task], soft.shape[-1])
    rows, real, num_tokens = take_packs(packs, group.task, group.template, group.packs)
    nats = item_nats(
        decoder,
        jax.tree.map(lambda x: x[None], rows),
        pool.end[None],
        Context(*pool.context),
        key_weights(pool, soft)[None],
        num_items=real.shape[-1],
        implementation=implementation,
    )
    return Measured(nats[0], real, num_tokens)
