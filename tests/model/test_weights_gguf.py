"""GGUF files: every listed quantisation, tied matrices, and what is refused."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize

from metaharness.errors import WeightsError
from metaharness.model.assemble import assemble
from metaharness.model.gguf import (
    QUANTISATIONS,
    permute_rows,
    read_gguf,
    unpermute_rows,
)

HIDDEN, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 256, 70, 4, 2, 64
MATRICES = {
    "token_embd": (VOCAB, HIDDEN),
    "blk.0.attn_q": (HEADS * HEAD_DIM, HIDDEN),
    "blk.0.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "blk.0.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HEADS * HEAD_DIM),
    "blk.0.ffn_gate": (512, HIDDEN),
    "blk.0.ffn_up": (512, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, 512),
}
NORMS = ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")
# Bytes of the float16 scales within a block of 256 weights (ggml-common.h).
K_SCALES = {"Q4_K": (144, (0, 2)), "Q5_K": (176, (0, 2)), "Q6_K": (210, (208,))}


def sample(rng: np.random.Generator, quantisation: str, shape: tuple[int, int]):
    """Stored bytes of a random matrix; any bytes but the scales are a valid block."""
    kind = gguf.GGMLQuantizationType[quantisation]
    if quantisation not in K_SCALES:
        return quantize(rng.standard_normal(shape).astype(np.float32), kind)
    stored = rng.integers(0, 256, quant_shape_to_byte_shape(shape, kind), np.uint8)
    size, offsets = K_SCALES[quantisation]
    blocks = stored.reshape(-1, size)
    for offset in offsets:
        scales = rng.uniform(0.001, 0.1, (len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    return stored


def write(path: Path, quantisation: str = "F32", **changes) -> dict[str, np.ndarray]:
    """Write a one-layer Llama; returns the stored bytes by GGUF name.

    ``changes``: ``meta`` (key -> value to add), ``architecture``, ``tensors`` (name ->
    array to add, None to leave out).
    """
    rng = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType[quantisation]
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(512)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in changes.get("meta", {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        (writer.add_float32 if isinstance(value, float) else add)(key, value)
    stored = {name: sample(rng, quantisation, s) for name, s in MATRICES.items()}
    extra = changes.get("tensors", {})
    for name, array in stored.items():
        if name not in extra:
            writer.add_tensor(f"{name}.weight", array, raw_dtype=kind)
    for name in NORMS:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    for name, array in extra.items():
        if array is not None:
            writer.add_tensor(f"{name}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


@pytest.mark.parametrize("quantisation", QUANTISATIONS)
def test_values_equal_the_gguf_package_for_each_type(
    quantisation: str, tmp_path: Path
) -> None:
    stored = write(tmp_path / "m.gguf", quantisation)
    config, tensors = read_gguf(tmp_path / "m.gguf")
    kind = gguf.GGMLQuantizationType[quantisation]

    def reference(name: str) -> np.ndarray:
        return dequantize(stored[name], kind)

    def layer(name: str) -> np.ndarray:
        return tensors[f"model.layers.0.{name}.weight"].read()

    for array in (reference(name) for name in MATRICES):
        assert np.isfinite(array).all() and array.std() > 0.01
    embed = tensors["model.embed_tokens.weight"]
    assert embed.shape == (VOCAB, HIDDEN) and embed.read().dtype == np.float32
    np.testing.assert_array_equal(embed.read(), reference("token_embd"))
    np.testing.assert_array_equal(layer("mlp.down_proj"), reference("blk.0.ffn_down"))
    np.testing.assert_array_equal(layer("mlp.gate_proj"), reference("blk.0.ffn_gate"))
    np.testing.assert_array_equal(
        permute_rows(layer("self_attn.q_proj"), HEADS), reference("blk.0.attn_q")
    )
    np.testing.assert_array_equal(
        permute_rows(layer("self_attn.k_proj"), KV_HEADS), reference("blk.0.attn_k")
    )
    gate = assemble(config, tensors).to_arrays()["layers.gate_proj"]
    np.testing.assert_array_equal(gate[0], reference("blk.0.ffn_gate").T)


@pytest.mark.parametrize(
    "quantisation, tolerance",  # relative to the largest value: half a step, or one
    [("F16", 2**-11), ("BF16", 2**-8), ("Q8_0", 1 / 250), ("Q5_1", 1 / 30)]
    + [("Q5_0", 1 / 15), ("Q4_1", 1 / 14), ("Q4_0", 1 / 7.5)],
)
def test_quantised_values_are_near_the_ones_written(
    quantisation: str, tolerance: float, tmp_path: Path
) -> None:
    write(tmp_path / "m.gguf", quantisation)
    write(tmp_path / "exact.gguf", "F32")
    tensors = read_gguf(tmp_path / "m.gguf")[1]
    exact = read_gguf(tmp_path / "exact.gguf")[1]
    for name, tensor in exact.items():
        error = np.abs(tensors[name].read() - tensor.read()).max()
        assert error <= tolerance * np.abs(tensor.read()).max(), name


def test_q4_1_follows_its_definition(tmp_path: Path) -> None:
    """Each block of 32: float16 scale d and minimum m, then 4-bit q; w = d q + m."""
    stored = write(tmp_path / "m.gguf", "Q4_1")["token_embd"]
    block = stored[3, 20:40]
    scale, minimum = block[:4].copy().view(np.float16).astype(np.float32)
    quants = np.concatenate([block[4:] & 15, block[4:] >> 4])
    read = read_gguf(tmp_path / "m.gguf")[1]["model.embed_tokens.weight"].read()
    np.testing.assert_allclose(read[3, 32:64], scale * quants + minimum, rtol=1e-6)


def test_unpermute_undoes_permute_and_moves_rows() -> None:
    array = np.arange(24 * 2).reshape(24, 2)
    moved = permute_rows(array, 3)
    assert moved[:4, 0].tolist() == [0, 8, 2, 10]  # llama.cpp pairs i with i + half
    np.testing.assert_array_equal(unpermute_rows(moved, 3), array)


def test_a_matrix_stored_twice_is_tied_and_the_output_matrix_is_used(
    tmp_path: Path,
) -> None:
    exact = np.random.default_rng(3).standard_normal((VOCAB, HIDDEN), np.float32)
    kind = gguf.GGMLQuantizationType.Q4_0
    coarse = dequantize(quantize(exact, kind), kind)
    write(tmp_path / "m.gguf", tensors={"token_embd": coarse, "output": exact})
    config, tensors = read_gguf(tmp_path / "m.gguf")
    assert config.tie_embeddings and "lm_head.weight" not in tensors
    np.testing.assert_array_equal(tensors["model.embed_tokens.weight"].read(), exact)
    assert assemble(config, tensors).lm_head is None


def test_another_output_matrix_is_not_tied(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    exact = rng.standard_normal((VOCAB, HIDDEN), np.float32)
    other = exact + 0.3 * rng.standard_normal((VOCAB, HIDDEN), np.float32)  # corr 0.958
    write(tmp_path / "m.gguf", tensors={"token_embd": exact, "output": other})
    config, tensors = read_gguf(tmp_path / "m.gguf")
    assert not config.tie_embeddings
    np.testing.assert_array_equal(tensors["lm_head.weight"].read(), other)
    np.testing.assert_array_equal(assemble(config, tensors).lm_head[...], other.T)


@pytest.mark.parametrize(
    "changes, named",
    [
        (dict(architecture="gemma3"), "'gemma3'"),
        (dict(meta={"llama.rope.scaling.type": "yarn"}), "got yarn"),
        (dict(meta={"llama.rope.scaling.type": "linear"}), "got linear"),
        (dict(meta={"llama.rope.scaling.factor": 4.0}), "got 4.0"),
        (dict(meta={"llama.rope.dimension_count": 32}), "rope.dimension_count = 64"),
        (dict(meta={"llama.attention.sliding_window": 128}), "got 128"),
        (dict(meta={"llama.expert_count": 8}), "expert_count"),
        (dict(meta={"split.count": 2}), "one of 2"),
        (dict(tensors={"rope_freqs": np.ones(32, np.float32)}), "Llama 3.1"),
        (dict(tensors={"token_embd": None}), "token_embd.weight"),
        (dict(tensors={"blk.0.attn_q": np.ones((2, 256), "i4")}), "got I32"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    changes: dict, named: str, tmp_path: Path
) -> None:
    write(tmp_path / "m.gguf", **changes)
    with pytest.raises(WeightsError, match=named) as caught:
        read_gguf(tmp_path / "m.gguf")
    assert "\n" not in str(caught.value) and "m.gguf" in str(caught.value)


@pytest.mark.parametrize("quantisation", ["Q2_K", "Q3_K", "IQ4_XS", "TQ1_0"])
def test_other_quantisations_are_refused(quantisation: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[quantisation]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    stored = np.zeros(quant_shape_to_byte_shape((VOCAB, HIDDEN), kind), np.uint8)
    writer.add_tensor("token_embd.weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightsError, match=f"got {quantisation};"):
        read_gguf(tmp_path / "m.gguf")


def test_a_file_that_is_no_gguf_or_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    whole = path.read_bytes()
    for data in (b"PK\x03\x04" * 100, b"", *(whole[:n] for n in (30, 300, 9000, -8))):
        path.write_bytes(data)
        with pytest.raises(WeightsError, match="expected a GGUF file"):
            read_gguf(path)


def test_an_unknown_tensor_is_named_when_assembled(tmp_path: Path) -> None:
    odd = {"blk.0.attn_gate": np.ones((4, 4), np.float32)}
    write(tmp_path / "m.gguf", tensors=odd)
    with pytest.raises(WeightsError, match=r"unknown blk\.0\.attn_gate\.weight"):
        assemble(*read_gguf(tmp_path / "m.gguf"))
