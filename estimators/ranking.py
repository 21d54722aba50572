"""k of N in order: the Plackett-Luce law."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np

from estimators.masking import EXCLUDED, check_comparable, check_outcomes, masked_logits
from estimators.outcomes import permutations


class Ranking(distrax.Distribution):
    """Ordered k of N, ``p(s) = prod_j exp(logits_{s_j}) / sum over the not yet taken``.

    Plackett 1975, Luce 1959. Sampled as the k largest of logits + Gumbel noise
    (Yellott 1977; Kool, van Hoof & Welling 2019).

    Args:
      logits: real `[..., pool]`; computed in at least float32.
      k: how many are taken.
      mask: bool `[..., pool]`, True means allowed; None allows all.

    Raises:
      ValueError: shapes disagree, or k is above the number of allowed candidates.
    """

    def __init__(self, logits: jax.Array, k: int, mask: jax.Array | None = None):
        super().__init__()
        self._logits, self._mask = masked_logits(logits, mask, take=k, name="Ranking")
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
        noise = jax.random.gumbel(key, (n, *self._logits.shape), self._logits.dtype)
        _, index = jax.lax.top_k(self._logits + noise, self._k)
        return index.astype(jnp.int32)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log-probability `[...]` of int `[..., k]`, first place first.

        About -1e30 where a candidate is excluded or taken twice. Each place normalises
        over the candidates that are left; running sums would cancel when one holds the
        mass.
        """
        check_outcomes(value, self._k, "Ranking")
        hot = jax.nn.one_hot(value, self._logits.shape[-1], dtype=jnp.int32)
        taken = jnp.cumsum(hot, axis=-2) - hot  # [..., k, pool], before this place
        left = self._mask[..., None, :] & (taken == 0)
        logp = jnp.where(left, self._logits[..., None, :], EXCLUDED)
        logp = jax.nn.log_softmax(logp)
        placed = jnp.take_along_axis(logp, value[..., None], axis=-1)[..., 0]
        return jnp.sum(placed, axis=-1)

    def entropy(self) -> jax.Array:
        """Shannon entropy in nats, `[...]`, by enumeration.

        No closed form is known. For a pool too large to enumerate, estimate it as the
        mean of ``-log_prob`` over samples (gradient: the score of the same quantity).

        Raises:
          ValueError: more outcomes than ``outcomes.LIMIT``.
        """
        logp = self._log_prob_of_all()
        prob = jnp.exp(logp)
        return -jnp.sum(prob * jnp.where(prob > 0, logp, 0.0), axis=0)

    def kl_divergence(self, other_dist: "Ranking") -> jax.Array:
        """``sum of p log(p / q)`` in nats, `[...]`, by enumeration.

        An outcome that only this law allows adds its probability times about 1e30: a
        large finite number in place of infinity.

        Raises:
          ValueError: another family, pool size or number taken, or more outcomes than
            ``outcomes.LIMIT``.
        """
        check_comparable(self, other_dist)
        logp, logq = (
            jnp.moveaxis(law._log_prob_of_all(), 0, -1) for law in (self, other_dist)
        )
        prob = jnp.exp(logp)
        return jnp.sum(prob * jnp.where(prob > 0, logp - logq, 0.0), axis=-1)

    def mode(self) -> jax.Array:
        """The likeliest ranking, int32 `[..., k]`: the k largest, largest first.

        Both claims follow by exchange: a larger weight placed earlier shrinks every
        later denominator. Low ids come first among equals.
        """
        _, index = jax.lax.top_k(self._logits, self._k)
        return index.astype(jnp.int32)

    def marginals(self) -> jax.Array:
        """P(place j holds i), `[..., k, pool]`, each place sums to 1; by enumeration.

        Raises:
          ValueError: more outcomes than ``outcomes.LIMIT`` (k = 1 has a closed form).
        """
        if self._k == 1:
            return jax.nn.softmax(self._logits)[..., None, :]
        hot = jax.nn.one_hot(self.enumerate(), self._logits.shape[-1])
        return jnp.einsum("r...,rjp->...jp", jnp.exp(self._log_prob_of_all()), hot)

    def enumerate(self) -> np.ndarray:
        """Every ranking of the pool, excluded candidates too: int32 `[n!/(n-k)!, k]`.

        Raises:
          ValueError: more outcomes than ``outcomes.LIMIT``.
        """
        return permutations(self._logits.shape[-1], self._k)

    def _log_prob_of_all(self) -> jax.Array:
        table = self.enumerate()
        batch = self.batch_shape
        rows = table.reshape(len(table), *(1,) * len(batch), self._k)
        return self.log_prob(jnp.broadcast_to(rows, (len(table), *batch, self._k)))
