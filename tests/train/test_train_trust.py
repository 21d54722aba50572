"""The gate's record: ranks within a step and template, and trust from a threshold."""

import numpy as np
import pytest

from metaharness.train.trust import GateRecord


def record(gated, sequential, template):
    out = GateRecord(len(gated))
    out.add(np.array(gated, float), np.array(sequential, float), np.array(template))
    return out


def test_ranks_are_compared_by_task():
    gate = record(
        [[1, 2, 3, 4], [1, 2, 3, 4]],
        [[10, 20, 30, 40], [4, 3, 2, 1]],
        np.zeros((2, 4), int),
    )
    np.testing.assert_allclose(gate.spearman(), [1.0, -1.0])
    assert gate.num_pairs() == [4, 4]


def test_templates_and_steps_that_differ_are_no_agreement():
    """Both losses are higher for the second template; within each, ranks disagree."""
    gate = record([[1, 2, 11, 12]], [[2, 1, 12, 11]], [[0, 0, 1, 1]])
    gate.add(np.array([[101.0, 102.0]]), np.array([[102.0, 101.0]]), np.array([[0, 0]]))
    np.testing.assert_allclose(gate.spearman(), [-1.0])
    assert gate.num_pairs() == [6]


def test_three_pairs_are_the_fewest_that_tell():
    gate = record([[1, 2]], [[1, 2]], [[0, 0]])
    assert np.isnan(gate.spearman()).all()
    assert gate.trusted(-0.9).tolist() == [False]
    gate.add(np.array([[5.0, 3.0]]), np.array([[6.0, 2.0]]), np.array([[0, 0]]))
    np.testing.assert_allclose(gate.spearman(), [1.0])


@pytest.mark.parametrize(
    ("least", "expected"),
    [(-1, [True] * 3), (0.0, [True, False, False]), (0.9, [False] * 3)],
)
def test_trust_is_a_known_correlation_from_the_threshold_on(least, expected):
    gate = record(
        [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]],
        [[1, 2, 4, 3], [4, 2, 3, 1], [7, 7, 7, 7]],
        np.zeros((3, 4), int),
    )
    assert gate.spearman()[0] == pytest.approx(0.8) and np.isnan(gate.spearman()[2])
    assert gate.trusted(least).tolist() == expected


def test_no_pairs_are_no_trust_unless_every_task_is_trusted():
    gate = GateRecord(2)
    assert gate.trusted(0.3).tolist() == [False, False]
    assert gate.trusted(-1).tolist() == [True, True]
    assert gate.num_pairs() == [0, 0]
