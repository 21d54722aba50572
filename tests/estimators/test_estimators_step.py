"""The loop around an estimator: value_and_grad, ask and tell, tasks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimators as es

TEMPLATE = es.Family("categorical", 2)
POOL = es.Family("subset", 6, 3)
GOOD = np.array([1.0, -0.5, 0.3, 0.0, 2.0, -1.0], np.float32)


@functools.cache
def harness(name="linear_proxy", **options):
    part = es.make(name, POOL, {"samples": 8} | options)
    soft = not part.spec.hard_forward
    return es.combine(
        {"template": (TEMPLATE, es.exact(TEMPLATE)), "exemplars": (POOL, part)},
        allow_soft_reward=soft,
    )


def objective(draw, theta, items):
    weights = draw.weights["exemplars"]
    score = theta * (weights @ GOOD) + draw.weights["template"] @ jnp.array([0.0, 1.0])
    return jnp.mean(jnp.sin(score[..., None] + items), axis=-1)


def slope(probe, theta, items):
    def relaxed(weights):
        return jnp.mean(jnp.sin(theta * (weights @ GOOD) + 0.5 + items))

    grad = jax.grad(relaxed)
    for _ in range(probe["exemplars"].ndim - 1):
        grad = jax.vmap(grad)
    return {"exemplars": grad(probe["exemplars"])}


PHI = {
    "template": np.array([0.2, -0.1], np.float32),
    "exemplars": np.arange(6, dtype=np.float32) / 6,
}
ITEMS = np.array([0.1, 0.4, -0.3, 0.2], np.float32)
THETA = np.float32(0.7)


@pytest.mark.parametrize("name", ["linear_proxy", "perturbed_marginals"])
def test_ask_evaluate_tell_in_chunks_is_value_and_grad(name):
    estimator = harness(name)
    wants = "probe_slope" in estimator.spec.needs
    state = jax.jit(estimator.init)(jax.random.key(0), PHI)
    run = jax.jit(es.value_and_grad(estimator, objective, slope if wants else None))
    whole = run(jax.random.key(1), PHI, state, THETA, ITEMS)
    ask = jax.jit(functools.partial(es.ask, estimator))
    draw = ask(jax.random.key(1), PHI, state)
    evaluate = jax.jit(es.evaluate(estimator, objective))
    parts = [evaluate(draw, THETA, chunk) for chunk in (ITEMS[:2], ITEMS[2:])]
    mean = jax.tree.map(lambda a, b: np.asarray(a + b) / 2, *parts)
    found = jax.jit(slope)(draw.probe, THETA, ITEMS) if wants else None
    tell = jax.jit(functools.partial(es.tell, estimator))
    host = jax.tree.map(np.asarray, draw)  # the draw crosses the host as data
    told = tell(PHI, host, mean.losses, state, found, mean.weights_grad)
    for one, other in (
        (told.value, whole.value),
        (told.logits_grad, whole.logits_grad),
        (mean.theta_grad, whole.theta_grad),
        (told.state, whole.state),
        (told.metrics, whole.metrics),
    ):
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
    assert all(np.abs(grad).max() > 1e-4 for grad in whole.logits_grad.values())


def test_theta_gets_the_gradient_of_the_averaged_loss():
    estimator = harness("reinforce")
    state = jax.jit(estimator.init)(jax.random.key(0), PHI)
    run = jax.jit(es.value_and_grad(estimator, objective))
    step = run(jax.random.key(1), PHI, state, THETA, ITEMS)

    def averaged(theta):
        return step.draw.coef @ objective(step.draw, theta, ITEMS)

    value, grad = jax.jit(jax.value_and_grad(averaged))(THETA)
    assert step.theta_grad == pytest.approx(float(grad), rel=1e-5)
    assert step.value == pytest.approx(float(value), rel=1e-5)


def test_a_values_only_estimator_takes_an_objective_without_derivatives():
    estimator = harness("reinforce")
    state = jax.jit(estimator.init)(jax.random.key(0), PHI)

    def grade(outcomes):
        return (np.asarray(outcomes) == 4).any(-1).astype(np.float32)

    def black_box(draw, theta):
        shape = jax.ShapeDtypeStruct((8,), jnp.float32)
        return jax.pure_callback(grade, shape, draw.outcomes["exemplars"])

    run = jax.jit(es.value_and_grad(estimator, black_box))
    step = run(jax.random.key(1), PHI, state)
    assert step.theta_grad is None
    graded = grade(step.draw.outcomes["exemplars"])
    np.testing.assert_array_equal(step.losses, graded)


def test_a_host_loop_finds_the_best_harness():
    """Descent on losses that only a host computes."""
    estimator = es.linear_proxy(POOL, samples=4, window=32, use_slope=False)
    ask = jax.jit(functools.partial(es.ask, estimator))
    tell = jax.jit(functools.partial(es.tell, estimator))
    logits = jnp.zeros(6)
    state = estimator.init(None, logits)
    for step in range(60):
        draw = ask(jax.random.fold_in(jax.random.key(0), step), logits, state)
        losses = np.asarray(draw.weights) @ GOOD
        logits = logits - tell(logits, draw, losses, state).logits_grad
        state = tell(logits, draw, losses, state).state
    best = np.sort(np.argsort(GOOD)[:3])
    np.testing.assert_array_equal(POOL.distribution(logits).mode(), best)


def test_tasks_are_independent_problems_averaged():
    single = harness("linear_proxy")
    many = es.over_tasks(single)
    phi = jax.tree.map(lambda x: np.stack([x, -x, 0.5 * x]), PHI)
    mask = {"exemplars": np.arange(18).reshape(3, 6) != 8}
    state = jax.jit(many.init)(jax.random.key(0), phi)
    run = jax.jit(
        functools.partial(es.value_and_grad(many, objective, slope), mask=mask)
    )
    steps = []
    for count in range(2):  # the second step has a past
        key = jax.random.fold_in(jax.random.key(1), count)
        steps.append(run(key, phi, state, THETA, ITEMS))
        state = steps[-1].state
    step = steps[-1]
    assert step.draw.coef.shape == (3, 8)
    assert step.draw.coef.sum() == pytest.approx(1, rel=1e-5)
    tell = jax.jit(functools.partial(es.tell, single))
    found = jax.jit(slope)(step.draw.probe, THETA, ITEMS)
    step, found, first = jax.tree.map(np.asarray, (step, found, steps[0].state))
    for task in range(3):
        own = functools.partial(jax.tree.map, lambda leaf, task=task: leaf[task])
        draw = own(step.draw)
        told = tell(own(phi), draw, own(step.losses), own(first), own(found))
        for slot, grad in told.logits_grad.items():
            np.testing.assert_allclose(
                step.logits_grad[slot][task], grad / 3, rtol=1e-4, atol=1e-6
            )
        for a, b in zip(
            jax.tree.leaves(told.state), jax.tree.leaves(own(step.state)), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert step.logits_grad["exemplars"][1, 2] == 0
    assert not np.any(step.draw.outcomes["exemplars"][1] == 2)


def test_tasks_with_equal_logits_draw_independently():
    many = es.over_tasks(es.reinforce(POOL, samples=8))
    logits = jnp.zeros((3, 6))

    def run(key):
        return many.draw(key, logits, None).outcomes

    rows = np.asarray(jax.jit(run)(jax.random.key(0)))
    assert len({rows[task].tobytes() for task in range(3)}) == 3


def test_a_mask_too_small_for_some_task_is_refused():
    many = es.over_tasks(harness("reinforce"))
    phi = jax.tree.map(lambda x: np.stack([x, x]), PHI)
    mask = {"exemplars": np.array([[True] * 6, [True, True] + [False] * 4])}
    with pytest.raises(ValueError, match="slot 'exemplars': takes 3 but .* only 2"):
        many.draw(jax.random.key(0), phi, None, mask)
    one = es.over_tasks(es.reinforce(POOL))
    with pytest.raises(ValueError, match="takes 3 but .* only 2"):
        one.draw(jax.random.key(0), phi["exemplars"], None, mask["exemplars"])


def test_what_is_missing_is_named():
    proxy, path = harness("linear_proxy"), harness("simple")
    with pytest.raises(ValueError, match="reads a slope at its probe"):
        es.value_and_grad(proxy, objective)

    def told_of(losses, weights_grad):
        def run(phi):
            state = path.init(jax.random.key(0), phi)
            draw = es.ask(path, jax.random.key(1), phi, state)
            grad = draw.weights if weights_grad else None
            return es.tell(path, phi, draw, losses, state, None, grad).value

        return jax.eval_shape(run, PHI)

    with pytest.raises(ValueError, match="got no weights_grad"):
        told_of(jnp.zeros(8), False)
    with pytest.raises(ValueError, match=r"shape \[4\] for \[8\] rows"):
        told_of(jnp.zeros(4), True)
    with pytest.raises(ValueError, match="loss 'likelihood' is missing among"):
        told_of({"episode": jnp.zeros(8)}, True)
    assert told_of(jnp.zeros(8), True).shape == ()


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("reinforced", {}, "'reinforced' is unknown; use one of exact, reinforce"),
        ("exact", {"samples": 4}, "exact has no option samples; it takes: none"),
        (
            "reinforce",
            {"tau": 1.0},
            "no option tau; it takes: samples, baseline, decay",
        ),
        ("reinforce", {"baseline": "mean"}, "baseline 'mean' is unknown"),
        ("reinforce", {"samples": 1}, "1 samples with baseline leave_one_out"),
        ("reinforce", {"decay": 1.0}, "decay 1.0"),
    ],
)
def test_estimators_that_cannot_be_made_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        es.make(name, POOL, options)


def test_an_enumeration_too_large_is_refused():
    with pytest.raises(ValueError, match="194580 outcomes, at most 100000"):
        es.exact(es.Family("subset", 48, 4))
