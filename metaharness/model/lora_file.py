"""Save and load adapters in the folder layout that PEFT reads.

``adapter_config.json`` and ``adapter_model.safetensors``: no pickle. Matrices are
stored out by in, one pair a layer and projection, as PEFT names them.
"""

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from metaharness.errors import WeightsError
from metaharness.model.config import DecoderConfig
from metaharness.model.lora import LoraPair, Theta, theta_shapes
from metaharness.model.lora_config import LoraConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model.model.layers"
_BLOCK = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
# Settings under which a pair of matrices means something else.
_PLAIN = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_rslora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layers_to_transform": None,
    "trainable_token_indices": None,
    "target_parameters": None,
}


def save_lora(
    folder: Path, theta: Theta, lora: LoraConfig, *, base: str, overwrite: bool = False
) -> Path:
    """Write an adapter; returns its folder.

    Args:
        folder: made where it is missing.
        theta: float32.
        lora: of the adapter.
        base: name or path of the model that it belongs to, as PEFT should load it.
        overwrite: replace an adapter that lies there.

    Raises:
        WeightsError: an adapter lies there already.
    """
    folder = Path(folder)
    if (folder / CONFIG).exists() and not overwrite:
        raise WeightsError(f"{folder}: holds an adapter already; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, (a, b) in theta.items():
        for index in range(a.shape[0]):
            stem = f"{_PREFIX}.{index}.{_BLOCK[name]}.{name}"
            tensors[f"{stem}.lora_A.weight"] = _stored(a[index])
            tensors[f"{stem}.lora_B.weight"] = _stored(b[index])
    # the description last: a folder that has one is whole
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(lora.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    text = json.dumps(described, indent=2) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    return folder


def load_lora(folder: Path, config: DecoderConfig) -> tuple[Theta, LoraConfig]:
    """Read an adapter for a decoder of these sizes.

    Raises:
        WeightsError: a file is missing or damaged, a tensor is missing, left over or
            misshapen, or the adapter needs what is not supported; each is named.
    """
    folder = Path(folder)
    lora = _read_config(folder)
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    theta = {}
    for name, pair in theta_shapes(lora, config).items():
        stacked = []
        for which, (layers, rows, columns) in zip("AB", pair, strict=True):
            found = []
            for index in range(layers):
                key = f"{_PREFIX}.{index}.{_BLOCK[name]}.{name}.lora_{which}.weight"
                if key not in tensors:
                    raise WeightsError(f"{path}: tensor {key} is missing")
                array = tensors.pop(key)
                if array.shape != (columns, rows):
                    raise WeightsError(
                        f"{path}: tensor {key}: expected shape {(columns, rows)}, got "
                        f"{array.shape}; it belongs to another model"
                    )
                found.append(np.asarray(array, np.float32).T)
            stacked.append(jnp.asarray(np.stack(found)))
        theta[name] = LoraPair(*stacked)
    if tensors:
        raise WeightsError(
            f"{path}: tensors that this model has no place for: "
            f"{', '.join(sorted(tensors)[:3])}"
        )
    return theta, lora


def _read_config(folder: Path) -> LoraConfig:
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    for name, plain in _PLAIN.items():
        value = found.get(name, plain)
        if value != plain and not (not plain and not value):
            raise WeightsError(
                f"{path}: {name}: expected {plain!r}, got {value!r}, which is not "
                "supported; merge the adapter with PEFT instead"
            )
    targets = found.get("target_modules")
    if not isinstance(targets, list):
        raise WeightsError(
            f"{path}: target_modules: expected a list of names, got {targets!r}"
        )
    try:
        return LoraConfig(
            rank=found["r"],
            alpha=found["lora_alpha"],
            targets=tuple(sorted(targets, key=_order)),
            dropout=found.get("lora_dropout", 0.0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path}: {re.sub('^lora ', '', str(error))}") from error


def _order(name: str) -> int:
    names = list(_BLOCK)
    return names.index(name) if name in names else len(names)


def _stored(matrix: jnp.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(matrix, np.float32).T)
