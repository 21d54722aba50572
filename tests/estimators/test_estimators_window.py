"""The replay window and its ridge fit, and the linear proxy built on them."""

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_cases import A5, C5, PROBLEMS, Case, curved5, in_float32, past_state

import estimators as es
from estimators.window import empty_window, fit, store

N, K, ROWS, SIZE = 6, 2, 8, 32
FAMILY = es.Family("subset", N, K)
UNIFORM = np.full(N, 1 / N)
store = jax.jit(store)
fit = jax.jit(fit, static_argnames=("ridge", "decay"))


def filled(loss, steps=4, seed=0, profile=UNIFORM, group=None):
    """A window of random subsets with these losses."""
    rng = np.random.default_rng(seed)
    window = empty_window(SIZE, N, N, jnp.float32)
    group = np.zeros(ROWS) if group is None else group
    group = np.asarray(group, np.int32)
    for step in range(steps):
        rows = FAMILY.enumerate()[rng.integers(FAMILY.num_outcomes, size=ROWS)]
        hot = np.asarray(FAMILY.weights(rows))
        coef = np.full(ROWS, 1 / ROWS)
        window = store(window, hot, loss(hot, step), coef, group, profile, step)
    return window


def linear(hot, step):
    return hot @ np.array([1.0, -2.0, 0.5, 0.0, 3.0, -1.0]) + 10.0 * step


def test_rows_overwrite_the_oldest():
    window = empty_window(SIZE, N, N, jnp.float32)
    for step in range(5):
        losses = np.arange(ROWS) + 100.0 * step
        coef, group = np.full(ROWS, 1 / ROWS), np.zeros(ROWS, np.int32)
        args = (np.zeros((ROWS, N)), losses, coef, group)
        window = store(window, *args, UNIFORM, step)
    np.testing.assert_array_equal(window.step, np.repeat([4, 1, 2, 3], ROWS))
    np.testing.assert_array_equal(window.losses[:ROWS], np.arange(ROWS) - 3.5)
    np.testing.assert_array_equal(window.weight, 1.0)


def test_losses_and_features_are_centred_within_their_group():
    window = filled(
        lambda hot, step: hot[:, 0] + np.repeat([0, 9, 5, 7], 2),
        group=np.repeat([0, 1, 2, 3], 2),
    )
    losses = np.asarray(window.losses).reshape(-1, 2)
    features = np.asarray(window.features).reshape(-1, 2, N)
    np.testing.assert_allclose(losses.sum(1), 0, atol=1e-6)
    np.testing.assert_allclose(features.sum(1), 0, atol=1e-6)
    np.testing.assert_allclose(features[..., 0], losses, atol=1e-6)
    pairs = np.asarray(window.fold).reshape(-1, 2)
    assert np.all(pairs[:, 0] == pairs[:, 1]) and set(pairs[:, 0]) == {0, 1}


