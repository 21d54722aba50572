"""Gumbel noise of a one-of-N choice, and the same noise given what was chosen.

``x = log p + G`` with G standard Gumbel has its largest entry at a draw of p (Gumbel
1954). Given the choice d, with E exponential of rate 1 (Maddison & Tarlow 2017; Tucker
et al. 2017, appendix B),

    x_d = -log E_d,    x_i = -log(E_i / p_i + E_d)   for i != d

Noise is passed as G = -log E: JAX draws it finite, while its exponentials can be 0.
"""

import jax
import jax.numpy as jnp


def perturbed_given(
    log_prob: jax.Array, index: jax.Array, gumbel: jax.Array
) -> jax.Array:
    """Perturbed log-probabilities whose largest entry is at ``index``.

    Differentiable in ``log_prob`` at a fixed choice: the conditional
    reparameterisation.

    Args:
      log_prob: float `[..., pool]`, normalised; excluded ones about -1e30.
      index: int32 `[...]`, the choice.
      gumbel: float `[..., pool]`, standard Gumbel noise.

    Returns:
      `[..., pool]`, broadcast.
    """
    shape = jnp.broadcast_shapes(log_prob.shape, gumbel.shape)
    gumbel = jnp.broadcast_to(gumbel, shape)
    largest = jnp.take_along_axis(gumbel, index[..., None], axis=-1)
    is_chosen = jnp.arange(shape[-1]) == index[..., None]
    others = -jnp.logaddexp(-gumbel - log_prob, -largest)
    return jnp.where(is_chosen, largest, others)
