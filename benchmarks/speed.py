"""Speed side by side with transformers: same weights, same work, same run.

    python -m benchmarks.speed --out benchmarks/results/speed-h200.json
    python -m benchmarks.speed --small            # any machine, tiny shapes

Measures the forward pass, greedy generation after a shared prefix, and the gradient to
a pool of exemplars, which has no peer. Each result stands beside its floor: operations
over the peak rate and bytes over the bandwidth (``--tflops`` and ``--tbytes``, measured
rates of the device). Without PyTorch the peer's columns are left out and said so.
"""

import dataclasses
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from benchmarks.timing import median_seconds
from metaharness.model.attention import Context
from metaharness.model.config import DecoderConfig
from metaharness.model.decoder import Decoder, decoder_logits, random_decoder
from metaharness.model.generate import make_decode, read_questions
from metaharness.model.likelihood import Rows, item_nats
from metaharness.model.load import load_model
from metaharness.model.prefix import encode_pool, encode_prefix, key_weights


@dataclass(frozen=True)
class SpeedConfig:
    """Shapes and rates; the defaults are those of the published table."""

    model: str = "smollm2-135m"
    """name or path; "random" takes random weights of the embedded model's shape"""
    out: Path | None = None
    """where the results go as JSON"""
    small: bool = False
    """tiny shapes and random weights, to try the script anywhere"""
    batch: int = 32
    time: int = 256
    pool: int = 48
    """exemplars of the pool, 93 tokens each on average (4,488 keys with the head)"""
    generate_batch: int = 256
    prefix: int = 512
    question: int = 32
    new: int = 128
    repeats: int = 10
    unroll: int = 1
    """layers laid out per turn of the scan in the forward pass"""
    tflops: float = 780.0
    """measured bfloat16 matrix rate of the device, TFLOP/s"""
    tbytes: float = 4.3
    """measured copy bandwidth of the device, TB/s"""


def main(config: SpeedConfig) -> dict[str, Any]:
    on_gpu = jax.default_backend() == "gpu"
    dtype = jnp.bfloat16 if on_gpu else jnp.float32
    if config.small:
        config = dataclasses.replace(
            config, batch=2, time=16, pool=3, generate_batch=2, prefix=8, question=4,
            new=4, repeats=2,
        )  # fmt: skip
    decoder = _decoder(config, dtype)
    kinds = ("cudnn", "xla") if on_gpu else ("xla",)
    peer, peer_note = _peer(decoder, on_gpu)
    rng = np.random.default_rng(0)
    vocab = decoder.config.vocab_size
    tokens = rng.integers(0, vocab, (config.batch, config.time))
    rows = {
        "forward": _forward(decoder, config, tokens, kinds, peer),
        "generate": _generate(decoder, config, rng, kinds, peer),
        "pool_gradient": _pool_gradient(decoder, config, rng, kinds),
    }
    versions = {"jax": jax.__version__, "python": platform.python_version()}
    result = {
        "config": json.loads(json.dumps(dataclasses.asdict(config), default=str)),
        "device": jax.devices()[0].device_kind,
        "dtype": jnp.dtype(dtype).name,
        "versions": versions | peer_note,
        "results": rows,
    }
    if config.out:
        config.out.parent.mkdir(parents=True, exist_ok=True)
        config.out.write_text(json.dumps(result, indent=2) + "\n")
    for name, row in rows.items():
        print(name, json.dumps(row))
    return result


def _decoder(config: SpeedConfig, dtype: jnp.dtype) -> Decoder:
    if config.small or config.model == "random":
        shape = DecoderConfig(
            architecture="llama",
            vocab_size=256 if config.small else 49152,
            hidden_size=48 if config.small else 576,
            intermediate_size=96 if config.small else 1536,
            num_layers=2 if config.small else 30,
            num_heads=3 if config.small else 9,
            num_kv_heads=1 if config.small else 3,
            head_dim=16 if config.small else 64,
            rope_theta=1e5,
        )
        return random_decoder(jax.random.key(0), shape, dtype)
    return load_model(config.model, dtype=jnp.dtype(dtype).name).decoder


