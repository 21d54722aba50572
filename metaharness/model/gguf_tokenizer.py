"""Rebuild a byte-level BPE tokenizer from the metadata of a GGUF file.

transformers can do so too, but only where torch is installed, and without the splitting
of digits that SmolLM's own ``tokenizer.json`` and llama.cpp's ``smollm`` rule have:
"\\n\\n5" is then cut into other tokens than the model was trained on.
"""

from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from transformers import PreTrainedTokenizerFast

from metaharness.errors import WeightsError
from metaharness.model.gguf import metadata, open_gguf

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
"""The published patterns of Qwen2 and Llama 3; GPT-2's is built into ``ByteLevel``."""


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_first() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), _gpt2()])


def _split_by(pattern: str) -> PreTokenizer:
    split = Split(Regex(pattern), behavior="isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


SPLITTERS = {
    "gpt-2": _gpt2,
    "smollm": _digits_first,
    "qwen2": lambda: _split_by(QWEN2_SPLIT),
    "deepseek-r1-qwen": lambda: _split_by(QWEN2_SPLIT),
    "llama-bpe": lambda: _split_by(LLAMA3_SPLIT),
}
"""``tokenizer.ggml.pre`` -> how text is cut before merging."""

COMPOSED = ("qwen2", "deepseek-r1-qwen")
"""These bring text into Unicode's composed form (NFC) first."""

WHOLE_WORDS = ("llama-bpe",)
"""These take a word that is in the vocabulary without merging."""

RULES_VERSION = 1
"""Raise it when this file builds other tokenizers, so that kept ones are rebuilt."""

CONTROL, USER_DEFINED = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED


def tokenizer_from_gguf(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that a GGUF file describes, with its chat template if it has one.

    Raises:
        WeightsError: another kind of tokenizer (such as Llama 2's SentencePiece) or
            another splitting rule, by name.
    """
    reader = open_gguf(path)

    def value(key: str, default: Any = None) -> Any:
        return metadata(reader, f"tokenizer.{key}", default)

    kind, rule = value("ggml.model"), value("ggml.pre")
    if kind != "gpt2" or rule not in SPLITTERS:
        raise WeightsError(
            f"{path}: expected a byte-level BPE tokenizer (gpt2) with one of the rules "
            f"{', '.join(SPLITTERS)}, got {kind!r} with {rule!r}; use the model's "
            "safetensors folder, which has a tokenizer.json"
        )
    tokens = value("ggml.tokens")
    tokenizer = Tokenizer(
        BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[tuple(pair.split(" ")) for pair in value("ggml.merges", [])],
            ignore_merges=rule in WHOLE_WORDS,
        )
    )
    if rule in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = SPLITTERS[rule]()
    tokenizer.decoder = decoders.ByteLevel()
    types = value("ggml.token_type", [])
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind == CONTROL)
            for token, kind in zip(tokens, types, strict=False)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    if tokenizer.get_vocab_size() != len(tokens):
        raise WeightsError(
            f"{path}: expected {len(tokens)} different tokens, got "
            f"{tokenizer.get_vocab_size()}; convert the model again"
        )
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {
        f"{ours}_token": tokens[index]
        for ours, theirs in names.items()
        if (index := value(f"ggml.{theirs}_token_id")) is not None
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=value("chat_template"),
        clean_up_tokenization_spaces=False,
        **special,
    )
