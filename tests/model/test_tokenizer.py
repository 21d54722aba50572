"""Token ids and chat texts equal transformers'; nothing is added twice."""

import json
import os
from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from metaharness.errors import WeightsError
from metaharness.model.fetch import KNOWN_MODELS, model_path
from metaharness.model.gguf_tokenizer import (
    RULES_VERSION,
    SPLITTERS,
    tokenizer_from_gguf,
)
from metaharness.model.load import load_tokenizer
from metaharness.model.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data" / "model"
TINY = DATA / "tiny_llama_tied"
CONVERSATIONS = json.loads((DATA / "conversations.json").read_text("utf-8"))
ASKED = [(turns, prompt) for turns in CONVERSATIONS for prompt in (False, True)]
TEXTS = [turn["content"] for turns in CONVERSATIONS for turn in turns]


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_folder(TINY)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The embedded model's tokenizer, built anew in a cache folder of its own."""
    path = model_path("smollm2-135m")
    if not path.exists():
        pytest.skip(
            "smollm2-135m is not cached: run 'metaharness models get smollm2-135m'"
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAHARNESS_CACHE", str(tmp_path_factory.mktemp("cache")))
        return Tokenizer.from_gguf(path, KNOWN_MODELS["smollm2-135m"].sha256)


def write_gguf(path: Path, rule: str = "gpt-2", kind: str = "gpt2") -> None:
    """The tiny tokenizer as GGUF metadata (a file without weights)."""
    stored = json.loads((TINY / "tokenizer.json").read_text("utf-8"))
    vocab = stored["model"]["vocab"]
    special = {token["content"] for token in stored["added_tokens"]}
    tokens = sorted(vocab, key=vocab.get)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [
            gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL
            for token in tokens
        ]
    )
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    writer.add_bos_token_id(vocab["<s>"])
    writer.add_eos_token_id(vocab["</s>"])
    writer.add_unk_token_id(vocab["<unk>"])
    writer.add_chat_template((TINY / "chat_template.jinja").read_text("utf-8"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METAHARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_ten_conversations_equal_transformers(tiny: Tokenizer) -> None:
    assert len(CONVERSATIONS) == 10
    stored = json.loads((TINY / "chats.json").read_text("utf-8"))["chats"]
    for (turns, prompt), expected in zip(ASKED, stored, strict=True):
        assert expected["generation_prompt"] is prompt
        assert tiny.chat_ids(turns, add_generation_prompt=prompt) == expected["ids"]


def test_embedded_model_conversations_equal_transformers(smollm2: Tokenizer) -> None:
    stored = json.loads((DATA / "smollm2_chats.json").read_text("utf-8"))["chats"]
    for (turns, prompt), expected in zip(ASKED, stored, strict=True):
        assert smollm2.chat(turns, add_generation_prompt=prompt) == expected["text"]
        assert smollm2.chat_ids(turns, add_generation_prompt=prompt) == expected["ids"]


def test_embedded_model_splits_digits_as_its_training_did(smollm2: Tokenizer) -> None:
    stored = json.loads((DATA / "smollm2_chats.json").read_text("utf-8"))["digits"]
    assert len(stored) == 4
    for text, ids in stored.items():
        assert smollm2.encode(text) == ids
    pieces = [smollm2.decode([index]) for index in smollm2.encode("Sum:\n\n57")]
    assert pieces == ["Sum", ":", "\n\n", "5", "7"]


def test_embedded_model_stops_at_the_end_of_turn_and_of_text(
    smollm2: Tokenizer,
) -> None:
    assert [smollm2.decode([i]) for i in smollm2.eos_ids] == [
        "<|im_end|>",
        "<|endoftext|>",
    ]
    assert smollm2.vocab_size == 49152
    assert smollm2.pad_id == 2


def test_the_beginning_token_is_written_once(tiny: Tokenizer) -> None:
    """transformers' own encode adds <s> here; a template that has it gets no second."""
    bos = tiny.bos_id
    assert tiny.backend.encode("x")[0] == bos
    assert tiny.encode("x").count(bos) == 0
    ids = tiny.chat_ids(CONVERSATIONS[0], add_generation_prompt=True)
    assert ids[0] == bos and ids.count(bos) == 1
    text = tiny.chat(CONVERSATIONS[0], add_generation_prompt=True)
    assert tiny.encode(text) == ids


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_text_survives_a_round_trip(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(name)
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_kept_or_left_out(tiny: Tokenizer) -> None:
    ids = [*tiny.encode("4 2 ."), *tiny.eos_ids]
    assert tiny.decode(ids) == "4 2 .</s>"
    assert tiny.decode(ids, skip_special=True) == "4 2 ."


def test_a_gguf_tokenizer_equals_the_one_it_was_written_from(
    tiny: Tokenizer, tmp_path: Path, cache: Path
) -> None:
    write_gguf(tmp_path / "m.gguf")
    found = Tokenizer.from_gguf(tmp_path / "m.gguf", "d1")
    for turns, prompt in ASKED:
        expected = tiny.chat_ids(turns, add_generation_prompt=prompt)
        assert found.chat_ids(turns, add_generation_prompt=prompt) == expected
    for text in TEXTS:
        assert found.encode(text) == tiny.encode(text)
    assert (found.eos_ids, found.bos_id) == (tiny.eos_ids, tiny.bos_id)
    assert found.vocab_size == tiny.vocab_size
    alone = load_tokenizer(tmp_path / "m.gguf")
    assert alone.encode(TEXTS[0]) == tiny.encode(TEXTS[0])


def test_a_gguf_tokenizer_is_built_once_and_kept_by_digest(
    tmp_path: Path, cache: Path
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path)
    first = Tokenizer.from_gguf(path, "d1")
    assert os.listdir(cache / "tokenizers") == [f"d1-{RULES_VERSION}"]
    path.unlink()
    again = Tokenizer.from_gguf(path, "d1")
    assert again.encode("The answer is 42.") == first.encode("The answer is 42.")
    with pytest.raises(WeightsError, match="expected a GGUF file"):
        Tokenizer.from_gguf(path, "d2")


def test_qwen2_text_is_cut_as_transformers_class_cuts_it() -> None:
    reference = Qwen2Tokenizer(vocab={"a": 0}, merges=[]).backend_tokenizer
    cut = reference.pre_tokenizer.pre_tokenize_str
    for text in [*TEXTS, "12345 a1b22\n\n5"]:
        assert SPLITTERS["qwen2"]().pre_tokenize_str(text) == cut(text)


def test_llama3_cuts_numbers_into_threes() -> None:
    cut = SPLITTERS["llama-bpe"]().pre_tokenize_str
    pieces = [piece for piece, _ in cut("He's 1234567.\n\n 5")]
    assert pieces == ["He", "'s", "Ġ", "123", "456", "7", ".ĊĊ", "Ġ", "5"]


def test_qwen2_composes_characters_first(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", rule="qwen2")
    backend = tokenizer_from_gguf(tmp_path / "m.gguf")
    assert backend.encode("e\u0301") == backend.encode("\u00e9")


@pytest.mark.parametrize(
    "rule, kind, named",
    [("default", "llama", "'llama'"), ("chatglm-bpe", "gpt2", "'chatglm-bpe'")],
)
def test_other_gguf_tokenizers_are_refused_by_name(
    rule: str, kind: str, named: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "m.gguf", rule, kind)
    with pytest.raises(WeightsError, match=f"{named}.*safetensors folder"):
        tokenizer_from_gguf(tmp_path / "m.gguf")


def test_a_folder_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(WeightsError, match=r"expected tokenizer\.json, got none"):
        Tokenizer.from_folder(DATA / "tiny_qwen2_tied")


def test_a_model_without_a_template_refuses_to_chat(tiny: Tokenizer) -> None:
    plain = PreTrainedTokenizerFast(
        tokenizer_object=Backend.from_file(str(TINY / "tokenizer.json")),
        eos_token="</s>",
    )
    with pytest.raises(WeightsError, match="expected a chat template"):
        Tokenizer.from_backend(plain).chat(CONVERSATIONS[0])


def test_stop_ids_of_the_generation_settings_are_added(tmp_path: Path) -> None:
    AutoTokenizer.from_pretrained(TINY).save_pretrained(tmp_path)
    settings = tmp_path / "generation_config.json"
    for stored, expected in ((7, (2, 7)), ([2, 9, 5], (2, 9, 5)), (None, (2,))):
        settings.write_text(json.dumps({"eos_token_id": stored}))
        assert Tokenizer.from_folder(tmp_path).eos_ids == expected
