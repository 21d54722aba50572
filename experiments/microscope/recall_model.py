"""A small causal transformer that looks values up in its prompt, trained from nothing.

3 layers, width 64, 4 heads, rotary positions. A prompt is a start token, up to 5
exemplars "key value sep", and a query key, whose value is to be predicted. 30 % of the
queries have no exemplar; their value is uniform over 12, so the loss can fall to
0.3 log 12 = 0.745 nats.

Queries of one prompt are read side by side: each sees the exemplars and itself.
"""

import io
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from metaharness.runlog.progress import Progress

LAYERS, WIDTH, HEADS = 3, 64, 4
NUM_KEYS = 12
START, SEPARATOR = 2 * NUM_KEYS, 2 * NUM_KEYS + 1
VOCABULARY = 2 * NUM_KEYS + 2
"""Tokens: keys, then values, then the start and the separator."""
MOST_EXEMPLARS, UNANSWERABLE = 5, 0.3
STEPS, BATCH, QUERIES, LEARNING_RATE = 2400, 48, 4, 2e-3
_HEAD = WIDTH // HEADS

Weights = dict[str, Any]


class Cache(NamedTuple):
    """Keys and values of encoded tokens, float32 `[layer, token, head, channel]`."""

    keys: jax.Array
    values: jax.Array


