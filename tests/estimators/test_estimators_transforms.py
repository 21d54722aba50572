"""Every member under jit, vmap, scan and the key checks, and in low precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_cases import CASES

import estimators as es

# Each of these compiles whole loops: the fast tests run one member of each kind
# (values, a window, a path, weighted rows), the slow ones all.
FAST = ("reinforce", "linear_proxy", "gumbel_softmax", "unordered_set")
ONE_PER_MEMBER = list({case.name: case for case in CASES}.values())


def mostly_slow(cases):
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, marks=() if case.name in FAST else pytest.mark.slow)
            for case in cases
        ],
        ids=lambda case: case.label,
    )


STEPS, BATCH = 3, 2


def make_step(case, dtype=jnp.float32):
    estimator, problem = case.build(), case.problem
    params = {name: jnp.asarray(leaf) for name, leaf in problem.params.items()}
    wants_slope = "probe_slope" in estimator.spec.needs
    run = es.value_and_grad(
        estimator,
        lambda draw, theta: problem.loss(draw.weights, params).astype(dtype),
        (lambda probe, theta: jnp.cos(probe)) if wants_slope else None,
    )

    def step(carry, key):
        logits, state = carry
        found = run(key, logits, state)
        assert found.logits_grad.dtype == jnp.float32
        return (logits - 0.1 * found.logits_grad, found.state), found.logits_grad

    return step


def start(case):
    logits = jnp.asarray(case.problem.phi, jnp.float32)
    return logits, case.build().init(jax.random.key(9), logits)


@mostly_slow(CASES)
def test_a_batch_of_scanned_steps_is_the_loop_over_single_steps(case):
    """One trace for all steps; the suite's check sees that no key is used twice."""
    step, traces = make_step(case), []

    def counted(carry, seed):
        traces.append(1)
        return step(carry, jax.random.key(seed))

    seeds = np.arange(BATCH * STEPS).reshape(BATCH, STEPS)
    single, looped = jax.jit(counted), []
    for row in seeds:
        carry = start(case)
        for seed in row:
            carry, grad = single(carry, seed)
            looped.append(grad)
    assert len(traces) == 1
    scanned = jax.vmap(lambda row: jax.lax.scan(counted, start(case), row)[1])
    looped = jnp.stack(looped).reshape(BATCH, STEPS, -1)
    np.testing.assert_allclose(jax.jit(scanned)(seeds), looped, rtol=1e-4, atol=2e-5)
    assert np.all(np.isfinite(looped)) and np.abs(looped).max() > 1e-3


@mostly_slow(ONE_PER_MEMBER)
def test_losses_in_bfloat16_give_a_gradient_in_float32(case):
    low, full = make_step(case, jnp.bfloat16), make_step(case)

    @jax.jit
    def both(carry, seed):
        return low(carry, jax.random.key(seed)), full(carry, jax.random.key(seed))

    ((logits, _), grad), (_, exact) = both(start(case), 3)
    assert logits.dtype == grad.dtype == jnp.float32
    np.testing.assert_allclose(grad, exact, atol=0.1 * np.abs(exact).max() + 0.03)
