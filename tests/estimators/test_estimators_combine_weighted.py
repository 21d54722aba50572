"""A joint estimator with one slot whose rows are drawn together and weighted."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import estimators as es

SETS, FREE, TOP = (es.Family("categorical", n) for n in (4, 3, 2))
PHI = {
    "sets": np.array([0.4, -0.3, 0.9, 0.0]),
    "free": np.array([0.2, -0.5, 0.1]),
    "top": np.array([0.3, -0.2]),
}
LOSS = np.random.default_rng(5).normal(size=(4, 3, 2))


def softmax(phi):
    return np.exp(phi) / np.exp(phi).sum()


def exact_gradient(slots):
    """By the definition, over the product of the slots; absent ones stay at 0."""
    prob = {slot: softmax(PHI[slot]) for slot in PHI}
    for slot in set(PHI) - set(slots):
        prob[slot] = np.eye(len(PHI[slot]))[0]
    joint = np.einsum("a,b,c->abc", *(prob[slot] for slot in ("sets", "free", "top")))
    value = (joint * LOSS).sum()
    found = {}
    for axis, slot in enumerate(("sets", "free", "top")):
        own = (joint * (LOSS - value)).sum(tuple({0, 1, 2} - {axis}))
        found[slot] = own
    return value, {slot: found[slot] for slot in slots}


def parts(weighted, slots):
    if weighted == "unordered_set":
        first = es.unordered_set(SETS, samples=2)
    else:
        first = es.sum_and_sample(SETS, samples=2, enumerated=1)
    every = {
        "sets": (SETS, first),
        "free": (FREE, es.reinforce(FREE, samples=2)),
        "top": (TOP, es.exact(TOP)),
    }
    return {slot: every[slot] for slot in slots}


def draws_of(weighted):
    """Outcomes of the weighted slot's two rows and their probability."""
    p = softmax(PHI["sets"])
    if weighted == "unordered_set":
        return [(t, p[t[0]] * p[t[1]] / (1 - p[t[0]])) for t in
                itertools.permutations(range(4), 2)]  # fmt: skip
    rest = [i for i in range(4) if i != 2]
    return [((2, i), p[i] / p[rest].sum()) for i in rest]


@pytest.mark.parametrize("weighted", ["unordered_set", "sum_and_sample"])
@pytest.mark.parametrize("slots", [("sets", "free"), ("sets", "free", "top")])
def test_every_slot_is_unbiased_beside_a_weighted_one(weighted, slots):
    estimator = es.combine(parts(weighted, slots), enumeration="crossed")
    assert estimator.spec.unbiased
    q = softmax(PHI["free"])
    with jax.enable_x64(True):
        logits = {slot: jnp.asarray(PHI[slot]) for slot in slots}
        state = estimator.init(jax.random.key(0), logits)
        raw = es.ask(estimator, jax.random.key(1), logits, state)

        @jax.jit
        def one(sets, free):
            memo = dict(raw.memo)
            memo["sets"] = memo["sets"]._replace(outcomes=sets[:, None])
            memo["free"] = memo["free"]._replace(outcomes=free[:, None])
            draw = estimator.rebuild(logits, raw._replace(memo=memo), state)
            index = [draw.outcomes[slot][:, 0] for slot in slots]
            index += [0] * (3 - len(slots))
            told = es.tell(
                estimator, logits, draw, jnp.asarray(LOSS)[tuple(index)], state
            )
            return told.logits_grad, told.value

        mean, value, total = jax.tree.map(lambda leaf: 0 * leaf, PHI), 0.0, 0.0
        for sets, chance in draws_of(weighted):
            for free in itertools.product(range(3), repeat=2):
                weight = chance * q[list(free)].prod()
                grads, one_value = one(jnp.asarray(sets), jnp.asarray(free))
                mean = {slot: mean[slot] + weight * grads[slot] for slot in slots}
                value, total = value + weight * one_value, total + weight
    assert total == pytest.approx(1)
    expected, gradient = exact_gradient(slots)
    assert value == pytest.approx(expected, abs=1e-12)
    for slot, exact in gradient.items():
        np.testing.assert_allclose(mean[slot], exact, atol=1e-12, err_msg=slot)


def test_strata_and_a_second_weighted_slot_are_refused():
    split = parts("unordered_set", ("sets", "top"))
    with pytest.raises(ValueError, match="use enumeration='crossed'"):
        es.combine(split)
    twice = {
        "a": (SETS, es.unordered_set(SETS, samples=2)),
        "b": (SETS, es.sum_and_sample(SETS, samples=2)),
    }
    with pytest.raises(ValueError, match=r"\['a', 'b'\] all weight their rows"):
        es.combine(twice)
