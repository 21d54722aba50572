"""Write smollm2.npz and smollm2_chats.json: the embedded model as transformers has it.

Run where torch and transformers are installed (torch 2.13, transformers 5.24), with the
path of the GGUF file that ``metaharness models get smollm2-135m`` puts into the cache:

    python tests/data/model/make_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
TEXTS = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many "
    "clips in May. How many clips did Natalia sell altogether in April and May?",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + "
    "fibonacci(n - 2)\n\n# The next line prints the first ten numbers.\n",
    "Die Größe der Straße beträgt 12,5 Meter; 日本語 and emoji 🙂 follow the text, "
    "which goes on for a while so that there are enough tokens.",
)
NUM_TOKENS = 32
POSITIONS = (0, 7, 15, 23, 31)
DIGIT_TEXTS = ("Sum:\n\n5", "a  12 b", "7\n\n\n8", "x = 3\n\n\t42")


def main(path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    conversations = json.loads((HERE / "conversations.json").read_text("utf-8"))
    chats = [
        {
            "generation_prompt": prompt,
            "text": tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=prompt
            ),
            "ids": tokenizer.apply_chat_template(
                turns, tokenize=True, add_generation_prompt=prompt, return_dict=False
            ),
        }
        for turns in conversations
        for prompt in (False, True)
    ]
    rows = [
        tokenizer(t, add_special_tokens=False).input_ids[:NUM_TOKENS] for t in TEXTS
    ]
    # The published tokenizer.json splits digits first; transformers' GGUF reader does
    # not, which shows where white space stands before a digit.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    digits = {text: tokenizer.encode(text) for text in DIGIT_TEXTS}
    found = {"chats": chats, "digits": digits}
    (HERE / "smollm2_chats.json").write_text(
        json.dumps(found, ensure_ascii=False) + "\n", "utf-8"
    )

    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    with torch.no_grad():
        logits = model(torch.tensor(rows)).logits.numpy()
    ids = np.random.default_rng(0).choice(logits.shape[-1], 48, replace=False)
    shown = logits[:, POSITIONS]
    np.savez_compressed(
        HERE / "smollm2.npz",
        tokens=np.array(rows, np.int32),
        positions=np.array(POSITIONS, np.int32),
        ids=ids.astype(np.int32),
        logits=shown[..., ids],
        top_ids=np.argsort(-shown, axis=-1)[..., :5].astype(np.int32),
        logsumexp=torch.logsumexp(torch.tensor(logits), -1).numpy(),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
