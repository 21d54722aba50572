"""Every kind of pass lowers for TPU, CUDA and CPU alike, on a machine without them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.random import key, split
from tiny_space import CONFIG, make_decoder

from metaharness.model.decoder import decoder_logits
from metaharness.model.generate import make_decode, read_questions
from metaharness.model.likelihood import Rows, item_nats
from metaharness.model.prefix import encode_pool, encode_prefix, key_weights

PLATFORMS = ("tpu", "cuda", "cpu")
TOKENS = np.arange(12, dtype=np.int32)[None]


def forward(decoder, tokens):
    return decoder_logits(decoder, tokens)


def gate_slope(decoder, weights):
    """Gradient of an item's nats in the weights of three candidates."""
    candidates = np.arange(12, dtype=np.int32).reshape(3, 4)
    lengths = np.array([4, 2, 3], np.int32)
    pool = encode_pool(decoder, TOKENS[0, :3], np.int32(3), candidates, lengths)
    row = np.ones((1, 1, 5), np.int32)
    at = np.array([[[2, 3]]], np.int32)
    rows = Rows(row, row.cumsum(-1) - 1, row, at, at, at * 0)

    def loss(weights):
        gate = key_weights(pool, weights)[None]
        nats = item_nats(decoder, rows, pool.end[None], pool.context, gate, num_items=1)
        return nats.sum()

    return jax.grad(loss)(weights)


def decode(decoder, questions, keys):
    prefix = encode_prefix(decoder, TOKENS, np.array([7], np.int32))
    lengths = np.array([[3, 2]], np.int32)
    prompted = read_questions(decoder, prefix, questions, lengths, num_new=4)
    loop = make_decode(max_new_tokens=4, stop_ids=(5,), temperature=0.7)
    return loop(decoder, prefix, prompted, keys).tokens


CASES = {
    "forward": (forward, lambda: (TOKENS,), (1, 12, CONFIG.vocab_size)),
    "gate_slope": (gate_slope, lambda: (np.ones(3, np.float32),), (3,)),
    "decode": (
        decode,
        lambda: (TOKENS[:, :6].reshape(1, 2, 3), split(key(0), (1, 2))),
        (1, 2, 4),
    ),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_lowers_for_every_platform(case, dtype):
    function, arguments, shape = CASES[case]
    lower = export.export(jax.jit(function), platforms=PLATFORMS)
    lowered = lower(make_decoder(dtype), *arguments())
    assert lowered.platforms == PLATFORMS
    assert [out.shape for out in lowered.out_avals] == [shape]
