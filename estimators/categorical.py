"""One of N."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np

from estimators.masking import check_comparable, check_outcomes, masked_logits


class Categorical(distrax.Distribution):
    """One of N: ``p_i = exp(logits_i) / sum_j exp(logits_j)`` over the allowed.

    Unlike ``distrax.Categorical`` an outcome is int32 `[1]` (an outcome has one axis in
    every family) and excluded candidates have probability exactly 0 with finite
    gradients.

    Args:
      logits: real `[..., pool]`; computed in at least float32.
      mask: bool `[..., pool]`, True means allowed; None allows all.

    Raises:
      ValueError: shapes disagree, or no candidate is allowed.
    """

    def __init__(self, logits: jax.Array, mask: jax.Array | None = None):
        super().__init__()
        self._logits, self._mask = masked_logits(
            logits, mask, take=1, name="Categorical"
        )

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (1,)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self._logits.shape[:-1]

    @property
    def num_candidates(self) -> int:
        """Pool size, excluded candidates included."""
        return self._logits.shape[-1]

    def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
        shape = (n, *self.batch_shape)
        index = jax.random.categorical(key, self._logits, axis=-1, shape=shape)
        return index[..., None].astype(jnp.int32)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Log-probability `[...]` of int `[..., 1]`; about -1e30 if excluded."""
        check_outcomes(value, 1, "Categorical")
        logp = jax.nn.log_softmax(self._logits)
        logp = jnp.broadcast_to(logp, (*value.shape[:-1], logp.shape[-1]))
        return jnp.take_along_axis(logp, value, axis=-1)[..., 0]

    def entropy(self) -> jax.Array:
        """Shannon entropy in nats, `[...]`."""
        logp = jax.nn.log_softmax(self._logits)
        return -jnp.sum(jnp.exp(logp) * jnp.where(self._mask, logp, 0.0), axis=-1)

    def kl_divergence(self, other_dist: "Categorical") -> jax.Array:
        """``sum of p log(p / q)`` in nats, `[...]`.

        A candidate that only this law allows adds its probability times about 1e30: a
        large finite number in place of infinity.

        Raises:
          ValueError: another family or pool size.
        """
        check_comparable(self, other_dist)
        logp, logq = (jax.nn.log_softmax(law._logits) for law in (self, other_dist))
        gap = jnp.where(self._mask, logp - logq, 0.0)
        return jnp.sum(jnp.exp(logp) * gap, axis=-1)

    def mode(self) -> jax.Array:
        """The likeliest candidate, int32 `[..., 1]`; the lowest id among equals."""
        return jnp.argmax(self._logits, axis=-1, keepdims=True).astype(jnp.int32)

    def marginals(self) -> jax.Array:
        """Probabilities `[..., pool]`, sum 1."""
        return jax.nn.softmax(self._logits)

    def enumerate(self) -> np.ndarray:
        """Every outcome of the pool, excluded ones too: int32 `[pool, 1]`."""
        return np.arange(self._logits.shape[-1], dtype=np.int32)[:, None]
