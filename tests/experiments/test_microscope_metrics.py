"""Metrics on cases worked out by hand."""

import numpy as np
import pytest

from experiments.microscope.chains import Facts, Sums
from experiments.microscope.metrics import gradient_metrics, learning_metrics


def sums_of(gradients, exact):
    """Totals of gradients ``[instance, chain, step, pool]``, in plain NumPy."""
    error = gradients - exact[:, None, None]
    dots = np.einsum("icsp,ip->ics", gradients, exact)
    sizes = (
        np.linalg.norm(gradients, axis=-1)
        * np.linalg.norm(exact, axis=-1)[:, None, None]
    )
    cosine = np.divide(dots, sizes, out=np.zeros_like(dots), where=sizes > 0)
    count = np.full(gradients.shape[:2], float(gradients.shape[2]))
    return Sums(
        error.sum(2),
        (error**2).sum(-1).sum(-1),
        cosine.sum(-1),
        (dots > 0).sum(-1).astype(float),
        count,
    )


def test_two_opposite_errors_are_variance_and_no_bias():
    exact = np.array([[2.0, 0.0]])
    gradients = exact + np.array([[0.0, 2.0], [0.0, -2.0]])
    found = gradient_metrics(sums_of(np.tile(gradients, (1, 3, 1, 1)), exact), exact)
    assert found["relative_bias"] == 0
    # |d|^2 = 4 each, 6 draws: 4 * 6 / 5 over |g*|^2 = 4
    assert found["relative_variance"] == pytest.approx(1.2)
    assert found["cosine"] == pytest.approx(np.sqrt(0.5))
    assert found["descent"] == 1
    assert found["cosine_of_mean"] == pytest.approx(1)
    assert found["draws"] == 6


def test_a_constant_error_is_bias_and_no_variance():
    exact = np.array([[3.0, 4.0]])
    gradients = np.broadcast_to(exact - np.array([3.0, 0.0]), (1, 2, 5, 2))
    found = gradient_metrics(sums_of(gradients, exact), exact)
    assert found["relative_bias"] == pytest.approx(3 / 5)
    assert found["relative_variance"] == pytest.approx(0, abs=1e-12)
    assert found["relative_error"] == pytest.approx(9 / 25)
    assert found["bias_floor"] == pytest.approx(0, abs=1e-12)
    assert found["cosine"] == pytest.approx(4 / 5)
    assert found["instances_biased"] == 1


def test_a_step_uphill_and_a_zero_step_do_not_descend():
    exact = np.array([[1.0, 0.0]])
    steps = np.array([[1.0, 0], [-1.0, 0], [0, 0], [2.0, 1.0]])
    found = gradient_metrics(sums_of(np.tile(steps, (1, 2, 1, 1)), exact), exact)
    assert found["descent"] == 0.5
    assert found["cosine"] == pytest.approx((1 - 1 + 0 + 2 / np.sqrt(5)) / 4)


def test_the_floor_is_that_of_the_mean_and_a_planted_bias_is_seen():
    rng = np.random.default_rng(0)
    exact = np.array([[1.0, -1.0, 0.5, 2.0]])
    noise = rng.normal(size=(1, 16, 500, 4))
    fair = gradient_metrics(sums_of(exact + noise, exact), exact)
    variance = 4 / (exact**2).sum()
    assert fair["relative_variance"] == pytest.approx(variance, rel=0.03)
    assert fair["bias_floor"] == pytest.approx(np.sqrt(variance / 8000), rel=0.3)
    assert fair["instances_biased"] == 0
    skewed = gradient_metrics(sums_of(1.1 * exact + noise, exact), exact)
    assert skewed["relative_bias"] == pytest.approx(0.1, abs=0.03)
    assert skewed["instances_biased"] == 1


def test_steps_that_depend_on_each_other_raise_the_floor():
    rng = np.random.default_rng(1)
    exact = np.ones((1, 3))
    each = rng.normal(size=(1, 16, 1, 3))
    repeated = np.broadcast_to(each, (1, 16, 100, 3))
    found = gradient_metrics(sums_of(exact + repeated, exact), exact)
    # 16 independent values, not 1,600
    assert found["bias_floor"] == pytest.approx(np.sqrt(1 / 16), rel=0.3)


def facts(values, mode_losses=None):
    values = np.asarray(values, float)
    modes = np.zeros(values.shape) if mode_losses is None else np.asarray(mode_losses)
    return Facts(values, None, None, modes)


def test_learning_is_measured_in_the_gap_at_the_start():
    losses = np.array([[1.0, 5.0]])  # least loss 1; the start is at 3: a gap of 2
    # [instance, record, chain]: one run arrives at record 2, one at 1, one never
    trace = facts([[[3.0, 3.0, 3.0], [2.0, 1.01, 3.0], [1.01, 1.0, 2.0]]])
    last = facts([[1.0, 1.0, 2.0]], [[1.0, 1.0, 5.0]])
    found = learning_metrics(trace, last, losses, every=10, evaluations=4)
    assert found["steps_to_1_percent"] == 20
    assert found["evaluations_to_1_percent"] == 80
    assert found["steps_to_1_percent_quartiles"][1] in (20, np.inf)
    assert found["share_within_1_percent"] == pytest.approx(2 / 3)
    assert found["final_gap"] == pytest.approx(0)
    # the third run deploys the loss 5: (5 - 1) / 2, over three runs
    assert found["mode_regret"] == pytest.approx(2 / 3)
    assert found["share_wrong_mode"] == pytest.approx(1 / 3)
    assert found["curve"]["median"] == pytest.approx([1, 0.5, 0.005, 0])


def test_runs_that_never_arrive_have_no_number_of_steps():
    trace = facts([[[3.0, 3.0], [2.0, 2.0]]])
    found = learning_metrics(
        trace, facts([[2.0, 2.0]]), np.array([[1.0, 5.0]]), every=5, evaluations=1
    )
    assert found["steps_to_1_percent"] == np.inf
    assert found["share_within_1_percent"] == 0
