"""Every family as a sequence of one-of-m decisions, each under its own logits.

  log p(outcome) = sum_t log_prob[t, index[t]]

categorical: one decision among the pool.
ranking: k decisions among the pool, what is taken excluded.
subset: one decision per candidate, from the last to the first: pass (0) or take (1),
  given how many are left to take. The walk by which ``Subset`` is sampled.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from estimators.family import Family
from estimators.masking import EXCLUDED, masked_logits
from estimators.symmetric import log_take


class Decisions(NamedTuple):
    """The decisions that made an outcome.

    Attributes:
      log_prob: float `[..., decision, option]`, normalised, differentiable in the
        logits with the history held fixed.
      index: int32 `[..., decision]`, the options taken.
      before: float `[..., decision, feature]`, flat choice vector of the history (a
        k-hot; ranking: one one-hot per place).
    """

    log_prob: jax.Array
    index: jax.Array
    before: jax.Array


def decisions(
    family: Family, logits: jax.Array, mask: jax.Array, outcomes: jax.Array
) -> Decisions:
    """How outcomes int32 `[rows, k]` came about, in any order for a subset.

    Args:
      family: of the slot.
      logits: float `[pool]`.
      mask: bool `[pool]`.
      outcomes: int32 `[rows, k]`.
    """
    if family.kind == "subset":
        return _walk(family, logits, mask, outcomes)
    hot = jax.nn.one_hot(outcomes, family.n, dtype=logits.dtype)  # [rows, k, pool]
    taken = jnp.cumsum(hot, axis=-2) - hot
    left = mask & (taken == 0)
    log_prob = jax.nn.log_softmax(jnp.where(left, logits, EXCLUDED))
    earlier = jnp.tril(jnp.ones((family.k, family.k), logits.dtype), -1)
    before = jnp.einsum("tj,rjp->rtjp", earlier, hot)
    before = before.reshape(*before.shape[:2], -1)
    return Decisions(log_prob, outcomes, before)


def _walk(
    family: Family, logits: jax.Array, mask: jax.Array, outcomes: jax.Array
) -> Decisions:
    logits, _ = masked_logits(logits, mask, take=family.k, name="decisions")
    logits = logits - jax.lax.stop_gradient(jax.nn.logsumexp(logits))
    table = log_take(logits, family.k)  # [pool, k + 1]
    hot = family.weights(outcomes, logits.dtype)  # [rows, pool]
    upto = jnp.cumsum(hot[:, ::-1], axis=-1)[:, ::-1]
    left = (family.k - (upto - hot)).astype(jnp.int32)  # to take from candidates 0..i
    take = table[jnp.arange(family.n), left]
    forced = take > -jnp.finfo(take.dtype).tiny
    open_ = jnp.where(forced, -1.0, take)  # keeps the unused branch's gradient finite
    skip = jnp.where(forced, EXCLUDED, jnp.log(-jnp.expm1(open_)))
    later = jnp.triu(jnp.ones((family.n, family.n), logits.dtype), 1)
    return Decisions(
        jnp.stack([skip, take], axis=-1),
        hot.astype(jnp.int32),
        later * hot[:, None, :],
    )
