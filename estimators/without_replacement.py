"""Distinct outcomes of a ranking drawn without replacement, and ratios of set laws.

A categorical is a ranking of one. Drawing without replacement means: each next outcome
by its probability among those not yet drawn.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from estimators.family import Family
from estimators.masking import EXCLUDED

ENUMERATED = 1000
"""Up to this many outcomes are perturbed one by one; above, by beam search."""


def draw_distinct(
    key: jax.Array, family: Family, logits: jax.Array, mask: jax.Array, samples: int
) -> jax.Array:
    """Distinct outcomes without replacement, in the order drawn: int32 `[samples, k]`.

    The largest of log-probability + Gumbel noise over all outcomes (Vieira 2014; Kool,
    van Hoof & Welling 2019). Where fewer outcomes than samples are allowed, the surplus
    rows hold excluded or repeated ones.

    Args:
      key: typed key.
      family: categorical or ranking.
      logits: float `[pool]`.
      mask: bool `[pool]`, True means allowed.
      samples: at most the number of outcomes.
    """
    if family.num_outcomes > ENUMERATED and family.kind == "ranking":
        return beam_search(key, family, logits, mask, samples)
    table = jnp.asarray(family.enumerate())
    log_prob = family.distribution(logits, mask).log_prob(table)
    noise = jax.random.gumbel(key, log_prob.shape, log_prob.dtype)
    return table[jax.lax.top_k(log_prob + noise, samples)[1]]


def beam_search(
    key: jax.Array, family: Family, logits: jax.Array, mask: jax.Array, samples: int
) -> jax.Array:
    """``draw_distinct`` place by place: stochastic beam search, O(samples pool k).

    Kool, van Hoof & Welling 2019. A prefix carries the largest perturbed
    log-probability of its completions; the largest of its children's is its own.
    """
    n, k = family.n, family.k
    logits = jnp.where(mask, logits, EXCLUDED)
    dead = jnp.full((samples,), EXCLUDED, logits.dtype)
    log_prob, best = dead.at[0].set(0.0), dead.at[0].set(0.0)
    taken = jnp.zeros((samples, n), bool)
    rows = jnp.zeros((samples, k), jnp.int32)
    for place in range(k):
        own_key = jax.random.fold_in(key, place)
        left = jnp.where(taken, EXCLUDED, logits)
        child = log_prob[:, None] + jax.nn.log_softmax(left)
        free = child + jax.random.gumbel(own_key, child.shape, child.dtype)
        top = jnp.max(free, axis=1, keepdims=True)
        gap = best[:, None] - free + _log1mexp(free - top)
        held = best[:, None] - jnp.maximum(gap, 0.0) - jnp.log1p(jnp.exp(-jnp.abs(gap)))
        best, index = jax.lax.top_k(held.reshape(-1), samples)
        parent, candidate = index // n, (index % n).astype(jnp.int32)
        log_prob = child.reshape(-1)[index]
        taken = taken[parent] | jax.nn.one_hot(candidate, n, dtype=bool)
        rows = rows[parent].at[:, place].set(candidate)
    return rows


def log_masses(
    outcomes: jax.Array, logits: jax.Array, mask: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities of distinct outcomes, and of all others together.

    The latter is summed, not one minus the rest: over every prefix of a drawn row, its
    probability times that of the next candidates that no drawn row takes.

    Args:
      outcomes: int32 `[rows, k]`.
      logits: float `[pool]`.
      mask: bool `[pool]`, True means allowed.

    Returns:
      `[rows]`, at or below ``EXCLUDED`` in rows that hold an excluded candidate or
      repeat an earlier row; and a scalar, about ``EXCLUDED`` when nothing is left.
    """
    rows, k = outcomes.shape
    hot = jax.nn.one_hot(outcomes, logits.shape[0], dtype=jnp.int32)
    taken = jnp.cumsum(hot, axis=1) - hot  # before this place
    left = jnp.where(mask & (taken == 0), logits, EXCLUDED)
    step = jax.nn.log_softmax(left)  # [rows, k, pool]
    placed = jnp.sum(jnp.where(hot == 1, step, 0.0), axis=-1)
    prefix = jnp.cumsum(placed, axis=1) - placed
    equal = jnp.cumprod(outcomes[:, None] == outcomes[None], axis=-1)  # through place
    shared = jnp.concatenate(
        [jnp.ones((rows, rows, 1), equal.dtype), equal[..., :-1]], axis=-1
    )  # up to before the place
    earlier = np.tri(rows, k=-1, dtype=bool)[..., None]
    first = ~jnp.any((shared == 1) & earlier, axis=1)  # of the rows with this prefix
    covered = jnp.einsum("stj,tjp->sjp", shared, hot) > 0
    open_ = jnp.where(covered | (left <= 0.5 * EXCLUDED), EXCLUDED, step)
    outside = jnp.where(first, prefix + jax.nn.logsumexp(open_, axis=-1), EXCLUDED)
    again = jnp.any((equal[..., -1] == 1) & earlier[..., 0], axis=1)
    log_prob = jnp.where(again, EXCLUDED, jnp.sum(placed, axis=1))
    return log_prob, jax.nn.logsumexp(outside)


def log_completions(log_prob: jax.Array, log_outside: jax.Array) -> jax.Array:
    """Log-probability, given that a part A is drawn, that the rest of the set is next.

        V(A) = sum over s not in A of p_s / (1 - p(A)) V(A + s),   V(whole set) = 1

    so the law of the unordered set is V({}), and given that s came first, V({s}). All
    terms are positive: nothing cancels, where inclusion and exclusion would.

    Args:
      log_prob: `[rows]`, at most half ``EXCLUDED`` in rows that do not count.
      log_outside: scalar, log-probability of the outcomes outside the set.

    Returns:
      `[2**rows]`; the bits of the index say which rows A holds.
    """
    rows = log_prob.shape[0]
    counts = log_prob > 0.5 * EXCLUDED
    bits = np.arange(2**rows)[:, None] >> np.arange(rows) & 1
    remaining = jnp.where((bits == 0) & counts, log_prob, EXCLUDED)
    mass = jnp.logaddexp(jax.nn.logsumexp(remaining, axis=1), log_outside)
    unfinished = jnp.any((bits == 0) & counts, axis=1)
    value = jnp.zeros((2**rows,), log_prob.dtype)
    for layer, grown in _layers(rows):
        own = jax.nn.logsumexp(remaining[layer] + value[grown], axis=1) - mass[layer]
        value = value.at[layer].set(jnp.where(unfinished[layer], own, 0.0))
    return value


@functools.lru_cache(maxsize=16)
def _layers(rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sets of rows - 1, .., 0 members, each with its sets of one member more."""
    index = np.arange(2**rows, dtype=np.int32)
    size = np.array([int(i).bit_count() for i in index])
    grown = index[:, None] | (1 << np.arange(rows, dtype=np.int32))
    return [(index[size == m], grown[size == m]) for m in range(rows - 1, -1, -1)]


def _log1mexp(x: jax.Array) -> jax.Array:
    """Log(1 - exp(x)) for x <= 0, each branch where it is precise (Maechler 2012)."""
    small = x > -np.log(2.0)
    near = jnp.log(-jnp.expm1(jnp.where(small, x, -1.0)))
    return jnp.where(small, near, jnp.log1p(-jnp.exp(jnp.where(small, -1.0, x))))
