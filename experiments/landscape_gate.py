"""The relaxed objective on a landscape's items: slopes and paths for its estimators.

Calls the real model, so it wants an accelerator. All seeds are one batch.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.landscape import (
    LandscapeConfig,
    build,
    identity_of,
    one_item_packs,
    refuse_other,
)
from experiments.landscape_file import Landscape
from experiments.landscape_problems import EXEMPLARS, TEMPLATE
from metaharness.harness.packing import Packs
from metaharness.harness.relaxed import (
    PoolCache,
    SoftBatch,
    loss_and_slope,
    measure_relaxed,
)
from metaharness.harness.space import Space
from metaharness.model.load import Model
from metaharness.stats import spearman
from metaharness.tasks.task import Task


@dataclasses.dataclass(frozen=True, eq=False)
class Gate:
    """Encoded pool and items; every method counts the items of each row as they come.

    chunk: rows run at once; precision: of float32 matrix products.
    """

    space: Space
    packs: Packs
    cache: PoolCache
    landscape: Landscape
    chunk: int
    precision: str

    def evaluate(
        self, template: jax.Array, weights: jax.Array, items: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Mean loss ``[row]`` and its slope ``[row, pool]``.

        template: int32 ``[row]``; weights: float32 ``[row, pool]`` of sum k; items:
        int32 ``[row, item]``.
        """
        with jax.default_matmul_precision(self.precision):
            return _evaluate(
                self.space.model.decoder,
                self.cache,
                self.space.table,
                self.packs,
                SoftBatch(jnp.zeros_like(template), template, items),
                weights,
                chunk=min(self.chunk, len(template)),
                implementation=self.space.implementation,
            )

    def slope(self, logits: Any, probe: jax.Array, items: jax.Array) -> jax.Array:
        """Slope at each seed's probe under its likeliest template, as ``probe``.

        probe: ``[seed, pool]`` or, of a ranking, ``[seed, k, pool]``: the gate knows no
        order, so every place has the same slope.
        """
        template = jnp.argmax(logits[TEMPLATE], axis=-1).astype(jnp.int32)
        flat = probe if probe.ndim == 2 else probe.sum(axis=1)
        _, slope = self.evaluate(template, flat, items)
        return slope if probe.ndim == 2 else _to_places(slope, probe)

    def path(self, draw: Any, items: jax.Array) -> tuple[jax.Array, dict]:
        """Losses ``[seed, row]`` of soft rows, and the gradient in their weights."""
        weights, coef = draw.weights[EXEMPLARS], draw.coef
        template = draw.outcomes[TEMPLATE][..., 0]
        flat = weights if weights.ndim == 3 else weights.sum(axis=2)
        loss, slope = self._rows(template, flat, items)
        own = coef[..., None] * slope
        if weights.ndim == 4:
            own = _to_places(own, weights)
        return loss, {TEMPLATE: None, EXEMPLARS: own}

    def whole_path(self, draw: Any, items: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The same for weights over whole harnesses ``[seed, row, harness]``.

        The relaxed loss is sum_t q_t g_t(u): u the exemplars' weights and q the
        templates' that the harness weights add up to, g_t the gate under template t.
        """
        families = self.landscape.families
        shown = np.zeros((len(self.landscape.template), families[EXEMPLARS].n))
        np.put_along_axis(shown, self.landscape.shots, 1.0, axis=1)
        shown = jnp.asarray(shown, jnp.float32)
        num = families[TEMPLATE].n
        asked = jax.nn.one_hot(self.landscape.template, num)
        with jax.default_matmul_precision("highest"):
            soft, share = draw.weights @ shown, draw.weights @ asked
            template = jnp.broadcast_to(
                jnp.arange(num, dtype=jnp.int32), (*soft.shape[:2], num)
            )
            spread = jnp.broadcast_to(
                soft[:, :, None], (*template.shape, soft.shape[-1])
            )
            merged = template.reshape(len(template), -1)
            loss, slope = self._rows(merged, spread.reshape(*merged.shape, -1), items)
            loss = loss.reshape(template.shape)
            slope = (share[..., None] * slope.reshape(spread.shape)).sum(axis=2)
            own = loss @ asked.T + slope @ shown.T
        return (share * loss).sum(axis=-1), draw.coef[..., None] * own

    def agreement(self, num: int, seed: int) -> float:
        """Spearman correlation of gated and sequential losses of random harnesses."""
        rng = np.random.default_rng(seed)
        at = rng.permutation(len(self.landscape.template))[:num]
        hot = np.zeros((len(at), self.landscape.families[EXEMPLARS].n), np.float32)
        np.put_along_axis(hot, self.landscape.shots[at], 1.0, axis=1)
        items = jnp.broadcast_to(
            jnp.arange(self.landscape.num_items), (len(at), self.landscape.num_items)
        )
        template = jnp.asarray(self.landscape.template[at])
        with jax.default_matmul_precision(self.precision):
            measured = _measure(
                self.space.model.decoder,
                self.cache,
                self.space.table,
                self.packs,
                SoftBatch(jnp.zeros_like(template), template, items),
                jnp.asarray(hot),
                chunk=min(self.chunk, 4, len(template)),
                implementation=self.space.implementation,
            )
        return spearman(np.asarray(measured.loss()), self.landscape.mean_losses[at])

    def _rows(self, template, weights, items):
        """``evaluate`` over leading axes ``[seed, row]``, items ``[seed, item]``."""
        seeds, rows = template.shape
        loss, slope = self.evaluate(
            template.reshape(-1),
            weights.reshape(seeds * rows, -1),
            jnp.repeat(items, rows, axis=0),
        )
        return loss.reshape(seeds, rows), slope.reshape(seeds, rows, -1)


def make_gate(
    landscape: Landscape,
    *,
    chunk: int,
    precision: str = "highest",
    data_dir: Path | None = None,
    model: Model | None = None,
    task: Task | None = None,
) -> Gate:
    """Rebuild the space of a landscape and encode its pool.

    Raises:
        RunError: model, task or tokens are not those of the landscape.
    """
    stored = dict(landscape.header["config"])
    config = LandscapeConfig(
        **(stored | {"out": Path(stored["out"]), "data_dir": data_dir})
    )
    space, items = build(config, model, task)
    packs = one_item_packs(space, items)
    refuse_other(
        config.out,
        landscape.header["identity"],
        identity_of(config, space, items, packs),
    )
    with jax.default_matmul_precision(precision):
        cache = jax.block_until_ready(space.encode_pool())
    return Gate(space, packs, cache, landscape, chunk, precision)


def _to_places(slope: jax.Array, like: jax.Array) -> jax.Array:
    return jnp.broadcast_to(slope[..., None, :], like.shape)


def _evaluate_unjitted(
    decoder, cache, table, packs, batch, weights, *, chunk, implementation
):
    loss, slope, _ = loss_and_slope(
        decoder,
        cache,
        table,
        packs,
        batch,
        weights,
        chunk=chunk,
        implementation=implementation,
    )
    return loss, slope


_measure = jax.jit(measure_relaxed, static_argnames=("chunk", "implementation"))
_evaluate = jax.jit(_evaluate_unjitted, static_argnames=("chunk", "implementation"))
