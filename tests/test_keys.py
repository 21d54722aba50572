"""Keys: one address one key, and a seed keeps its meaning."""

import itertools

import jax
import numpy as np
import pytest

from metaharness import keys
from metaharness.errors import InputError


def data(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_every_address_has_a_key_of_its_own():
    root = keys.root_key(0)
    addresses = list(itertools.product(keys.STAGES, (0, 1, 2, 1000), keys.PURPOSES))
    seen = {
        data(keys.derive(root, stage=stage, step=step, purpose=purpose))
        for stage, step, purpose in addresses
    }
    assert len(seen) == len(addresses)


def test_an_address_gives_the_same_key_whatever_was_derived_before():
    root = keys.root_key(7)
    first = data(keys.derive(root, stage="train", step=3, purpose="draw"))
    keys.derive(root, stage="train", step=2, purpose="items")
    assert data(keys.derive(root, stage="train", step=3, purpose="draw")) == first


def test_a_traced_step_gives_the_key_of_the_plain_step():
    root = keys.root_key(1)

    @jax.jit
    def traced(step):
        return keys.derive(root, stage="train", step=step, purpose="order")

    plain = keys.derive(root, stage="train", step=5, purpose="order")
    assert data(traced(jax.numpy.int32(5))) == data(plain)


def test_ids_are_those_that_earlier_runs_used():
    # A change here changes the numbers of every seed: add names, never renumber.
    assert dict(keys.STAGES) == {
        "setup": 0,
        "search": 1,
        "train": 2,
        "validation": 3,
        "test": 4,
    }
    assert list(keys.PURPOSES.values()) == list(range(len(keys.PURPOSES)))
    assert list(keys.PURPOSES)[:5] == [
        "parameters",
        "estimator",
        "draw",
        "order",
        "items",
    ]


def test_a_seed_means_the_same_key_under_every_jax():
    # Written down from jax 0.10.2; Threefry is fixed by Salmon et al. (2011).
    root = keys.root_key(2026)
    assert data(root) == (0, 2026)
    key = keys.derive(root, stage="train", step=12, purpose="draw")
    assert data(key) == (695617144, 1950056239)


def test_default_implementation_does_not_matter():
    plain = data(keys.root_key(3))
    with jax.default_prng_impl("rbg"):
        assert data(keys.root_key(3)) == plain


def test_host_streams_differ_by_address_and_repeat():
    def first(**address):
        return keys.host_generator(0, **address).integers(2**62)

    draws = [
        first(stage=stage, step=step, purpose=purpose)
        for stage in keys.STAGES
        for step in (0, 1)
        for purpose in keys.PURPOSES
    ]
    assert len(set(draws)) == len(draws)
    assert first(stage="setup", step=0, purpose="pool") == first(
        stage="setup", step=0, purpose="pool"
    )


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_that_would_coincide_with_others_are_refused(seed):
    with pytest.raises(InputError, match="expected 0 to 4294967295"):
        keys.root_key(seed)
    with pytest.raises(InputError, match="expected 0 to 4294967295"):
        keys.host_generator(seed, stage="setup", step=0, purpose="pool")


def test_unknown_names_are_refused_with_the_known_ones():
    root = keys.root_key(0)
    with pytest.raises(InputError, match="got 'drew'.*add a new purpose"):
        keys.derive(root, stage="train", step=0, purpose="drew")
    with pytest.raises(InputError, match="one of setup, search"):
        keys.derive(root, stage="later", step=0, purpose="draw")