def test_fit_solves_the_weighted_ridge_problem():
    window = filled(
        lambda hot, step: linear(hot, step) + np.sin(7 * hot @ np.arange(N))
    )
    window = window._replace(weight=np.linspace(0.2, 1.5, SIZE, dtype=np.float32))
    now = np.array([0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
    found = fit(window, None, now, 5, ridge=0.1, decay=0.9)
    age = 5 - np.asarray(window.step)
    weight = np.asarray(window.weight) * 0.9**age * np.minimum(now, 1 / N).sum()
    z, f = np.asarray(window.features, float), np.asarray(window.losses, float)
    gram = (z * weight[:, None]).T @ z + 0.1 * max(weight.sum(), 1) * np.eye(N)
    expected = np.linalg.solve(gram, z.T @ (weight * f))
    np.testing.assert_allclose(found.coefficients, expected, rtol=1e-4, atol=1e-5)
    assert found.rows == pytest.approx(weight.sum(), rel=1e-5)
    assert found.beta == 0 and found.slope_r2 == 0


def test_a_useful_slope_becomes_the_prior_and_a_useless_one_does_not():
    truth = np.array([1.0, -2.0, 0.5, 0.0, 3.0, -1.0])
    window = filled(linear, steps=2)
    good = fit(window, 0.5 * truth, UNIFORM, 2, ridge=0.05, decay=1.0)
    assert good.beta == pytest.approx(2.0, rel=1e-3)
    np.testing.assert_allclose(good.coefficients, truth, rtol=1e-3, atol=1e-3)
    assert good.slope_r2 == pytest.approx(1.0, abs=1e-3)
    plain = fit(window, None, UNIFORM, 2, ridge=0.05, decay=1.0)
    assert np.linalg.norm(plain.coefficients - truth) > 0.3
    for bad in (-truth, np.array([2.0, 1.0, 0.0, 0.0, 0.0, 0.0]), np.zeros(N)):
        found = fit(window, bad, UNIFORM, 2, ridge=0.05, decay=1.0)
        assert found.beta == 0
        np.testing.assert_allclose(found.coefficients, plain.coefficients, atol=1e-5)


def test_a_slope_that_only_half_of_the_window_supports_is_left_out():
    """On all rows its coefficient is positive; each half predicts the other badly."""
    slope = np.array([1.0, -2.0, 0.5, 0.0, 3.0, -1.0])
    window = filled(lambda hot, step: hot @ slope * (1.0 if step % 2 == 0 else -0.5))
    z, f = np.asarray(window.features), np.asarray(window.losses)
    assert (z @ slope) @ f > 0
    found = fit(window, slope, UNIFORM, 4, ridge=0.05, decay=1.0)
    plain = fit(window, None, UNIFORM, 4, ridge=0.05, decay=1.0)
    assert found.beta == 0 and found.slope_r2 < 0
    np.testing.assert_allclose(found.coefficients, plain.coefficients, atol=1e-5)


def test_held_out_shares_tell_signal_from_noise():
    rng = np.random.default_rng(0)
    signal = fit(filled(linear), None, UNIFORM, 4, ridge=0.01, decay=1.0)
    noise = filled(lambda hot, step: rng.normal(size=ROWS))
    noise = fit(noise, None, UNIFORM, 4, ridge=0.01, decay=1.0)
    assert signal.ridge_r2 > 0.8 > 0.2 > noise.ridge_r2


def test_old_rows_and_rows_of_another_law_count_less():
    """Half of the window says +1, the other half -1, for candidate 0."""

    def flip(hot, step):
        return hot[:, 0] * (1.0 if step < 2 else -1.0)

    window = filled(flip)
    even = fit(window, None, UNIFORM, 4, ridge=0.01, decay=1.0).coefficients[0]
    recent = fit(window, None, UNIFORM, 4, ridge=0.01, decay=0.1).coefficients[0]
    assert recent < -0.5 and recent < even
    profile = np.repeat([[1, 0, 0, 0, 0, 0], UNIFORM], 2 * ROWS, axis=0)
    moved = window._replace(profile=jnp.asarray(profile, jnp.float32))
    found = fit(moved, None, UNIFORM, 4, ridge=0.01, decay=1.0)
    assert found.coefficients[0] < -0.3
    assert found.rows == pytest.approx(16 + 16 / 6, rel=1e-5)


def test_an_empty_window_fits_nothing():
    window = empty_window(SIZE, N, N, jnp.float32)
    found = fit(window, np.ones(N), UNIFORM, 0, ridge=0.01, decay=0.9)
    for number in jax.tree.leaves(found):
        assert np.all(np.asarray(number) == 0)


def test_rows_of_coefficient_zero_count_for_nothing():
    group = np.repeat([0, 1], 4)
    coef = (1 - group) / 4
    found = []
    for wild in (0.0, 50.0):
        window = empty_window(SIZE, N, N, jnp.float32)
        losses = np.array([1.0, 2.0, 0.0, 3.0, wild, 0.0, -wild, 9.0])
        args = (np.eye(8, N), losses, coef, group, UNIFORM)
        window = store(window, *args, 0)
        found.append(fit(window, None, UNIFORM, 1, ridge=0.01, decay=1.0))
    np.testing.assert_array_equal(found[0].coefficients, found[1].coefficients)
    assert found[0].rows == pytest.approx(8) and np.any(found[0].coefficients)


def test_plug_in_is_exact_where_the_window_holds_every_outcome():
    """At uniform logits the whole table weighs every outcome as the law does."""
    problem = PROBLEMS["subset"]
    with jax.enable_x64(True):
        table = jnp.asarray(problem.family.enumerate())
        estimator = es.linear_proxy(
            problem.family, samples=10, window=10, ridge=1e-9, use_slope=False
        )
        logits = jnp.zeros(5, jnp.float64)
        memo = es.Memo(jnp.ones(5, bool), jnp.zeros(10, jnp.int32))
        raw = es.Draw(table, None, None, memo)
        state = estimator.init(None, logits)
        losses = curved5(problem.family.weights(table, jnp.float64), {"a": A5, "c": C5})
        run = jax.jit(functools.partial(es.tell, estimator))
        told = run(logits, raw, losses, state)
        exact = jax.jit(functools.partial(es.tell, es.exact(problem.family)))
        best = exact(logits, raw, losses, jnp.int32(0))
    np.testing.assert_allclose(told.logits_grad, best.logits_grad, atol=1e-7)


def test_residual_adds_the_share_it_names():
    """Plug-in and residual terms are affine in the share, from one past fit."""
    found = {}
    problem = PROBLEMS["categorical"]
    outcomes = jnp.array([[0], [2]])
    losses = jnp.array([0.3, 1.9])
    for residual in (0.25, 0.5, 1.0):
        options = (("samples", 2), ("window", 6), ("residual", residual))
        case = Case("linear_proxy", "categorical", options)
        estimator = case.build()
        state = in_float32(past_state(case, estimator))
        logits = jnp.asarray(problem.phi, jnp.float32)
        memo = es.Memo(jnp.ones(4, bool), jnp.zeros(2, jnp.int32))
        raw = es.Draw(outcomes, None, None, memo)
        told = jax.jit(functools.partial(es.tell, estimator))(
            logits, raw, losses, state
        )
        found[residual] = np.asarray(told.logits_grad)
        assert not estimator.spec.unbiased or residual == 1.0
    step = (found[0.5] - found[0.25]) * 2
    np.testing.assert_allclose(found[1.0], found[0.5] + step, rtol=1e-4, atol=1e-6)
    assert np.abs(step).max() > 0.05


def test_a_large_ranking_takes_the_fit_from_free_draws(monkeypatch):
    """The free draws' mean gradient is that of the enumerated expectation."""
    family = PROBLEMS["ranking"].family
    logits = jnp.asarray(PROBLEMS["ranking"].phi, jnp.float32)

    def grad_of(estimator, key):
        draw = es.ask(estimator, key, logits, state)
        return es.tell(estimator, logits, draw, jnp.zeros(2), state).logits_grad

    # a share above 0 keeps this step's losses out of the fit
    options = dict(samples=2, window=6, use_slope=False, residual=1e-12)
    case = Case("linear_proxy", "ranking", tuple(options.items()))
    state = in_float32(past_state(case, case.build()))
    enumerated = functools.partial(grad_of, es.linear_proxy(family, **options))
    whole = np.asarray(jax.jit(enumerated)(jax.random.key(0)))
    # the function hides its module as an attribute of the package
    monkeypatch.setattr(sys.modules["estimators.expectation"], "EXPECT_LIMIT", 1)
    sampled = es.linear_proxy(family, **options, free_draws=512)
    keys = jax.random.split(jax.random.key(1), 200)
    grads = np.asarray(jax.jit(jax.vmap(functools.partial(grad_of, sampled)))(keys))
    error = grads.std(0) / np.sqrt(len(grads))
    assert np.all(np.abs(grads.mean(0) - whole) < 5 * error)
    assert np.all(5 * error < 0.1 * np.abs(whole).max())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"samples": 1}, "1 samples; draw at least 2"),
        ({"window": 30}, "30 is not a multiple of 8 samples; use 32"),
        ({"window": 4}, "4 is not a multiple of 8 samples; use 8"),
        ({"ridge": 0.0}, "ridge 0.0"),
        ({"decay": 1.5}, "decay 1.5"),
        ({"residual": 1.5}, r"residual 1.5; give one in \[0, 1\]"),
        ({"free_draws": 1}, "1 free draws"),
    ],
)
def test_settings_of_the_proxy_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        es.linear_proxy(FAMILY, **options)


MANY_RUNS = """
import jax, jax.numpy as jnp, estimators as es
family = es.Family("ranking", 24, 2)
estimator = es.linear_proxy(family, samples=16, use_slope=False, window=80)
table = jax.random.normal(jax.random.key(0), (24, 24))
run = es.value_and_grad(
    estimator, lambda draw, _: table[draw.outcomes[:, 0], draw.outcomes[:, 1]]
)
@jax.jit
def step(keys, number, logits, state):
    def one(key, logits, state):
        return run(jax.random.fold_in(key, number), logits, state).state
    return jax.vmap(one)(keys, logits, state)
keys, logits = jax.random.split(jax.random.key(1), 40), jnp.zeros((40, 24))
state = jax.vmap(estimator.init)(keys, logits)
for number in range(60):
    state = jax.block_until_ready(step(keys, number, logits, state))
print(int(state.step[0]))
"""


def test_many_runs_side_by_side_come_to_an_end():
    """Three factorisations in one program hung JAX 0.10 on two cores within steps."""
    done = subprocess.run(
        [sys.executable, "-c", MANY_RUNS],
        cwd=pathlib.Path(__file__).parents[2],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.strip() == "60", done.stderr
