"""The built-in diagnostic against enumeration in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_cases import ORACLES, PROBLEMS

import estimators as es

TABLE = ORACLES["categorical_table"]
PHI = jnp.asarray(TABLE["phi"], jnp.float32)


def table_loss(draw, theta):
    return jnp.asarray(TABLE["losses"])[draw.outcomes[:, 0]]


def diagnosis(estimator, objective, logits, **options):
    state = estimator.init(jax.random.key(0), logits)
    run = jax.jit(
        lambda key: es.diagnose(estimator, objective, key, logits, state, **options)
    )
    return run(jax.random.key(1))


def test_leave_one_out_shows_its_stored_variance_and_no_bias():
    estimator = es.reinforce(es.Family("categorical", 4), samples=3)
    found = diagnosis(estimator, table_loss, PHI, steps=20_000)
    exact = np.array(TABLE["grad"])
    stored = ORACLES["categorical_table_moments"]["score_3_loo"]["total_variance"]
    assert found.exact_norm == pytest.approx(np.linalg.norm(exact), rel=1e-5)
    assert found.relative_variance == pytest.approx(stored / (exact @ exact), rel=0.05)
    assert found.bias_floor == pytest.approx(
        np.sqrt(found.relative_variance / 20_000), rel=1e-4
    )
    assert found.relative_bias < 3 * found.bias_floor
    assert found.cosine_of_mean > 0.999
    assert found.effective_rows == pytest.approx(3)


def test_enumeration_is_perfect_and_worth_its_weights():
    estimator = es.exact(es.Family("categorical", 4))
    found = diagnosis(estimator, table_loss, PHI, steps=2)
    p = np.exp(TABLE["phi"]) / np.exp(TABLE["phi"]).sum()
    assert found.cosine == pytest.approx(1, abs=1e-6)
    assert found.descent == 1 and found.relative_bias < 1e-6
    assert found.effective_rows == pytest.approx(1 / (p @ p), rel=1e-5)


def test_a_biased_member_shows_its_stored_bias():
    stored = ORACLES["categorical_curved"]
    problem = PROBLEMS["categorical"]
    params = {name: jnp.asarray(leaf) for name, leaf in problem.params.items()}
    estimator = es.straight_through(problem.family, samples=4)
    found = diagnosis(
        estimator,
        lambda draw, theta: problem.loss(draw.weights, params),
        jnp.asarray(stored["phi"], jnp.float32),
        steps=4000,
    )
    exact = np.array(stored["grad"])
    bias = np.array(stored["expected_straight_through"]["1.0"]) - exact
    size = np.linalg.norm(bias) / np.linalg.norm(exact)
    assert found.relative_bias == pytest.approx(size, abs=4 * float(found.bias_floor))
    assert found.relative_bias > 5 * found.bias_floor


def test_saturated_candidates_are_counted_over_all_slots():
    pair, one = es.Family("subset", 4, 2), es.Family("categorical", 2)
    estimator = es.combine(
        {"pair": (pair, es.reinforce(pair)), "one": (one, es.exact(one))}
    )
    logits = {"pair": jnp.array([30.0, 30.0, 0.0, 0.0]), "one": jnp.zeros(2)}

    def objective(draw, theta):
        return draw.outcomes["pair"].sum(-1) + 0.5 * draw.outcomes["one"][:, 0]

    found = diagnosis(estimator, objective, logits, steps=2)
    assert found.saturation == pytest.approx(4 / 6)
    ranking = es.Family("ranking", 3, 2)
    found = diagnosis(
        es.reinforce(ranking),
        lambda draw, theta: draw.outcomes[:, 0] * 1.0,
        jnp.array([0.0, 0.0, -30.0]),
        steps=2,
    )
    assert found.saturation == 1


def test_a_loss_without_a_gradient_gives_zeros():
    estimator = es.reinforce(es.Family("categorical", 4))
    found = diagnosis(
        estimator, lambda draw, theta: jnp.ones_like(draw.coef), PHI, steps=2
    )
    assert found.cosine == found.exact_norm == found.relative_variance == 0


def test_what_cannot_be_diagnosed_is_refused():
    big = es.Family("subset", 60, 20)
    with pytest.raises(ValueError, match="can be enumerated"):
        diagnosis(es.reinforce(big), table_loss, jnp.zeros(60))
    with pytest.raises(ValueError, match="1 steps; take at least 2"):
        diagnosis(es.reinforce(es.Family("categorical", 4)), table_loss, PHI, steps=1)
