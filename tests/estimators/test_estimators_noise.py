"""Expectations of members with continuous noise: quadrature, and z-tests with power."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_cases import CASES, ORACLES, Lane, expectation, lane, one_gradient

import estimators as es
from estimators.noise import perturbed_given
from estimators.schedule import TauState

PAIR = ORACLES["relaxed_pair"]
TAUS = ("2.0", "1.0", "0.5", "0.1")


def pair_loss(weights, params):
    return (weights[..., 0] - params) ** 2


def pair_gradients(estimator, outcomes, noise, state):
    """Gradient of the pair's loss for every noise of one row, `[node, 2]`."""

    @jax.jit
    def over(outcomes, noise):
        def one(outcome, noise):
            mask = jnp.ones((2,), bool)
            params = jnp.float64(PAIR["target"])
            phi = jnp.asarray(PAIR["phi"])
            args = Lane(phi, outcome, noise, mask, params, 0.0, None, state)
            return one_gradient(estimator, pair_loss, args)

        return jax.vmap(one)(outcomes, noise)

    return np.asarray(over(jnp.asarray(outcomes), jnp.asarray(noise)))


def logistic(x):
    return 1 / (1 + np.exp(-x))


def logistic_nodes(num=24_001):
    """The difference of two Gumbel draws is logistic: nodes and their probability."""
    nodes, step = np.linspace(-60, 60, num, retstep=True)
    return nodes, step * 0.25 / np.cosh(0.5 * nodes) ** 2


@pytest.mark.parametrize("tau", TAUS)
def test_straight_through_gumbel_softmax_matches_the_stored_quadrature(tau):
    estimator = es.st_gumbel_softmax(es.Family("categorical", 2), samples=1)
    phi = PAIR["phi"]
    # The hard choice jumps between two nodes: only the stored grid gives its digits.
    nodes, density = logistic_nodes(240_001)
    noise = np.stack([nodes, 0 * nodes], axis=-1)[:, None]
    gap = np.clip((phi[0] - phi[1] + nodes) / float(tau), -700, 700)
    outcomes = np.where(logistic(gap) > 0.5, 0, 1)[:, None, None]
    with jax.enable_x64(True):
        state = TauState(jnp.int32(0), jnp.float64(tau))
        grads = pair_gradients(estimator, outcomes, noise, state)
    mean = density @ grads
    stored = PAIR[f"tau={tau}"]
    np.testing.assert_allclose(mean, stored["hard_grad"], atol=1e-10)
    variance = density @ grads[:, 0] ** 2 - mean[0] ** 2
    assert variance == pytest.approx(stored["hard_grad_variance"], abs=1e-10)


def conditional_nodes():
    """Ratios r of two exponentials: nodes u of u / (1 - u), and their weights."""
    nodes, weight = np.polynomial.legendre.leggauss(400)
    return (nodes + 1) / 2, weight / 2


def straight_through_mean(gap, tau):
    """By Gauss quadrature in NumPy, on either side of the jump of the hard choice."""
    nodes, weight = conditional_nodes()
    jump, mean = logistic(-gap), 0.0
    for low, high, choice in ((0.0, jump, 0.0), (jump, 1.0, 1.0)):
        u = low + (high - low) * nodes
        soft = logistic((gap + np.log(u) - np.log1p(-u)) / tau)
        slope = 2 * (choice - PAIR["target"]) * soft * (1 - soft) / tau
        mean += (high - low) * weight @ slope
    return mean


@pytest.mark.parametrize("tau", TAUS)
def test_gumbel_rao_has_the_mean_of_straight_through_gumbel_softmax(tau):
    """With the noise of its own draw: x_d - x_i = log(1 + r / p_i), r = E_i / E_d."""
    phi = np.array(PAIR["phi"])
    p = np.exp(phi) / np.exp(phi).sum()
    estimator = es.gumbel_rao(es.Family("categorical", 2), samples=1, inner=1)
    nodes, weight = conditional_nodes()
    with jax.enable_x64(True):
        state = TauState(jnp.int32(0), jnp.float64(tau))
        mean = 0
        for choice in (0, 1):
            other = 1 - choice
            gap = np.log1p(nodes / (1 - nodes) / p[other])
            noise = np.zeros((len(nodes), 1, 1, 2))
            noise[..., 0, 0, choice] = gap - phi[choice]
            noise[..., 0, 0, other] = -phi[other]
            outcomes = np.full((len(nodes), 1, 1), choice)
            grads = pair_gradients(estimator, outcomes, noise, state)
            mean = mean + p[choice] * weight @ grads
    expected = straight_through_mean(phi[0] - phi[1], float(tau))
    np.testing.assert_allclose(mean, [expected, -expected], atol=1e-8)
    # the stored grid steps over the jump: it is right to two digits
    assert expected == pytest.approx(PAIR[f"tau={tau}"]["hard_grad"][0], rel=1e-2)


