"""slot_adam keeps a gradient's ratios and normalises its size."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metaharness.train.optimizer import learning_rate, scale_by_slot_adam

GRADS = {"a": jnp.array([[3.0, 0.0, -1.0, 0.5], [0.0, 0.0, 2.0, -2.0]])}


def slot_adam(rate: float) -> optax.GradientTransformation:
    return optax.chain(scale_by_slot_adam(), optax.scale_by_learning_rate(rate))


def first_update(rule: optax.GradientTransformation, grads: dict) -> np.ndarray:
    updates, _ = rule.update(grads, rule.init(grads))
    return np.asarray(updates["a"])


def test_first_step_keeps_the_ratios_of_the_gradient():
    moved = first_update(slot_adam(0.5), GRADS)
    for row, grad in zip(moved, np.asarray(GRADS["a"]), strict=True):
        live = grad != 0
        np.testing.assert_allclose(row[live] / row[live][-1], grad[live] / grad[-1])
        assert np.sqrt((row[live] ** 2).mean()) == pytest.approx(0.5, rel=1e-5)
        assert (row[~live] == 0).all()
        assert (np.sign(row) == -np.sign(grad)).all()


def test_size_of_the_gradient_does_not_matter():
    scaled = {"a": GRADS["a"] * jnp.array([[1e3], [1e-3]])}
    np.testing.assert_allclose(
        first_update(slot_adam(0.5), scaled),
        first_update(slot_adam(0.5), GRADS),
        rtol=1e-4,
    )


def test_no_gradient_moves_nothing():
    still = first_update(slot_adam(0.5), {"a": jnp.zeros((2, 3))})
    assert (still == 0).all()


def test_minimises_a_quadratic():
    rule, target = slot_adam(0.05), jnp.array([[1.0, -2.0, 0.5]])
    logits = {"a": jnp.zeros((1, 3))}
    state = rule.init(logits)

    @jax.jit
    def step(logits, state):
        updates, state = rule.update({"a": logits["a"] - target}, state)
        return optax.apply_updates(logits, updates), state

    for _ in range(200):
        logits, state = step(logits, state)
    np.testing.assert_allclose(logits["a"], target, atol=0.05)


def test_a_learning_rate_rises_and_falls_by_updates():
    rate = learning_rate(0.8, warmup=3, decay="cosine", total=11)
    values = [float(rate(update)) for update in range(11)]
    np.testing.assert_allclose(values[:4], [0.2, 0.4, 0.6, 0.8], rtol=1e-6)
    assert values[3:] == sorted(values[3:], reverse=True)
    expected = 0.8 * 0.5 * (1 + np.cos(np.pi * np.arange(8) / 8))
    np.testing.assert_allclose(values[3:], expected, rtol=1e-5)


def test_a_constant_rate_stays_after_its_rise():
    rate = learning_rate(0.5, warmup=0, decay="constant", total=4)
    assert [float(rate(update)) for update in range(9)] == [0.5] * 9
    rate = learning_rate(0.5, warmup=1, decay="constant", total=4)
    assert [float(rate(update)) for update in range(3)] == [0.25, 0.5, 0.5]
