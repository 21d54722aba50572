"""The gate on a landscape's items: its losses, its gradients, and whose it is."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import make_model, make_task

from experiments.landscape import LandscapeConfig, main
from experiments.landscape_gate import make_gate
from experiments.landscape_problems import EXEMPLARS, TEMPLATE, Problem, entries
from experiments.landscape_steps import estimate, make_stepper
from metaharness.errors import RunError

TASK = make_task("sum", "+", lambda a, b: a + b)
ITEMS = jnp.array([[1, 0], [0, 0]])  # of two seeds


@pytest.fixture(scope="module")
def landscape(tmp_path_factory):
    config = LandscapeConfig(
        out=tmp_path_factory.mktemp("gate") / "one.npz",
        task="sum",
        templates=2,
        pool=3,
        k=2,
        items=2,
        shard=12,
    )
    return main(config, model=make_model(), task=TASK)


@pytest.fixture(scope="module")
def gate(landscape):
    return make_gate(landscape, chunk=4, model=make_model(), task=TASK)


def finite_difference(loss, weights, direction, step=2e-2):
    high, low = loss(weights + step * direction), loss(weights - step * direction)
    return (np.asarray(high) - np.asarray(low)) / (2 * step)


def test_slopes_are_those_of_the_gated_loss(gate):
    template = jnp.array([0, 1, 1, 0])
    weights = jnp.array([[0.7, 0.7, 0.6], [1.2, 0.4, 0.4], [0.5, 0.5, 1.0], [1, 1, 0]])
    items = jnp.array([[0, 1], [1, 1], [0, 0], [1, 0]])
    _, slope = gate.evaluate(template, weights, items)
    assert np.ptp(np.asarray(slope)) > 1e-2
    for place in range(3):
        found = finite_difference(
            lambda w: gate.evaluate(template, w, items)[0],
            weights,
            jax.nn.one_hot(place, 3),
        )
        np.testing.assert_allclose(found, slope[:, place], 0.05, 3e-3)


def test_a_path_is_the_gradient_of_the_averaged_rows(gate):
    weights = jax.random.uniform(jax.random.key(0), (2, 2, 3))
    template = jnp.array([[0, 1], [1, 1]])
    coef = jnp.array([[0.5, 0.5], [0.25, 0.75]])
    draw = types.SimpleNamespace(
        weights={EXEMPLARS: weights},
        outcomes={TEMPLATE: template[..., None]},
        coef=coef,
    )
    losses, found = gate.path(draw, ITEMS)
    for seed, row in np.ndindex(2, 2):
        one = np.full(4, row), np.stack([weights[seed, row]] * 4)
        loss, slope = gate.evaluate(
            jnp.full((4,), template[seed, row]),
            jnp.asarray(one[1]),
            jnp.stack([ITEMS[seed]] * 4),
        )
        np.testing.assert_allclose(losses[seed, row], loss[0], 1e-4)
        np.testing.assert_allclose(
            found[EXEMPLARS][seed, row], coef[seed, row] * slope[0], 1e-3, 1e-5
        )
    assert found[TEMPLATE] is None
    places = draw.weights[EXEMPLARS][:, :, None] * jnp.array([0.25, 0.75])[:, None]
    draw.weights = {EXEMPLARS: places}
    again, by_place = gate.path(draw, ITEMS)
    np.testing.assert_allclose(again, losses, 1e-4)
    for place in range(2):  # the gate knows no order
        np.testing.assert_allclose(
            by_place[EXEMPLARS][:, :, place], found[EXEMPLARS], 1e-2, 1e-4
        )


def test_weights_over_whole_harnesses_mix_templates_and_exemplars(gate, landscape):
    hot = jax.nn.one_hot(jnp.array([[1, 8]]), 12)  # one harness of each template
    coef, items = jnp.ones((1, 2)), ITEMS[:1]

    def loss(weights):
        draw = types.SimpleNamespace(weights=weights, coef=coef)
        return gate.whole_path(draw, items)[0]

    draw = types.SimpleNamespace(weights=hot, coef=coef)
    losses, gradient = gate.whole_path(draw, items)
    for row, at in enumerate((1, 8)):
        shown = np.isin(np.arange(3), landscape.shots[at]).astype(np.float32)
        alone, _ = gate.evaluate(
            jnp.full((4,), landscape.template[at]),
            jnp.asarray(np.stack([shown] * 4)),
            jnp.stack([items[0]] * 4),
        )
        np.testing.assert_allclose(losses[0, row], alone[0], 1e-4)
    soft = 0.6 * hot + 0.4 / 12
    draw = types.SimpleNamespace(weights=soft, coef=coef)
    _, gradient = gate.whole_path(draw, items)
    for at in (0, 5, 11):
        found = finite_difference(loss, soft, jax.nn.one_hot(at, 12))
        np.testing.assert_allclose(found[0], gradient[0, :, at], 0.05, 1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear_proxy + slope", "simple"])
def test_members_of_the_gate_make_estimates(gate, landscape, name):
    problem = Problem("subset", landscape)
    field = entries(problem, evaluations=16, samples=4, past_steps=1)
    entry = next(entry for entry in field if entry.name == name)
    stepper = make_stepper(entry, landscape.table, gate)
    keys = jax.random.split(jax.random.key(0), 2)
    logits = {TEMPLATE: jnp.zeros((2, 2)), EXEMPLARS: jnp.zeros((2, 3))}
    found = estimate(entry, stepper, keys, logits, past_steps=1, repeats=1)
    assert found[EXEMPLARS].shape == (1, 2, 3)
    assert np.isfinite(found[EXEMPLARS]).all()
    assert np.abs(found[EXEMPLARS]).max() > 1e-4
    np.testing.assert_allclose(found[EXEMPLARS].sum(-1), 0, atol=1e-4)


def test_agreement_is_a_rank_correlation(gate):
    assert -1 <= gate.agreement(4, 0) <= 1


def test_another_model_than_the_landscape_s_is_refused(landscape):
    other = dataclasses.replace(make_model(), digest="1" * 64)
    with pytest.raises(RunError, match="model_digest 000.* there, 111"):
        make_gate(landscape, chunk=1, model=other, task=TASK)