@pytest.mark.parametrize("name", ["gumbel_rao", "relax"])
def test_conditional_noise_agrees_with_its_draw(name):
    """Its largest entry is the choice, and over draws it is plain Gumbel noise."""
    family = es.Family("categorical", 4)
    phi = jnp.array([0.2, -0.4, 1.0, 0.1])
    log_prob = jax.nn.log_softmax(phi)
    options = {"inner": 1} if name == "gumbel_rao" else {}
    estimator = es.make(name, family, {"samples": 20_000} | options)
    draw = estimator.draw(
        jax.random.key(3), phi, estimator.init(jax.random.key(0), phi)
    )
    noise = np.asarray(draw.memo.noise)[:, 0]
    if name == "relax":
        given = perturbed_given(log_prob, draw.outcomes[:, 0], noise)
        noise = np.asarray(given - log_prob)
    np.testing.assert_array_equal(np.argmax(log_prob + noise, -1), draw.outcomes[:, 0])
    euler = 0.5772156649
    error = np.abs(noise.mean(0) - euler) / (np.pi / np.sqrt(6 * len(noise)))
    assert error.max() < 4.5
    share = np.exp(-np.exp(-noise)).mean(0)  # the distribution function of the noise
    assert np.abs(share - 0.5).max() < 4.5 / np.sqrt(12 * len(noise))


def case_of(name, kind):
    return next(case for case in CASES if (case.name, case.kind) == (name, kind))


@pytest.mark.parametrize("tau", ["1.0", "1.5"])
def test_reinmax_has_its_stored_biased_expectation(tau):
    case = case_of("reinmax", "categorical")
    state = TauState(np.int32(0), np.float64(tau))
    mean, _ = expectation(case, lambda lane: lane._replace(state=state))
    stored = case.problem.oracle["expected_second_order"][tau]
    np.testing.assert_allclose(mean, stored, atol=1e-10)


def test_relax_is_unbiased_for_a_pair_whatever_its_network():
    """Every pair of outcomes; the noise of both rows on one grid, as terms add up."""
    family, phi = es.Family("categorical", 2), np.array(PAIR["phi"])
    p = np.exp(phi) / np.exp(phi).sum()
    estimator = es.relax(family, samples=2)
    nodes, weight = conditional_nodes()
    rng = np.random.default_rng(4)
    with jax.enable_x64(True):
        state = estimator.init(jax.random.key(0), jnp.asarray(phi))
        params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), state.params)
        state = state._replace(params=params, scale=jnp.float64(0.8))
        mean, single = 0, []
        for pair in ((0, 0), (0, 1), (1, 0), (1, 1)):
            noise = np.zeros((len(nodes), 2, 1, 2))
            for row, choice in enumerate(pair):
                noise[:, row, 0, 1 - choice] = np.log1p(-nodes) - np.log(nodes)
            outcomes = np.broadcast_to(np.array(pair)[:, None], (len(nodes), 2, 1))
            grads = pair_gradients(estimator, outcomes, noise, state)
            single.append(weight @ grads)
            mean = mean + p[list(pair)].prod() * weight @ grads
    exact = PAIR["exact_grad_0"]
    np.testing.assert_allclose(mean, [exact, -exact], atol=1e-7)
    assert np.abs(np.array(single) - mean).max() > 0.05  # the network does add noise


@pytest.mark.parametrize("kind", ["subset", "ranking"])
def test_relax_is_unbiased_on_sequences_of_decisions(kind):
    """z-test with a random network, 5 standard errors below a tenth of the gradient."""
    case = case_of("relax", kind)
    estimator, problem, base = case.build(), case.problem, lane(case)
    keys = jax.random.split(jax.random.key(11), 24)

    @jax.jit
    def some(key):
        def one(key):
            draw = estimator.draw(key, phi, state)
            losses = problem.loss(draw.weights, problem.params)
            return es.tell(estimator, phi, draw, losses, state).logits_grad

        return jax.vmap(one)(jax.random.split(key, 4096))

    with jax.enable_x64(True):
        phi, state = jnp.asarray(problem.phi), jax.tree.map(jnp.asarray, base.state)
        state = state._replace(scale=jnp.float64(0.2))
        grads = np.concatenate([np.asarray(some(key)) for key in keys])
    exact = np.array(problem.oracle["grad"])
    error = grads.std(0) / np.sqrt(len(grads))
    assert 5 * np.linalg.norm(error) < 0.1 * np.linalg.norm(exact)
    assert np.abs((grads.mean(0) - exact) / error).max() < 4.5


