"""A small network of choices, as a pytree and two plain functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Network(NamedTuple):
    """A scalar function of features, of any framework.

    Attributes:
      init: (key, num_features) -> params, a pytree of float arrays.
      apply: (params, features float `[..., feature]`) -> float `[...]`.
    """

    init: Callable[[jax.Array, int], Any]
    apply: Callable[[Any, jax.Array], jax.Array]


def linear_and_tanh(hidden: int = 32) -> Network:
    """``x . a + v . tanh(W x + b)``: 0 everywhere before it is trained.

    The linear part is what a linear proxy would fit; the hidden units add interactions.
    a and v start at 0, so that an untrained network adds no noise.

    Args:
      hidden: number of tanh units, at least 1.
    """

    def init(key: jax.Array, num_features: int) -> dict[str, jax.Array]:
        weight_key, bias_key = jax.random.split(key)
        return {
            "linear": jnp.zeros((num_features,)),
            "weight": jax.random.normal(weight_key, (num_features, hidden)),
            "bias": jax.random.normal(bias_key, (hidden,)),
            "out": jnp.zeros((hidden,)),
        }

    def apply(params: dict[str, jax.Array], features: jax.Array) -> jax.Array:
        units = jnp.tanh(features @ params["weight"] + params["bias"])
        return features @ params["linear"] + units @ params["out"]

    return Network(init, apply)
