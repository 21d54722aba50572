"""Losses on which members are exact: constant, linear, quadratic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_cases import (
    CASES,
    Lane,
    all_tuples,
    expectation,
    gradients,
    lane,
    one_gradient,
    probabilities,
)

import estimators as es

# Without a baseline of the same step a constant cancels only on average.
ON_AVERAGE = {("baseline", "none"), ("baseline", "running_mean")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_a_constant_loss_has_gradient_zero(case):
    base = lane(case)
    with jax.enable_x64(True):
        fresh = case.build().init(jax.random.key(2), jnp.asarray(case.problem.phi))
        fresh = jax.tree.map(np.asarray, fresh)
    flat = {name: np.zeros_like(leaf) for name, leaf in base.params.items()}
    flat = base._replace(params=flat, shift=np.float64(7.0), state=fresh)
    if ON_AVERAGE & set(case.options):
        mean, variance = expectation(case, lambda _: flat)
        assert variance > 0.1
        np.testing.assert_allclose(mean, 0, atol=1e-12)
    else:
        tuples, _ = all_tuples(case)
        lanes = [flat, *(flat._replace(outcomes=rows) for rows in tuples[:63])]
        np.testing.assert_allclose(gradients(case, lanes), 0, atol=1e-12)


LINEAR = np.array([0.9, -0.4, 0.3, 1.2, -0.7])
CROSS = np.random.default_rng(8).normal(size=(5, 5))
PHI = np.array([0.6, -0.2, 1.1, 0.0, -0.7])


def exact_gradient(family, losses):
    """Covariance of loss and score, from probabilities that NumPy made."""
    prob = probabilities(family, PHI)
    hot = np.zeros((len(prob), family.n))
    for row, outcome in enumerate(family.enumerate()):
        hot[row, outcome] = 1
    return prob * (losses - prob @ losses) @ hot


def mean_gradient(estimator, loss):
    family, rows = estimator.spec.family, estimator.spec.rows
    table = family.enumerate()
    with jax.enable_x64(True):
        phi = jnp.asarray(PHI)
        state = estimator.init(jax.random.key(0), phi)
        allowed = jnp.ones((family.n,), bool)

        def one(outcome):
            outcomes = jnp.broadcast_to(outcome, (rows, family.k))
            args = Lane(phi, outcomes, None, allowed, None, 0.0, None, state)
            return one_gradient(estimator, lambda z, params: loss(z), args)

        grads = np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(table)))
    return probabilities(family, PHI) @ grads


SLOPES = {
    "straight_through": es.Family("categorical", 5),
    "reinmax": es.Family("categorical", 5),
    "simple": es.Family("subset", 5, 2),
}


@pytest.mark.parametrize("name", SLOPES)
def test_a_linear_loss_is_exact_through_slopes(name):
    family = SLOPES[name]
    options = {} if name == "simple" else {"tau": 1.0}
    estimator = es.make(name, family, {"samples": 1} | options)
    losses = LINEAR[family.enumerate()].sum(1)
    np.testing.assert_allclose(
        mean_gradient(estimator, lambda z: z @ LINEAR),
        exact_gradient(family, losses),
        atol=1e-12,
    )


def test_a_quadratic_loss_is_exact_through_reinmax_alone():
    family = es.Family("categorical", 5)

    def loss(z):
        return z @ LINEAR + jnp.einsum("...i,ij,...j->...", z, CROSS, z)

    exact = exact_gradient(family, LINEAR + np.diag(CROSS))
    for name, right in (("reinmax", True), ("straight_through", False)):
        estimator = es.make(name, family, {"samples": 1, "tau": 1.0})
        error = np.abs(mean_gradient(estimator, loss) - exact).max()
        assert (error < 1e-12) == right
