"""Decoder of the Llama family: one block, scanned over stacked layers.

Pre-norm transformer with RMS norms, rotary positions (half-rotation layout), grouped
query attention and SwiGLU (Touvron et al. 2023, arXiv:2302.13971), optionally with
biases on q, k, v (Qwen2) or RMS norms on q and k (Qwen3). Layers are stacked and
scanned, so compile time does not grow with depth.
"""

import zlib

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx

from metaharness.model.attention import Context, attend
from metaharness.model.config import DecoderConfig

# Stored side by side: fused name -> parts, in order.
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "qkv_bias": ("q_bias", "k_bias", "v_bias"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


class Layers(nnx.Module):
    """Parameters of every block, stacked over a leading layer axis."""

    def __init__(self, arrays: dict[str, jax.Array]) -> None:
        for name, array in arrays.items():
            setattr(self, name, nnx.Param(array))

    def arrays(self) -> dict[str, jax.Array]:
        """Name -> array ``[layer, ...]``, with fused names."""
        return {
            name: param[...]
            for name, param in vars(self).items()
            if isinstance(param, nnx.Param)
        }


class Decoder(nnx.Module):
    """Weights of a decoder; the functions of this file run it.

    embedding: ``[vocab, hidden]``; final_norm: ``[hidden]``; lm_head: ``[hidden,
    vocab]`` or None when tied. Layer arrays map in to out; projections that read the
    same input are stored side by side (``qkv_proj``, ``gate_up_proj``), since one wide
    matrix product is faster than several narrow ones.
    """

    def __init__(self, config: DecoderConfig, arrays: dict[str, jax.Array]) -> None:
        """Take ``arrays`` keyed by ``decoder_shapes(config)``; see ``from_arrays``."""
        self.config = config
        self.embedding = nnx.Param(arrays["embed"])
        self.final_norm = nnx.Param(arrays["final_norm"])
        head = arrays.get("lm_head")
        self.lm_head = None if head is None else nnx.Param(head)
        layers = {
            name.removeprefix("layers."): array
            for name, array in arrays.items()
            if name.startswith("layers.")
        }
        for fused, parts in FUSED.items():
            if parts[0] in layers:
                layers[fused] = jnp.concatenate([layers.pop(p) for p in parts], axis=-1)
        self.layers = Layers(layers)

    @classmethod
    def from_arrays(
        cls, config: DecoderConfig, arrays: dict[str, jax.Array]
    ) -> "Decoder":
        """Build from arrays named and shaped as ``decoder_shapes(config)``."""
        expected = decoder_shapes(config)
        if set(arrays) != set(expected):
            raise ValueError(
                f"decoder arrays: missing {sorted(set(expected) - set(arrays))}, "
                f"unexpected {sorted(set(arrays) - set(expected))}"
            )
        for name, shape in expected.items():
            if arrays[name].shape != shape:
                raise ValueError(
                    f"decoder array {name}: expected shape {shape}, "
                    f"got {arrays[name].shape}"
                )
        return cls(config, arrays)

    def to_arrays(self) -> dict[str, jax.Array]:
        """The inverse of ``from_arrays``.

        Raises:
            ValueError: the decoder carries an adapter; merge it first.
        """
        if any("_lora_" in name for name in self.layers.arrays()):
            raise ValueError("decoder: carries an adapter; use lora.merge_lora first.")
        shapes = decoder_shapes(self.config)
        out = {"embed": self.embedding[...], "final_norm": self.final_norm[...]}
        if self.lm_head is not None:
            out["lm_head"] = self.lm_head[...]
        for name, array in self.layers.arrays().items():
            parts = FUSED.get(name, (name,))
            widths = [shapes[f"layers.{part}"][-1] for part in parts]
            ends = [sum(widths[: i + 1]) for i in range(len(widths) - 1)]
            pieces = jnp.split(array, ends, axis=-1)
            out |= {f"layers.{p}": x for p, x in zip(parts, pieces, strict=True)}
        return out

    @property
    def dtype(self) -> jnp.dtype:
        """Type of the weights and of the matrix products."""
        return self.embedding[...].dtype


def decoder_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every array of a decoder."""
    c = config
    q_width, kv_width = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_norm": (c.hidden_size,),
        "q_proj": (c.hidden_size, q_width),
        "k_proj": (c.hidden_size, kv_width),
        "v_proj": (c.hidden_size, kv_width),
        "o_proj": (q_width, c.hidden_size),
        "post_norm": (c.hidden_size,),
        "gate_proj": (c.hidden_size, c.intermediate_size),
        "up_proj": (c.hidden_size, c.intermediate_size),
        "down_proj": (c.intermediate_size, c.hidden_size),
    }
    if c.qkv_bias:
        layer |= {"q_bias": (q_width,), "k_bias": (kv_width,), "v_bias": (kv_width,)}
    if c.qk_norm:
        layer |= {"q_norm": (c.head_dim,), "k_norm": (c.head_dim,)}
    shapes = {f"layers.{name}": (c.num_layers, *shape) for name, shape in layer.items()}
    shapes |= {
        "embed": (c.vocab_size, c.hidden_size),
        "final_norm": (c.hidden_size,),
    }
    if not c.tie_embeddings:
        shapes["lm_head"] = (c.hidden_size, c.vocab_size)
    return shapes


def random_decoder(
    key: jax.Array, config: DecoderConfig, dtype: jnp.dtype = jnp.float32
) -> Decoder:
    """Random weights (norms 1, the rest normal), for tests and timing."""
    shapes = decoder_shapes(config)
    keys = jax.random.split(key, len(shapes))
    arrays = {}
    for part, (name, shape) in zip(keys, sorted(shapes.items()), strict=True):
        if name.endswith("norm"):
            arrays[name] = jnp.ones(shape, dtype)
        else:
            fan_in = shape[-1] if name == "embed" else shape[-2]
            draw = jax.random.normal(part, shape, jnp.float32)
            arrays[name] = (draw * fan_in**-0.5).astype(dtype)
    return Decoder.from_arrays(config, arrays)


class Cache(Context):
    """Own keys and values: ``[layer, group, kv_head, row, slot, head_dim]`` each.

    The axes of a batched matrix product come first, so that none has to copy a whole
    cache into another order.
    """


def empty_cache(decoder: Decoder, groups: int, rows: int, slots: int) -> Cache:
    """A cache of zeros with ``slots`` places a row."""
    c = decoder.config
    shape = (c.num_layers, groups, c.num_kv_heads, rows, slots, c.head_dim)
    zeros = jnp.zeros(shape, decoder.dtype)
    return Cache(zeros, zeros)


def run_decoder(
    decoder: Decoder,
    tokens: jax.Array,
    positions: jax.Array,
    mask: jax.Array | None,
    context: Context | None = None,
    weights: jax.Array | None = None,
    *,
    cache: Cache | None = None,
    slot: jax.Array | int = 0,
    implementation: str = "xla",
    unroll: int = 1,
) -> tuple[jax.Array, Context]:
    """Hidden states of ``tokens`` after the final norm, and the rows' keys and values.

    Args:
        decoder: weights.
        tokens: int32 ``[group, row, time]``.
        positions: int32 ``[group, row, time]``, rotary positions.
        mask: bool ``[group, row, time, key]``, True where a token may attend to one of
            its row's own keys (``key`` = time, or the cache's slots); None is plain
            causal attention (without a cache).
        context: ``[layer, group, context, kv_head, head_dim]`` keys and values that
            every row of the group attends to.
        weights: float32 ``[group, row, context]``, multiplicative, >= 0.
        cache: earlier keys and values of the same rows; the new ones are written from
            ``slot`` on, the rest is attended to as ``mask`` says.
        slot: first slot written, the same for all rows.
        implementation: see ``attend``.
        unroll: layers laid out per turn of the scan (without a cache).

    Returns:
        hidden ``[group, row, time, hidden]`` and the rows' own keys and values: the
        updated cache or, without one, ``[layer, group, row, time, kv_head, head_dim]``.
    """
    c = decoder.config
    hidden = decoder.embedding[...][tokens]
    rotation = _rotation(positions, c)
    layers = decoder.layers.arrays()

    def block(hidden, layer, shared, store):
        x = _rms_norm(hidden, layer["input_norm"], c.rms_eps)
        query, keys, values = _project_qkv(x, layer, c, rotation)
        keys, values = store(keys, values)
        x = attend(
            query, keys, values, mask, shared, weights, implementation=implementation
        )
        x = rearrange(x, "g r t h d -> g r t (h d)")
        hidden = hidden + _linear(x, layer, "o_proj", c)
        x = _rms_norm(hidden, layer["post_norm"], c.rms_eps)
        gate, up = jnp.split(_linear(x, layer, "gate_up_proj", c), 2, axis=-1)
        hidden = hidden + _linear(jax.nn.silu(gate) * up, layer, "down_proj", c)
        return hidden, (keys, values)

    if cache is None:

        def step(hidden, xs):
            layer, shared = xs
            return block(hidden, layer, shared, lambda k, v: (k, v))

        hidden, own = jax.lax.scan(step, hidden, (layers, context), unroll=unroll)
        own = Context(*own)
    else:

        def cached_step(carry, xs):
            hidden, *caches = carry
            layer, shared, index = xs
            updated = []

            def store(*fresh):
                for held, new in zip(caches, fresh, strict=True):
                    start = (index, 0, 0, 0, slot, 0)
                    new = rearrange(new, "g r s k d -> 1 g k r s d")
                    updated.append(jax.lax.dynamic_update_slice(held, new, start))
                layer = (
                    jax.lax.dynamic_index_in_dim(held, index, keepdims=False)
                    for held in updated
                )
                return tuple(rearrange(x, "g k r s d -> g r s k d") for x in layer)

            hidden, _ = block(hidden, layer, shared, store)
            return (hidden, *updated), None

        index = jnp.arange(c.num_layers)
        (hidden, *own), _ = jax.lax.scan(
            cached_step, (hidden, *cache), (layers, context, index)
        )
        own = Cache(*own)
    return _rms_norm(hidden, decoder.final_norm[...], c.rms_eps), own


def vocabulary_logits(decoder: Decoder, hidden: jax.Array) -> jax.Array:
    """Next-token logits float32 ``[..., vocab]`` of states ``[..., hidden]``."""
    if decoder.lm_head is None:
        weight, pattern = decoder.embedding[...], "...h,vh->...v"
    else:
        weight, pattern = decoder.lm_head[...], "...h,hv->...v"
    wide = jnp.promote_types(hidden.dtype, jnp.float32)
    return jnp.einsum(pattern, hidden, weight, preferred_element_type=wide)


def decoder_logits(
    decoder: Decoder,
    tokens: jax.Array,
    *,
    implementation: str = "xla",
    unroll: int = 1,
) -> jax.Array:
    """Plain causal forward pass: int32 ``[row, time]`` -> ``[row, time, vocab]``."""
    rows, times = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(times), (1, rows, times))
    hidden, _ = run_decoder(
        decoder,
        tokens[None],
        positions,
        None,
        implementation=implementation,
        unroll=unroll,
    )
    return vocabulary_logits(decoder, hidden[0])


def _linear(
    x: jax.Array, layer: dict[str, jax.Array], name: str, config: DecoderConfig
) -> jax.Array:
    """``x @ weight``, and the low-rank update of each part that the layer carries.

    See ``lora.with_lora``, which puts pairs (and, for dropout, a key and a rate) into
    the layers.
    """
    out = x @ layer[name]
    parts = FUSED.get(name, (name,))
    if not any(lora_name(part, "a") in layer for part in parts):
        return out
    shapes, updates = decoder_shapes(config), []
    for part in parts:
        if lora_name(part, "a") not in layer:
            width = shapes[f"layers.{part}"][-1]
            updates.append(jnp.zeros((*x.shape[:-1], width), x.dtype))
            continue
        read = x
        if "lora_key" in layer:
            key = jax.random.fold_in(layer["lora_key"], zlib.crc32(part.encode()))
            keep = 1 - layer["lora_dropout"]
            kept = jax.random.bernoulli(key, keep, x.shape)
            read = jnp.where(kept, x / keep.astype(x.dtype), 0)
        low = read @ layer[lora_name(part, "a")]
        updates.append(low @ layer[lora_name(part, "b")])
    return out + jnp.concatenate(updates, axis=-1)


def lora_name(part: str, which: str) -> str:
    """Name of a layer's low-rank array, ``which`` "a" or "b"."""
    return f"{part}_lora_{which}"


