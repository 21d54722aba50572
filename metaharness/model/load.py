"""Load a model by name, folder, GGUF file or hub id: decoder, tokenizer, digest."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from metaharness.errors import WeightsError
from metaharness.model.assemble import assemble
from metaharness.model.config import DecoderConfig
from metaharness.model.decoder import Decoder
from metaharness.model.fetch import (
    HUB_ID,
    KNOWN_MODELS,
    check_known_digest,
    fetch_model,
    unknown_model,
)
from metaharness.model.gguf import read_gguf
from metaharness.model.safetensors import read_safetensors, weight_files
from metaharness.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class Model:
    """A decoder with its tokenizer, and where they come from.

    Attributes:
        decoder: weights.
        config: the decoder's shape.
        tokenizer: text to ids and back.
        name: as it was asked for: known name, hub id or path.
        digest: sha256 (hex) of the weight file; of several shards, of the lines
            ``name sha256`` in the order of their names.
    """

    decoder: Decoder
    config: DecoderConfig
    tokenizer: Tokenizer
    name: str
    digest: str


def load_model(name_or_path: str | Path, *, dtype: str = "float32") -> Model:
    """Load a model, fetching its files first if it is a name and they are not cached.

    Args:
        name_or_path: a known name (``"smollm2-135m"``), a Hugging Face folder with
            ``config.json`` and safetensors, a ``.gguf`` file, or a hub id
            ``owner/name`` (needs the network).
        dtype: ``"float32"`` or ``"bfloat16"``, of the weights.

    Raises:
        WeightsError: the name is unknown, a file cannot be had or read, or the weights
            do not fit; one line says what to do.
    """
    name = str(name_or_path)
    path = _locate(name)
    if path.is_dir():
        digest = digest_of_files(sorted(weight_files(path)))
        config, tensors = read_safetensors(path)
        tokenizer = Tokenizer.from_folder(path)
    else:
        digest = digest_of_files([path])
        check_known_digest(name, path, digest)
        config, tensors = read_gguf(path)
        tokenizer = Tokenizer.from_gguf(path, digest)
    if tokenizer.vocab_size > config.vocab_size:
        raise WeightsError(
            f"{path}: expected a tokenizer of at most {config.vocab_size} ids (rows of "
            f"the embedding), got {tokenizer.vocab_size}; use the model's own tokenizer"
        )
    decoder = assemble(config, tensors, dtype)
    return Model(decoder, config, tokenizer, name, digest)


def load_tokenizer(name_or_path: str | Path) -> Tokenizer:
    """Load a model's tokenizer without its weights; names and errors as `load_model`.

    The weight file of a GGUF model is read all the same, for its digest.
    """
    name = str(name_or_path)
    path = _locate(name)
    if path.is_dir():
        return Tokenizer.from_folder(path)
    digest = digest_of_files([path])
    check_known_digest(name, path, digest)
    return Tokenizer.from_gguf(path, digest)


def _locate(name: str) -> Path:
    """The file or folder that ``name`` stands for; known names come first."""
    if name in KNOWN_MODELS:
        return fetch_model(name)
    path = Path(name).expanduser()
    if not name:  # Path("") is the working folder
        raise unknown_model(name)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.is_file():
        raise WeightsError(
            f"{path}: expected a .gguf file or a model folder, got another file; give "
            "the folder that holds config.json"
        )
    if HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return fetch_model(name)
    raise unknown_model(name)


def digest_of_files(paths: list[Path]) -> str:
    """sha256 of one file, or of the lines ``name sha256`` of several."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    if len(digests) == 1:
        return digests[0]
    lines = (f"{p.name} {d}\n" for p, d in zip(paths, digests, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
