"""Read a Hugging Face model folder: ``config.json`` and safetensors, sharded or not.

No pickle (``pytorch_model.bin``) is opened and no code of the folder is run.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from metaharness.errors import WeightsError
from metaharness.model.assemble import StoredTensor
from metaharness.model.config import ARCHITECTURES, DecoderConfig

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
STORED_DTYPES = ("F32", "F16", "BF16")
FULL = "full_attention"
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def read_safetensors(folder: Path) -> tuple[DecoderConfig, dict[str, StoredTensor]]:
    """Configuration and lazily read tensors, as stored (float32, float16, bfloat16).

    Of a tied model that stores its output matrix as well, the copy is dropped if it
    equals the embedding, and refused otherwise.

    Raises:
        WeightsError: a file is missing or damaged, or the model needs something that
            the decoder does not have; each is named.
    """
    config = read_config(folder)
    tensors: dict[str, StoredTensor] = {}
    for path, names in weight_files(folder).items():
        tensors |= _open_file(path, names)
    if config.tie_embeddings and HEAD in tensors:
        head = tensors.pop(HEAD)
        if EMBED in tensors and not np.array_equal(tensors[EMBED].read(), head.read()):
            raise WeightsError(
                f"{folder}: expected {HEAD} to equal {EMBED} (tie_word_embeddings is "
                "true), got another matrix; set tie_word_embeddings to false"
            )
    return config, tensors


def weight_files(folder: Path) -> dict[Path, frozenset[str] | None]:
    """Each weight file of the folder and the tensors that it must hold (None: any)."""
    if (folder / INDEX).is_file():
        index = _read_json(folder / INDEX).get("weight_map", {})
        shards: dict[str, set[str]] = {}
        for name, shard in index.items():
            shards.setdefault(shard, set()).add(name)
        for shard in shards:
            if Path(shard).name != shard or not (folder / shard).is_file():
                raise WeightsError(
                    f"{folder}: expected shard {shard!r} named in {INDEX}, got no such "
                    "file; download the whole folder again"
                )
        return {folder / shard: frozenset(shards[shard]) for shard in sorted(shards)}
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: None}
    pickles = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
    found = f"only {sorted(pickles)[0].name}, a pickle" if pickles else "neither"
    raise WeightsError(
        f"{folder}: expected {SINGLE} or {INDEX}, got {found}; save the model with "
        "save_pretrained(..., safe_serialization=True)"
    )


def read_config(folder: Path) -> DecoderConfig:
    """The decoder's shape from ``config.json``; defaults are transformers' own."""
    path = folder / "config.json"
    raw = _read_json(path)
    architecture = raw.get("model_type")
    if architecture not in ARCHITECTURES:
        raise WeightsError(
            f"{path}: expected model_type {', '.join(ARCHITECTURES)}, got "
            f"{architecture!r}; choose a model of one of these"
        )
    if "quantization_config" in raw:
        raise WeightsError(
            f"{path}: expected plain weights, got quantization_config; choose the "
            "unquantised model or a GGUF file"
        )
    found = AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    values = found.to_dict()
    _refuse_unknown_features(path, values)
    head_dim = values.get("head_dim")  # Qwen2's configuration has no such field
    return DecoderConfig(
        architecture=architecture,
        vocab_size=found.vocab_size,
        hidden_size=found.hidden_size,
        intermediate_size=found.intermediate_size,
        num_layers=found.num_hidden_layers,
        num_heads=found.num_attention_heads,
        num_kv_heads=found.num_key_value_heads,
        head_dim=head_dim or found.hidden_size // found.num_attention_heads,
        rope_theta=values["rope_parameters"]["rope_theta"],
        rms_eps=found.rms_norm_eps,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        tie_embeddings=found.tie_word_embeddings,
        max_positions=found.max_position_embeddings,
    )


def _refuse_unknown_features(path: Path, values: Mapping[str, object]) -> None:
    rope = values["rope_parameters"]
    sliding = [kind for kind in values.get("layer_types") or () if kind != FULL]
    checks = {
        "hidden_act": (values["hidden_act"], "silu"),
        "attention_bias": (bool(values.get("attention_bias", False)), False),
        "mlp_bias": (bool(values.get("mlp_bias", False)), False),
        "rope_type": (rope["rope_type"], "default"),
        "partial_rotary_factor": (rope.get("partial_rotary_factor", 1.0), 1.0),
        "layer_types": (sliding[0] if sliding else FULL, FULL),
    }
    for key, (got, only) in checks.items():
        if got != only:
            raise WeightsError(
                f"{path}: expected {key} = {only}, got {got}, which is not "
                "implemented; choose another model"
            )


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(
            f"{path}: expected a JSON file, got {error}; download the model again"
        ) from error


def _open_file(path: Path, names: frozenset[str] | None) -> dict[str, StoredTensor]:
    try:
        file = safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise WeightsError(
            f"{path}: expected a safetensors file, got {error}; download it again"
        ) from error
    found = set(file.keys())
    if names is not None and found != names:
        raise WeightsError(
            f"{path}: expected the {len(names)} tensors that {INDEX} names, got others "
            f"or not all ({sorted(found ^ names)[0]}); download the folder again"
        )
    tensors = {}
    for name in found:
        view = file.get_slice(name)
        if (dtype := view.get_dtype()) not in STORED_DTYPES:
            raise WeightsError(
                f"{path}: {name}: expected {', '.join(STORED_DTYPES)}, got {dtype}; "
                "choose the unquantised model or a GGUF file"
            )
        tensors[name] = StoredTensor(
            tuple(view.get_shape()), lambda name=name: file.get_tensor(name)
        )
    return tensors
