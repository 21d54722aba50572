"""The joint estimator against enumeration of whole harnesses."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_cases import A4, ORACLES, probabilities

import estimators as es
from estimators.linear_proxy import LinearProxyState
from estimators.window import Window

HARNESS = ORACLES["whole_harness"]
TEMPLATE = es.Family("categorical", 3)
PAIR = es.Family("subset", 4, 2)
ORDER = es.Family("ranking", 3, 2)
PHI = {slot: np.array(HARNESS[slot]["phi"]) for slot in ("template", "pair", "order")}


def harness_loss(weights):
    """The stored harness's loss, from hard weights `[rows, ...]`."""
    ids = jnp.arange(3)
    template = weights["template"] @ ids
    order = weights["order"] @ ids
    score = jnp.sin(1 + template + weights["pair"] @ jnp.asarray(A4))
    return score + 0.2 * (order[:, 0] - 2 * order[:, 1]) * (1 + template)


def joint(samples, baseline, **options):
    return es.combine(
        {
            "template": (TEMPLATE, es.exact(TEMPLATE)),
            "pair": (PAIR, es.reinforce(PAIR, samples=samples, baseline=baseline)),
            "order": (ORDER, es.reinforce(ORDER, samples=samples, baseline=baseline)),
        },
        **options,
    )


def enumerated(estimator, phi, tuples, slots, loss, state=None):
    """Gradients where the rows of ``slots`` hold these outcomes; `[tuple, ...]`.

    ``tuples`` index the product of the slots' tables, one index a row.
    """
    tables = [estimator.spec.family[slot].enumerate() for slot in slots]
    sizes = [len(table) for table in tables]

    def objective(draw, theta):
        return loss(draw.weights)

    @jax.jit
    def run(phi, tuples):
        start = estimator.init(jax.random.key(0), phi) if state is None else state
        base = estimator.draw(jax.random.key(1), phi, start)

        def one(index):
            memo = dict(base.memo)
            for slot, table, rows in zip(
                slots, tables, jnp.unravel_index(index, sizes), strict=True
            ):
                memo[slot] = memo[slot]._replace(outcomes=jnp.asarray(table)[rows])
            draw = estimator.rebuild(phi, base._replace(memo=memo), start)
            losses, weights_grad, _ = es.evaluate(estimator, objective)(draw, None)
            slope = {
                slot: None if probe is None else jnp.cos(jnp.arange(probe.size) + 1.0)
                for slot, probe in draw.probe.items()
            }
            told = es.tell(estimator, phi, draw, losses, start, slope, weights_grad)
            return told.logits_grad, told.value

        return jax.vmap(one)(tuples)

    return run(phi, tuples)


def joint_probabilities(families, phi):
    """Of each element of the product of the slots' tables, the last varying fastest."""
    total = np.ones(1)
    for slot, family in families.items():
        prob = probabilities(family, np.asarray(phi[slot]))
        total = np.multiply.outer(total, prob).reshape(-1)
    return total


def weighted(prob, tuples, found):
    weight = prob[np.asarray(tuples)].prod(1)
    return jax.tree.map(lambda x: np.tensordot(weight, np.asarray(x), 1), found)


def check_harness(grad, value):
    for slot in PHI:
        np.testing.assert_allclose(grad[slot], HARNESS[f"grad_{slot}"], atol=1e-10)
    assert value == pytest.approx(HARNESS["value"], abs=1e-10)


def test_crossed_rows_are_unbiased_for_every_slot():
    with jax.enable_x64(True):
        estimator = joint(2, "leave_one_out", enumeration="crossed")
        assert estimator.spec.rows == 6
        prob = joint_probabilities({"pair": PAIR, "order": ORDER}, PHI)
        tuples = np.array(list(itertools.product(range(len(prob)), repeat=2)))
        found = enumerated(estimator, PHI, tuples, ("pair", "order"), harness_loss)
        check_harness(*weighted(prob, tuples, found))


def test_stratified_rows_are_unbiased_for_every_slot():
    with jax.enable_x64(True):
        estimator = joint(3, "none")
        prob = joint_probabilities({"pair": PAIR, "order": ORDER}, PHI)
        tuples = np.array(list(itertools.product(range(len(prob)), repeat=3)))
        found = enumerated(estimator, PHI, tuples, ("pair", "order"), harness_loss)
        check_harness(*weighted(prob, tuples, found))


