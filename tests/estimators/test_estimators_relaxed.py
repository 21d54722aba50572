"""Relaxed samples: quadrature over the noise, and temperatures."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from estimator_cases import CASES, ORACLES, Lane, gradients, lane, one_gradient

import estimators as es
from estimators.relaxed import through
from estimators.schedule import TauState

PAIR = ORACLES["relaxed_pair"]


@pytest.mark.parametrize(
    "name, family",
    [
        ("gumbel_softmax", es.Family("categorical", 2)),
        ("perturbed_marginals", es.Family("subset", 2, 1)),
    ],
)
def test_two_candidates_match_the_stored_quadrature(name, family):
    estimator = es.make(name, family, {"samples": 1})

    def loss(weights, params):
        return (weights[..., 0] - params) ** 2

    # The difference of two Gumbel draws is logistic.
    nodes, step = np.linspace(-60, 60, 24_001, retstep=True)
    density = step * 0.25 / np.cosh(0.5 * nodes) ** 2
    with jax.enable_x64(True):

        @jax.jit
        def over_noise(state):
            def one(node):
                noise = jnp.stack([node, jnp.zeros_like(node)])[None]
                mask = jnp.ones((2,), bool)
                outcomes = jnp.zeros((1, 1), jnp.int32)
                params = jnp.float64(PAIR["target"])
                phi = jnp.asarray(PAIR["phi"])
                args = Lane(phi, outcomes, noise, mask, params, 0.0, None, state)
                return one_gradient(estimator, loss, args)

            return jax.vmap(one)(jnp.asarray(nodes))

        for tau in ("2.0", "1.0", "0.5", "0.1"):
            grads = np.asarray(over_noise(TauState(jnp.int32(0), jnp.float64(tau))))
            stored = PAIR[f"tau={tau}"]
            mean = density @ grads
            np.testing.assert_allclose(mean, stored["grad"], atol=1e-10)
            variance = density @ grads[:, 0] ** 2 - mean[0] ** 2
            assert variance == pytest.approx(stored["grad_variance"], abs=1e-10)


def test_perturbed_marginals_differentiate_the_loss_at_their_own_weights():
    """Against central differences of an enumerated, independent computation."""
    case = next(case for case in CASES if case.name == "perturbed_marginals")
    base, problem, tau = lane(case), case.problem, 0.5
    hot = np.zeros((10, 5))
    for row, pair in enumerate(itertools.combinations(range(5), 2)):
        hot[row, list(pair)] = 1

    def mean_loss(phi):
        score = hot @ ((phi + base.noise) / tau).T  # [subset, row]
        prob = np.exp(score) / np.exp(score).sum(0)
        weights = prob.T @ hot
        a, c = weights @ problem.params["a"], weights @ problem.params["c"]
        return (a + 0.5 * c**2 + np.sin(a * c)).mean()

    steps = 1e-6 * np.eye(5)
    slopes = [mean_loss(problem.phi + s) - mean_loss(problem.phi - s) for s in steps]
    np.testing.assert_allclose(
        gradients(case, [base])[0], np.array(slopes) / 2e-6, atol=1e-8
    )


def test_relaxed_outcomes_of_a_categorical_round_the_weights():
    estimator = es.gumbel_softmax(es.Family("categorical", 4), samples=200)
    logits = jnp.array([0.2, -0.4, 1.0, 0.1])
    draw = estimator.draw(jax.random.key(0), logits, estimator.init(None, logits))
    np.testing.assert_array_equal(draw.outcomes[:, 0], draw.weights.argmax(-1))


def test_hard_weights_are_exact_beside_a_gradient():
    hard = jnp.array([0.0, 1.0, 0.0])
    for seed in range(50):
        soft = jax.nn.softmax(jax.random.normal(jax.random.key(seed), (3,)))
        np.testing.assert_array_equal(through(hard, soft), hard)
    np.testing.assert_array_equal(
        jax.jacobian(lambda s: through(hard, s))(soft), np.eye(3)
    )


def test_temperature_follows_its_schedule_and_stays_above_the_floor():
    schedule = optax.linear_schedule(1.0, 0.0, 4)
    estimator = es.gumbel_softmax(es.Family("categorical", 3), tau=schedule)
    logits, seen = jnp.zeros(3), []
    state = estimator.init(None, logits)
    for _ in range(6):
        seen.append(float(state.tau))
        state = estimator.credit(logits, None, None, None, state).state
    np.testing.assert_allclose(seen, [1.0, 0.75, 0.5, 0.25, 0.1, 0.1], rtol=1e-6)
    assert state.step == 6


@pytest.mark.parametrize(
    "name, kind", [("gumbel_softmax", "categorical"), ("perturbed_marginals", "subset")]
)
@pytest.mark.parametrize(
    "options, message",
    [({"tau": 0.05}, "tau 0.05 is below 0.1"), ({"samples": 0}, "draw at least 1")],
)
def test_settings_out_of_range_are_refused(name, kind, options, message):
    with pytest.raises(ValueError, match=message):
        es.make(name, es.Family(kind, 4), options)
