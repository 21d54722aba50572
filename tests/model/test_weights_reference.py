"""Logits equal transformers' for every variant, from safetensors and from GGUF."""

from pathlib import Path

import gguf
import jax.numpy as jnp
import numpy as np
import pytest

from metaharness.model.assemble import StoredTensor, assemble
from metaharness.model.config import DecoderConfig
from metaharness.model.decoder import Decoder, decoder_logits
from metaharness.model.fetch import model_path
from metaharness.model.gguf import BLOCK, TOP, permute_rows, read_gguf
from metaharness.model.load import load_model
from metaharness.model.safetensors import read_safetensors

DATA = Path(__file__).parents[1] / "data" / "model"
VARIANTS = sorted(path.name for path in DATA.glob("tiny_*"))


def write_gguf(
    path: Path, config: DecoderConfig, tensors: dict[str, StoredTensor]
) -> None:
    """Write a checkpoint as llama.cpp's converter does: float32, Llama's rows moved."""
    writer = gguf.GGUFWriter(path, config.architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_eps)
    names = {there: here for here, there in (BLOCK | TOP).items()}
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    for name, tensor in tensors.items():
        array = tensor.read().astype(np.float32)
        stem, _, kind = name.rpartition(".")
        if stem in names:
            writer.add_tensor(f"{names[stem]}.{kind}", array)
            continue
        _, _, index, part = stem.split(".", 3)
        short = names[part]
        if config.architecture == "llama" and short in heads:
            array = permute_rows(array, heads[short])
        writer.add_tensor(f"blk.{index}.{short}.{kind}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def largest_difference(decoder: Decoder, reference: Path) -> float:
    stored = np.load(reference)
    logits = decoder_logits(decoder, jnp.asarray(stored["tokens"]))
    return float(
        np.abs(np.asarray(logits)[..., stored["ids"]] - stored["logits"]).max()
    )


def test_every_variant_has_a_reference() -> None:
    assert len(VARIANTS) == 6
    configs = [read_safetensors(DATA / name)[0] for name in VARIANTS]
    assert {c.architecture for c in configs} == {"llama", "qwen2", "qwen3"}
    assert {c.tie_embeddings for c in configs} == {True, False}
    assert {c.num_kv_heads for c in configs} == {1, 2, 4}
    assert {(c.qkv_bias, c.qk_norm) for c in configs} == {
        (False, False),
        (True, False),
        (False, True),
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_safetensors_logits_equal_those_of_transformers(name: str) -> None:
    decoder = assemble(*read_safetensors(DATA / name))
    assert largest_difference(decoder, DATA / name / "logits.npz") < 1e-4


@pytest.mark.parametrize("name", VARIANTS)
def test_gguf_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    config, tensors = read_safetensors(DATA / name)
    write_gguf(tmp_path / "model.gguf", config, tensors)
    found, read = read_gguf(tmp_path / "model.gguf")
    assert found == config
    decoder = assemble(found, read)
    assert largest_difference(decoder, DATA / name / "logits.npz") < 1e-4


def test_bfloat16_weights_stay_bfloat16_and_near(tmp_path: Path) -> None:
    config, tensors = read_safetensors(DATA / "tiny_llama_tied")
    decoder = assemble(config, tensors, "bfloat16")
    assert decoder.dtype == jnp.bfloat16
    stored = np.load(DATA / "tiny_llama_tied" / "logits.npz")
    logits = decoder_logits(decoder, jnp.asarray(stored["tokens"]))
    assert logits.dtype == jnp.float32
    shown = np.asarray(logits)[..., stored["ids"]]
    error = np.abs(shown - stored["logits"]).max()
    assert 1e-4 < error < 0.05 * np.abs(stored["logits"]).max()


@pytest.mark.slow
def test_smollm2_logits_equal_those_of_transformers() -> None:
    if not model_path("smollm2-135m").exists():
        pytest.skip(
            "smollm2-135m is not cached: run 'metaharness models get smollm2-135m'"
        )
    model = load_model("smollm2-135m")
    stored = np.load(DATA / "smollm2.npz")
    logits = np.asarray(decoder_logits(model.decoder, jnp.asarray(stored["tokens"])))
    shown = logits[:, stored["positions"]]
    assert np.abs(shown[..., stored["ids"]] - stored["logits"]).max() < 2e-3
    total = np.logaddexp.reduce(logits.astype(np.float64), axis=-1)
    assert np.abs(total - stored["logsumexp"]).max() < 2e-3
    best = np.argsort(-shown, axis=-1)[..., :5]
    np.testing.assert_array_equal(best, stored["top_ids"])
