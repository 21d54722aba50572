"""Low-rank adapters: trainable weights theta beside frozen ones.

    y = x W + (alpha / rank) x A B

Hu et al. 2022 (LoRA, arXiv:2106.09685). theta is a pytree of its own, name of a
projection -> ``LoraPair``; ``with_lora`` gives a decoder that carries it, and every
function of a decoder (scoring, the gated pool, generation) then runs and differentiates
through it. qwix, which finds layers by tracing a model of modules, does not see the
projections of a scanned block that are stored side by side.
"""

import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.model.config import DecoderConfig
from metaharness.model.decoder import Decoder, decoder_shapes, lora_name
from metaharness.model.lora_config import LoraConfig


class LoraPair(NamedTuple):
    """a: float32 ``[layer, in, rank]``; b: float32 ``[layer, rank, out]``."""

    a: jax.Array
    b: jax.Array


Theta = dict[str, LoraPair]


def theta_shapes(lora: LoraConfig, config: DecoderConfig) -> dict[str, LoraPair]:
    """Projection -> shapes of its pair."""
    shapes = decoder_shapes(config)
    found = {}
    for name in lora.targets:
        layers, width_in, width_out = shapes[f"layers.{name}"]
        found[name] = LoraPair(
            (layers, width_in, lora.rank), (layers, lora.rank, width_out)
        )
    return found


def init_lora(key: jax.Array, lora: LoraConfig, config: DecoderConfig) -> Theta:
    """A uniform in ±1 / sqrt(in) (as PEFT draws it), B zero: the base model at first.

    Args:
        key: split over the targets.
        lora: of the adapter.
        config: of the decoder.
    """
    keys = jax.random.split(key, len(lora.targets))
    theta = {}
    for part, (name, (a, b)) in zip(
        keys, theta_shapes(lora, config).items(), strict=True
    ):
        bound = a[1] ** -0.5
        draw = jax.random.uniform(part, a, jnp.float32, -bound, bound)
        theta[name] = LoraPair(draw, jnp.zeros(b, jnp.float32))
    return theta


def with_lora(
    decoder: Decoder, theta: Theta, lora: LoraConfig, *, key: jax.Array | None = None
) -> Decoder:
    """The decoder with an adapter beside its weights, which stay as they are.

    With B = 0 it computes what ``decoder`` does, bit for bit. Differentiable in theta;
    inside jit as well as outside.

    Args:
        decoder: without an adapter.
        theta: float32, cast to the decoder's dtype for its matrix products.
        lora: of the adapter.
        key: draws the dropped inputs of one step; needed with dropout in training, left
            out wherever the model is scored.

    Raises:
        ValueError: theta is not of this decoder and configuration, or the decoder
            already carries an adapter.
    """
    _check_theta(theta, lora, decoder.config)
    layers = decoder.layers.arrays()
    if any("_lora_" in name for name in layers):
        raise ValueError("decoder: already carries an adapter; merge it first.")
    for name, pair in theta.items():
        layers[lora_name(name, "a")] = pair.a.astype(decoder.dtype)
        layers[lora_name(name, "b")] = (lora.scale * pair.b).astype(decoder.dtype)
    if key is not None and lora.dropout > 0:
        num_layers = decoder.config.num_layers
        layers["lora_key"] = jax.random.split(key, num_layers)
        layers["lora_dropout"] = jnp.full((num_layers,), lora.dropout, jnp.float32)
    return _rebuild(decoder, layers)


def merge_lora(decoder: Decoder, theta: Theta, lora: LoraConfig) -> Decoder:
    """A plain decoder whose weights include the update, summed in float32 and rounded.

    Raises:
        ValueError: as ``with_lora``.
    """
    _check_theta(theta, lora, decoder.config)
    arrays = decoder.to_arrays()
    for name, (a, b) in theta.items():
        weight = arrays[f"layers.{name}"]
        wide = jnp.promote_types(weight.dtype, jnp.float32)
        update = lora.scale * jnp.einsum("lir,lro->lio", a, b, precision="highest")
        arrays[f"layers.{name}"] = (weight.astype(wide) + update).astype(weight.dtype)
    return Decoder.from_arrays(decoder.config, arrays)


def theta_digest(theta: Theta) -> str:
    """sha256 over names, shapes and float32 values; equal adapters have equal ones."""
    digest = hashlib.sha256()
    for name in sorted(theta):
        for which, array in zip("ab", theta[name], strict=True):
            host = np.ascontiguousarray(np.asarray(array, np.float32))
            digest.update(f"{name} {which} {host.shape} ".encode())
            digest.update(host.tobytes())
    return digest.hexdigest()


def _check_theta(theta: Theta, lora: LoraConfig, config: DecoderConfig) -> None:
    expected = theta_shapes(lora, config)
    if set(theta) != set(expected):
        raise ValueError(
            f"lora: expected pairs for {', '.join(sorted(expected))}, got "
            f"{', '.join(sorted(theta)) or 'none'}"
        )
    for name, pair in expected.items():
        for which, shape in zip("ab", pair, strict=True):
            got = getattr(theta[name], which).shape
            if got != shape:
                raise ValueError(
                    f"lora {name}.{which}: expected shape {shape}, got {got}"
                )


def _rebuild(decoder: Decoder, layers: dict[str, jax.Array]) -> Decoder:
    """A decoder of the same matrices around other layer arrays."""
    arrays = {f"layers.{name}": array for name, array in layers.items()}
    arrays |= {"embed": decoder.embedding[...], "final_norm": decoder.final_norm[...]}
    if decoder.lm_head is not None:
        arrays["lm_head"] = decoder.lm_head[...]
    return Decoder(decoder.config, arrays)
