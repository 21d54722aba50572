"""Text to token ids and back, and chat templates, by the ``transformers`` package."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from metaharness.errors import WeightsError
from metaharness.model.fetch import cache_folder
from metaharness.model.gguf_tokenizer import RULES_VERSION, tokenizer_from_gguf

Messages = Sequence[Mapping[str, str]]
"""Chat turns: ``{"role": "system" | "user" | "assistant", "content": text}``."""

END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
"""Tokens that end a turn or a text in the models at hand, where they are special."""


@dataclass(frozen=True)
class Tokenizer:
    """A transformers tokenizer behind the few calls that a harness needs.

    Attributes:
        backend: the transformers tokenizer.
        eos_ids: ids after which generation stops: the tokenizer's end token, those of
            ``generation_config.json``, and any other special token that ends a turn.
        bos_id: id of the token that begins a text, or None.
        pad_id: id to pad with, always masked; the first of ``eos_ids`` if none is set.
    """

    backend: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    bos_id: int | None
    pad_id: int

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Load ``tokenizer.json`` and its companions from a model folder.

        Raises:
            WeightsError: no ``tokenizer.json``, or none that transformers can read
                without running code of the folder.
        """
        if not (folder / "tokenizer.json").is_file():
            raise WeightsError(
                f"{folder}: expected tokenizer.json, got none; download the model's "
                "tokenizer files too, or save them with save_pretrained"
            )
        try:
            backend = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            raise WeightsError(
                f"{folder}: expected tokenizer files that transformers can read, got "
                f"{error}; download them again"
            ) from error
        return cls.from_backend(backend, _generation_eos(folder))

    @classmethod
    def from_gguf(cls, path: Path, digest: str) -> "Tokenizer":
        """Build the tokenizer of a GGUF file once and keep it in the cache folder.

        ``digest`` is the file's sha256, under which the tokenizer is kept.
        """
        folder = cache_folder() / "tokenizers" / f"{digest}-{RULES_VERSION}"
        if not folder.is_dir():
            backend = tokenizer_from_gguf(path)
            folder.parent.mkdir(parents=True, exist_ok=True)
            staging = tempfile.mkdtemp(prefix=".save-", dir=folder.parent)
            backend.save_pretrained(staging)
            try:
                os.replace(staging, folder)
            except OSError:  # another process was first; its folder is the same
                if not folder.is_dir():
                    raise
        return cls.from_folder(folder)

    @classmethod
    def from_backend(
        cls, backend: PreTrainedTokenizerBase, eos_ids: Sequence[int] = ()
    ) -> "Tokenizer":
        """Wrap a transformers tokenizer; ``eos_ids`` are further ids to stop at."""
        special = {
            token.content: index
            for index, token in backend.added_tokens_decoder.items()
            if token.special
        }
        stops = [backend.eos_token_id, *eos_ids]
        stops += [special[token] for token in END_TOKENS if token in special]
        found = tuple(dict.fromkeys(index for index in stops if index is not None))
        if not found:
            raise WeightsError(
                "tokenizer: expected an end-of-text token, got none; set eos_token in "
                "tokenizer_config.json"
            )
        pad = backend.pad_token_id
        return cls(
            backend=backend,
            eos_ids=found,
            bos_id=backend.bos_token_id,
            pad_id=found[0] if pad is None else pad,
        )

    @property
    def vocab_size(self) -> int:
        """One more than the largest id; at most the decoder's ``vocab_size``."""
        return len(self.backend)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` and nothing more: no token is added at either end.

        The texts of special tokens become those tokens, so that ``encode(chat(m))``
        equals ``chat_ids(m)``.
        """
        return self.backend.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of ``ids``, exactly as the tokens spell it."""
        return self.backend.decode(
            [int(index) for index in ids],
            skip_special_tokens=skip_special,
            clean_up_tokenization_spaces=False,
        )

    def chat(self, messages: Messages, *, add_generation_prompt: bool = False) -> str:
        """``messages`` as the model's chat template writes them, with special tokens.

        Raises:
            WeightsError: the model has no chat template.
        """
        self._check_template()
        return self.backend.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )

    def chat_ids(
        self, messages: Messages, *, add_generation_prompt: bool = False
    ) -> list[int]:
        """Ids of ``chat(messages)``: a template that begins with the beginning-of-text
        token writes it once, and encoding adds no second one."""
        return self.encode(
            self.chat(messages, add_generation_prompt=add_generation_prompt)
        )

    def _check_template(self) -> None:
        if not self.backend.chat_template:
            raise WeightsError(
                "tokenizer: expected a chat template, got a model without one; use a "
                "template with chat=False or an instruction-tuned model"
            )


def _generation_eos(folder: Path) -> tuple[int, ...]:
    """The end tokens of ``generation_config.json``, one, several or none."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return ()
    try:
        found = json.loads(path.read_text("utf-8")).get("eos_token_id")
    except ValueError as error:
        raise WeightsError(
            f"{path}: expected a JSON file, got {error}; download it again"
        ) from error
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (found,)