def test_stratified_leave_one_out_is_unbiased_on_the_whole_harness():
    """One stratum at a time: their terms add, which the next test does not assume."""
    with jax.enable_x64(True):
        estimator = joint(6, "leave_one_out")
        prob = joint_probabilities({"pair": PAIR, "order": ORDER}, PHI)
        pairs = np.array(list(itertools.product(range(len(prob)), repeat=2)))
        still = np.zeros((len(pairs), 6), int)
        blocks = [still.copy() for _ in range(4)]
        for stratum in range(3):
            blocks[stratum][:, 2 * stratum : 2 * stratum + 2] = pairs
        tuples = np.concatenate(blocks)
        found = enumerated(estimator, PHI, tuples, ("pair", "order"), harness_loss)

        def total(leaf):
            parts = np.split(np.asarray(leaf), 4)
            means = [np.tensordot(prob[pairs].prod(1), part, 1) for part in parts]
            return sum(means[:3]) - 2 * means[3]

        check_harness(*jax.tree.map(total, found))


SMALL = {"template": es.Family("categorical", 2), "pair": es.Family("subset", 3, 2)}
SMALL_PHI = {"template": np.array([0.3, -0.4]), "pair": np.array([0.5, -0.2, 0.1])}


def small_loss(weights):
    template, pair = weights["template"], weights["pair"]
    score = pair @ jnp.array([0.9, -0.4, 0.3])
    return jnp.exp(0.7 * score) * (1 + template[:, 0]) + 2.0 * template[:, 1]


def small_exact(phi):
    """Expected loss over every template and pair."""
    rows = {
        slot: family.weights(jnp.asarray(family.enumerate()), jnp.float64)
        for slot, family in SMALL.items()
    }
    prob = {
        slot: jnp.exp(
            family.distribution(phi[slot]).log_prob(jnp.asarray(family.enumerate()))
        )
        for slot, family in SMALL.items()
    }
    grid = {"template": jnp.repeat(rows["template"], 3, 0)}
    grid["pair"] = jnp.tile(rows["pair"], (2, 1))
    return jnp.outer(prob["template"], prob["pair"]).reshape(-1) @ small_loss(grid)


@pytest.mark.parametrize(
    "name, options, unbiased",
    [
        ("reinforce", {}, True),
        ("linear_proxy", {"window": 8, "residual": 1.0}, True),
        ("simple", {}, False),
    ],
)
def test_stratified_expectation_over_every_row_at_once(name, options, unbiased):
    """Two templates, two rows each, all 3^4 tuples of pairs."""
    with jax.enable_x64(True):
        pair = SMALL["pair"]
        estimator = es.combine(
            {
                "template": (SMALL["template"], es.exact(SMALL["template"])),
                "pair": (pair, es.make(name, pair, {"samples": 4} | options)),
            }
        )
        phi = jax.tree.map(jnp.asarray, SMALL_PHI)
        state = None
        if name == "linear_proxy":
            rng, step = np.random.default_rng(0), np.arange(8, dtype=np.int32) // 4
            features, losses = rng.normal(size=(8, 3)), rng.normal(size=8)
            profile = np.full((8, 3), 1 / 3)
            window = Window(features, losses, np.ones(8), profile, step, step % 2)
            state = {"template": 0, "pair": LinearProxyState(2, window)}
            state = jax.tree.map(jnp.asarray, state)
        assert estimator.spec.unbiased == unbiased
        prob = joint_probabilities({"pair": pair}, SMALL_PHI)
        tuples = np.array(list(itertools.product(range(3), repeat=4)))
        found = enumerated(estimator, phi, tuples, ("pair",), small_loss, state)
        grad, value = weighted(prob, tuples, found)
        expected, exact = jax.jit(jax.value_and_grad(small_exact))(phi)
        assert value == pytest.approx(float(expected), abs=1e-10)
        np.testing.assert_allclose(grad["template"], exact["template"], atol=1e-10)
        if unbiased:
            np.testing.assert_allclose(grad["pair"], exact["pair"], atol=1e-10)
            return
        # simple: covariance times the mean slope, template by template
        hot = np.asarray(pair.weights(pair.enumerate()), float)
        mu = prob @ hot
        cov = (hot * prob[:, None]).T @ hot - np.outer(mu, mu)
        p = np.exp(SMALL_PHI["template"]) / np.exp(SMALL_PHI["template"]).sum()
        a = np.array([0.9, -0.4, 0.3])
        slope = (p @ [2, 1]) * 0.7 * (prob @ np.exp(0.7 * hot @ a)) * a
        np.testing.assert_allclose(grad["pair"], cov @ slope, atol=1e-10)


