"""Elementary symmetric polynomials of exp(logits) in log space, O(pool * k).

    e_j(w_1..w_i) = e_j(w_1..w_{i-1}) + w_i e_{j-1}(w_1..w_{i-1}),   w = exp(logits)

What is kept is not log e_j, whose rounding errors grow with its size and with the
length of the pool, but its ratio r to a value that is easy to know:

    e_j(w_1..w_i) = s_i^j / j! * c_j * r_ij
    r_ij = (s_{i-1} / s_i)^j r_{i-1,j}
           + j (w_i / s_i) (s_{i-1} / s_i)^{j-1} (c_{j-1} / c_j) r_{i-1,j-1}

s_i is the sum of min(w, cap) over the first i, the cap being the k-th largest weight;
c_j is the product over the j largest weights of w / cap. Over the whole pool log r is
near 0 whether many small weights share the mass or a few large ones hold it. Any s and
c > 0 give the same e_j: the errors of s cancel, and both are constants to derivatives.

Impossible entries start at ``EXCLUDED``, not -inf: logaddexp(-inf, -inf) has a nan
gradient.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimators.masking import EXCLUDED


class _Pool(NamedTuple):
    """A pool, candidates first, in units of the cap.

    Attributes: logits, `[pool, ...]`; lead, log of c_j / c_{j-1} for j = 1..k in
    falling order to 0, constants `[..., k]`; log_cap, constants `[...]`.
    """

    logits: jax.Array
    lead: jax.Array
    log_cap: jax.Array


class _Table(NamedTuple):
    """Logs over prefixes of the pool.

    Attributes: log_sum, of s, `[pool + 1, ...]`; log_ratio, of r, the same with a last
    axis `[k + 1]`.
    """

    log_sum: jax.Array
    log_ratio: jax.Array


def log_total(logits: jax.Array, k: int) -> jax.Array:
    """Log e_k of the pool.

    Args:
      logits: float `[..., pool]`, excluded ones at ``EXCLUDED``.
      k: number taken, from 1 to the number of allowed candidates.

    Returns:
      `[...]`.
    """
    pool = _pool(logits, k)
    return _log_total(pool, _table(pool, k), k)


def log_marginals(logits: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Log e_k, and log of ``w_i e_{k-1}(without i) / e_k`` for each candidate.

    Prefix and suffix tables are merged. Dividing (1 + w_i x) out of the whole would
    lose every digit when one weight dominates.

    Args:
      logits: float `[..., pool]`, excluded ones at ``EXCLUDED``.
      k: number taken, from 1 to the number of allowed candidates.

    Returns:
      `[...]` and `[..., pool]`, the latter at most 0.
    """
    pool = _pool(logits, k)
    prefix = _table(pool, k)
    suffix = _table(pool._replace(logits=pool.logits[::-1]), k)
    whole = prefix.log_sum[-1]
    degree = np.arange(k)  # taken before the candidate; k - 1 - degree after it
    ways = np.array([math.log(math.comb(k - 1, j)) for j in degree], logits.dtype)
    # sums relative to the whole: k of them are added up
    before, after = (
        degree * (table.log_sum[:-1] - whole)[..., None] + table.log_ratio[:-1, ..., :k]
        for table in (prefix, suffix)
    )
    split = ways + _lead_of_split(pool.lead)
    without = jax.nn.logsumexp(before + after[::-1, ..., ::-1] + split, axis=-1)
    found = math.log(k) + (pool.logits - whole) + without - prefix.log_ratio[-1, ..., k]
    found = jnp.moveaxis(jnp.minimum(found, 0.0), 0, -1)
    return _log_total(pool, prefix, k), found


