"""What rounding leaves where losses are equal, kept out of the logits.

An optimiser that divides a gradient by its size (``optimizer.scale_by_slot_adam``)
takes whole steps of it otherwise.
"""

import jax
import jax.numpy as jnp

_ROUNDING = 1e-6  # relative: 8 units in the last place of float32


def differences(losses: jax.Array, coef: jax.Array) -> jax.Array:
    """Losses less that of each task's likeliest row; 0 where within rounding of it.

    What rows have in common changes no gradient, but the rounding of its mean does.

    losses, coef: float32 ``[task, row]``; rows of coefficient 0 may hold anything.
    """
    counts = coef > 0
    losses = jnp.where(counts, losses, 0.0)
    likeliest = jnp.argmax(coef, axis=-1, keepdims=True)
    apart = losses - jnp.take_along_axis(losses, likeliest, axis=-1)
    largest = jnp.abs(losses).max(axis=-1, keepdims=True)
    equal = jnp.abs(apart) <= _ROUNDING * largest  # False where one is not a number
    return jnp.where(counts & ~equal, apart, 0.0)


def above_rounding(grad: jax.Array, apart: jax.Array, coef: jax.Array) -> jax.Array:
    """A slot's gradient; 0 in tasks where it is no more than what its terms leave when
    they cancel, as where losses differ by another slot's choice alone.

    grad: float32 ``[task, pool]``; apart: of ``differences``; coef: ``[task, row]``.
    """
    terms = (coef * jnp.abs(apart)).sum(axis=-1, keepdims=True)
    largest = jnp.abs(grad).max(axis=-1, keepdims=True)
    return jnp.where(largest <= _ROUNDING * terms, 0.0, grad)
