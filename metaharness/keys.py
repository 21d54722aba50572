"""Random keys of a run: the only place that derives from the root.

Every use of randomness has an address: stage, step, purpose. The same address gives
the same key, whatever else a run does before it, so a resumed run draws what an
unbroken one draws. Ids are part of a run's meaning: add new ones at the end and
change none, or old seeds give new numbers.
"""

from collections.abc import Mapping
from types import MappingProxyType

import chex
import jax
import numpy as np

from metaharness.errors import InputError

# Pinned, so that JAX's default may change and a seed still means the same run.
_IMPLEMENTATION = "threefry2x32"
_NUM_SEEDS = 2**32

STAGES: Mapping[str, int] = MappingProxyType(
    {
        "setup": 0,
        "search": 1,
        "train": 2,
        "validation": 3,
        "test": 4,
    }
)

PURPOSES: Mapping[str, int] = MappingProxyType(
    {
        "parameters": 0,  # initial LoRA weights, proxy networks
        "estimator": 1,  # an estimator's initial state
        "draw": 2,  # outcomes of the slots
        "order": 3,  # order of a subset in the sequential prompt
        "items": 4,  # which items a step sees
        "mask": 5,  # random masking of candidates
        "generate": 6,  # sampled decoding
        "random_harness": 7,  # the harnesses that results are compared with
        "bootstrap": 8,  # resampling for intervals
        "pool": 9,  # which items become candidates, and their corruption
        "dropout": 10,  # inputs of the adapter that training drops
    }
)


def root_key(seed: int) -> jax.Array:
    """Root of a run: a typed key.

    Args:
      seed: in [0, 2**32). JAX would fold larger ones onto smaller ones.

    Raises:
      InputError: the seed is out of range.
    """
    _check_seed(seed)
    return jax.random.key(seed, impl=_IMPLEMENTATION)


def derive(
    root: jax.Array, *, stage: str, step: int | jax.Array, purpose: str
) -> jax.Array:
    """Key of one address. Fold or split the result, not both.

    Args:
      root: typed key ``[]`` of `root_key`; it can be used again and again here, and
        nowhere else.
      stage: a name in `STAGES`.
      step: int32 ``[]``, at least 0; may be traced.
      purpose: a name in `PURPOSES`.

    Raises:
      InputError: an unknown stage or purpose.
    """
    chex.assert_shape(root, ())
    key = jax.random.fold_in(root, _id(STAGES, "stage", stage))
    key = jax.random.fold_in(key, step)
    return jax.random.fold_in(key, _id(PURPOSES, "purpose", purpose))


def row_keys(seeds: np.ndarray) -> jax.Array:
    """Typed keys of an array of seeds, uint32, of the same shape: one for each sampled
    text, so that a text does not depend on what is written beside it."""
    flat = jax.vmap(lambda seed: jax.random.key(seed, impl=_IMPLEMENTATION))
    return flat(np.ravel(seeds).astype(np.uint32)).reshape(np.shape(seeds))


def host_generator(
    seed: int, *, stage: str, step: int, purpose: str
) -> np.random.Generator:
    """NumPy generator of one address, for text and data on the host.

    Its stream has nothing in common with the JAX key of the same address.

    Raises:
      InputError: the seed is out of range, an unknown stage or purpose.
    """
    _check_seed(seed)
    address = (_id(STAGES, "stage", stage), step, _id(PURPOSES, "purpose", purpose))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=address))


def _check_seed(seed: int) -> None:
    if not 0 <= seed < _NUM_SEEDS:
        raise InputError(f"seed: expected 0 to {_NUM_SEEDS - 1}, got {seed}.")


def _id(ids: Mapping[str, int], kind: str, name: str) -> int:
    if name not in ids:
        raise InputError(
            f"{kind} of a random key: expected one of {', '.join(ids)}; got {name!r};"
            f" add a new {kind} at the end of the table in metaharness/keys.py."
        )
    return ids[name]