def drawn(estimator, phi, mask=None, seed=0):
    """State and draw, compiled."""

    @jax.jit
    def run(phi):
        state = estimator.init(jax.random.key(9), phi)
        return state, es.ask(estimator, jax.random.key(seed), phi, state, mask)

    return run(phi)


def test_strata_are_adjacent_even_and_weighted_by_probability():
    family = es.Family("categorical", 3)
    other = es.Family("subset", 5, 2)
    estimator = es.combine(
        {
            "template": (family, es.exact(family)),
            "pair": (other, es.reinforce(other, samples=8)),
        }
    )
    phi = {"template": np.array([0.1, 0.9, -1.0], np.float32), "pair": np.zeros(5)}
    _, draw = drawn(estimator, phi)
    template = np.asarray(draw.outcomes["template"])[:, 0]
    np.testing.assert_array_equal(template, [0, 0, 0, 1, 1, 1, 2, 2])
    p = probabilities(family, phi["template"])
    expected = np.array([p[0] / 3] * 3 + [p[1] / 3] * 3 + [p[2] / 2] * 2)
    np.testing.assert_allclose(draw.coef, expected, rtol=1e-6)
    np.testing.assert_array_equal(draw.memo["pair"].memo.group, template)


def test_several_enumerated_slots_form_joint_strata():
    a, b = es.Family("categorical", 2), es.Family("subset", 3, 2)
    phi = {"a": np.array([0.2, -0.3]), "b": np.array([0.5, 0.0, -0.4])}
    estimator = es.combine({"a": (a, es.exact(a)), "b": (b, es.exact(b))})
    assert estimator.spec.rows == 6 and estimator.spec.unbiased

    def loss(weights):
        return jnp.exp(weights["a"][:, 0] + weights["b"] @ jnp.array([0.3, -0.5, 0.8]))

    def expected(phi):
        law = es.Product({"a": a.distribution(phi["a"]), "b": b.distribution(phi["b"])})
        rows = jax.tree.map(jnp.asarray, law.enumerate())
        weights = {"a": a.weights(rows["a"]), "b": b.weights(rows["b"])}
        return jnp.exp(law.log_prob(rows)) @ loss(weights)

    @jax.jit
    def both(phi):
        state = estimator.init(jax.random.key(9), phi)
        draw = es.ask(estimator, jax.random.key(0), phi, state)
        told = es.tell(estimator, phi, draw, loss(draw.weights), state)
        return told.logits_grad, jax.grad(expected)(phi)

    found, exact = both(jax.tree.map(jnp.asarray, phi))
    for slot in phi:
        np.testing.assert_allclose(found[slot], exact[slot], atol=1e-6)


def test_a_masked_template_is_left_out_whatever_its_losses():
    family, other = es.Family("categorical", 3), es.Family("subset", 4, 2)
    phi = {"template": jnp.array([0.1, 0.9, -1.0]), "pair": jnp.arange(4.0) / 4}
    mask = {"template": np.array([True, False, True])}
    for name, options in (("reinforce", {}), ("linear_proxy", {"window": 12})):
        part = es.make(name, other, {"samples": 6} | options)
        estimator = es.combine(
            {"template": (family, es.exact(family)), "pair": (other, part)}
        )

        @jax.jit
        def run(phi, estimator=estimator):
            state = estimator.init(jax.random.key(9), phi)
            draw = es.ask(estimator, jax.random.key(0), phi, state, mask)
            template = draw.outcomes["template"][:, 0]
            losses = jnp.where(template == 1, jnp.nan, draw.weights["pair"][:, 0])
            return es.tell(estimator, phi, draw, losses + template, state)

        told = run(phi)
        for grad in told.logits_grad.values():
            assert np.all(np.isfinite(grad)) and np.any(grad)
        assert np.isfinite(told.value)
        assert told.logits_grad["template"][1] == 0