def log_take(logits: jax.Array, k: int) -> jax.Array:
    """Conditional log-probabilities of the walk that draws a subset.

    The walk visits the pool from its end. With j still to take, candidate i is taken
    with probability ``w_i e_{j-1}(before i) / e_j(up to i)``: exactly 1 if the rest of
    the pool holds too few allowed candidates, exactly 0 if i is excluded.

    Args:
      logits: float `[..., pool]`, excluded ones at ``EXCLUDED``.
      k: number taken, from 1 to the number of allowed candidates.

    Returns:
      float `[pool, ..., k + 1]`: of candidate i with j still to take, at most 0;
      meaningless where fewer than j are allowed among the first i + 1.
    """
    pool = _pool(logits, k)
    log_sum, log_ratio = _table(pool, k)
    taken = _taken(pool.logits, pool.lead, log_sum[:-1], log_sum[1:])
    found = log_ratio[:-1, ..., :-1] + taken - log_ratio[1:, ..., 1:]
    allowed = pool.logits > 0.5 * EXCLUDED
    rest = (jnp.cumsum(allowed, axis=0) - allowed)[..., None]
    found = jnp.where(rest < np.arange(1, k + 1), 0.0, jnp.minimum(found, 0.0))
    found = jnp.where(allowed[..., None], found, EXCLUDED)
    never = jnp.full_like(found[..., :1], EXCLUDED)
    return jnp.concatenate([never, found], axis=-1)


def turns_at_once(pool: int) -> int:
    """Candidates of a walk over the pool that one turn of its loop takes.

    On an accelerator a turn costs more than its arithmetic: 8 at once take 2.6 times
    less time at a pool of 64. They take twice as long to compile, so small pools go one
    by one.
    """
    return 8 if pool >= 32 else 1


def _pool(logits: jax.Array, k: int) -> _Pool:
    top = jax.lax.top_k(jax.lax.stop_gradient(logits), k)[0]
    cap = top[..., -1:]
    return _Pool(jnp.moveaxis(logits - cap, -1, 0), top - cap, cap[..., 0])


def _lead_of_split(lead: jax.Array) -> jax.Array:
    """Log of c_a c_{k-1-a} / c_k for a = 0..k-1, `[..., k]`, in differences."""
    k = lead.shape[-1]
    a, j = np.mgrid[:k, :k]
    less = lead[..., None, :] - lead[..., np.minimum(a + j, k - 1)]
    return jnp.sum(jnp.where(j < k - 1 - a, less, 0.0), axis=-1)


def _log_total(pool: _Pool, table: _Table, k: int) -> jax.Array:
    log_c = jnp.sum(pool.lead, axis=-1)
    log_sum = pool.log_cap + table.log_sum[-1]
    return log_c + k * log_sum - math.lgamma(k + 1) + table.log_ratio[-1, ..., k]


def _table(pool: _Pool, k: int) -> _Table:
    row = jnp.full_like(pool.lead, EXCLUDED, shape=(*pool.log_cap.shape, k + 1))
    first = _Table(row[..., 0], row.at[..., 0].set(0.0))
    # the lead is carried: a closure would be a new function, traced anew at each call
    start, unroll = (pool.lead, first), turns_at_once(len(pool.logits))
    _, rest = jax.lax.scan(_add_candidate, start, pool.logits, unroll=unroll)
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)


def _taken(
    logit: jax.Array, lead: jax.Array, before: jax.Array, upto: jax.Array
) -> jax.Array:
    """Log of the factor of r_{i-1,j-1} for j = 1..k, `[..., k]`."""
    degree = np.arange(1, lead.shape[-1] + 1)
    share = np.log(degree).astype(lead.dtype) + (logit[..., None] - lead)
    return share - upto[..., None] + (degree - 1) * (before - upto)[..., None]


def _add_candidate(
    carry: tuple[jax.Array, _Table], logit: jax.Array
) -> tuple[tuple[jax.Array, _Table], _Table]:
    lead, (log_sum, row) = carry
    capped = jnp.minimum(jax.lax.stop_gradient(logit), 0.0)
    total = jnp.logaddexp(log_sum, capped)
    degree = np.arange(1, lead.shape[-1] + 1)
    passed = row[..., 1:] + degree * (log_sum - total)[..., None]
    taken = row[..., :-1] + _taken(logit, lead, log_sum, total)
    grown = jnp.logaddexp(passed, taken)
    table = _Table(total, jnp.concatenate([row[..., :1], grown], axis=-1))
    return (lead, table), table
