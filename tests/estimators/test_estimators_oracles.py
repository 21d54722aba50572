"""Every stored case, in float64 to 1e-10 and in float32 to 1e-5.

Cases that other files need a machinery for (gated attention, moments over all tuples,
Gumbel noise by quadrature) are reproduced there in float64; here they join in float32.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_cases import ORACLES, PROBLEMS, Lane, one_gradient
from test_estimators_combine import ORDER, PAIR, TEMPLATE, harness_loss

import estimators as es
from estimators.reinforce import ReinforceState
from estimators.schedule import TauState
from estimators.symmetric import log_total

PRECISE = pytest.mark.parametrize(
    "dtype, atol", [("float64", 1e-10), ("float32", 1e-5)]
)
EXACT = {
    "categorical_table": es.Family("categorical", 4),
    "categorical_quadratic": es.Family("categorical", 4),
    "categorical_curved": es.Family("categorical", 4),
    "subset_curved": es.Family("subset", 5, 2),
    "ordered_pairs": es.Family("ranking", 4, 2),
}


def arrays(tree, dtype):
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype),
        tree,
        is_leaf=lambda leaf: isinstance(leaf, list),
    )


def close(found, stored, atol):
    np.testing.assert_allclose(np.asarray(found, float), stored, atol=atol, rtol=0)


@PRECISE
@pytest.mark.parametrize("name", EXACT)
def test_values_gradients_and_entropies(name, dtype, atol):
    case, family = ORACLES[name], EXACT[name]
    estimator = es.exact(family)
    with jax.enable_x64(True):
        phi, losses = arrays((case["phi"], case["losses"]), dtype)
        table = jnp.asarray(family.enumerate())

        @jax.jit
        def run(phi, losses):
            state = estimator.init(jax.random.key(0), phi)
            memo = es.Memo(jnp.ones((family.n,), bool), jnp.zeros(len(table), int))
            draw = estimator.rebuild(phi, es.Draw(table, None, None, memo), state)
            told = es.tell(estimator, phi, draw, losses, state)
            law = family.distribution(phi)
            entropy = jax.value_and_grad(lambda phi: family.distribution(phi).entropy())
            return (
                told.value,
                told.logits_grad,
                entropy(phi),
                draw.coef,
                law.marginals(),
            )

        value, grad, (entropy, slope), probs, marginals = run(phi, losses)
        assert grad.dtype == value.dtype == slope.dtype == dtype
    close(value, case["value"], atol)
    close(grad, case["grad"], atol)
    close(entropy, case["entropy"], atol)
    close(slope, case["entropy_grad"], atol)
    close(probs, case.get("probs", probs), atol)
    close(marginals, case.get("marginals", case.get("slot_marginals", marginals)), atol)


@PRECISE
def test_a_subset_has_its_stored_partition_and_best_linear_fit(dtype, atol):
    case, family = ORACLES["subset_curved"], EXACT["subset_curved"]
    with jax.enable_x64(True):
        phi = arrays(case["phi"], dtype)
        esp = [log_total(phi, k) for k in (1, 2)]
        covariance = jax.jacobian(lambda phi: es.Subset(phi, 2).marginals())(phi)
    close(esp, case["log_esp"][1:], atol)
    close(esp[1], case["log_z"], atol)
    close(covariance, case["covariance"], atol)
    # the best linear fit turns into the exact gradient
    fit = np.array(case["linear_proxy"])
    close(np.asarray(covariance, float) @ fit, case["grad"], max(atol, 1e-9))
    prob, hot = np.array(case["probs"]), np.asarray(family.weights(family.enumerate()))
    centred = hot - prob @ hot
    rest = np.array(case["losses"]) - case["value"] - centred @ fit
    close(prob * rest @ centred, np.zeros(5), 1e-10)


@PRECISE
def test_bernoulli_draws_conditioned_on_their_number(dtype, atol):
    case = ORACLES["subset_from_bernoulli"]
    with jax.enable_x64(True):
        q = arrays(case["inclusion_probs"], dtype)
        phi = jnp.log(q / (1 - q))
        law = es.Subset(phi, case["k"])
        partition = log_total(phi, case["k"])
        marginals, entropy = law.marginals(), law.entropy()
        chance = partition + jnp.log1p(-q).sum()
    close(chance, case["log_prob_exactly_k"], atol)
    close(marginals, case["marginals"], atol)
    close(entropy, case["entropy"], atol)


@PRECISE
def test_orders_and_their_sets(dtype, atol):
    case, other = ORACLES["ordered_pairs"], ORACLES["subset_is_not_top_k"]
    with jax.enable_x64(True):
        law = es.Ranking(arrays(case["phi"], dtype), 2)
        prob = np.exp(np.asarray(law.log_prob(jnp.asarray(case["outcomes"])), float))
        five = arrays(other["phi"], dtype)
        places = es.Ranking(five, other["k"]).marginals()
        inclusion = es.Subset(five, other["k"]).marginals()
    sets = np.sort(np.array(case["outcomes"]), axis=1)
    for name, stored in case["set_log_probs"].items():
        members = [int(i) for i in name.split(",")]
        close(math.log(prob[(sets == members).all(1)].sum()), stored, atol)
    close(np.asarray(places).sum(0), other["ordered_inclusion"], atol)
    close(inclusion, other["subset_marginals"], atol)


@PRECISE
@pytest.mark.parametrize("name", ORACLES["bernoulli_toy"])
def test_the_bernoulli_toy_and_its_straight_through_trap(name, dtype, atol):
    case = ORACLES["bernoulli_toy"][name]
    target, theta = (float(part.split("=")[1]) for part in name.split(","))
    family = es.Family("categorical", 2)
    estimator = es.straight_through(family, samples=1)

    def loss(weights, params):
        return (weights[..., 0] - params) ** 2

    with jax.enable_x64(True):
        phi, goal = arrays(([theta, 0.0], target), dtype)
        run = es.value_and_grad(
            es.exact(family), lambda draw, theta: loss(draw.weights, goal)
        )
        found = run(jax.random.key(0), phi, jnp.int32(0))
        state = TauState(jnp.int32(0), jnp.float32(1.0))

        def one(outcomes):
            mask = jnp.ones((2,), bool)
            args = Lane(phi, outcomes[None], None, mask, goal, 0.0, None, state)
            return one_gradient(estimator, loss, args)[0]

        through = jax.jit(jax.vmap(one))(jnp.arange(2)[:, None])
    p = 1 / (1 + math.exp(-theta))
    close(found.value, case["value"], atol)
    close(found.logits_grad[0], case["grad"], atol)
    mean = p * float(through[0]) + (1 - p) * float(through[1])
    close(mean, case["expected_straight_through"], atol)
    # where straight-through stops: p = t, whose loss is not the least
    close(target * (1 - target), case["straight_through_fixed_point_loss"], 1e-12)
    assert case["minimum"] < case["straight_through_fixed_point_loss"]


@PRECISE
def test_the_whole_harness(dtype, atol):
    case = ORACLES["whole_harness"]
    slots = {"template": TEMPLATE, "pair": PAIR, "order": ORDER}
    estimator = es.combine({slot: (own, es.exact(own)) for slot, own in slots.items()})
    with jax.enable_x64(True):
        phi = arrays({slot: case[slot]["phi"] for slot in slots}, dtype)
        run = jax.jit(
            es.value_and_grad(estimator, lambda draw, _: harness_loss(draw.weights))
        )
        found = run(jax.random.key(0), phi, estimator.init(jax.random.key(1), phi))
        law = es.Product({slot: slots[slot].distribution(phi[slot]) for slot in slots})
        entropy = law.entropy()
    close(found.value, case["value"], atol)
    close(entropy, case["entropy"], atol)
    for slot in slots:
        close(found.logits_grad[slot], case[f"grad_{slot}"], atol)


@PRECISE
def test_extreme_logits(dtype, atol):
    case = ORACLES["extreme_logits"]
    family = es.Family("categorical", 4)
    with jax.enable_x64(True):
        phi = arrays(case["phi"], dtype)
        entropy = jax.value_and_grad(lambda phi: family.distribution(phi).entropy())
        value, slope = entropy(phi)
        marginals = es.Subset(phi, 2).marginals()
    close(value, case["entropy"], atol)
    close(slope, case["entropy_grad"], atol)
    close(marginals, case["subset_marginals_k2"], atol)


MOMENTS = {
    "score_1_none": ("none", 1),
    "score_1_mean": ("running_mean", 1),
    "score_2_none": ("none", 2),
    "score_2_loo": ("leave_one_out", 2),
    "score_3_loo": ("leave_one_out", 3),
}


@PRECISE
@pytest.mark.parametrize("name", MOMENTS)
def test_moments_of_score_estimators(name, dtype, atol):
    case, table = ORACLES["categorical_table_moments"], ORACLES["categorical_table"]
    baseline, samples = MOMENTS[name]
    family = EXACT["categorical_table"]
    estimator = es.reinforce(family, samples=samples, baseline=baseline)
    rows = np.array(list(itertools.product(range(4), repeat=samples)))
    with jax.enable_x64(True):
        phi, losses = arrays((case["phi"], case["losses"]), dtype)
        past = arrays((table["value"], 1.0), dtype)
        state = ReinforceState(jnp.int32(1), *past)  # the mean loss as running mean

        @jax.jit
        def one(outcomes):
            memo = es.Memo(jnp.ones(4, bool), jnp.zeros(samples, int))
            raw = es.Draw(outcomes[:, None], None, None, memo)
            draw = estimator.rebuild(phi, raw, state)
            return es.tell(estimator, phi, draw, losses[outcomes], state).logits_grad

        grads = np.asarray(jax.vmap(one)(jnp.asarray(rows)), float)
    prob = np.exp(case["phi"]) / np.exp(case["phi"]).sum()
    chance = prob[rows].prod(1)
    mean = chance @ grads
    close(mean, case[name]["mean"], atol)
    variance = chance @ (grads**2).sum(1) - mean @ mean
    close(variance, case[name]["total_variance"], atol)
    if name == "score_3_loo":  # subtracting the mean of all rows shrinks by (S - 1) / S
        close(mean * 2 / 3, case["score_3_group"]["mean"], atol)
        close(variance * 4 / 9, case["score_3_group"]["total_variance"], atol)


@pytest.mark.parametrize(
    "name, member, key",
    [
        ("categorical", "straight_through", "expected_straight_through"),
        ("categorical", "reinmax", "expected_second_order"),
        ("subset", "simple", "expected_marginal_straight_through"),
    ],
)
def test_biased_expectations_in_float32(name, member, key):
    problem = PROBLEMS[name]
    estimator = es.make(member, problem.family, {"samples": 1})
    phi, params = arrays((problem.phi, dict(problem.params)), "float32")
    state = TauState(jnp.int32(0), jnp.float32(1.0))
    mask = jnp.ones((problem.family.n,), bool)

    def one(outcomes):
        args = Lane(phi, outcomes[None], None, mask, params, 0.0, None, state)
        return one_gradient(estimator, problem.loss, args)

    table = problem.family.enumerate()
    grads = np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(table)), float)
    log_prob = problem.family.distribution(phi).log_prob(jnp.asarray(table))
    stored = problem.oracle[key]
    stored = stored["1.0"] if isinstance(stored, dict) else stored
    close(np.exp(np.asarray(log_prob, float)) @ grads, stored, 1e-5)


@PRECISE
@pytest.mark.parametrize("tau", ["0.5", "1.0", "1.5", "2.0"])
def test_the_quadratic_case_through_its_slopes(tau, dtype, atol):
    case = ORACLES["categorical_quadratic"]
    problem = PROBLEMS["categorical"]

    def loss(weights, params):
        cross = jnp.einsum("...i,ij,...j->...", weights, params["b"], weights)
        return weights @ params["a"] + cross + 0.5 * jnp.sum(weights**2, -1)

    prob = np.exp(case["phi"]) / np.exp(case["phi"]).sum()
    for member, key in (
        ("straight_through", "expected_straight_through"),
        ("reinmax", "expected_second_order"),
    ):
        if tau not in case[key]:
            continue
        estimator = es.make(member, problem.family, {"samples": 1})
        with jax.enable_x64(True):
            phi, params = arrays((case["phi"], dict(problem.params)), dtype)
            state = TauState(jnp.int32(0), jnp.float32(tau))

            def one(outcomes, phi=phi, params=params, estimator=estimator, state=state):
                mask = jnp.ones((4,), bool)
                args = Lane(phi, outcomes[None], None, mask, params, 0.0, None, state)
                return one_gradient(estimator, loss, args)

            grads = np.asarray(jax.jit(jax.vmap(one))(jnp.arange(4)[:, None]), float)
        close(prob @ grads, case[key][tau], atol)
