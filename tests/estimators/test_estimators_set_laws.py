"""Draws without replacement and the laws of the sets that they make."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from set_laws import law_of, ordered_draws

import estimators as es
from estimators import without_replacement

CATEGORICAL = es.Family("categorical", 4)
RANKING = es.Family("ranking", 4, 2)


jitted_masses = jax.jit(without_replacement.log_masses)


def set_law(prob, members):
    """P(unordered set), summed over its orders."""
    total = 0.0
    for order in itertools.permutations(members):
        left, chance = 1.0, 1.0
        for outcome in order:
            chance *= prob[outcome] / left
            left -= prob[outcome]
        total += chance
    return total


@pytest.mark.parametrize("family", [CATEGORICAL, RANKING], ids=lambda f: f.kind)
def test_completions_are_the_laws_of_sets(family):
    phi = np.array([0.5, -0.3, 0.9, 0.0])
    table, prob = law_of(family, phi, np.ones(4, bool))
    members = [2, 0, 3]
    with jax.enable_x64(True):
        log_prob, outside = jitted_masses(
            jnp.asarray(table[members]), jnp.asarray(phi), jnp.ones(4, bool)
        )
        completions = jax.jit(without_replacement.log_completions)
        value = np.exp(completions(log_prob, outside))
    np.testing.assert_allclose(np.exp(log_prob), prob[members], atol=1e-14)
    assert np.exp(outside) == pytest.approx(1 - prob[members].sum(), abs=1e-14)
    assert value[0] == pytest.approx(set_law(prob, members), abs=1e-14)
    rest = np.where(np.arange(len(prob)) == 0, 0, prob) / (1 - prob[0])
    assert value[0b010] == pytest.approx(set_law(rest, [2, 3]), abs=1e-14)


def test_mass_outside_a_set_keeps_its_digits_when_almost_nothing_is_left():
    phi = np.float32([0.0, -1.0, -40.0, -41.0])
    for family, rows in (
        (CATEGORICAL, [[0], [1]]),
        (RANKING, [[0, 1], [1, 0]]),
    ):
        table, prob = law_of(family, phi.astype(float), np.ones(4, bool))
        held = [(table == row).all(1).nonzero()[0][0] for row in rows]
        _, outside = jitted_masses(
            jnp.asarray(rows), jnp.asarray(phi), jnp.ones(4, bool)
        )
        exact = np.log(np.delete(prob, held).sum())
        assert outside == pytest.approx(exact, rel=1e-5)


def chi_square(family, phi, mask, draw, count):
    """P-value of first-to-last orders of two distinct outcomes."""
    _, prob = law_of(family, np.asarray(phi, float), mask)
    orders, chances = zip(*ordered_draws(prob, 2), strict=True)
    keys = jax.random.split(jax.random.key(11), count)
    rows = np.asarray(jax.jit(jax.vmap(draw))(keys))  # [count, 2, k]
    table = family.enumerate()
    base = family.n ** np.arange(family.k)
    code = {int(row @ base): i for i, row in enumerate(table)}
    seen = {order: 0 for order in orders}
    for first, second in rows @ base:
        seen[code[int(first)], code[int(second)]] += 1
    seen = np.array([seen[order] for order in orders])
    mean = count * np.array(chances)
    rare = mean < 5
    seen, mean = seen[~rare], mean[~rare]
    mean = mean * seen.sum() / mean.sum()
    return stats.chisquare(seen, mean).pvalue


@pytest.mark.parametrize("way", ["enumerated", "beam"])
@pytest.mark.parametrize("kind", ["categorical", "ranking", "masked ranking"])
def test_draws_are_without_replacement(way, kind):
    family = CATEGORICAL if kind == "categorical" else RANKING
    mask = np.array([True, True, kind != "masked ranking", True])
    phi = jnp.array([0.5, -0.3, 0.9, 0.0])

    def draw(key):
        chosen = {
            "enumerated": without_replacement.draw_distinct,
            "beam": without_replacement.beam_search,
        }[way]
        return chosen(key, family, phi, jnp.asarray(mask), 2)

    assert chi_square(family, phi, mask, draw, 20_000) > 1e-3
