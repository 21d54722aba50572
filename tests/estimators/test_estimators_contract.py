"""The contract of every estimator on every family that it fits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_cases import (
    CASES,
    NOISY,
    ORACLES,
    PROBLEMS,
    Case,
    all_tuples,
    expectation,
    gradients,
    in_float32,
    lane,
    one_gradient,
    probabilities,
)

import estimators as es
from estimators.linear_proxy import LinearProxyState
from estimators.proxy import ProxyState
from estimators.relax import RelaxState
from estimators.schedule import TauState

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
SUMMED = [case for case in CASES if case.name not in NOISY]
UNBIASED = [case for case in SUMMED if case.build().spec.unbiased]
BIASED = [case for case in SUMMED if not case.build().spec.unbiased]
DRAWING = list(
    {
        (case.name, case.kind): case
        for case in CASES
        if not (case.build().spec.enumerates or case.build().spec.weighted)
    }.values()
)


def test_every_supported_pair_is_under_contract():
    listed = {(name, kind) for name, of in es.ESTIMATORS.items() for kind in of.kinds}
    assert {(case.name, case.kind) for case in CASES} == listed


@pytest.mark.parametrize("case", UNBIASED, ids=lambda case: case.label)
def test_expectation_of_unbiased_members_is_the_exact_gradient(case):
    mean, _ = expectation(case)
    np.testing.assert_allclose(mean, case.problem.oracle["grad"], atol=1e-10)


@pytest.mark.parametrize("case", BIASED, ids=lambda case: case.label)
def test_members_marked_biased_are_biased(case):
    mean, _ = expectation(case)
    exact = np.array(case.problem.oracle["grad"])
    assert np.linalg.norm(mean - exact) > 0.02 * np.linalg.norm(exact)


@every_case
def test_gradient_sums_to_zero_over_the_pool(case):
    tuples, _ = all_tuples(case)
    base = lane(case)
    tuples = [base.outcomes, *tuples[:63]]
    grads = gradients(case, [base._replace(outcomes=o) for o in tuples])
    np.testing.assert_allclose(grads.sum(1), 0, atol=1e-12)
    assert np.abs(grads).max() > 1e-3


def state_of_permuted_pool(state, order):
    def features(leaf, axis):
        leaf = np.moveaxis(np.asarray(leaf), axis, -1)
        places = leaf.reshape(*leaf.shape[:-1], -1, len(order))[..., order]
        return np.moveaxis(places.reshape(leaf.shape), -1, axis)

    if isinstance(state, LinearProxyState):
        window = state.window
        profile = np.asarray(window.profile)[:, order]
        window = window._replace(features=features(window.features, 1), profile=profile)
        return state._replace(window=window)
    if isinstance(state, ProxyState | RelaxState):
        params = dict(state.params)
        for name in ("linear", "weight"):
            params[name] = features(params[name], 0)
        state = state._replace(params=params)
    if isinstance(state, ProxyState):
        replay = state.replay
        replay = replay._replace(features=features(replay.features, 1))
        return state._replace(replay=replay)
    return state


# A subset's decisions of ``relax`` are taken in the order of the pool: permuting it
# changes single estimates and leaves their mean.
SYMMETRIC = [case for case in CASES if (case.name, case.kind) != ("relax", "subset")]


@pytest.mark.parametrize("case", SYMMETRIC, ids=lambda case: case.label)
def test_permuting_candidates_permutes_the_gradient(case):
    base = lane(case)
    order = np.random.default_rng(0).permutation(case.problem.family.n)
    place = np.argsort(order)
    outcomes = place[base.outcomes]
    if case.name == "exact":
        outcomes = base.outcomes  # the table holds every outcome in any pool order

    def moved(leaf):
        return leaf[np.ix_(*[order] * np.ndim(leaf))]

    other = base._replace(
        logits=base.logits[order],
        outcomes=outcomes,
        noise=None if base.noise is None else base.noise[..., order],
        params={name: moved(leaf) for name, leaf in base.params.items()},
        slope=None if base.slope is None else base.slope[..., order],
        state=state_of_permuted_pool(base.state, order),
    )
    grad, grad_moved = gradients(case, [base, other])
    np.testing.assert_allclose(grad_moved, grad[order], atol=1e-10)


@every_case
def test_masked_candidates_get_exactly_zero_and_leave_the_rest_alone(case):
    base = lane(case)
    n = case.problem.family.n
    mask = np.arange(n) != 1
    family = case.problem.family
    rows = np.array([row for row in family.enumerate() if 1 not in row])
    outcomes = rows[: len(base.outcomes)]
    if case.name == "exact":
        outcomes = base.outcomes
    masked = base._replace(mask=mask, outcomes=outcomes)
    wild = masked._replace(logits=np.where(mask, base.logits, 1e4))
    low = masked._replace(logits=np.where(mask, base.logits, -1e30))
    grads = gradients(case, [masked, wild, low])
    assert np.all(grads[:, 1] == 0) and np.all(np.isfinite(grads))
    assert np.abs(grads[0]).max() > 1e-4
    np.testing.assert_allclose(grads[1:], grads[[0, 0]], atol=1e-12)


@every_case
def test_adding_a_constant_to_the_losses_changes_nothing(case):
    base = lane(case)
    outside = {("baseline", "none"), ("baseline", "running_mean")}
    if outside & set(case.options):  # true only on average
        shifted, _ = expectation(
            case, lambda lane: lane._replace(shift=np.float64(7.0))
        )
        np.testing.assert_allclose(shifted, expectation(case)[0], atol=1e-10)
    else:
        grads = gradients(case, [base, base._replace(shift=np.float64(7.0))])
        np.testing.assert_allclose(grads[1], grads[0], atol=1e-10)


@every_case
def test_extreme_logits_have_finite_gradients(case):
    base = lane(case)
    pattern = np.array([0.0, -2.0, 2.0, -1.0, 1.0])[: case.problem.family.n]
    lanes = [base._replace(logits=scale * pattern) for scale in (0, 30.0, 1e3, 1e6)]
    assert np.all(np.isfinite(gradients(case, lanes)))


@pytest.mark.parametrize("name", ["exact", "reinforce", "linear_proxy"])
def test_unbiased_members_are_exact_to_single_precision_in_float32(name):
    case = next(c for c in UNBIASED if c.name == name and c.kind == "subset")
    estimator, problem = case.build(), case.problem
    tuples, prob = all_tuples(case)

    base = in_float32(lane(case))

    def one(outcomes):
        return one_gradient(estimator, problem.loss, base._replace(outcomes=outcomes))

    grads = jax.jit(jax.vmap(one))(jnp.asarray(np.stack(tuples)))
    assert grads.dtype == jnp.float32
    mean = prob @ np.asarray(grads, float)
    np.testing.assert_allclose(mean, problem.oracle["grad"], atol=1e-5)


@pytest.mark.parametrize("moment, baseline", [("none", "none"), ("loo", None)])
def test_score_estimators_have_the_stored_variance(moment, baseline):
    options = {"samples": 2} | ({"baseline": baseline} if baseline else {})
    case = Case("reinforce", "categorical", tuple(options.items()))
    stored = ORACLES["categorical_table_moments"]
    table = np.array(ORACLES["categorical_table"]["losses"])
    params = {"a": np.log(table + 2), "b": np.zeros((4, 4)), "first": np.zeros(4)}
    mean, variance = expectation(
        case, lambda lane: lane._replace(params=params, shift=np.float64(-2.0))
    )
    np.testing.assert_allclose(mean, stored["exact_grad"], atol=1e-10)
    expected = stored[f"score_2_{moment}"]["total_variance"]
    assert variance == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("tau", ["0.5", "1.0", "2.0"])
def test_straight_through_has_its_stored_biased_expectation(tau):
    case = next(case for case in CASES if case.name == "straight_through")
    state = TauState(np.int32(0), np.float32(tau))
    mean, _ = expectation(case, lambda lane: lane._replace(state=state))
    stored = case.problem.oracle["expected_straight_through"][tau]
    np.testing.assert_allclose(mean, stored, atol=1e-10)


def test_simple_has_its_stored_biased_expectation():
    case = next(case for case in CASES if case.name == "simple")
    mean, _ = expectation(case)
    stored = case.problem.oracle["expected_marginal_straight_through"]
    np.testing.assert_allclose(mean, stored, atol=1e-10)


def test_group_normalised_divides_by_the_deviation():
    case = next(c for c in CASES if ("baseline", "group_normalised") in c.options)
    outcomes = np.array([[0], [3]])
    base = lane(case, outcomes)
    losses = np.array(case.problem.oracle["losses"])[[0, 3]]
    sd = losses.std()
    p = np.exp(base.logits) / np.exp(base.logits).sum()
    score = np.eye(4)[[0, 3]] - p
    expected = ((losses - losses.mean()) / (sd + 1e-4)) @ score / 2
    np.testing.assert_allclose(gradients(case, [base])[0], expected, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            # members of each kind stand for the others in the fast tests
            marks=()
            if name in ("reinforce", "linear_proxy", "gumbel_softmax", "unordered_set")
            else pytest.mark.slow,
        )
        for name in sorted(es.ESTIMATORS)
    ],
)
def test_plain_and_jitted_phases_agree(name):
    case = next(case for case in CASES if case.name == name)
    estimator, problem = case.build(), case.problem
    wants_slope = "probe_slope" in estimator.spec.needs

    def phases(key, logits, state):
        draw = estimator.draw(key, logits, state)
        losses = problem.loss(draw.weights, problem.params)
        slope = jnp.cos(draw.probe) if wants_slope else None
        return draw, estimator.credit(logits, draw, losses, slope, state)

    logits = jnp.asarray(problem.phi, jnp.float32)
    state = estimator.init(jax.random.key(0), logits)
    plain = phases(jax.random.key(1), logits, state)
    jitted = jax.jit(phases)(jax.random.key(1), logits, state)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(jitted), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)

    draw, credit = plain
    assert jax.tree.map(jnp.shape, credit.state) == jax.tree.map(jnp.shape, state)
    dtypes = jax.tree.map(lambda leaf: leaf.dtype, (credit.state, state))
    assert dtypes[0] == dtypes[1]
    n, k = problem.family.n, problem.family.k
    assert draw.outcomes.dtype == jnp.int32
    assert draw.outcomes.shape == (estimator.spec.rows, k)
    assert draw.coef.sum() == pytest.approx(1, abs=1e-6)
    assert estimator.spec.evaluations(n, k) == estimator.spec.rows + wants_slope
    hard = problem.family.weights(draw.outcomes)
    assert np.array_equal(hard, draw.weights) == estimator.spec.hard_forward
    assert (draw.probe is not None) == wants_slope
    if wants_slope:
        assert draw.probe.sum() == pytest.approx(k) and np.all(draw.probe > 0)


@pytest.mark.parametrize("case", DRAWING, ids=lambda case: case.label)
def test_draws_follow_the_law_of_the_family(case):
    estimator, family = case.build(), case.problem.family
    logits = jnp.asarray(case.problem.phi, jnp.float32)
    state = estimator.init(jax.random.key(0), logits)
    keys = jax.random.split(jax.random.key(7), 8000)
    drawn = jax.jit(jax.vmap(lambda key: estimator.draw(key, logits, state).outcomes))
    drawn = np.asarray(drawn(keys)).reshape(-1, family.k)
    places = drawn.copy()
    if family.kind == "subset":
        drawn = np.sort(drawn, axis=1)
    table = family.enumerate()
    prob = probabilities(family, case.problem.phi)
    if case.name == "imle" and family.kind == "subset":  # Gumbel noise draws a ranking
        ranking = es.Family("ranking", family.n, family.k)
        sets = np.sort(ranking.enumerate(), axis=1)
        ordered = probabilities(ranking, case.problem.phi)
        prob = np.array([ordered[(sets == row).all(1)].sum() for row in table])
    seen = np.array([(drawn == row).all(1).sum() for row in table])
    error = np.abs(seen / len(drawn) - prob) / np.sqrt(prob * (1 - prob) / len(drawn))
    assert error.max() < 4.5
    if family.kind == "subset":  # the order is a fair coin
        first = (places == drawn).all(1).mean()
        assert abs(first - 0.5) < 4.5 * 0.5 / np.sqrt(len(drawn))


@pytest.mark.parametrize("name", sorted(es.ESTIMATORS))
def test_families_that_do_not_fit_are_refused_by_name(name):
    for kind, problem in PROBLEMS.items():
        if kind not in es.ESTIMATORS[name].kinds:
            with pytest.raises(
                ValueError, match=f"{name} does not fit the family {kind}"
            ):
                es.make(name, problem.family)
            with pytest.raises(
                ValueError, match=f"{name} does not fit the family {kind}"
            ):
                es.ESTIMATORS[name].build(problem.family)
