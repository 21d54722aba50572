"""A batch too large for a GPU's memory; what writing needs of it."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from needs_gpu import MARKS
from tiny_space import CONFIG

from metaharness.model.decoder import random_decoder
from metaharness.model.writing import jitted_advance, jitted_start

pytestmark = MARKS
SHORT = """
import json, warnings
from metaharness.model.complete import Completer
from metaharness.model.load import load_model
from metaharness.model.request import Request
model = load_model("smollm2-135m", dtype="bfloat16")
def ids(text):
    return tuple(model.tokenizer.encode(text))
requests = [
    Request(ids("Count on.\\n"), ids(f"{n}, {n + 1}, {n + 2},"), 512, stops=("9",))
    for n in range(512)
]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = Completer(model, rows_at_once=512, tokens_at_once=1_000_000)(requests)
print(json.dumps([[str(one.message) for one in caught], [one.text for one in found]]))
"""


def test_a_batch_too_large_for_the_memory_is_halved():
    """In a process of its own that may take 2.5 GB: the cache alone wants 6."""
    limit = jax.devices()[0].memory_stats()["bytes_limit"]
    share = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"))
    allowed = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{2.5e9 / (limit / share):.4f}",
    }
    ended = subprocess.run(
        [sys.executable, "-c", SHORT],
        env={**os.environ, **allowed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    warned, texts = json.loads(ended.stdout.splitlines()[-1])
    assert sum("did not fit into the device's memory" in text for text in warned) > 1
    assert len(texts) == 512 and len(set(texts)) > 100


def test_writing_copies_no_cache():
    """A cache in another order than its products want was copied whole, twice."""
    config = dataclasses.replace(
        CONFIG,
        hidden_size=256,
        intermediate_size=512,
        num_layers=8,
        num_heads=14,
        head_dim=64,
        max_positions=2048,
    )
    decoder = random_decoder(jax.random.key(0), config, jnp.bfloat16)
    groups, rows, width, room = 4, 64, 128, 384
    asked = (
        jnp.ones((groups, 64), jnp.int32),
        jnp.full((groups,), 64),
        jnp.ones((groups, rows, width), jnp.int32),
        jnp.full((groups, rows), width),
    )
    start = jitted_start(room, "xla")
    prefix, prompted, decoding = jax.eval_shape(start, decoder, *asked)
    keys = jax.eval_shape(jax.vmap(jax.vmap(jax.random.key)), asked[3])
    heat = jax.ShapeDtypeStruct((groups, rows), jnp.float32)
    until = jax.ShapeDtypeStruct((), jnp.int32)
    advance = jitted_advance((0,), True)
    lowered = advance.lower(decoder, prefix, prompted, decoding, keys, heat, until)
    memory = lowered.compile().memory_analysis()
    cache = sum(x.size * x.dtype.itemsize for x in decoding.cache)
    assert memory.temp_size_in_bytes < cache / 2