def _peer(decoder: Decoder, on_gpu: bool) -> tuple[Any, dict[str, str]]:
    try:
        import torch
        import transformers

        from benchmarks.transformers_peer import peer_model
    except ImportError as error:
        return None, {"peer": f"left out: {error}"}
    device = "cuda" if on_gpu else "cpu"
    model = peer_model(decoder, "bfloat16" if on_gpu else "float32", device)
    return model, {"torch": torch.__version__, "transformers": transformers.__version__}


def _linear_flops(decoder: Decoder, tokens: int, *, head: bool) -> float:
    """Multiply-adds x 2 of the matrix products of ``tokens``, attention apart."""
    layers = sum(
        array.size for array in decoder.layers.arrays().values() if array.ndim == 3
    )
    return 2.0 * tokens * (layers + (decoder.embedding[...].size if head else 0))


def _attention_flops(decoder: Decoder, queries: int, keys: float) -> float:
    c = decoder.config
    return 4.0 * c.num_layers * c.num_heads * c.head_dim * queries * keys


def _forward(decoder, config, tokens, kinds, peer) -> dict[str, Any]:
    tokens = jnp.asarray(tokens, jnp.int32)
    num = tokens.size
    flops = _linear_flops(decoder, num, head=True)
    flops += _attention_flops(decoder, num, tokens.shape[1] / 2)
    row: dict[str, Any] = {"floor_ms": flops / config.tflops / 1e9}
    last = {}
    for kind in kinds:
        run = jax.jit(
            # Logits in the weights' type, as the peer returns them.
            lambda d, t, kind=kind: decoder_logits(
                d, t, implementation=kind, unroll=config.unroll
            ).astype(d.dtype)
        )
        seconds = median_seconds(
            lambda run=run: run(decoder, tokens),
            jax.block_until_ready,
            repeats=config.repeats,
        )
        row[f"{kind}_ms"] = 1e3 * seconds
        last[kind] = np.asarray(run(decoder, tokens)[:, -1], np.float32)
    row["ours_ms"] = min(row[f"{kind}_ms"] for kind in kinds)
    if peer is not None:
        from benchmarks.transformers_peer import peer_forward

        seconds, logits = peer_forward(peer, np.asarray(tokens), config.repeats)
        row["peer_ms"] = 1e3 * seconds
        row["ratio"] = row["peer_ms"] / row["ours_ms"]
        norm = np.linalg.norm(logits)
        row["relative_difference"] = {
            kind: float(np.linalg.norm(ours - logits) / norm)
            for kind, ours in last.items()
        }
    return row


