"""Biased members against stored expectations: quadrature and enumeration in NumPy."""

import importlib.util
import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimators as es
from estimators.schedule import TauState

DATA = pathlib.Path(__file__).parents[1] / "data"
STORED = json.loads((DATA / "estimator_expectations.json").read_text())
PAIR = STORED["relaxed_pair"]
MEMBERS = {
    "gumbel_softmax": ("gumbel_softmax", es.Family("categorical", 2), {}),
    "st_gumbel_softmax": ("st_gumbel_softmax", es.Family("categorical", 2), {}),
    "gumbel_rao": ("gumbel_rao", es.Family("categorical", 2), {"inner": 1}),
    "soft_subset_1_of_2": ("soft_subset", es.Family("ranking", 2, 1), {}),
    "soft_subset_2_of_2": ("soft_subset", es.Family("ranking", 2, 2), {}),
}


@pytest.fixture(scope="module")
def script():
    path = DATA / "estimator_expectations.py"
    spec = importlib.util.spec_from_file_location("estimator_expectations", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pair_loss(weights):
    first = weights[..., 0]
    if weights.ndim == 1 or weights.shape[-2] == 1:
        return jnp.sum((first - 0.45) ** 2)
    value = (first[0] - 0.45) ** 2 + 0.7 * first[0] * weights[1, 1]
    return value + 0.3 * jnp.sin(2 * first[1])


def gradient(estimator, loss, logits, outcomes, noise, state):
    """Of one draw whose rows and noise are given."""
    rows = len(outcomes)
    memo = es.Memo(jnp.ones(len(logits), bool), jnp.zeros((rows,), jnp.int32), noise)
    raw = es.Draw(outcomes, None, None, memo)
    draw = estimator.rebuild(logits, raw, state)

    def objective(draw, theta):
        return jax.vmap(loss)(draw.weights)

    losses, weights_grad, _ = es.evaluate(estimator, objective)(draw, None)
    told = es.tell(estimator, logits, draw, losses, state, None, weights_grad)
    return told.logits_grad


def test_stored_values_are_those_of_the_script(script):
    built = script.build()
    script.check(built)
    assert json.loads(json.dumps(script.to_plain(built))).keys() == STORED.keys()
    for one, other in zip(
        jax.tree.leaves(script.to_plain(built)), jax.tree.leaves(STORED), strict=True
    ):
        assert one == other or one == pytest.approx(other, abs=1e-13)


@pytest.mark.parametrize("tau", ["2.0", "1.0", "0.5", "0.1"])
@pytest.mark.parametrize("member", MEMBERS)
def test_relaxed_members_have_their_expectation_over_two_candidates(
    member, tau, script
):
    name, family, options = MEMBERS[member]
    estimator = es.make(name, family, {"samples": 1, **options})
    phi = np.array(PAIR["phi"])
    logistic, weight = script.nodes(phi[1] - phi[0])
    density = weight * 0.25 / np.cosh(0.5 * logistic) ** 2
    noise = np.stack([logistic, 0 * logistic], axis=-1)[:, None]  # [node, row, pool]
    order = np.argsort(-(phi + noise), axis=-1)[..., : family.k]
    noise = noise[:, :, None] if name == "gumbel_rao" else noise
    with jax.enable_x64(True):
        state = TauState(jnp.int32(0), jnp.float32(tau))

        def one(outcomes, noise):
            return gradient(estimator, pair_loss, phi, outcomes, noise, state)

        grads = np.asarray(jax.jit(jax.vmap(one))(order, noise))
    # a temperature lives in float32: 0.1 is off by 1.5e-9
    np.testing.assert_allclose(density @ grads, PAIR[member][tau], atol=1e-8)


@pytest.mark.parametrize("tau", ["1.0", "1.5"])
def test_reinmax_has_its_expectation(tau):
    phi, table = (np.array(STORED["reinmax"][key]) for key in ("phi", "linear_losses"))
    estimator = es.make("reinmax", es.Family("categorical", 4), {"samples": 1})
    with jax.enable_x64(True):
        state = TauState(jnp.int32(0), jnp.float32(tau))

        def one(outcomes):
            return gradient(estimator, lambda w: w @ table, phi, outcomes, None, state)

        grads = np.asarray(jax.jit(jax.vmap(one))(np.arange(4)[:, None, None]))
    prob = np.exp(phi) / np.exp(phi).sum()
    np.testing.assert_allclose(
        prob @ grads, STORED["reinmax"]["linear"][tau], atol=1e-12
    )


@pytest.mark.parametrize("samples", [2, 3])
def test_group_normalised_has_its_expectation_and_variance(samples):
    stored = STORED["group_normalised"]
    phi, table = np.array(stored["phi"]), np.array(stored["losses"])
    options = {"samples": samples, "baseline": "group_normalised"}
    estimator = es.make("reinforce", es.Family("categorical", 4), options)
    rows = np.array(list(itertools.product(range(4), repeat=samples)))
    with jax.enable_x64(True):
        state = estimator.init(jax.random.key(0), jnp.asarray(phi))

        def one(outcomes):
            return gradient(estimator, lambda w: w @ table, phi, outcomes, None, state)

        grads = np.asarray(jax.jit(jax.vmap(one))(rows[..., None]))
    prob = np.exp(phi) / np.exp(phi).sum()
    chance = prob[rows].prod(1)
    mean = chance @ grads
    expected = stored[str(samples)]
    np.testing.assert_allclose(mean, expected["mean"], atol=1e-12)
    variance = chance @ (grads**2).sum(1) - mean @ mean
    assert variance == pytest.approx(expected["total_variance"], abs=1e-12)
