"""Every family at its edges, by enumeration in NumPy: k = N, k = 1, one candidate, all
but k masked; divergences; products."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import estimators as es

PHI = np.array([0.6, -0.2, 1.1, 0.0, -0.7])
OTHER = np.array([-0.3, 0.8, 0.1, 0.5, -1.2])
ALL = np.ones(5, bool)
EDGES = {
    "categorical of 5": ("categorical", 5, 1, ALL),
    "categorical, one candidate": ("categorical", 1, 1, ALL[:1]),
    "categorical, one allowed": ("categorical", 5, 1, np.arange(5) == 3),
    "subset 2 of 5": ("subset", 5, 2, ALL),
    "subset, k = 1": ("subset", 5, 1, ALL),
    "subset, k = N": ("subset", 5, 5, ALL),
    "subset, one candidate": ("subset", 1, 1, ALL[:1]),
    "subset, all but k masked": ("subset", 5, 2, np.isin(np.arange(5), [1, 4])),
    "subset, first masked": ("subset", 5, 3, np.arange(5) > 0),
    "ranking 3 of 5": ("ranking", 5, 3, ALL),
    "ranking, k = 1": ("ranking", 5, 1, ALL),
    "ranking, k = N": ("ranking", 4, 4, ALL[:4]),
    "ranking, one candidate": ("ranking", 1, 1, ALL[:1]),
    "ranking, all but k masked": ("ranking", 5, 2, np.isin(np.arange(5), [0, 3])),
}
every_edge = pytest.mark.parametrize("edge", EDGES)


def outcomes_and_probs(kind, k, phi, mask):
    """By definition, over the allowed candidates."""
    allowed = np.flatnonzero(mask)
    weight = np.exp(phi)
    if kind == "ranking":
        rows = np.array(list(itertools.permutations(allowed, k)))
        taken = weight[rows]
        left = weight[allowed].sum() - np.cumsum(taken, 1) + taken
        return rows, (taken / left).prod(1)
    rows = np.array(list(itertools.combinations(allowed, k)))
    prob = weight[rows].prod(1)
    return rows, prob / prob.sum()


def smooth(law, other, coefs):
    """Everything that has a gradient, in one number."""
    return law.entropy() + law.kl_divergence(other) + (coefs * law.marginals()).sum()


def smooth_by_definition(kind, k, phi, other, mask, coefs):
    rows, prob = outcomes_and_probs(kind, k, phi, mask)
    _, other = outcomes_and_probs(kind, k, other, mask)
    hot = np.eye(len(phi))[rows]
    hot = hot if kind == "ranking" else hot.sum(1)
    marginals = np.tensordot(prob, hot, 1)
    entropy = -(prob * np.log(prob)).sum()
    kl = (prob * np.log(prob / other)).sum()
    return marginals, entropy, kl, entropy + kl + (coefs * marginals).sum()


@functools.cache
def reader(kind, n, k):
    family = es.Family(kind, n, k)

    def value(phi, other, mask, coefs):
        return smooth(
            family.distribution(phi, mask), family.distribution(other, mask), coefs
        )

    def read(phi, other, mask, coefs):
        law, against = family.distribution(phi, mask), family.distribution(other, mask)
        grads = jax.grad(value, (0, 1))(phi, other, mask, coefs)
        return (
            jnp.exp(law.log_prob(jnp.asarray(family.enumerate()))),
            law.marginals(),
            law.entropy(),
            law.kl_divergence(against),
            law.mode(),
            grads,
            law.sample(seed=jax.random.key(4), sample_shape=(2000,)),
        )

    return jax.jit(read)


@every_edge
def test_every_function_is_right_by_enumeration(edge):
    kind, n, k, mask = EDGES[edge]
    phi, other = PHI[:n], OTHER[:n]
    coefs = np.cos(np.arange(k * n)).reshape(k, n)
    coefs = coefs if kind == "ranking" else coefs[0]
    rows, prob = outcomes_and_probs(kind, k, phi, mask)
    with jax.enable_x64(True):
        found = reader(kind, n, k)(phi, other, mask, coefs)
    found = jax.tree.map(np.asarray, found)
    probs, marginals, entropy, kl, mode, grads, drawn = found
    table = es.Family(kind, n, k).enumerate()
    index = [np.flatnonzero((table == row).all(1))[0] for row in rows]
    expected = np.zeros(len(table))
    expected[index] = prob
    np.testing.assert_allclose(probs, expected, atol=1e-12)
    assert np.all(probs[expected == 0] == 0)
    read = functools.partial(smooth_by_definition, kind, k, mask=mask, coefs=coefs)
    exact = read(phi, other)
    for one, two in zip((marginals, entropy, kl), exact, strict=False):
        np.testing.assert_allclose(one, two, atol=1e-12)
    assert np.all(marginals[..., ~mask] == 0)
    best = rows[np.argmax(prob)]
    np.testing.assert_array_equal(mode, best if kind == "ranking" else np.sort(best))
    step = 1e-5
    for which, grad in enumerate(grads):
        assert np.all(grad[~mask] == 0)
        for i in np.flatnonzero(mask):
            up, down = ([phi.copy(), other.copy()] for _ in range(2))
            up[which][i] += step
            down[which][i] -= step
            slope = (read(*up)[3] - read(*down)[3]) / (2 * step)
            assert grad[i] == pytest.approx(slope, abs=1e-8)
    drawn = drawn if kind == "ranking" else np.sort(drawn, 1)
    seen = np.array([(drawn == row).all(1).sum() for row in rows])
    assert seen.sum() == len(drawn)
    if len(rows) > 1:
        rare = prob * len(drawn) < 5
        seen = np.append(seen[~rare], seen[rare].sum())
        mean = len(drawn) * np.append(prob[~rare], prob[rare].sum())
        keep = mean > 0
        assert stats.chisquare(seen[keep], mean[keep]).pvalue > 1e-4


@pytest.mark.parametrize("edge", EDGES)
def test_divergence_from_itself_is_zero_and_never_negative(edge):
    kind, n, k, mask = EDGES[edge]
    family = es.Family(kind, n, k)
    phi = PHI[:n].astype(np.float32)
    others = np.random.default_rng(0).normal(size=(20, n)).astype(np.float32)

    @jax.jit
    def read(phi, others):
        law = family.distribution(phi, mask)
        return [
            law.kl_divergence(family.distribution(other, mask))
            for other in (phi, others)
        ]

    own, found = read(phi, others)
    assert own == 0 and np.all(found >= -1e-6)


@pytest.mark.parametrize("kind, k", [("categorical", 1), ("subset", 2), ("ranking", 2)])
def test_divergence_is_huge_but_finite_where_the_other_law_excludes(kind, k):
    family = es.Family(kind, 5, k)
    phi = jnp.asarray(PHI, jnp.float32)
    narrow = family.distribution(phi, np.arange(5) != 2)
    wide = family.distribution(phi)
    assert 1e28 < wide.kl_divergence(narrow) < 1e31
    rows, prob = outcomes_and_probs(kind, k, PHI, ALL)
    _, inside = outcomes_and_probs(kind, k, PHI, np.arange(5) != 2)
    kl = (inside * np.log(inside / prob[~(rows == 2).any(1)])).sum()
    assert narrow.kl_divergence(wide) == pytest.approx(kl, rel=1e-5)
    grad = jax.grad(
        lambda phi: (
            family.distribution(phi).kl_divergence(narrow)
            + narrow.kl_divergence(family.distribution(phi))
        )
    )(phi)
    assert np.all(np.isfinite(grad))


@pytest.mark.parametrize("kind, k", [("categorical", 1), ("subset", 2), ("ranking", 2)])
def test_divergences_take_batches(kind, k):
    phi = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    family = es.Family(kind, 4, k)

    @jax.jit
    def both(phi):
        first = family.distribution(phi[0, 0])
        wide = family.distribution(phi).kl_divergence(first)
        return wide, family.distribution(phi[1, 2]).kl_divergence(first)

    wide, one = both(phi)
    assert wide.shape == (2, 3)
    assert wide[1, 2] == pytest.approx(float(one), rel=1e-5)


def harness(shift=0.0):
    return es.Product(
        {
            "template": es.Categorical(jnp.asarray(PHI[:3] + shift)),
            "pair": es.Subset(jnp.asarray(PHI[:4] * (1 + shift)), 2),
            "order": es.Ranking(jnp.asarray(OTHER[:3] - shift * PHI[:3]), 2),
        }
    )


def test_a_product_adds_over_its_slots():
    with jax.enable_x64(True):
        law, other = harness(), harness(0.7)
        every = jax.tree.map(jnp.asarray, law.enumerate())
        logp, logq, entropy, found = jax.jit(
            lambda law, other: (
                law.log_prob(every),
                other.log_prob(every),
                law.entropy(),
                law.kl_divergence(other),
            )
        )(law, other)
    logp, logq = np.asarray(logp), np.asarray(logq)
    assert len(logp) == 3 * 6 * 6
    assert np.exp(logp).sum() == pytest.approx(1, abs=1e-12)
    assert entropy == pytest.approx(-(np.exp(logp) * logp).sum(), abs=1e-12)
    kl = (np.exp(logp) * (logp - logq)).sum()
    assert found == pytest.approx(kl, abs=1e-12) and kl > 0.1


@pytest.mark.parametrize(
    "build, message",
    [
        (
            lambda: es.Subset(jnp.zeros(5), 2).kl_divergence(
                es.Ranking(jnp.zeros(5), 2)
            ),
            "Subset from Ranking",
        ),
        (
            lambda: es.Subset(jnp.zeros(5), 2).kl_divergence(
                es.Subset(jnp.zeros(5), 3)
            ),
            "2 of 5 from 3 of 5",
        ),
        (
            lambda: es.Categorical(jnp.zeros(5)).kl_divergence(
                es.Categorical(jnp.zeros(4))
            ),
            "1 of 5 from 1 of 4",
        ),
        (
            lambda: es.Ranking(jnp.zeros(48), 4).kl_divergence(
                es.Ranking(jnp.ones(48), 4)
            ),
            "can be enumerated",
        ),
        (
            lambda: harness().kl_divergence(
                es.Product({"pair": es.Subset(jnp.zeros(4), 2)})
            ),
            "give the same slots",
        ),
        (
            lambda: harness().kl_divergence(es.Categorical(jnp.zeros(3))),
            "give the same slots",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
