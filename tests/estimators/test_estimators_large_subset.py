"""Subset in float32 on large pools against float64 written independently in NumPy."""

import functools
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimators as es
from estimators import symmetric

POOL, TAKE = 4096, 16
VALUE = np.arange(TAKE) * 250


def log_table(phi, k):
    """Log e_j of the first i weights, `[pool + 1, k + 1]`."""
    table = np.full((len(phi) + 1, k + 1), -np.inf)
    table[:, 0] = 0
    for i, logit in enumerate(phi):
        table[i + 1, 1:] = np.logaddexp(table[i, 1:], table[i, :-1] + logit)
    return table


def by_definition(phi, k, value):
    """Log-prob of value, marginals, entropy, conditionals `[pool, k]`, in float64."""
    phi = np.asarray(phi, float)
    before, after = log_table(phi, k), log_table(phi[::-1], k)[::-1]
    log_z = before[-1, k]
    merged = before[:-1, :k] + after[1:, k - 1 :: -1]
    mu = np.exp(phi + np.logaddexp.reduce(merged, axis=1) - log_z)
    with np.errstate(invalid="ignore"):
        take = np.exp(phi[:, None] + before[:-1, :-1] - before[1:, 1:])
    return phi[value].sum() - log_z, mu, log_z - phi @ mu, take


@functools.cache
def reader(k):
    def read(phi, value):
        law = es.Subset(phi, k)
        take = jnp.exp(symmetric.log_take(phi, k))
        return law.log_prob(value), law.marginals(), law.entropy(), take

    return jax.jit(read)


@functools.cache
def gradient(k):
    def smooth(phi):
        law = es.Subset(phi, k)
        marginals = law.marginals()
        wave = jnp.cos(jnp.arange(marginals.size))
        return law.log_prob(law.mode()) + law.entropy() + wave @ marginals

    return jax.jit(jax.grad(smooth))


@pytest.mark.parametrize("seed", range(4))
def test_single_precision_keeps_its_digits_on_a_large_pool(seed):
    phi = np.random.default_rng(seed).normal(size=POOL).astype(np.float32)
    found = reader(TAKE)(phi, VALUE)
    log_prob, mu, entropy, take = by_definition(phi, TAKE, VALUE)
    np.testing.assert_allclose(found[0], log_prob, rtol=2e-6)
    np.testing.assert_allclose(found[1], mu, rtol=2e-5)
    np.testing.assert_allclose(found[2], entropy, rtol=2e-6)
    reached = np.arange(1, POOL + 1)[:, None] >= np.arange(1, TAKE + 1)
    np.testing.assert_allclose(found[3][:, 1:][reached], take[reached], rtol=2e-5)
    assert np.all(found[3][:, 0] == 0)


@pytest.mark.parametrize("scale", [3, 10, 30])
def test_single_precision_holds_where_few_candidates_hold_the_mass(scale):
    phi = scale * np.random.default_rng(0).normal(size=POOL)
    phi = phi.astype(np.float32)
    _, mu, entropy, _ = by_definition(phi, TAKE, VALUE)
    found = reader(TAKE)(phi, VALUE)
    np.testing.assert_allclose(found[1], mu, rtol=1e-4, atol=1e-30)
    np.testing.assert_allclose(found[2], entropy, rtol=2e-4)


@pytest.mark.parametrize("num_top", [1, 8, TAKE - 1, TAKE, 40])
def test_single_precision_holds_where_some_candidates_lead(num_top):
    phi = np.random.default_rng(1).normal(size=POOL)
    phi[100 : 100 + num_top] += 20
    phi = phi.astype(np.float32)
    _, mu, entropy, _ = by_definition(phi, TAKE, VALUE)
    found = reader(TAKE)(phi, VALUE)
    np.testing.assert_allclose(found[1], mu, rtol=5e-4)
    np.testing.assert_allclose(found[2], entropy, rtol=5e-4, atol=1e-3)


SPREADS = {
    "even": np.linspace(-200, 200, POOL),
    "shuffled": np.random.default_rng(0).uniform(-200, 200, POOL),
    "one on top": np.where(np.arange(POOL) == 77, 200.0, -200.0),
    "all but one on top": np.where(np.arange(POOL) < TAKE - 1, 200.0, -200.0),
    "just enough on top": np.where(np.arange(POOL) >= POOL - TAKE, 200.0, -200.0),
    "halves": np.where(np.arange(POOL) % 2, 200.0, -200.0),
}


