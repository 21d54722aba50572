"""Problems against enumeration in NumPy, and chains against plain loops."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_landscape import made_landscape

from estimators import Family
from experiments.landscape_file import save_landscape
from experiments.microscope import problems
from experiments.microscope.chains import RECORDS, Programs
from experiments.microscope.metrics import gradient_metrics
from experiments.microscope.variants import Variant, variants_of

TOYS = {name: problems.toy_problem(name, 2, 0) for name in problems.TOYS}


def chances(family, logits, outcomes):
    """Probabilities of the outcomes, from the definitions, float64."""
    size = np.exp(np.asarray(logits, np.float64))
    if family.kind == "ranking":
        found = []
        for outcome in outcomes:
            left, chance = size.sum(), 1.0
            for i in outcome:
                chance *= size[i] / left
                left -= size[i]
            found.append(chance)
        return np.array(found)
    weight = np.prod(size[np.asarray(outcomes)], axis=-1)
    return weight / weight.sum()


def gradient(family, logits, losses, outcomes):
    """Central differences of the expected loss."""
    found = []
    for i in range(family.n):
        step = np.zeros(family.n)
        step[i] = 1e-5
        high, low = (
            chances(family, logits + sign * step, outcomes) @ losses for sign in (1, -1)
        )
        found.append((high - low) / 2e-5)
    return np.array(found)


@pytest.mark.parametrize(
    "name",
    ["tanh_network_1_of_8", "tanh_network_5_of_10", "tanh_network_ordered_3_of_6"],
)
def test_exact_gradients_are_those_of_enumeration(name):
    problem = TOYS[name]
    family = problem.family
    pick = (
        itertools.permutations if family.kind == "ranking" else itertools.combinations
    )
    outcomes = list(pick(range(family.n), family.k))
    logits = problem.logits[:1].astype(np.float64)
    losses = np.float64(problem.losses[0])
    one = problem._replace(losses=problem.losses[:1])
    found = Programs(1, 2, optimize=False).facts(one, problem.logits[:1])
    expected = gradient(family, logits[0], losses, outcomes)
    np.testing.assert_allclose(
        found.gradient[0], expected, atol=3e-6 * np.abs(losses).max()
    )
    chance = chances(family, logits[0], outcomes)
    assert found.value[0] == pytest.approx(chance @ losses, rel=1e-5)
    assert found.entropy[0] == pytest.approx(-(chance * np.log(chance)).sum(), rel=1e-4)


@pytest.mark.parametrize("name", TOYS)
def test_soft_losses_agree_with_the_table_at_hard_choices(name):
    problem = TOYS[name]
    outcomes = jnp.asarray(problem.family.enumerate())[::7]
    params = jax.tree.map(lambda leaf: leaf[1], problem.params)
    soft = problem.soft(params, problem.family.weights(outcomes))
    np.testing.assert_allclose(soft, problem.losses[1][::7], rtol=1e-5)


def test_the_toys_are_what_their_names_say():
    toy = jax.tree.map(lambda leaf: leaf[0], TOYS["quadratic_5_of_10"].params)
    chosen = np.zeros(10)
    chosen[[1, 3, 4, 7, 9]] = 1
    place = list(map(tuple, Family("subset", 10, 5).enumerate())).index((1, 3, 4, 7, 9))
    expected = ((chosen - toy.centre) ** 2).sum()
    assert TOYS["quadratic_5_of_10"].losses[0, place] == pytest.approx(expected)
    np.testing.assert_allclose(
        TOYS["bernoulli"].losses, [[0.45**2, 0.55**2]] * 2, rtol=1e-5
    )
    net = jax.tree.map(lambda leaf: leaf[0], TOYS["tanh_network_1_of_8"].params)
    hidden = np.tanh(net.into[:, 2] + net.shift)
    expected = np.log1p(np.exp(hidden @ net.out))
    assert TOYS["tanh_network_1_of_8"].losses[0, 2] == pytest.approx(expected, rel=1e-5)


def test_the_order_of_a_subset_does_not_move_its_loss_but_that_of_a_ranking_does():
    subset = problems.lookup(Family("subset", 5, 3))
    assert subset(jnp.array([4, 0, 2])) == subset(jnp.array([0, 2, 4]))
    ranking = problems.lookup(Family("ranking", 5, 3))
    assert ranking(jnp.array([4, 0, 2])) != ranking(jnp.array([0, 2, 4]))


def test_a_chain_learns_as_a_plain_loop_of_adam_does():
    problem = problems.table(Family("categorical", 3), 1, np.random.default_rng(0))
    exact = Variant("exact", "exact", {}, None, True)
    programs = Programs(1, 2, optimize=False)
    start = np.zeros((1, 3), np.float32)
    steps = 2 * RECORDS
    ran = programs.run(exact, problem, start, steps=steps, learning_rate=0.1)
    logits, first, second = np.zeros(3), np.zeros(3), np.zeros(3)
    losses = np.float64(problem.losses[0])
    for step in range(1, steps + 1):
        if (step - 1) % 2 == 0:
            np.testing.assert_allclose(
                ran.trace[(step - 1) // 2, 0, 1], logits, atol=2e-3
            )
        chance = np.exp(logits) / np.exp(logits).sum()
        slope = chance * (losses - chance @ losses)
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        logits = logits - 0.1 * (first / (1 - 0.9**step)) / (
            np.sqrt(second / (1 - 0.999**step)) + 1e-8
        )
    np.testing.assert_allclose(ran.logits[0, 0], logits, atol=2e-3)


def test_measured_bias_and_variance_agree_with_known_values():
    """Score function of one sample, no baseline: its covariance in closed form."""
    problem = problems.table(Family("categorical", 4), 2, np.random.default_rng(3))
    options = {"samples": 1, "baseline": "none"}
    score = Variant("score", "reinforce", options, None, False)
    programs = Programs(2, 16, optimize=False)
    ran = programs.run(score, problem, problem.logits, steps=600, warmup=100)
    assert ran.sums.count[0, 0] == 500
    found = gradient_metrics(ran.sums, programs.facts(problem, problem.logits).gradient)
    expected = []
    for logits, losses in zip(
        problem.logits.astype(float), problem.losses.astype(float), strict=True
    ):
        chance = np.exp(logits) / np.exp(logits).sum()
        each = losses[:, None] * (np.eye(4) - chance)
        mean = chance @ each
        expected.append((chance @ (each**2).sum(1) - mean @ mean) / (mean @ mean))
    assert found["relative_variance"] == pytest.approx(np.median(expected), rel=0.1)
    assert found["instances_biased"] == 0
    # a fifth of the losses' scale more, and the bias shows
    exact = 1.25 * programs.facts(problem, problem.logits).gradient
    moved = ran.sums._replace(error=ran.sums.error - 500 * 0.2 * exact[:, None])
    assert gradient_metrics(moved, exact)["instances_biased"] == 2


def test_values_only_estimators_of_one_family_share_a_program():
    programs = Programs(2, 2, optimize=False)
    variant = Variant("exact", "exact", {}, None, True)
    for name in ("table_1_of_8", "quadratic_1_of_8"):
        problem = TOYS[name]
        programs.run(variant, problem, problem.logits, steps=3)
    assert len(programs._runs) == 1


def test_members_that_read_weights_are_left_out_where_there_is_no_soft_loss():
    family = Family("categorical", 8)
    with_path = {v.label for v in variants_of(family, path=True)}
    without = {v.label for v in variants_of(family, path=False)}
    assert {"straight_through", "linear_proxy"} <= with_path - without
    assert {"exact", "reinforce", "linear_proxy residual=1 use_slope=false"} <= without
    labels = [v.label for v in variants_of(family, path=True)]
    assert len(labels) == len(set(labels))


def test_distinct_rows_are_no_more_than_the_outcomes():
    few = variants_of(Family("categorical", 2), path=True, only=["unordered_set"])
    assert [variant.options for variant in few] == [{"samples": 2}]
    many = variants_of(Family("categorical", 8), path=True, only=["unordered_set"])
    assert [variant.options["samples"] for variant in many] == [8, 4]


def test_a_landscape_becomes_a_ranking_for_each_template(tmp_path):
    landscape = made_landscape()
    path = tmp_path / "landscape.npz"
    save_landscape(path, landscape)
    problem = problems.landscape_problem(path, 3, 0)
    num = landscape.families["template"].n
    outcomes = problem.family.enumerate()
    assert problem.losses[2, 1] == pytest.approx(
        landscape.mean_loss(2 % num, outcomes[1]), rel=1e-6
    )
    assert problem.soft is None
