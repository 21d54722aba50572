"""Elementary symmetric polynomials of exp(logits) in log space, O(pool * k).

    e_j(w_1..w_i) = e_j(w_1..w_{i-1}) + w_i e_{j-1}(w_1..w_{i-1}),   w = exp(logits)

Impossible entries start at ``EXCLUDED``, not -inf: logaddexp(-inf, -inf) has a nan
gradient.
"""

import jax
import jax.numpy as jnp

from estimators.masking import EXCLUDED


def log_table(logits: jax.Array, k: int) -> jax.Array:
    """Prefix table: ``out[i, ..., j]`` = log e_j of the first i candidates.

    Args:
      logits: float `[..., pool]`, excluded ones at ``EXCLUDED``.
      k: largest degree.

    Returns:
      float `[pool + 1, ..., k + 1]`.
    """
    batch = logits.shape[:-1]
    first = jnp.full((*batch, k + 1), EXCLUDED, logits.dtype).at[..., 0].set(0.0)
    _, rows = jax.lax.scan(_add_candidate, first, jnp.moveaxis(logits, -1, 0))
    return jnp.concatenate([first[None], rows], axis=0)


def log_without_each(logits: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Log e_k of the pool, and log e_{k-1} of the pool without each candidate.

    Prefix and suffix tables are merged. Dividing (1 + w_i x) out of the whole would
    lose every digit when one weight dominates.

    Args:
      logits: float `[..., pool]`.
      k: number taken, at least 1.

    Returns:
      `[...]` and `[..., pool]`.
    """
    prefix = log_table(logits, k)
    suffix = log_table(logits[..., ::-1], k)[::-1]
    before = prefix[:-1, ..., :k]  # degrees 0..k-1 of candidates 0..i-1
    after = suffix[1:, ..., :k][..., ::-1]  # degrees k-1..0 of candidates i+1..
    without = jax.nn.logsumexp(before + after, axis=-1)
    return prefix[-1, ..., k], jnp.moveaxis(without, 0, -1)


# At module level: a new function per call would be traced and compiled anew each time.
def _add_candidate(row: jax.Array, logit: jax.Array) -> tuple[jax.Array, jax.Array]:
    grown = jnp.logaddexp(row[..., 1:], row[..., :-1] + logit[..., None])
    row = jnp.concatenate([row[..., :1], grown], axis=-1)
    return row, row