@pytest.mark.parametrize("spread", SPREADS)
def test_values_and_gradients_are_finite_and_right_at_logits_far_apart(spread):
    phi = SPREADS[spread].astype(np.float32)
    found = reader(TAKE)(phi, VALUE)
    log_prob, mu, _, _ = by_definition(phi, TAKE, VALUE)
    for part in found:
        assert np.all(np.isfinite(part))
    assert np.all(np.isfinite(gradient(TAKE)(phi)))
    np.testing.assert_allclose(found[0], log_prob, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found[1], mu, atol=5e-3)
    drawn = es.Subset(phi, TAKE).sample(seed=jax.random.key(0), sample_shape=(4,))
    assert all(len(set(row)) == TAKE for row in np.asarray(drawn).tolist())


def test_gradients_on_a_large_pool_agree_with_double_precision():
    phi = np.random.default_rng(5).normal(size=POOL).astype(np.float32)
    found = gradient(TAKE)(phi)
    with jax.enable_x64(True):
        exact = gradient(TAKE)(phi.astype(np.float64))
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_excluded_candidates_change_nothing_on_a_large_pool():
    rng = np.random.default_rng(6)
    mask = rng.random(POOL) < 0.3
    mask[:TAKE] = False  # an excluded start: every prefix sum begins empty
    phi = rng.normal(size=POOL).astype(np.float32)
    found = jax.jit(lambda phi: es.Subset(phi, TAKE, mask).marginals())(phi)
    _, mu, _, _ = by_definition(phi[mask], TAKE, VALUE // 4)
    np.testing.assert_allclose(found[mask], mu, rtol=2e-5)
    assert np.all(found[~mask] == 0)
    grad = jax.grad(lambda phi: es.Subset(phi, TAKE, mask).entropy())(jnp.asarray(phi))
    assert np.all(np.isfinite(grad)) and np.all(grad[~mask] == 0)
    drawn = es.Subset(phi, TAKE, mask).sample(
        seed=jax.random.key(1), sample_shape=(50,)
    )
    assert mask[np.asarray(drawn)].all()


def test_the_sampler_walks_by_these_conditional_probabilities(monkeypatch):
    phi = jnp.zeros(6)
    always = jnp.zeros((6, 3)).at[:, 0].set(es.EXCLUDED)
    monkeypatch.setattr("estimators.subset.log_take", lambda logits, k: always)
    drawn = es.Subset(phi, 2).sample(seed=jax.random.key(0), sample_shape=(5,))
    np.testing.assert_array_equal(drawn, [[4, 5]] * 5)


def test_conditional_probabilities_multiply_to_the_law():
    phi = np.array([0.6, -0.2, 1.1, 0.0, -0.7])
    mask = np.array([True, False, True, True, True])
    with jax.enable_x64(True):
        law = es.Subset(jnp.asarray(phi), 2, mask)
        logits = jnp.where(mask, jnp.asarray(phi), es.EXCLUDED)
        take = np.asarray(jnp.exp(symmetric.log_take(logits, 2)))
        table = law.enumerate()
        law = np.asarray(jnp.exp(law.log_prob(jnp.asarray(table))))
    for row, expected in zip(table, law, strict=True):
        left, prob = 2, 1.0
        for i in range(4, -1, -1):
            prob *= take[i, left] if i in row else 1 - take[i, left]
            left -= i in row
            if left < 0 or prob == 0:
                break
        assert prob == pytest.approx(expected, abs=1e-12)


def test_the_walk_is_certain_where_the_rest_of_the_pool_is_needed():
    rng = np.random.default_rng(3)
    read = jax.jit(lambda phi: jnp.exp(symmetric.log_take(phi, TAKE)))
    for allowed in (TAKE, TAKE + 5, 40):
        mask = np.zeros(60, bool)
        mask[rng.permutation(60)[:allowed]] = True
        phi = np.where(mask, rng.normal(size=60), es.EXCLUDED).astype(np.float32)
        take = np.asarray(read(phi))
        upto = mask.cumsum()
        for i, j in itertools.product(range(60), range(1, TAKE + 1)):
            if mask[i] and upto[i] == j:
                assert take[i, j] == 1
            elif upto[i] > j:
                assert take[i, j] < 0.999999 and (take[i, j] > 0) == mask[i]


@pytest.mark.slow
def test_time_grows_as_pool_times_taken():
    times = []
    sizes = [(1024, 16), (2048, 32), (4096, 64), (8192, 128)]
    for pool, take in sizes:
        run = jax.jit(lambda phi, take=take: es.Subset(phi, take).marginals())
        phi = jnp.asarray(np.random.default_rng(0).normal(size=pool), jnp.float32)
        run(phi).block_until_ready()
        spent = []
        for _ in range(7):
            start = time.perf_counter()
            run(phi).block_until_ready()
            spent.append(time.perf_counter() - start)
        times.append(min(spent))
    units = np.array([pool * take for pool, take in sizes])
    growth = np.polyfit(np.log(units), np.log(times), 1)[0]
    assert growth < 1.15, times  # 1 is linear; quadratic in either factor is 1.5