def _generate(decoder, config, rng, kinds, peer) -> dict[str, Any]:
    vocab = decoder.config.vocab_size
    prefix = rng.integers(0, vocab, (config.prefix,)).astype(np.int32)
    shape = (config.generate_batch, config.question)
    questions = rng.integers(0, vocab, shape).astype(np.int32)
    made = config.generate_batch * config.new
    weights_bytes = decoder.dtype.itemsize * sum(
        x.size for x in [*decoder.layers.arrays().values(), decoder.embedding[...]]
    )
    c = decoder.config
    kv = 2 * c.num_layers * c.num_kv_heads * c.head_dim * decoder.dtype.itemsize
    held = config.prefix + config.generate_batch * (config.question + config.new / 2)
    step = (weights_bytes + kv * held) / config.tbytes / 1e12
    row: dict[str, Any] = {"floor_tokens_per_s": config.generate_batch / step}
    lengths = jnp.full((1, config.generate_batch), config.question, jnp.int32)
    keys = jax.random.split(jax.random.key(0), config.generate_batch)[None]
    decode = make_decode(max_new_tokens=config.new, stop_ids=())
    written = {}
    for kind in kinds:

        def whole(decoder, prefix, questions, keys, kind=kind):
            encoded = encode_prefix(
                decoder,
                prefix[None],
                jnp.asarray([prefix.shape[0]]),
                implementation=kind,
            )
            prompted = read_questions(
                decoder,
                encoded,
                questions[None],
                lengths,
                num_new=config.new,
                implementation="xla",
            )
            return decode(decoder, encoded, prompted, keys)

        run = jax.jit(whole)
        args = (decoder, jnp.asarray(prefix), jnp.asarray(questions), keys)
        seconds = median_seconds(
            lambda run=run, args=args: run(*args),
            jax.block_until_ready,
            repeats=max(config.repeats // 3, 1),
        )
        row[f"{kind}_tokens_per_s"] = made / seconds
        written[kind] = np.asarray(run(*args).tokens[0])
    row["ours_tokens_per_s"] = max(row[f"{kind}_tokens_per_s"] for kind in kinds)
    if peer is not None:
        from benchmarks.transformers_peer import peer_generate

        seconds, tokens = peer_generate(
            peer, prefix, questions, config.new, max(config.repeats // 5, 1)
        )
        row["peer_tokens_per_s"] = made / seconds
        row["ratio"] = row["ours_tokens_per_s"] / row["peer_tokens_per_s"]
        row["first_token_agreement"] = {
            kind: float((ours[:, 0] == tokens[:, 0]).mean())
            for kind, ours in written.items()
        }
    return row


def _pool_gradient(decoder, config, rng, kinds) -> dict[str, Any]:
    vocab = decoder.config.vocab_size
    lengths = rng.integers(60, 127, config.pool) if not config.small else [5, 3, 4]
    lengths = jnp.asarray(lengths, jnp.int32)
    longest = int(lengths.max())
    head = jnp.asarray(rng.integers(0, vocab, (24,)), jnp.int32)
    shots = jnp.asarray(rng.integers(0, vocab, (config.pool, longest)), jnp.int32)
    pool = jax.jit(encode_pool)(decoder, head, jnp.int32(24), shots, lengths)
    real = np.flatnonzero(np.asarray(pool.owner) <= config.pool)
    pool = pool._replace(
        context=Context(*(x[:, :, real] for x in pool.context)), owner=pool.owner[real]
    )
    tokens = jnp.asarray(
        rng.integers(0, vocab, (1, config.batch, config.time)), jnp.int32
    )
    scored = 8
    rows = Rows(
        tokens=tokens,
        positions=jnp.broadcast_to(jnp.arange(config.time), tokens.shape),
        segments=jnp.ones_like(tokens),
        score_at=jnp.broadcast_to(
            config.time - 1 - scored + jnp.arange(scored), (1, config.batch, scored)
        ),
        targets=tokens[..., -scored:],
        owner=jnp.zeros((1, config.batch, scored), jnp.int32),
    )
    flops = _linear_flops(decoder, tokens.size, head=False)
    flops += _attention_flops(decoder, tokens.size, len(real) + config.time / 2)
    # Backward to activations and to the weights of keys: products once more for the
    # linear layers, 2.5 times for attention (recomputed scores, dQ, dK, dV).
    flops += _linear_flops(decoder, tokens.size, head=False)
    flops += 2.5 * _attention_flops(decoder, tokens.size, len(real) + config.time / 2)
    row: dict[str, Any] = {"keys": len(real), "floor_ms": flops / config.tflops / 1e9}
    weights = jnp.full((config.pool,), 4 / config.pool, jnp.float32)
    slopes = {}
    for kind in kinds:

        def loss(w, decoder, pool, rows, kind=kind):
            nats = item_nats(
                decoder, rows, pool.end[None], pool.context, key_weights(pool, w)[None],
                num_items=1, implementation=kind,
            )  # fmt: skip
            return nats.mean()

        run = jax.jit(jax.grad(loss))
        try:
            seconds = median_seconds(
                lambda run=run: run(weights, decoder, pool, rows),
                jax.block_until_ready,
                repeats=max(config.repeats // 2, 1),
            )
        except jax.errors.JaxRuntimeError as error:
            row[f"{kind}_error"] = str(error).splitlines()[0][:200]
            continue
        row[f"{kind}_ms"] = 1e3 * seconds
        slopes[kind] = np.asarray(run(weights, decoder, pool, rows))
        stats = jax.devices()[0].memory_stats() or {}
        row[f"{kind}_peak_gib"] = stats.get("peak_bytes_in_use", 0) / 2**30
    row["ours_ms"] = min(row[f"{kind}_ms"] for kind in slopes)
    if len(slopes) == 2:
        a, b = slopes["xla"], slopes["cudnn"]
        row["cosine_cudnn_xla"] = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    return row


if __name__ == "__main__":
    main(tyro.cli(SpeedConfig, description=__doc__))