def _project_qkv(x, layer, config, rotation):
    c = config
    heads = _linear(x, layer, "qkv_proj", c)
    if "qkv_bias" in layer:
        heads = heads + layer["qkv_bias"]
    heads = rearrange(heads, "g r t (h d) -> g r t h d", d=c.head_dim)
    ends = (c.num_heads, c.num_heads + c.num_kv_heads)
    query, keys, values = jnp.split(heads, ends, axis=-2)
    if "q_norm" in layer:
        query = _rms_norm(query, layer["q_norm"], c.rms_eps)
        keys = _rms_norm(keys, layer["k_norm"], c.rms_eps)
    return _rotate(query, rotation), _rotate(keys, rotation), values


def _rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """Root mean square norm, in at least float32 (Zhang & Sennrich 2019)."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    wide = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + eps)
    return scale * wide.astype(x.dtype)


def _rotation(positions: jax.Array, config: DecoderConfig) -> tuple:
    """Cosines and sines float32 ``[..., head_dim / 2]`` (Su et al. 2021, eq. 15)."""
    exponent = jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim
    frequency = config.rope_theta**-exponent
    angles = positions[..., None].astype(jnp.float32) * frequency
    return jnp.cos(angles), jnp.sin(angles)


def _rotate(x: jax.Array, rotation: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate pairs (i, i + head_dim / 2) of ``[..., head, head_dim]``."""
    cos, sin = (part[..., None, :] for part in rotation)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    first, second = jnp.split(wide, 2, axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
