"""Polynomial programming: short runs against NumPy and against known fixed points."""

import numpy as np
import pytest

from experiments.microscope import polynomial
from experiments.microscope.polynomial import METHODS, POWERS, PolynomialConfig

STEPS = 250
BY_LABEL = {method.label: method for method in METHODS}
CONFIG = PolynomialConfig(steps=STEPS, record_every=50)


def exact_curve(power):
    """Expected loss of one bit after every 50 steps of Adam, in NumPy."""
    ends = np.abs(np.arange(2) - 0.45) ** power
    logits, first, second, found = np.zeros(2), np.zeros(2), np.zeros(2), []
    for step in range(1, STEPS + 1):
        chance = np.exp(logits) / np.exp(logits).sum()
        slope = chance * (ends - chance @ ends) / 128
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        logits = logits - 1e-3 * (first / (1 - 0.9**step)) / (
            np.sqrt(second / (1 - 0.999**step)) + 1e-8
        )
        if step % 50 == 0:
            found.append(np.exp(logits) / np.exp(logits).sum() @ ends)
    return np.array(found)


@pytest.fixture(scope="module")
def exact():
    return polynomial.learn(BY_LABEL["exact gradient"], CONFIG)


def test_the_exact_gradient_follows_adam_in_numpy(exact):
    for place, power in enumerate(POWERS):
        np.testing.assert_allclose(exact[place], exact_curve(power), atol=2e-5)


def test_leave_one_out_follows_the_exact_gradient(exact):
    found = polynomial.learn(BY_LABEL["leave-one-out, loss per bit"], CONFIG)
    np.testing.assert_allclose(found, exact, atol=5e-4)


def test_straight_through_stops_where_its_expectation_is_zero(exact):
    longer = PolynomialConfig(steps=400, record_every=50)
    found = polynomial.learn(BY_LABEL["straight_through tau 1"], longer)
    for place, power in enumerate(POWERS):
        low, high = 0.45 ** (power - 1), 0.55 ** (power - 1)
        chance = low / (low + high)  # of the bit being 1
        stop = chance * 0.55**power + (1 - chance) * 0.45**power
        assert found[place, -1] == pytest.approx(stop, abs=1e-3)
        assert exact[place, -1] < stop - 1e-3


def test_every_row_names_its_reference_and_the_floors_are_known():
    assert len(METHODS) == 12
    assert len(BY_LABEL) == 12
    assert all({2.0, 1.5} <= set(method.reference) for method in METHODS)
    floors = [round(polynomial.floor(power), 4) for power in POWERS]
    assert floors == [0.2025, 0.3019, 0.0911]
    for method in METHODS:
        for power, value in method.reference.items():
            assert value >= polynomial.floor(power)
