"""``unordered_set`` and ``sum_and_sample`` over every draw, in float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_cases import ORACLES
from set_laws import law_of, ordered_draws

import estimators as es
from estimators.sum_and_sample import sum_and_sample
from estimators.unordered_set import unordered_set

TABLE = ORACLES["categorical_table"]
MOMENTS = ORACLES["categorical_table_moments"]
PAIRS = ORACLES["ordered_pairs"]
CATEGORICAL = es.Family("categorical", 4)
RANKING = es.Family("ranking", 4, 2)


def exact_gradient(family, phi, mask, losses):
    """Of the expected loss, by central differences of its definition."""

    def value(phi):
        return law_of(family, phi, mask)[1] @ losses

    step = 1e-5
    return np.array(
        [
            (value(phi + e) - value(phi - e)) / (2 * step)
            for e in step * np.eye(len(phi))
        ]
    )


@functools.cache
def compiled(estimator_of):
    """(logits, outcomes, losses, mask) -> gradients and coefficients of many draws."""
    estimator = estimator_of()

    def one(logits, outcomes, losses, mask):
        memo = es.Memo(mask, jnp.zeros((len(outcomes),), jnp.int32))
        raw = es.Draw(outcomes, None, None, memo)
        draw = estimator.rebuild(logits, raw, jnp.int32(0))
        told = es.tell(estimator, logits, draw, losses, jnp.int32(0))
        return told.logits_grad, draw.coef

    return jax.jit(jax.vmap(one, (None, 0, 0, None)))


def gradients(estimator_of, logits, outcomes, losses, mask):
    with jax.enable_x64(True):
        found = compiled(estimator_of)(logits, outcomes, losses, mask)
        return tuple(map(np.asarray, found))


@functools.cache
def set_of(family, samples):
    return functools.cache(lambda: unordered_set(family, samples=samples))


def set_moments(family, samples, phi, mask, losses):
    table, prob = law_of(family, phi, mask)
    orders, chances = zip(*ordered_draws(prob, samples), strict=True)
    assert sum(chances) == pytest.approx(1, abs=1e-12)
    orders, chances = np.array(orders), np.array(chances)
    grads, coef = gradients(
        set_of(family, samples), phi, table[orders], losses[orders], mask
    )
    mean = chances @ grads
    value = chances @ (coef * losses[orders]).sum(1)
    assert value == pytest.approx(prob @ losses, abs=1e-12)
    np.testing.assert_allclose(coef.sum(1), 1, atol=1e-12)
    return mean, chances @ (grads**2).sum(1) - mean @ mean


@pytest.mark.parametrize("samples", [2, 3])
def test_unordered_set_has_the_stored_mean_and_variance(samples):
    stored = MOMENTS[f"set_{samples}_without_replacement"]
    losses = np.array(TABLE["losses"])
    found = set_moments(
        CATEGORICAL, samples, np.array(TABLE["phi"]), np.ones(4, bool), losses
    )
    np.testing.assert_allclose(found[0], stored["mean"], atol=1e-10)
    assert found[1] == pytest.approx(stored["total_variance"], abs=1e-10)


@pytest.mark.parametrize("samples", [2, 3])
def test_unordered_set_is_unbiased_for_rankings(samples):
    losses = np.array(PAIRS["losses"])
    mean, _ = set_moments(
        RANKING, samples, np.array(PAIRS["phi"]), np.ones(4, bool), losses
    )
    np.testing.assert_allclose(mean, PAIRS["grad"], atol=1e-10)


@pytest.mark.parametrize("family", [CATEGORICAL, RANKING], ids=lambda f: f.kind)
def test_unordered_set_is_unbiased_under_a_mask(family):
    mask = np.array([True, True, False, True])
    phi = np.array([0.5, -0.3, 0.9, 0.0])
    losses = np.random.default_rng(0).normal(size=family.num_outcomes)
    mean, _ = set_moments(family, 2, phi, mask, losses)
    exact = exact_gradient(family, phi, mask, losses)
    np.testing.assert_allclose(mean, exact, atol=1e-9)
    assert mean[2] == 0 and np.abs(mean).max() > 0.01


def test_a_set_of_every_outcome_is_exact_enumeration():
    phi, losses = np.array(TABLE["phi"]), np.array(TABLE["losses"])
    order = np.array([[2, 0, 3, 1]])
    grads, coef = gradients(
        set_of(CATEGORICAL, 4), phi, order[..., None], losses[order], np.ones(4, bool)
    )
    np.testing.assert_allclose(grads[0], TABLE["grad"], atol=1e-12)
    prob = np.exp(phi) / np.exp(phi).sum()
    np.testing.assert_allclose(coef[0], prob[order[0]], atol=1e-12)
    small = es.Family("ranking", 3, 2)
    losses = np.random.default_rng(1).normal(size=6)
    grads, _ = gradients(
        set_of(small, 6),
        phi[:3],
        small.enumerate()[None],
        losses[None],
        np.ones(3, bool),
    )
    exact = exact_gradient(small, phi[:3], np.ones(3, bool), losses)
    np.testing.assert_allclose(grads[0], exact, atol=1e-9)


SURPLUS = [
    (CATEGORICAL, [1, 3], [[1], [3], [0], [2]], [0, 0, 1, 1]),
    (RANKING, [1, 3], [[1, 3], [0, 1], [3, 1], [1, 3]], [0, 1, 0, 1]),
]


@pytest.mark.parametrize("family, allowed, rows, surplus", SURPLUS)
def test_surplus_rows_have_coefficient_zero_and_change_nothing(
    family, allowed, rows, surplus
):
    mask = np.isin(np.arange(4), allowed)
    phi = np.array([0.5, -0.3, 0.9, 0.0])
    table, prob = law_of(family, phi, mask)
    index = [(table == row).all(1).nonzero()[0][0] for row in rows]
    losses = np.random.default_rng(2).normal(size=len(prob))
    own = losses[index]
    wild = np.where(surplus, np.nan, own)
    grads, coef = gradients(
        set_of(family, 4), phi, np.array([rows, rows]), np.array([own, wild]), mask
    )
    expected = np.where(surplus, 0.0, prob[index])
    np.testing.assert_allclose(coef[0], expected, atol=1e-12)
    assert np.all(coef[:, np.array(surplus, bool)] == 0)
    exact = exact_gradient(family, phi, mask, losses)
    np.testing.assert_allclose(grads, [exact, exact], atol=1e-9)
    assert np.all(grads[:, ~mask] == 0)


def test_one_allowed_candidate_has_no_gradient():
    mask = np.arange(4) == 2
    for estimator_of in (set_of(CATEGORICAL, 3), sum_of(3, 1)):
        outcomes = np.array([[[2], [0], [1]]])
        grads, coef = gradients(
            estimator_of, np.array(TABLE["phi"]), outcomes, np.ones((1, 3)), mask
        )
        assert np.all(grads == 0)
        np.testing.assert_array_equal(coef, [[1, 0, 0]])


@functools.cache
def sum_of(samples, enumerated):
    return functools.cache(
        lambda: sum_and_sample(CATEGORICAL, samples=samples, enumerated=enumerated)
    )


def sum_moments(samples, enumerated, phi, mask, losses):
    _, prob = law_of(CATEGORICAL, phi, mask)
    top = np.argsort(-prob, kind="stable")[:enumerated]
    rest = np.delete(np.arange(4), top)
    chance_of = prob / prob[rest].sum()
    tuples = list(itertools.product(rest, repeat=samples - enumerated))
    chances = np.array([chance_of[list(t)].prod() for t in tuples])
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    rows = np.array([[*top, *t] for t in tuples])
    grads, coef = gradients(
        sum_of(samples, enumerated), phi, rows[..., None], losses[rows], mask
    )
    np.testing.assert_allclose(coef.sum(1), 1, atol=1e-12)
    value = chances @ (coef * losses[rows]).sum(1)
    assert value == pytest.approx(prob @ losses, abs=1e-12)
    mean = chances @ grads
    return mean, chances @ (grads**2).sum(1) - mean @ mean


@pytest.mark.parametrize("samples, enumerated", [(2, 1), (3, 1), (3, 2), (4, 2)])
def test_sum_and_sample_is_unbiased(samples, enumerated):
    phi, losses = np.array(TABLE["phi"]), np.array(TABLE["losses"])
    mean, variance = sum_moments(samples, enumerated, phi, np.ones(4, bool), losses)
    np.testing.assert_allclose(mean, TABLE["grad"], atol=1e-10)
    assert variance < MOMENTS["score_3_loo"]["total_variance"] * 3 / samples


def test_sum_and_sample_is_unbiased_under_a_mask():
    mask = np.array([True, False, True, True])
    phi, losses = np.array(TABLE["phi"]), np.array(TABLE["losses"])
    mean, _ = sum_moments(3, 1, phi, mask, losses)
    exact = exact_gradient(CATEGORICAL, phi, mask, losses)
    np.testing.assert_allclose(mean, exact, atol=1e-9)
    assert mean[1] == 0


def test_sum_and_sample_is_exact_when_the_sum_covers_the_allowed_candidates():
    phi, losses = np.array(TABLE["phi"]), np.array(TABLE["losses"])
    mask = np.array([True, False, False, True])
    rows = np.array([[0, 3, 1, 2], [0, 3, 1, 0]])
    grads, coef = gradients(
        sum_of(4, 3),
        phi,
        rows[..., None],
        np.where(rows == 2, np.nan, losses[rows]),
        mask,
    )
    exact = exact_gradient(CATEGORICAL, phi, mask, losses)
    np.testing.assert_allclose(grads, [exact, exact], atol=1e-9)
    assert np.all(coef[:, 2:] == 0)
    rows = np.array([[2, 0, 3, 1, 1]])
    grads, _ = gradients(
        sum_of(5, 4), phi, rows[..., None], losses[rows], np.ones(4, bool)
    )
    np.testing.assert_allclose(grads[0], TABLE["grad"], atol=1e-10)


MEMBERS = {
    "set categorical": lambda: unordered_set(CATEGORICAL, samples=3),
    "set ranking": lambda: unordered_set(RANKING, samples=3),
    "sum": lambda: sum_and_sample(CATEGORICAL, samples=3, enumerated=1),
}


@pytest.mark.parametrize("member", MEMBERS)
def test_extreme_logits_have_finite_gradients(member):
    estimator = MEMBERS[member]()

    @jax.jit
    def run(key, logits):
        draw = estimator.draw(key, logits, jnp.int32(0))
        losses = jnp.cos(jnp.arange(3.0))
        told = es.tell(estimator, logits, draw, losses, jnp.int32(0))
        return draw.coef, told.logits_grad

    for scale in (0.0, 30.0, 200.0, 1e3, 1e6):
        coef, grad = run(jax.random.key(0), scale * jnp.array([0.0, -1.0, 1.0, -0.5]))
        assert np.all(np.isfinite(grad)) and np.all(np.isfinite(coef))
        assert coef.sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("member", MEMBERS)
def test_masked_draws_hold_every_allowed_candidate_once(member):
    estimator = MEMBERS[member]()
    mask = jnp.array([True, False, True, False])
    draw = jax.jit(lambda *args: estimator.draw(*args, jnp.int32(0), mask))(
        jax.random.key(1), jnp.array([0.0, 9.0, 1.0, 5.0])
    )
    counted = np.asarray(draw.outcomes)[np.asarray(draw.coef) > 0]
    assert np.isin(counted, [0, 2]).all()
    assert draw.coef.sum() == pytest.approx(1, abs=1e-6)
    if member.startswith("set"):
        assert len(counted) == 2 and len({tuple(row) for row in counted}) == 2


def test_large_pools_of_rankings_are_drawn_and_learned_from():
    family = es.Family("ranking", 48, 4)
    estimator = unordered_set(family, samples=6)

    @jax.jit
    def run(key, logits):
        draw = estimator.draw(key, logits, jnp.int32(0))
        losses = jnp.sum(draw.outcomes * jnp.arange(1.0, 5.0), axis=-1)
        return draw, es.tell(estimator, logits, draw, losses, jnp.int32(0)).logits_grad

    draw, grad = run(jax.random.key(0), jnp.linspace(-2.0, 2.0, 48))
    rows = np.asarray(draw.outcomes)
    assert len({tuple(row) for row in rows}) == 6
    assert all(len(set(row)) == 4 for row in rows.tolist())
    assert draw.coef.sum() == pytest.approx(1, abs=1e-5)
    assert np.all(np.isfinite(grad)) and np.abs(grad).max() > 0
    assert grad.sum() == pytest.approx(0, abs=1e-3)


def test_the_likeliest_allowed_candidates_are_enumerated():
    estimator = sum_and_sample(es.Family("categorical", 6), samples=5, enumerated=3)
    logits = jnp.array([0.0, 3.0, 1.0, 5.0, 2.0, 4.0])
    mask = jnp.array([True, True, True, True, True, False])
    run = jax.jit(lambda key: estimator.draw(key, logits, jnp.int32(0), mask))
    for seed in range(20):
        draw = run(jax.random.key(seed))
        assert draw.outcomes[:3, 0].tolist() == [3, 1, 4]
        assert set(draw.outcomes[3:, 0].tolist()) <= {0, 2}
    assert sum_and_sample(CATEGORICAL).spec.rows == 8
    draw = sum_and_sample(CATEGORICAL).draw(jax.random.key(0), logits[:4], jnp.int32(0))
    assert sorted(draw.outcomes[:4, 0].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: unordered_set(CATEGORICAL, samples=1), "draw from 2 to 12"),
        (lambda: unordered_set(RANKING, samples=13), "draw from 2 to 12"),
        (lambda: unordered_set(CATEGORICAL, samples=5), "5 distinct samples of 4"),
        (lambda: unordered_set(es.Family("subset", 4, 2)), "does not fit the family"),
        (lambda: sum_and_sample(RANKING), "does not fit the family ranking"),
        (lambda: sum_and_sample(CATEGORICAL, samples=1), "draw at least 2"),
        (
            lambda: sum_and_sample(CATEGORICAL, samples=4, enumerated=4),
            "give from 1 to 3",
        ),
        (
            lambda: sum_and_sample(CATEGORICAL, samples=4, enumerated=0),
            "give from 1 to 3",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
