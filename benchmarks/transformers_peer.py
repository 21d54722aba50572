"""The peer: transformers on PyTorch, with exactly our weights."""

from collections.abc import Callable

import jax
import numpy as np
import torch
from einops import rearrange
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.timing import median_seconds
from metaharness.model.decoder import Decoder


def peer_model(decoder: Decoder, dtype: str, device: str) -> LlamaForCausalLM:
    """A Llama of transformers that holds the decoder's arrays."""
    c = decoder.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=c.vocab_size,
            hidden_size=c.hidden_size,
            intermediate_size=c.intermediate_size,
            num_hidden_layers=c.num_layers,
            num_attention_heads=c.num_heads,
            num_key_value_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            rms_norm_eps=c.rms_eps,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
            max_position_embeddings=c.max_positions,
            tie_word_embeddings=c.tie_embeddings,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )
    names = {
        "input_norm": "input_layernorm",
        "post_norm": "post_attention_layernorm",
        "q_proj": "self_attn.q_proj",
        "k_proj": "self_attn.k_proj",
        "v_proj": "self_attn.v_proj",
        "o_proj": "self_attn.o_proj",
        "gate_proj": "mlp.gate_proj",
        "up_proj": "mlp.up_proj",
        "down_proj": "mlp.down_proj",
    }
    arrays = jax.device_get(decoder.to_arrays())
    state = {
        "model.embed_tokens.weight": arrays["embed"],
        "model.norm.weight": arrays["final_norm"],
    }
    for ours, theirs in names.items():
        for index, array in enumerate(arrays[f"layers.{ours}"]):
            if array.ndim == 2:
                array = rearrange(array, "into out -> out into")
            state[f"model.layers.{index}.{theirs}.weight"] = array
    tensors = {
        name: torch.from_numpy(np.array(array, np.float32))
        for name, array in state.items()
    }
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"peer: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model.to(device=device, dtype=getattr(torch, dtype)).eval()


def _synchroniser(device: str) -> Callable[[object], None]:
    if device == "cuda":
        return lambda _: torch.cuda.synchronize()
    return lambda _: None


@torch.inference_mode()
def peer_forward(
    model: LlamaForCausalLM, tokens: np.ndarray, repeats: int
) -> tuple[float, np.ndarray]:
    """Median seconds of a forward pass with logits, and the last position's logits."""
    device = model.device.type
    inputs = torch.from_numpy(np.array(tokens)).long().to(device)
    seconds = median_seconds(
        lambda: model(inputs, use_cache=False).logits,
        _synchroniser(device),
        repeats=repeats,
    )
    logits = model(inputs, use_cache=False).logits[:, -1].float().cpu().numpy()
    return seconds, logits


@torch.inference_mode()
def peer_generate(
    model: LlamaForCausalLM,
    prefix: np.ndarray,
    questions: np.ndarray,
    num_new: int,
    repeats: int,
) -> tuple[float, np.ndarray]:
    """Median seconds of greedy generation; every row repeats the prefix.

    prefix: int ``[prefix]``; questions: int ``[row, question]``.
    """
    device = model.device.type
    rows = np.concatenate([np.tile(prefix, (len(questions), 1)), questions], axis=1)
    inputs = torch.from_numpy(rows).long().to(device)
    mask = torch.ones_like(inputs)

    def run() -> torch.Tensor:
        return model.generate(
            inputs,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=num_new,
            min_new_tokens=num_new,
        )

    seconds = median_seconds(run, _synchroniser(device), repeats=repeats)
    return seconds, run()[:, rows.shape[1] :].cpu().numpy()
