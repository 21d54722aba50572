"""Write lora_*/: adapters that this package saved, with the logits of PEFT.

python tests/data/model/make_lora.py save     # where metaharness is installed
python tests/data/model/make_lora.py logits   # where torch and PEFT are (0.21)
"""

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
ADAPTERS = {
    "tiny_llama_tied": ("q_proj", "k_proj", "v_proj", "o_proj")
    + ("gate_proj", "up_proj", "down_proj"),
    "tiny_qwen2_untied": ("q_proj", "v_proj", "down_proj"),
    "tiny_qwen3_tied": ("o_proj", "up_proj"),
}


def save() -> None:
    from metaharness.model.lora import LoraPair, theta_shapes
    from metaharness.model.lora_config import LoraConfig
    from metaharness.model.lora_file import save_lora
    from metaharness.model.safetensors import read_config

    for name, targets in ADAPTERS.items():
        lora = LoraConfig(rank=3, alpha=5.0, targets=targets)
        rng = np.random.default_rng(0)
        theta = {
            target: LoraPair(*(0.3 * rng.normal(size=shape) for shape in pair))
            for target, pair in theta_shapes(lora, read_config(HERE / name)).items()
        }
        folder = HERE / name.replace("tiny", "lora")
        save_lora(folder, theta, lora, base=name, overwrite=True)


def logits() -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    for name in ADAPTERS:
        folder = HERE / name.replace("tiny", "lora")
        base = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, folder).eval()
        described = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        assert sorted(described["target_modules"]) == sorted(ADAPTERS[name])
        stored = np.load(HERE / name / "logits.npz")
        with torch.no_grad():
            found = model(torch.tensor(stored["tokens"]).long()).logits.numpy()
        np.savez_compressed(
            folder / "logits.npz",
            tokens=stored["tokens"],
            ids=stored["ids"],
            logits=found[..., stored["ids"]],
        )
        print(name, np.abs(found[..., stored["ids"]] - stored["logits"]).max())


if __name__ == "__main__":
    {"save": save, "logits": logits}[sys.argv[1]]()