def init_weights(key: jax.Array) -> Weights:
    """Normal weights of standard deviation 1 / sqrt(inputs)."""
    shapes = {
        "attention": (WIDTH, 3 * WIDTH),
        "out": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    keys = iter(jax.random.split(key, 2 + LAYERS * len(shapes)))

    def normal(shape: tuple[int, ...], size: float) -> jax.Array:
        return size * jax.random.normal(next(keys), shape)

    layers = [
        {name: normal(shape, shape[0] ** -0.5) for name, shape in shapes.items()}
        for _ in range(LAYERS)
    ]
    return {
        "embed": normal((VOCABULARY, WIDTH), 1.0),
        "logits": normal((WIDTH, NUM_KEYS), WIDTH**-0.5),
        "layers": layers,
    }


def read(
    weights: Weights,
    tokens: jax.Array,
    positions: jax.Array,
    mask: jax.Array,
    before: Cache | None = None,
    gate: jax.Array | None = None,
) -> tuple[jax.Array, Cache]:
    """Reads tokens, after others that are encoded already.

    Attention is ``sum_s w_s exp(q . k_s) v_s / sum_s w_s exp(q . k_s)``; a token
    outside the mask has no part in it, whatever its weight.

    Args:
      weights: from ``init_weights`` or ``train``.
      tokens: int32 `[token]`.
      positions: int32 `[token]`.
      mask: bool `[token, before + token]`, which tokens each one sees.
      before: of the tokens encoded already, or None.
      gate: float `[before]`, their multiplicative weights, or None for 1.

    Returns:
      Value logits float32 `[token, NUM_KEYS]`, and the cache of these tokens.
    """
    x = weights["embed"][tokens]
    found = []
    for number, layer in enumerate(weights["layers"]):
        mixed = (_normed(x) @ layer["attention"]).reshape(-1, 3, HEADS, _HEAD)
        query, key = (_rotated(mixed[:, i], positions) for i in (0, 1))
        value = mixed[:, 2]
        found.append((key, value))
        if before is not None:
            key = jnp.concatenate([before.keys[number], key])
            value = jnp.concatenate([before.values[number], value])
        score = jnp.einsum("qhc,khc->hqk", query, key) * _HEAD**-0.5
        share = jnp.ones(key.shape[0])
        if gate is not None:
            share = jnp.concatenate([gate, jnp.ones(len(tokens))])
        # the largest score that counts; an excluded one may be larger by far
        counts = mask & (jax.lax.stop_gradient(share) > 0)
        top = jnp.max(jnp.where(counts, score, -1e30), axis=-1, keepdims=True)
        size = jnp.exp(jnp.minimum(score - jax.lax.stop_gradient(top), 60.0))
        size = jnp.where(mask, size, 0.0) * share
        size = size / jnp.sum(size, axis=-1, keepdims=True)
        read_out = jnp.einsum("hqk,khc->qhc", size, value).reshape(-1, WIDTH)
        x = x + read_out @ layer["out"]
        x = x + jax.nn.gelu(_normed(x) @ layer["up"]) @ layer["down"]
    cache = Cache(*(jnp.stack(part) for part in zip(*found, strict=True)))
    return _normed(x) @ weights["logits"], cache


def train(steps: int, seed: int, *, quiet: bool = False) -> tuple[Weights, float]:
    """Weights after so many steps, and the mean loss of the last tenth, in nats."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, LEARNING_RATE, max(steps // 20, 1), steps
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    root = jax.random.key(seed)
    weights = init_weights(jax.random.fold_in(root, 0))
    every = max(steps // 10, 1)

    def loss_of(weights: Weights, key: jax.Array) -> jax.Array:
        prompts = jax.vmap(_prompt)(jax.random.split(key, BATCH))
        tokens, positions, mask, targets = prompts
        logits, _ = jax.vmap(read, (None, 0, 0, 0))(weights, tokens, positions, mask)
        return jnp.mean(
            optax.softmax_cross_entropy_with_integer_labels(
                logits[:, -QUERIES:], targets
            )
        )

    @jax.jit
    def block(weights: Weights, state: Any, numbers: jax.Array) -> Any:
        def step(carry: Any, number: jax.Array) -> Any:
            weights, state = carry
            key = jax.random.fold_in(root, number)
            loss, grad = jax.value_and_grad(loss_of)(weights, key)
            updates, state = optimizer.update(grad, state)
            return (optax.apply_updates(weights, updates), state), loss

        (weights, state), losses = jax.lax.scan(step, (weights, state), numbers)
        return weights, state, losses.mean()

    state = optimizer.init(weights)
    loss = jnp.nan
    with Progress("recall model", total=steps, quiet=quiet) as bar:
        for start in range(0, steps - every + 1, every):
            numbers = jnp.arange(start + 1, start + every + 1)
            weights, state, loss = block(weights, state, numbers)
            bar.update(start + every, {"loss": float(loss)})
    return weights, float(loss)


def save(path: Path, weights: Weights, loss: float) -> None:
    """Writes the weights as ``.npz``, in the order of the tree's leaves."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(weights)]
    buffer = io.BytesIO()
    np.savez(buffer, *leaves, loss=np.float32(loss))
    path.write_bytes(buffer.getvalue())


def load(path: Path) -> tuple[Weights, float]:
    """What ``save`` wrote."""
    with np.load(path) as file:
        leaves = [jnp.asarray(file[f"arr_{i}"]) for i in range(len(file.files) - 1)]
        loss = float(file["loss"])
    structure = jax.tree.structure(jax.eval_shape(init_weights, jax.random.key(0)))
    return jax.tree.unflatten(structure, leaves), loss


def _prompt(key: jax.Array) -> tuple[jax.Array, ...]:
    """Tokens, positions, mask, and the queries' values of one random prompt."""
    count_key, order_key, value_key, query_key, miss_key, other_key = jax.random.split(
        key, 6
    )
    count = jax.random.randint(count_key, (), 1, MOST_EXEMPLARS + 1)
    order = jax.random.permutation(order_key, NUM_KEYS)
    values = jax.random.randint(value_key, (MOST_EXEMPLARS,), 0, NUM_KEYS)
    shots = jnp.stack(
        [
            order[:MOST_EXEMPLARS],
            NUM_KEYS + values,
            jnp.full((MOST_EXEMPLARS,), SEPARATOR),
        ],
        axis=1,
    ).reshape(-1)
    hit = jax.random.randint(query_key, (QUERIES,), 0, count)
    missing = jax.random.uniform(miss_key, (QUERIES,)) < UNANSWERABLE
    other = jax.random.randint(other_key, (QUERIES,), MOST_EXEMPLARS, NUM_KEYS)
    asked = jnp.where(missing, order[other], order[hit])
    # a value of its own for every query without an exemplar: uniform
    free = jax.random.randint(jax.random.fold_in(other_key, 1), (QUERIES,), 0, NUM_KEYS)
    targets = jnp.where(missing, free, values[hit])
    tokens = jnp.concatenate([jnp.array([START]), shots, asked])
    length = 1 + 3 * count
    context = 1 + 3 * MOST_EXEMPLARS
    place = jnp.arange(context)
    positions = jnp.concatenate([place, jnp.full((QUERIES,), length)])
    causal = jnp.tril(jnp.ones((context, context), bool))
    mask = jnp.block(
        [
            [causal, jnp.zeros((context, QUERIES), bool)],
            [
                jnp.broadcast_to(place < length, (QUERIES, context)),
                jnp.eye(QUERIES, dtype=bool),
            ],
        ]
    )
    return tokens, positions, mask, targets


def _normed(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def _rotated(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary position; x `[token, head, channel]`."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * (100.0 ** (-jnp.arange(half) / half))
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    one, two = x[..., :half], x[..., half:]
    return jnp.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)
