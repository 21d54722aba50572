"""Stack a checkpoint's tensors into a ``Decoder``: each is used once, or named."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.errors import WeightsError
from metaharness.model.config import DecoderConfig
from metaharness.model.decoder import Decoder, decoder_shapes

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

TOP = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}
LAYER = {
    "input_norm": "input_layernorm.weight",
    "q_proj": "self_attn.q_proj.weight",
    "k_proj": "self_attn.k_proj.weight",
    "v_proj": "self_attn.v_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "o_proj": "self_attn.o_proj.weight",
    "post_norm": "post_attention_layernorm.weight",
    "gate_proj": "mlp.gate_proj.weight",
    "up_proj": "mlp.up_proj.weight",
    "down_proj": "mlp.down_proj.weight",
}
"""The decoder's array -> Hugging Face's tensor, below ``model.layers.<index>.``"""

IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""Buffers that old checkpoints store; the rotary base determines them."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is read, and dequantised, only when it is asked for.

    ``shape`` is the shape that ``read()`` will have; matrices are ``[out, in]``.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def stored(array: np.ndarray) -> StoredTensor:
    """Wrap an array that is in memory already."""
    return StoredTensor(array.shape, lambda: array)


def assemble(
    config: DecoderConfig,
    tensors: Mapping[str, StoredTensor],
    dtype: str = "float32",
) -> Decoder:
    """Build the decoder from tensors under Hugging Face names, layout ``[out, in]``.

    Args:
        config: the decoder's shape.
        tensors: name -> tensor, as ``read_gguf`` and ``read_safetensors`` return them.
        dtype: ``"float32"`` or ``"bfloat16"``, of every weight.

    Raises:
        WeightsError: a tensor is missing, unknown or of another shape; each is named.
    """
    if dtype not in DTYPES:
        raise WeightsError(
            f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}; choose one"
        )
    shapes = decoder_shapes(config)
    sources = {name: tensor_names(name, config.num_layers) for name in shapes}
    _check(tensors, shapes, sources)
    return Decoder.from_arrays(
        config,
        {
            name: _stack(tensors, sources[name], shape, name, DTYPES[dtype])
            for name, shape in shapes.items()
        },
    )


def tensor_names(name: str, num_layers: int) -> list[str]:
    """Hugging Face's tensors that make up one array, one for each layer or just one."""
    if name in TOP:
        return [TOP[name]]
    suffix = LAYER[name.removeprefix("layers.")]
    return [f"model.layers.{index}.{suffix}" for index in range(num_layers)]


def _check(
    tensors: Mapping[str, StoredTensor],
    shapes: Mapping[str, tuple[int, ...]],
    sources: Mapping[str, list[str]],
) -> None:
    expected = {
        source: _stored_shape(name, shape)
        for name, shape in shapes.items()
        for source in sources[name]
    }
    found = {name for name in tensors if not name.endswith(IGNORED_SUFFIX)}
    faults = []
    if missing := [name for name in expected if name not in found]:
        wanted = (f"{name} {list(expected[name])}" for name in missing)
        faults.append(f"missing {_first(wanted, len(missing))}")
    if extra := sorted(found - set(expected)):
        got = (f"{name} {list(tensors[name].shape)}" for name in extra)
        faults.append(f"unknown {_first(got, len(extra))}")
    misshapen = [
        f"{name}: expected shape {list(shape)}, got {list(tensors[name].shape)}"
        for name, shape in expected.items()
        if name in found and tuple(tensors[name].shape) != shape
    ]
    if misshapen:
        faults.append(_first(misshapen, len(misshapen)))
    if faults:
        raise WeightsError(
            f"weights: expected each of {len(expected)} tensors once, got "
            f"{'; '.join(faults)}; the checkpoint does not fit its own configuration"
        )


def _first(items: Iterable[str], count: int) -> str:
    """The first four of ``count`` items, and how many are left."""
    shown = [item for _, item in zip(range(4), items, strict=False)]
    rest = f" and {count - 4} more" if count > 4 else ""
    return ", ".join(shown) + rest


def _stored_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of one stored tensor of the decoder's array ``name``."""
    if name in TOP:
        return shape[::-1] if name == "lm_head" else shape
    return shape[:0:-1]


def _stack(
    tensors: Mapping[str, StoredTensor],
    sources: list[str],
    shape: tuple[int, ...],
    name: str,
    dtype: jnp.dtype,
) -> jax.Array:
    """The decoder's array of one name; matrices but the embedding are transposed."""
    out = np.empty(shape, dtype)
    for index, source in enumerate(sources):
        array = tensors[source].read()
        if name == "lm_head":
            out[...] = array.T
        elif name in TOP:
            out[...] = array
        else:
            out[index] = array.T
    return jnp.asarray(out)