@pytest.mark.parametrize("step", [0.5, 2.0])
@pytest.mark.parametrize("kind", ["categorical", "subset"])
def test_imle_has_its_closed_form_on_a_pair(kind, step):
    """The best choice flips between x - step and x + step where |x| < step."""
    phi, target = np.array(PAIR["phi"]), PAIR["target"]
    estimator = es.imle(es.Family(kind, 2), samples=1, step=step)
    nodes, density = logistic_nodes()
    noise = np.stack([nodes, 0 * nodes], axis=-1)[:, None]
    outcomes = np.zeros((len(nodes), 1, 1), int)
    with jax.enable_x64(True):
        state = TauState(jnp.int32(0), jnp.float64(1.0))
        mean = density @ pair_gradients(estimator, outcomes, noise, state)
    gap = phi[0] - phi[1]
    first = logistic(step - gap) - logistic(-gap)
    other = logistic(-gap) - logistic(-step - gap)
    slopes = 2 * (1 - target) * first + 2 * (0 - target) * other
    expected = slopes / (2 * step)
    np.testing.assert_allclose(mean, [expected, -expected], atol=1e-3)


@pytest.mark.parametrize("tau", TAUS)
def test_soft_subset_differentiates_its_own_expected_loss(tau):
    """Ordered 2 of 2: with x the perturbed gap, both rows are logistic functions."""
    phi, t = np.array(PAIR["phi"]), float(tau)
    estimator = es.soft_subset(es.Family("ranking", 2, 2), samples=1)
    nodes, density = logistic_nodes()

    def loss(weights, params):
        first, second = weights[..., 0, 0], weights[..., 1, 0]
        return (first - params) ** 2 + first * jnp.sin(2 * second) - second

    def mean_loss(gap):
        x = nodes + gap
        first = logistic(x / t)
        second = logistic((x - x / t) / t)
        value = (first - PAIR["target"]) ** 2 + first * np.sin(2 * second) - second
        return density @ value

    with jax.enable_x64(True), np.errstate(over="ignore"):
        state = TauState(jnp.int32(0), jnp.float64(tau))

        @jax.jit
        def over(noise):
            def one(noise):
                args = Lane(
                    jnp.asarray(phi),
                    jnp.array([[0, 1]]),
                    noise,
                    jnp.ones((2,), bool),
                    jnp.float64(PAIR["target"]),
                    0.0,
                    None,
                    state,
                )
                return one_gradient(estimator, loss, args)

            return jax.vmap(one)(noise)

        noise = np.stack([nodes, 0 * nodes], axis=-1)[:, None]
        mean = density @ np.asarray(over(jnp.asarray(noise)))
        gap, h = phi[0] - phi[1], 1e-5
        expected = (mean_loss(gap + h) - mean_loss(gap - h)) / (2 * h)
    np.testing.assert_allclose(mean, [expected, -expected], atol=1e-6)


def test_the_rarest_noise_is_finite():
    """Uniform draws of 0 come once in millions: their noise and slopes stay finite."""
    log_prob = jax.nn.log_softmax(jnp.array([3.0, -20.0, 0.0]))
    extremes = jnp.array([-4.5, 0.0, 17.0])  # of Gumbel noise in float32
    noise = jnp.stack(jnp.meshgrid(extremes, extremes, extremes), -1).reshape(-1, 3)
    for choice in range(3):
        index = jnp.full((len(noise),), choice)
        found, slope = jax.jvp(
            lambda logp, index=index: perturbed_given(logp, index, noise),
            (log_prob,),
            (jnp.ones(3),),
        )
        assert np.all(np.isfinite(found)) and np.all(np.isfinite(slope))
        assert np.all(found[:, choice] == found.max(-1))
    drawn = jax.random.gumbel(jax.random.key(0), (2**20,), jnp.float32)
    assert np.all(np.isfinite(drawn)) and drawn.min() > -4.6 and drawn.max() < 17
