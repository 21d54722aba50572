"""k of N, order ignored: the conditional Bernoulli law."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np

from estimators.masking import EXCLUDED, check_comparable, check_outcomes, masked_logits
from estimators.outcomes import combinations
from estimators.symmetric import log_marginals, log_take, log_total, turns_at_once


class Subset(distrax.Distribution):
    """k of N, ``p(S) = exp(sum of logits in S) / e_k(exp(logits))`` over the allowed.

    N independent Bernoulli draws with odds exp(logits), conditioned on exactly k
    successes (Chen, Dempster & Liu 1994); Ahmed et al. 2023 (SIMPLE) use the same law.
    It is *not* the law of the Gumbel top-k of the logits, which is ``Ranking``.

    Args:
      logits: real `[..., pool]`; computed in at least float32.
      k: how many are taken.
      mask: bool `[..., pool]`, True means allowed; None allows all.

    Raises:
      ValueError: shapes disagree, or k is above the number of allowed candidates.
    """

    def __init__(self, logits: jax.Array, k: int, mask: jax.Array | None = None):
        super().__init__()
        self._logits, self._mask = masked_logits(logits, mask, take=k, name="Subset")
        self._k = k

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (self._k,)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self._logits.shape[:-1]

    @property
    def num_candidates(self) -> int:
        """Pool size, excluded candidates included."""
        return self._logits.shape[-1]

    def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
        """Walk the pool from its end, taking each with its exact probability.

        The probabilities are those of ``symmetric.log_take``. Rows are in ascending
        order.
        """
        logp = log_take(self._logits, self._k)  # [pool, ..., k + 1]
        shape = (self._logits.shape[-1], n, *self.batch_shape)
        noise = jax.random.uniform(key, shape, self._logits.dtype)
        start = jnp.full((n, *self.batch_shape), self._k, jnp.int32)
        unroll = turns_at_once(self._logits.shape[-1])
        _, taken = jax.lax.scan(
            _visit, start, (logp, noise), reverse=True, unroll=unroll
        )
        order = jnp.argsort(~jnp.moveaxis(taken, 0, -1), axis=-1, stable=True)
        return order[..., : self._k].astype(jnp.int32)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log-probability `[...]` of int `[..., k]` in any order.

        About -1e30 where a candidate is excluded or taken twice.
        """
        check_outcomes(value, self._k, "Subset")
        log_z = log_total(self._logits, self._k)
        shape = (*value.shape[:-1], self._logits.shape[-1])
        picked = jnp.take_along_axis(
            jnp.broadcast_to(self._logits, shape), value, axis=-1
        )
        ordered = jnp.sort(value, axis=-1)
        twice = jnp.any(ordered[..., 1:] == ordered[..., :-1], axis=-1)
        return jnp.where(twice, EXCLUDED, jnp.sum(picked, axis=-1) - log_z)

    def entropy(self) -> jax.Array:
        """Shannon entropy in nats, `[...]`: log Z - logits . marginals.

        Written as -log p(mode) and terms of one sign, so that no large terms cancel:
        with t the lowest logit of the mode, each of its candidates adds (logit - t)(1 -
        marginal), every other one (t - logit) marginal.
        """
        log_z, log_mu = log_marginals(self._logits, self._k)
        mode = self.mode()
        best = jnp.take_along_axis(self._logits, mode, axis=-1)
        floor = jax.lax.stop_gradient(jnp.min(best, axis=-1, keepdims=True))
        gap = jnp.where(self._mask, self._logits - floor, 0.0)
        chosen = jnp.any(mode[..., None] == np.arange(gap.shape[-1]), axis=-2)
        spread = jnp.where(chosen, -jnp.expm1(log_mu), -jnp.exp(log_mu))
        return log_z - jnp.sum(best, axis=-1) + jnp.sum(gap * spread, axis=-1)

    def kl_divergence(self, other_dist: "Subset") -> jax.Array:
        """Divergence in nats, `[...]`: (logits - logits') . marginals - log Z + log Z'.

        A candidate that only this law allows adds its marginal times about 1e30: a
        large finite number in place of infinity.

        Raises:
          ValueError: another family, pool size or number taken.
        """
        check_comparable(self, other_dist)
        log_z, log_mu = log_marginals(self._logits, self._k)
        other_log_z = log_total(other_dist._logits, self._k)
        gap = jnp.where(self._mask, self._logits - other_dist._logits, 0.0)
        return jnp.sum(jnp.exp(log_mu) * gap, axis=-1) - log_z + other_log_z

    def mode(self) -> jax.Array:
        """The likeliest subset, ascending, int32 `[..., k]`; low ids among equals."""
        _, index = jax.lax.top_k(self._logits, self._k)
        return jnp.sort(index, axis=-1).astype(jnp.int32)

    def marginals(self) -> jax.Array:
        """Inclusion probabilities `[..., pool]`, sum k.

        ``mu_i = exp(logit_i) e_{k-1}(without i) / e_k``; its Jacobian in the logits is
        the covariance of the k-hot vector.
        """
        return jnp.exp(log_marginals(self._logits, self._k)[1])

    def enumerate(self) -> np.ndarray:
        """Every subset of the pool, excluded candidates too: int32 `[C(n, k), k]`.

        Raises:
          ValueError: more outcomes than ``outcomes.LIMIT``.
        """
        return combinations(self._logits.shape[-1], self._k)


# At module level: a new function per call would be traced and compiled anew each time.
def _visit(left: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    """Take or pass one candidate, ``left`` still to take: both `[n, ...]`."""
    logp, noise = row
    logp = jnp.broadcast_to(logp, (*left.shape, logp.shape[-1]))
    logp = jnp.take_along_axis(logp, left[..., None], axis=-1)[..., 0]
    take = noise < jnp.exp(logp)
    return left - take, take