def test_adding_a_slot_moves_no_other_slots_draws():
    pair = (PAIR, es.reinforce(PAIR, samples=4))
    order = (ORDER, es.reinforce(ORDER, samples=4))
    phi = {"pair": jnp.zeros(4), "order": jnp.zeros(3)}
    _, alone = drawn(es.combine({"pair": pair}), {"pair": phi["pair"]})
    _, beside = drawn(es.combine({"order": order, "pair": pair}), phi)
    np.testing.assert_array_equal(alone.outcomes["pair"], beside.outcomes["pair"])
    assert not np.array_equal(beside.outcomes["pair"], beside.outcomes["order"])


def test_every_slot_learns_from_the_loss_it_names():
    families = {
        "a": es.Family("categorical", 2),  # enumerated, reads the likelihood
        "b": es.Family("subset", 3, 2),
        "c": es.Family("categorical", 3),
        "d": es.Family("categorical", 2),  # enumerated, reads the episode
    }
    names = {"a": "likelihood", "b": "likelihood", "c": "episode", "d": "episode"}
    phi = {"a": [0.0, 1.0], "b": [0.3, 0.0, 0.1], "c": [0.0] * 3, "d": [0.2, -0.1]}
    phi = jax.tree.map(jnp.asarray, phi, is_leaf=lambda leaf: isinstance(leaf, list))
    parts = {
        "a": es.exact(families["a"]),
        "b": es.simple(families["b"], samples=8),
        "c": es.reinforce(families["c"], samples=8),
        "d": es.exact(families["d"]),
    }
    slots = {slot: (families[slot], part) for slot, part in parts.items()}

    def objective(draw, theta):
        w = draw.weights
        both = w["a"][:, 0] * w["d"][:, 0]
        likelihood = theta * (w["b"] @ jnp.array([1.0, 2.0, 5.0])) + both
        episode = w["b"][:, 0] + w["c"] @ jnp.array([1.0, 4.0, 2.0]) - 3.0 * both
        return {"likelihood": likelihood, "episode": theta * episode}

    def run(estimator, objective):
        def step(key, theta):
            state = estimator.init(jax.random.key(9), phi)
            return es.value_and_grad(estimator, objective)(key, phi, state, theta)

        return jax.jit(step)(jax.random.key(1), jnp.float32(2.0))

    named = run(es.combine(slots, learns_from=names), objective)
    for name in ("likelihood", "episode"):
        alone = run(
            es.combine(slots),
            lambda draw, theta, name=name: objective(draw, theta)[name],
        )
        for slot in (slot for slot in phi if names[slot] == name):
            np.testing.assert_allclose(
                named.logits_grad[slot], alone.logits_grad[slot], rtol=1e-5, atol=1e-6
            )
            assert np.abs(alone.logits_grad[slot]).max() > 0.01
        if name == "likelihood":
            np.testing.assert_allclose(named.theta_grad, alone.theta_grad, rtol=1e-5)
        assert named.value[name] == pytest.approx(float(alone.value), rel=1e-5)


SOFT = es.Family("subset", 4, 2)


def soft_beside(other, **options):
    family = es.Family("categorical", 2)
    return es.combine(
        {
            "soft": (SOFT, es.perturbed_marginals(SOFT, samples=4)),
            "other": (family, es.make(other, family)),
        },
        **options,
    )


def test_a_soft_value_is_shared_only_when_asked_for():
    with pytest.raises(
        ValueError, match="'soft' .* soft forward value and slot 'other'"
    ):
        soft_beside("exact")
    assert not soft_beside("exact", allow_soft_reward=True).spec.hard_forward
    assert soft_beside("exact", learns_from={"other": "episode"}).spec.rows == 4


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: es.combine({}), "no slots"),
        (
            lambda: es.combine({"a": (PAIR, es.exact(TEMPLATE))}),
            "slot 'a' is .* but its estimator was built for",
        ),
        (
            lambda: es.combine(
                {
                    "a": (PAIR, es.reinforce(PAIR, samples=4)),
                    "b": (ORDER, es.reinforce(ORDER, samples=8)),
                }
            ),
            "give all the same samples",
        ),
        (lambda: joint(4, "leave_one_out"), "4 rows for 3 strata of 2 each; draw 6"),
        (lambda: joint(6, "none", enumeration="nested"), "'nested' is unknown"),
        (lambda: joint(6, "none", learns_from={"x": "episode"}), r"names \['x'\]"),
        (
            lambda: es.combine(
                {"a": (PAIR, es.combine({"b": (PAIR, es.exact(PAIR))}))}
            ),
            "joint estimator; flatten",
        ),
    ],
)
def test_what_cannot_be_combined_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
