"""The choice laws against enumeration and stored exact values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_cases import ORACLES
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import estimators as es

PHI = np.array([0.6, -0.2, 1.1, 0.0, -0.7])
FAMILIES = [
    es.Family("categorical", 5),
    es.Family("subset", 5, 2),
    es.Family("ranking", 5, 3),
]
EDGES = [
    es.Family("subset", 5, 1),
    es.Family("subset", 5, 5),
    es.Family("ranking", 4, 4),
]


def over(families):
    names = [f"{family.kind}-{family.k}-of-{family.n}" for family in families]
    return pytest.mark.parametrize("family", families, ids=names)


every_family = over(FAMILIES)
every_family_and_edge = over(FAMILIES + EDGES)


@functools.cache
def jitted(family, what):
    """One compiled reader of a family: (logits, mask) -> array."""

    def read(logits, mask=None):
        law = family.distribution(logits, mask)
        if what == "probabilities":
            return jnp.exp(law.log_prob(jnp.asarray(family.enumerate())))
        if what == "smooth":  # everything that has a gradient, in one number
            marginals = law.marginals()
            weights = jnp.arange(marginals.size).reshape(marginals.shape)
            return (
                law.log_prob(law.mode()) + law.entropy() + (weights * marginals).sum()
            )
        return {"entropy": law.entropy, "marginals": law.marginals, "mode": law.mode}[
            what
        ]()

    return jax.jit(read)


@functools.cache
def jitted_grad(family, what):
    return jax.jit(jax.grad(jitted(family, what)))


def probabilities(family, logits, mask=None):
    return jitted(family, "probabilities")(logits, mask)


@every_family_and_edge
def test_probabilities_of_all_outcomes_sum_to_one(family):
    with jax.enable_x64(True):
        total = probabilities(family, jnp.asarray(PHI[: family.n])).sum()
    assert total == pytest.approx(1, abs=1e-12)
    assert len(family.enumerate()) == family.num_outcomes


@pytest.mark.parametrize(
    "case, family",
    [
        ("categorical_table", es.Family("categorical", 4)),
        ("subset_curved", es.Family("subset", 5, 2)),
        ("ordered_pairs", es.Family("ranking", 4, 2)),
    ],
)
def test_entropy_and_its_gradient_match_the_stored_values(case, family):
    case = ORACLES[case]
    with jax.enable_x64(True):
        phi = jnp.asarray(case["phi"])
        value = jitted(family, "entropy")(phi)
        grad = jitted_grad(family, "entropy")(phi)
        if "probs" in case:
            np.testing.assert_allclose(
                probabilities(family, phi), case["probs"], rtol=1e-12
            )
    assert value == pytest.approx(case["entropy"], abs=1e-12)
    np.testing.assert_allclose(grad, case["entropy_grad"], atol=1e-12)


def test_subset_marginals_and_their_jacobian_match_the_stored_values():
    case = ORACLES["subset_curved"]
    with jax.enable_x64(True):
        phi = jnp.asarray(case["phi"])
        marginals = jitted(es.Family("subset", 5, 2), "marginals")
        jacobian = jax.jacobian(marginals)(phi)
        marginals = marginals(phi)
    np.testing.assert_allclose(marginals, case["marginals"], atol=1e-12)
    np.testing.assert_allclose(jacobian, case["covariance"], atol=1e-12)


def test_subset_conditions_bernoulli_draws_on_their_number():
    case = ORACLES["subset_from_bernoulli"]
    with jax.enable_x64(True):
        odds = jnp.asarray(case["inclusion_probs"])
        law = es.Subset(jnp.log(odds / (1 - odds)), 2)
        np.testing.assert_allclose(law.marginals(), case["marginals"], atol=1e-12)
        assert law.entropy() == pytest.approx(case["entropy"], abs=1e-12)


def test_ranking_inclusion_is_not_that_of_the_subset():
    case = ORACLES["subset_is_not_top_k"]
    phi = jnp.asarray(case["phi"])
    places = jitted(es.Family("ranking", 5, 2), "marginals")(phi)
    np.testing.assert_allclose(places.sum(0), case["ordered_inclusion"], atol=1e-6)
    inclusion = jitted(es.Family("subset", 5, 2), "marginals")(phi)
    np.testing.assert_allclose(inclusion, case["subset_marginals"], atol=1e-6)


def test_ranking_places_match_the_stored_values():
    case = ORACLES["ordered_pairs"]
    law = es.Ranking(jnp.asarray(case["phi"]), 2)
    np.testing.assert_allclose(law.marginals(), case["slot_marginals"], atol=1e-6)


def test_product_entropy_matches_the_stored_harness():
    case = ORACLES["whole_harness"]
    law = es.Product(
        {
            "template": es.Categorical(jnp.asarray(case["template"]["phi"])),
            "pair": es.Subset(jnp.asarray(case["pair"]["phi"]), 2),
            "order": es.Ranking(jnp.asarray(case["order"]["phi"]), 2),
        }
    )
    every = jax.tree.map(jnp.asarray, law.enumerate())
    entropy, log_prob, at_mode, drawn = jax.jit(
        lambda law: (
            law.entropy(),
            law.log_prob(every),
            law.log_prob(law.mode()),
            law.sample(seed=jax.random.key(0), sample_shape=(7,)),
        )
    )(law)
    assert entropy == pytest.approx(case["entropy"], abs=1e-5)
    assert jnp.exp(log_prob).sum() == pytest.approx(1, abs=1e-5)
    assert at_mode == pytest.approx(float(log_prob.max()))
    assert {slot: rows.shape for slot, rows in drawn.items()} == {
        "template": (7, 1),
        "pair": (7, 2),
        "order": (7, 2),
    }
    assert set(law.marginals()) == set(drawn)


@every_family_and_edge
def test_samples_follow_the_law(family):
    phi = jnp.asarray(PHI[: family.n], jnp.float32)
    count = 40_000
    law = family.distribution(phi)
    drawn = jax.jit(lambda key: law.sample(seed=key, sample_shape=(count,)))
    drawn = np.asarray(drawn(jax.random.key(3)))
    if family.kind == "subset":
        drawn = np.sort(drawn, axis=-1)
    table = family.enumerate()
    base = family.n ** np.arange(family.k)
    index = {int(code): row for row, code in enumerate(table @ base)}
    seen = np.bincount([index[int(c)] for c in drawn @ base], minlength=len(table))
    expected = count * np.asarray(probabilities(family, phi), float)
    rare = expected < 5
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    seen, expected = seen[expected > 0], expected[expected > 0]
    if len(seen) > 1:
        expected *= count / expected.sum()
        assert stats.chisquare(seen, expected).pvalue > 1e-4
    else:
        assert seen.sum() == count


@every_family_and_edge
def test_mode_is_the_likeliest_outcome(family):
    for phi in np.random.default_rng(0).normal(size=(20, family.n)).astype(np.float32):
        probs = np.asarray(probabilities(family, phi))
        mode = np.asarray(jitted(family, "mode")(phi))
        row = (family.enumerate() == mode).all(-1)
        assert row.sum() == 1 and probs[row] == pytest.approx(probs.max(), rel=1e-5)


@every_family
def test_masked_candidates_are_a_smaller_pool(family):
    mask = np.array([True, True, False, True, True])[: family.n]
    keep = np.flatnonzero(mask)
    small = es.Family(family.kind, len(keep), family.k)
    phi = jnp.asarray(PHI[: family.n], jnp.float32)
    probs = probabilities(family, phi, mask)
    rows = np.isin(family.enumerate(), keep).all(-1)
    np.testing.assert_allclose(probs[rows], probabilities(small, phi[keep]), rtol=2e-6)
    assert np.all(np.asarray(probs)[~rows] == 0)
    marginals = np.asarray(jitted(family, "marginals")(phi, mask))
    assert np.all(marginals[..., ~mask] == 0)
    for what, found in (
        ("entropy", jitted(family, "entropy")(phi, mask)),
        ("marginals", marginals[..., keep]),
    ):
        np.testing.assert_allclose(found, jitted(small, what)(phi[keep]), rtol=1e-5)
    mode = jitted(family, "mode")(phi, mask)
    np.testing.assert_array_equal(mode, keep[jitted(small, "mode")(phi[keep])])
    law = family.distribution(phi, mask)
    drawn = law.sample(seed=jax.random.key(0), sample_shape=(500,))
    assert np.isin(drawn, keep).all()
    grad = np.asarray(jitted_grad(family, "smooth")(phi, mask))
    assert np.all(np.isfinite(grad)) and np.all(grad[~mask] == 0) and grad.any()


@every_family
def test_batches_are_single_calls_stacked(family):
    phi = jax.random.normal(jax.random.key(1), (2, 3, family.n))
    mask = np.ones((3, family.n), bool)
    law = family.distribution(phi, mask)
    assert law.batch_shape == (2, 3) and law.event_shape == (family.k,)
    drawn = law.sample(seed=jax.random.key(2), sample_shape=(4,))
    assert drawn.shape == (4, 2, 3, family.k) and drawn.dtype == jnp.int32

    def read(phi, value):
        law = family.distribution(phi)
        return law.log_prob(value), law.entropy(), law.marginals(), law.mode()

    @jax.jit
    def both(phi, value):
        return read(phi, value), jax.vmap(jax.vmap(read))(phi, value)

    batched, mapped = both(phi, drawn[0])
    for one, other in zip(batched, mapped, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    plain = read(np.asarray(phi)[1, 2], np.asarray(drawn)[0, 1, 2])
    for one, other in zip(batched, plain, strict=True):
        np.testing.assert_allclose(one[1, 2], other, rtol=1e-5, atol=1e-6)
    crossed = jax.jit(lambda law: law.entropy())(law)  # a law is a pytree
    np.testing.assert_allclose(crossed, batched[1], rtol=1e-5, atol=1e-6)


@every_family
def test_extreme_logits_have_finite_values_and_gradients(family):
    pattern = np.array([0.0, -2.0, 2.0, -1.0, 1.0])[: family.n]
    sample = jax.jit(
        lambda phi: family.distribution(phi).sample(seed=jax.random.key(0))
    )
    for scale in (0.0, 30.0, 1e4, 1e9):
        phi = jnp.asarray(scale * pattern, jnp.float32)
        assert np.all(np.isfinite(jitted(family, "smooth")(phi)))
        assert np.all(np.isfinite(jitted_grad(family, "smooth")(phi)))
        for outcomes in (sample(phi), jitted(family, "mode")(phi)):
            assert len(set(np.asarray(outcomes).tolist())) == family.k


def test_extreme_logits_match_the_stored_values():
    case = ORACLES["extreme_logits"]
    phi = jnp.asarray(case["phi"], jnp.float32)
    np.testing.assert_allclose(
        es.Subset(phi, 2).marginals(), case["subset_marginals_k2"], atol=1e-5
    )
    assert es.Categorical(phi).entropy() == pytest.approx(case["entropy"], abs=1e-6)


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=6, max_size=6),
    st.integers(1, 6),
    st.floats(-300, 300, width=32),
)
def test_subset_marginals_sum_to_k_and_ignore_a_shift(phi, k, shift):
    read = jitted(es.Family("subset", 6, k), "marginals")
    phi = jnp.asarray(phi, jnp.float32)
    marginals = read(phi)
    assert marginals.sum() == pytest.approx(k, rel=1e-5)
    assert np.all(marginals >= 0) and np.all(marginals <= 1 + 1e-5)
    moved = read(phi + jnp.float32(shift))
    np.testing.assert_allclose(marginals, moved, atol=3e-4)


def test_one_of_n_is_the_same_law_in_every_family():
    phi = jnp.asarray(PHI, jnp.float32)
    for what in ("entropy", "marginals", "probabilities"):
        plain = np.asarray(jitted(es.Family("categorical", 5), what)(phi))
        for kind in ("subset", "ranking"):
            other = np.asarray(jitted(es.Family(kind, 5), what)(phi))
            np.testing.assert_allclose(other.reshape(plain.shape), plain, rtol=1e-5)


@every_family
def test_low_precision_logits_are_computed_in_float32(family):
    for dtype in (jnp.bfloat16, jnp.float16, jnp.int32):
        phi = jax.ShapeDtypeStruct((family.n,), dtype)
        for what in ("entropy", "marginals", "probabilities"):
            assert jax.eval_shape(jitted(family, what), phi).dtype == jnp.float32


@pytest.mark.parametrize("value", [[1, 1], [0, 3]])
@pytest.mark.parametrize("kind", ["subset", "ranking"])
def test_impossible_outcomes_have_probability_zero(kind, value):
    mask = np.array([True, True, True, False, True])
    law = es.Family(kind, 5, 2).distribution(jnp.zeros(5), mask)
    assert jnp.exp(law.log_prob(jnp.asarray(value))) == 0


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: es.Subset(jnp.zeros(3), 4), "takes 4 of a pool of 3"),
        (lambda: es.Ranking(jnp.zeros(3), 0), "takes 0 of a pool of 3"),
        (lambda: es.Subset(jnp.zeros(3), 2, np.array([1, 0, 0], bool)), "only 1 cand"),
        (
            lambda: es.Ranking(jnp.zeros((2, 3)), 2, np.eye(3, dtype=bool)),
            "only 1 cand",
        ),
        (lambda: es.Categorical(jnp.zeros(3), np.zeros(3, bool)), "only 0 candidates"),
        (lambda: es.Categorical(jnp.zeros(3), np.ones(4, bool)), r"mask is bool \[4\]"),
        (lambda: es.Categorical(jnp.zeros(3), np.ones(3)), "mask is float64"),
        (lambda: es.Categorical(jnp.zeros(())), "logits are a scalar"),
        (lambda: es.Family("subset", 3, 4), "takes 4 of a pool of 3"),
        (lambda: es.Family("categorical", 3, 2), "use subset or ranking"),
        (lambda: es.Family("urn", 3), "'urn' is unknown"),
        (lambda: es.Family("subset", 3).distribution(jnp.zeros(4)), "pool of 3"),
        (
            lambda: es.Subset(jnp.zeros(4), 2).log_prob(jnp.zeros(3, int)),
            r"outcomes are int32 \[3\]; give int \[..., 2\]",
        ),
        (
            lambda: es.Ranking(jnp.zeros(4), 2).log_prob(jnp.zeros(2)),
            r"outcomes are float32 \[2\]",
        ),
        (lambda: es.Ranking(jnp.zeros(48), 4).entropy(), "can be enumerated"),
        (lambda: es.Ranking(jnp.zeros(48), 4).marginals(), "can be enumerated"),
        (lambda: es.Family("subset", 60, 20).enumerate(), "can be enumerated"),
        (lambda: es.Product({}), "no slots"),
        (
            lambda: es.Product(
                {
                    "a": es.Categorical(jnp.zeros(3)),
                    "b": es.Categorical(jnp.ones((2, 3))),
                }
            ),
            "batch shapes differ",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
