"""Read a GGUF file of the Llama, Qwen2 or Qwen3 architecture.

GGUF is llama.cpp's file format. Its reader, its names and its dequantisation come from
the ``gguf`` package; this file turns them into Hugging Face's names and layout.
"""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from metaharness.errors import WeightsError
from metaharness.model.assemble import StoredTensor
from metaharness.model.config import ARCHITECTURES, DecoderConfig

QUANTISATIONS = (
    ("F32", "F16", "BF16", "Q8_0")
    + ("Q4_0", "Q4_1", "Q5_0", "Q5_1")
    + ("Q4_K", "Q5_K", "Q6_K")
)

TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TIED_CORRELATION = 0.99
TIED_ROWS = 64


def read_gguf(path: Path) -> tuple[DecoderConfig, dict[str, StoredTensor]]:
    """Configuration and lazily dequantised tensors (float32, Hugging Face names).

    Llama's q and k rows, which llama.cpp interleaves for its rotary layout, are put
    back in order. A file cannot say whether its output matrix is the embedding stored
    a second time: it is taken as tied when 64 rows of the two correlate above 0.99
    (two precisions of one matrix: 0.997 and more), and then ``output.weight``, the
    finer one in practice, serves as both.

    Raises:
        WeightsError: another architecture, quantisation or feature, by name.
    """
    reader = open_gguf(path)
    architecture = metadata(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise WeightsError(
            f"{path}: expected architecture {', '.join(ARCHITECTURES)}, got "
            f"{architecture!r}; choose a model of one of these"
        )
    tensors = _named_tensors(path, reader)
    if EMBED not in tensors:
        raise WeightsError(
            f"{path}: expected a tensor token_embd.weight, got none; download it again"
        )
    tie_embeddings = HEAD not in tensors
    if not tie_embeddings and _is_one_matrix(reader):
        tensors[EMBED] = tensors.pop(HEAD)
        tie_embeddings = True
    config = _read_config(path, reader, architecture, tensors, tie_embeddings)
    if architecture == "llama":
        for name, tensor in tensors.items():
            if ".q_proj." in name:
                tensors[name] = _unpermuted(tensor, config.num_heads)
            elif ".k_proj." in name:
                tensors[name] = _unpermuted(tensor, config.num_kv_heads)
    return config, tensors


class _Reader(gguf.GGUFReader):
    """The package's reader over a plain array: slices of np.memmap cost 3 times more.

    It takes one slice for each string of the vocabulary: 0.7 s instead of 2.2 s.
    """

    @property
    def data(self) -> np.ndarray:
        return self._bytes

    @data.setter
    def data(self, mapped: np.memmap) -> None:
        self._bytes = np.asarray(mapped)


def open_gguf(path: Path) -> gguf.GGUFReader:
    """Map the file and read its metadata."""
    try:
        return _Reader(path)
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise WeightsError(
            f"{path}: expected a GGUF file, got one that cannot be read ({error}); "
            "download it again"
        ) from error


def metadata(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
    """Value of a metadata key, or ``default``."""
    field = reader.get_field(key)
    return default if field is None else field.contents()


def permute_rows(array: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of rotary rows: halves ``[2, pairs]`` become ``[pairs, 2]``.

    ``array``: ``[heads * head_dim, ...]``, q or k of a Llama model
    (``LlamaModel.permute`` in llama.cpp's ``convert_hf_to_gguf.py``).
    """
    split = array.reshape(heads, 2, -1, *array.shape[1:])
    return split.swapaxes(1, 2).reshape(array.shape)


def unpermute_rows(array: np.ndarray, heads: int) -> np.ndarray:
    """Inverse of ``permute_rows``."""
    split = array.reshape(heads, -1, 2, *array.shape[1:])
    return split.swapaxes(1, 2).reshape(array.shape)


def _unpermuted(tensor: StoredTensor, heads: int) -> StoredTensor:
    return StoredTensor(tensor.shape, lambda: unpermute_rows(tensor.read(), heads))


def _named_tensors(path: Path, reader: gguf.GGUFReader) -> dict[str, StoredTensor]:
    tensors = {}
    for source in reader.tensors:
        quantisation = source.tensor_type.name
        if quantisation not in QUANTISATIONS:
            raise WeightsError(
                f"{path}: {source.name}: expected one of {', '.join(QUANTISATIONS)}, "
                f"got {quantisation}; choose a file in another quantisation"
            )
        if source.name == "rope_freqs.weight":
            raise WeightsError(
                f"{path}: expected plain rotary positions, got scaled ones "
                "(rope_freqs.weight, Llama 3.1); choose another model"
            )
        tensors[_huggingface_name(source.name)] = StoredTensor(
            tuple(int(size) for size in reversed(source.shape)),
            lambda source=source: dequantize(source.data, source.tensor_type),
        )
    return tensors


def _huggingface_name(name: str) -> str:
    """Hugging Face's name; an unknown one stays, and ``assemble`` reports it."""
    stem, _, kind = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block and block[2] in BLOCK:
        return f"model.layers.{block[1]}.{BLOCK[block[2]]}.{kind}"
    return name


def _is_one_matrix(reader: gguf.GGUFReader) -> bool:
    """Whether embedding and output are one matrix in two precisions, by a sample."""
    pair = {tensor.name: tensor for tensor in reader.tensors}
    embed, head = pair["token_embd.weight"], pair["output.weight"]
    if tuple(embed.shape) != tuple(head.shape):
        return False
    rows = np.unique(np.linspace(0, len(embed.data) - 1, TIED_ROWS, dtype=int))
    first, second = (
        dequantize(tensor.data[rows], tensor.tensor_type).astype(np.float64).ravel()
        for tensor in (embed, head)
    )
    norm = np.linalg.norm(first) * np.linalg.norm(second)
    return bool(norm > 0 and first @ second / norm > TIED_CORRELATION)


def _read_config(
    path: Path,
    reader: gguf.GGUFReader,
    architecture: str,
    tensors: dict[str, StoredTensor],
    tie_embeddings: bool,
) -> DecoderConfig:
    def value(key: str, default: Any = None) -> Any:
        found = metadata(reader, f"{architecture}.{key}", default)
        if found is None:
            raise WeightsError(
                f"{path}: expected metadata {architecture}.{key}, got none; convert "
                "the model again"
            )
        return found

    def number(key: str, default: float | None = None) -> float:
        """A float32 as the decimal that it was written from: 1e-5, not 9.99999e-6."""
        return float(str(np.float32(value(key, default))))

    hidden_size, num_heads = value("embedding_length"), value("attention.head_count")
    head_dim = value("attention.key_length", hidden_size // num_heads)
    plain = {
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "rope.scale_linear": 1.0,
        "rope.dimension_count": head_dim,
        "attention.value_length": head_dim,
        "attention.sliding_window": 0,
        "expert_count": 0,
    }
    for key, only in plain.items():
        if (got := value(key, only)) != only:
            raise WeightsError(
                f"{path}: expected {architecture}.{key} = {only}, got {got}, which is "
                "not implemented; choose another model"
            )
    if (parts := metadata(reader, "split.count", 1)) > 1:
        raise WeightsError(
            f"{path}: expected the whole model in one file, got one of {parts}; join "
            "them with llama-gguf-split --merge"
        )
    return DecoderConfig(
        architecture=architecture,
        vocab_size=tensors[EMBED].shape[0],
        hidden_size=hidden_size,
        intermediate_size=value("feed_forward_length"),
        num_layers=value("block_count"),
        num_heads=num_heads,
        num_kv_heads=value("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rope_theta=number("rope.freq_base", 10_000.0),
        rms_eps=number("attention.layer_norm_rms_epsilon"),
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in tensors,
        qk_norm="model.layers.0.self_attn.q_norm.weight" in tensors,
        tie_embeddings=tie_embeddings,
        max_positions=value("context_length"),
    )
