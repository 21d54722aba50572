"""The recall pool: which exemplar to show a small model that looks values up.

8 exemplars over 12 keys, 30 % of them with a wrong value; queries come with frequencies
from a Dirichlet(0.6). The loss is the expected cross-entropy of the right value. Every
exemplar is encoded by itself after the start token; a query attends to it with
multiplicative weight w_i on the exponentiated scores: at a one-hot w the model with
that exemplar alone, and between the vertices the gate of a relaxed search.
"""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimators import Family
from experiments.microscope.problems import Problem
from experiments.microscope.recall_model import (
    NUM_KEYS,
    SEPARATOR,
    START,
    STEPS,
    Cache,
    Weights,
    load,
    read,
    save,
    train,
)

POOL, WRONG, CONCENTRATION = 8, 0.3, 0.6
_SHOT = 3  # tokens of an exemplar


class Pool(NamedTuple):
    """One pool, encoded.

    Attributes:
      cache: of the start token and the exemplars' tokens.
      values: int32 `[key]`, the right value of each key.
      frequency: float32 `[key]`, of the queries.
    """

    cache: Cache
    values: jax.Array
    frequency: jax.Array


def problem(
    instances: int, folder: Path, seed: int, *, steps: int = STEPS, quiet: bool = False
) -> Problem:
    """The problem of 1 of 8; trains the model unless the folder holds it.

    Args:
      instances: pools.
      folder: where the weights are kept.
      seed: of the model and of the pools.
      steps: of training.
    """
    weights, loss = _trained(folder, seed, steps, quiet)
    rng = np.random.default_rng(seed)
    pools = [_pool(weights, rng) for _ in range(instances)]
    stacked = jax.tree.map(lambda *parts: np.stack(parts), *pools)
    soft = gated_loss(weights)
    losses = jax.jit(jax.vmap(soft, (0, None)))(stacked, jnp.eye(POOL))
    return Problem(
        "recall",
        f"1 of {POOL} exemplars for a small attention model, through the gate on its "
        f"keys (trained {steps} steps to {loss:.3f} nats; the least expected one is "
        f"{0.3 * np.log(NUM_KEYS):.3f}).",
        Family("categorical", POOL),
        np.asarray(losses),
        rng.normal(size=(instances, POOL)).astype(np.float32),
        soft,
        stacked,
        costly=True,
    )


def gated_loss(weights: Weights):
    """(pool, weights of its exemplars `[..., pool]`) -> expected nats `[...]`."""

    def one(pool: Pool, share: jax.Array) -> jax.Array:
        gate = jnp.concatenate([jnp.ones(1), jnp.repeat(share, _SHOT)])
        mask = jnp.concatenate(
            [jnp.ones((NUM_KEYS, len(gate)), bool), jnp.eye(NUM_KEYS, dtype=bool)], 1
        )
        asked = jnp.arange(NUM_KEYS)
        at = jnp.full((NUM_KEYS,), 1 + _SHOT)
        logits, _ = read(weights, asked, at, mask, pool.cache, gate)
        nats = -jax.nn.log_softmax(logits)[asked, pool.values]
        return pool.frequency @ nats

    def loss(pool: Pool, share: jax.Array) -> jax.Array:
        lead = share.shape[:-1]
        flat = share.reshape(-1, share.shape[-1])
        return jax.vmap(one, (None, 0))(pool, flat).reshape(lead)

    return loss


def _trained(folder: Path, seed: int, steps: int, quiet: bool) -> tuple[Weights, float]:
    path = folder / f"recall-{steps}-{seed}.npz"
    if path.exists():
        return load(path)
    weights, loss = train(steps, seed, quiet=quiet)
    save(path, weights, loss)
    return weights, loss


def _pool(weights: Weights, rng: np.random.Generator) -> Pool:
    """A random pool: distinct keys, some with another key's kind of value."""
    values = rng.integers(NUM_KEYS, size=NUM_KEYS)
    keys = rng.permutation(NUM_KEYS)[:POOL]
    wrong = rng.random(POOL) < WRONG
    shift = rng.integers(1, NUM_KEYS, size=POOL)
    shown = np.where(wrong, (values[keys] + shift) % NUM_KEYS, values[keys])
    shots = np.stack([keys, NUM_KEYS + shown, np.full(POOL, SEPARATOR)], axis=1)
    tokens = jnp.asarray(np.concatenate([[START], shots.ravel()]))
    owner = np.concatenate([[0], np.repeat(np.arange(1, POOL + 1), _SHOT)])
    seen = np.tril(owner[:, None] == owner[None]) | (owner[None] == 0)
    position = np.concatenate([[0], np.tile(1 + np.arange(_SHOT), POOL)])
    _, cache = read(weights, tokens, jnp.asarray(position), jnp.asarray(seen))
    frequency = rng.dirichlet(np.full(NUM_KEYS, CONCENTRATION))
    return Pool(
        jax.tree.map(np.asarray, cache),
        values.astype(np.int32),
        frequency.astype(np.float32),
    )
