"""Write the tiny checkpoints tiny_*/ with their logits, and a tiny tokenizer.

Random weights in transformers' own classes (biases and norms random too), so that every
variant of the decoder has a reference. Run where torch and transformers are installed
(torch 2.13, transformers 5.24):

    python tests/data/model/make_tiny.py
"""

import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
SHAPE = dict(
    vocab_size=40,
    hidden_size=24,
    intermediate_size=36,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=128,
    initializer_range=0.3,
)
# name -> (model type, fields, stored dtype, shard size)
VARIANTS = {
    "tiny_llama_tied": (
        "llama",
        dict(
            vocab_size=300,
            num_key_value_heads=2,
            head_dim=8,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        ),
        "bfloat16",
        "1GB",
    ),
    "tiny_llama_untied": (
        "llama",
        dict(num_key_value_heads=1, head_dim=6, rms_norm_eps=1e-3),
        "bfloat16",
        "12KB",
    ),
    "tiny_qwen2_tied": (
        "qwen2",
        dict(num_key_value_heads=2, tie_word_embeddings=True),
        "bfloat16",
        "1GB",
    ),
    "tiny_qwen2_untied": ("qwen2", dict(num_key_value_heads=4), "float16", "1GB"),
    "tiny_qwen3_tied": (
        "qwen3",
        dict(num_key_value_heads=2, head_dim=10, tie_word_embeddings=True),
        "float32",
        "1GB",
    ),
    "tiny_qwen3_untied": (
        "qwen3",
        dict(num_key_value_heads=4, head_dim=8),
        "bfloat16",
        "1GB",
    ),
}
TEXT = [
    "The answer is 42.\nQ: What is 17 + 25?\nA: They add up to forty-two.",
    "A user asks a question and the assistant answers the question in one line.",
    "the quick brown fox jumps over the lazy dog, and then the dog sleeps",
]
SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
CHAT = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ message['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def make_checkpoint(name: str, seed: int) -> None:
    kind, fields, dtype, shard = VARIANTS[name]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **(SHAPE | fields))
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            elif key.endswith("bias"):
                parameter.normal_(0.0, 0.5)
        model = model.to(getattr(torch, dtype))
        model.save_pretrained(HERE / name, max_shard_size=shard)
        # Loaded again: .float() would keep rotary frequencies rounded to the dtype.
        model = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32)
        tokens = np.random.default_rng(seed).integers(0, config.vocab_size, (2, 10))
        logits = model(torch.tensor(tokens)).logits.numpy()
    kept = np.unique(np.linspace(0, config.vocab_size - 1, 40, dtype=int))
    np.savez_compressed(
        HERE / name / "logits.npz",
        tokens=tokens.astype(np.int32),
        ids=kept,
        logits=logits[..., kept],
    )


def make_tokenizer(folder: Path) -> None:
    """Byte-level BPE that adds <s>, with a template that begins with <s> as well."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=[AddedToken(t, normalized=False, special=True) for t in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(TEXT, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=CHAT,
    )
    tokenizer.save_pretrained(folder)
    conversations = json.loads((HERE / "conversations.json").read_text("utf-8"))
    chats = [
        {
            "generation_prompt": prompt,
            "ids": tokenizer.apply_chat_template(
                turns, tokenize=True, add_generation_prompt=prompt, return_dict=False
            ),
        }
        for turns in conversations
        for prompt in (False, True)
    ]
    (folder / "chats.json").write_text(json.dumps({"chats": chats}) + "\n", "utf-8")


if __name__ == "__main__":
    for seed, name in enumerate(VARIANTS):
        make_checkpoint(name, seed)
    make_tokenizer(HERE / "tiny_llama_tied")
