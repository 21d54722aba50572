"""A model with a trained adapter merged into its weights."""

import dataclasses
import hashlib
from pathlib import Path

from metaharness.model.load import Model
from metaharness.model.lora import Theta, merge_lora, theta_digest
from metaharness.model.lora_config import LoraConfig
from metaharness.model.lora_file import CONFIG, load_lora

FOLDER = "adapter"
"""Where a run directory keeps the adapter that it trained."""


def adapted_model(model: Model, theta: Theta, lora: LoraConfig) -> Model:
    """The model with merged weights; its digest is of both."""
    decoder = merge_lora(model.decoder, theta, lora)
    return dataclasses.replace(
        model, decoder=decoder, digest=adapted_digest(model.digest, theta)
    )


def adapted_digest(base: str, theta: Theta) -> str:
    """sha256 of a base model's digest and an adapter's."""
    return hashlib.sha256(f"{base} {theta_digest(theta)}".encode()).hexdigest()


def has_adapter(run: Path) -> bool:
    """Whether a run directory (or that of a file in it) has a trained adapter."""
    return (_directory(run) / FOLDER / CONFIG).is_file()


def with_adapter(model: Model, folder: Path) -> Model:
    """The model with the adapter of a folder, or that of a run directory.

    Raises:
        WeightsError: there is none, or it does not fit the model.
    """
    folder = _directory(folder)
    if (folder / FOLDER).is_dir():
        folder = folder / FOLDER
    theta, lora = load_lora(folder, model.config)
    return adapted_model(model, theta, lora)


def _directory(path: Path) -> Path:
    path = Path(path)
    return path.parent if path.is_file() else path
