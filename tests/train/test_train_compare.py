"""The final table: each harness scored once on test items, paired by item."""

import dataclasses

import jax
import numpy as np
import pytest

from metaharness.harness.scoring import Scores
from metaharness.harness.slots import Choice
from metaharness.runlog.budget import BudgetCounter
from metaharness.stats import proportion_interval
from metaharness.train import compare as module
from metaharness.train.baselines import Selected
from metaharness.train.compare import Compared, compare, deployed_key, score_rows
from metaharness.train.config import EvalConfig

CONFIG = EvalConfig(test_items=5, random_harnesses=3, harnesses_at_once=2)
LEARNED = [Choice((0, 2), 1), Choice((4, 5), 0)]
BEST = [
    Selected([Choice((1, 2), 0), LEARNED[0]], np.array([1.0, 2.0]), Choice((1, 2), 0)),
    Selected([Choice((6, 4), 1)], np.array([3.0]), Choice((6, 4), 1)),
]
SAMPLED = [[LEARNED[0], Choice((1, 3), 0)], [Choice((5, 7), 1), Choice((4, 6), 1)]]


@pytest.fixture
def calls(monkeypatch):
    """Replaces the model: the nats of a choice are the sum of its numbers."""
    calls = []

    def fake(space, task, choices, items, **more):
        calls.append((task, list(choices), list(items), more))
        by_choice = [sum(c.exemplars) + 10 * c.template for c in choices]
        nats = np.array(by_choice, float)[:, None] + np.arange(len(items))
        reward = (nats % 2 == 0).astype(float) if more["generate"] else None
        more["counter"].add(lm_calls=1)
        more["on_progress"](1, 1)
        return Scores(nats, np.full(len(items), 2), reward, None, nats.astype(int))

    monkeypatch.setattr(module, "score_harnesses", fake)
    return calls


def run(space, config=CONFIG, **changed):
    arguments = {
        "learned": LEARNED,
        "sampled": SAMPLED,
        "best_random": BEST,
        "seed": 0,
        "counter": BudgetCounter(),
    }
    return compare(space, config, quiet=True, **arguments | changed)


def test_every_method_is_scored_once_on_the_first_test_items(space, calls):
    compared = run(space)
    assert [call[0].name for call in calls] == ["sum", "swap"]
    for (task, choices, items, more), result, learned, best, sampled in zip(
        calls, compared, LEARNED, BEST, SAMPLED, strict=True
    ):
        assert tuple(items) == task.test[:5] and more["generate"]
        assert len(set(choices)) == len(choices), "a harness was scored twice"
        shown = {m: [choices[at] for at in own] for m, own in result.members.items()}
        random = shown.pop("random")
        assert shown == {
            "zero_shot": [Choice((), 0)],
            "best_random": [best.best],
            "mode": [learned],
            "sampled": sampled,
        }
        assert len(random) == 3
        own = space.masks["exemplars"][[t.name for t in space.tasks].index(task.name)]
        assert all(own[list(choice.exemplars)].all() for choice in random)
        assert result.num_tried == len(best.choices)


def test_methods_that_were_not_asked_for_are_left_out(space, calls):
    config = dataclasses.replace(CONFIG, random_harnesses=0, generate=False)
    compared = run(space, config, sampled=[], best_random=[])
    for result in compared:
        assert list(result.members) == ["zero_shot", "mode"]
    assert not any(call[3]["generate"] for call in calls)


def test_random_harnesses_depend_on_the_seed_alone(space, calls):
    drawn = [
        [
            result.choices[at]
            for result in run(space, seed=seed)
            for at in result.members["random"]
        ]
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_ctrl_c_returns_the_tasks_compared_so_far(space, calls, monkeypatch):
    fake = module.score_harnesses

    def breaking(space, task, *arguments, **more):
        if task.name == "swap":
            raise KeyboardInterrupt
        return fake(space, task, *arguments, **more)

    monkeypatch.setattr(module, "score_harnesses", breaking)
    assert [result.task for result in run(space)] == ["sum"]


def compared_of(task, nats, reward=None, *, tried=7):
    """Members: zero_shot, two random, best_random and mode, in rows of ``nats``."""
    members = {"zero_shot": [0], "random": [1, 2], "best_random": [3], "mode": [4]}
    nats = np.asarray(nats, float)
    scores = Scores(
        nats,
        np.arange(1, nats.shape[1] + 1),
        None if reward is None else np.asarray(reward, float),
        None,
        np.full(nats.shape, 50) + np.arange(5)[:, None],
    )
    choices = [Choice((at,), 0) for at in range(5)]
    return Compared(task, choices, members, scores, 10.0, tried)


NATS = [[9, 9, 9, 9], [5, 6, 7, 8], [7, 6, 5, 8], [5, 5, 5, 6], [4, 5, 5, 6]]
REWARD = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def rows_of(compared):
    return {(row.task, row.method): row for row in score_rows(compared, seed=0)}


def test_a_row_holds_the_means_and_a_difference_that_is_negative_when_better():
    rows = rows_of([compared_of("a", NATS, REWARD)])
    assert len(rows) == 4  # no overall row for one task
    mode = rows["a", "mode"]
    assert mode.loss.mean == pytest.approx(5.0) and mode.num_items == 4
    assert mode.loss_per_token.mean == pytest.approx(
        np.mean([4 / 1, 5 / 2, 5 / 3, 6 / 4])
    )
    assert mode.difference.mean == pytest.approx(5.0 - 6.5)
    # Paired: item by item the gain is 2, 1, 1 and 2, so its interval leaves 0 out.
    assert -2 <= mode.difference.low < mode.difference.high <= -1
    assert rows["a", "zero_shot"].difference.mean == pytest.approx(9 - 6.5)
    assert rows["a", "zero_shot"].difference.low > 0
    random = rows["a", "random"]
    assert random.difference is None and random.num_harnesses == 2
    assert random.loss.mean == pytest.approx(6.5)
    assert random.spread == pytest.approx(0.0) and mode.spread is None
    assert rows["a", "best_random"].num_harnesses == 7
    assert mode.prompt_tokens == 54 and random.prompt_tokens == 51.5
    assert mode.seconds == pytest.approx(2.0) and random.seconds == pytest.approx(4.0)


def test_exact_match_is_a_share_with_an_interval():
    rows = rows_of([compared_of("a", NATS, REWARD)])
    assert rows["a", "mode"].exact_match == proportion_interval(4, 4)
    assert rows["a", "zero_shot"].exact_match == proportion_interval(0, 4)
    assert rows["a", "random"].exact_match.mean == pytest.approx(3 / 8)
    rows = rows_of([compared_of("a", NATS)])
    assert rows["a", "mode"].exact_match is None
    partial = np.array(REWARD) * 0.98  # nearly right is not exact
    rows = rows_of([compared_of("a", NATS, partial)])
    assert rows["a", "mode"].exact_match.mean == 0


def test_overall_every_item_counts_once():
    second = np.full((5, 2), 20.0)
    second[4] = 10
    rows = rows_of(
        [compared_of("a", NATS, REWARD), compared_of("b", second, np.zeros((5, 2)))]
    )
    mode = rows["overall", "mode"]
    assert mode.num_items == 6
    assert mode.loss.mean == pytest.approx((4 + 5 + 5 + 6 + 10 + 10) / 6)
    baseline = (6 + 6 + 6 + 8 + 20 + 20) / 6
    assert mode.difference.mean == pytest.approx(mode.loss.mean - baseline)
    assert mode.exact_match.mean == pytest.approx(4 / 6)
    assert mode.seconds == pytest.approx(4.0)
    assert rows["overall", "random"].difference is None
    assert {method for task, method in rows if task == "overall"} == {
        "zero_shot",
        "random",
        "best_random",
        "mode",
    }


def test_overall_leaves_out_a_method_that_a_task_lacks():
    short = compared_of("b", NATS)
    short = dataclasses.replace(
        short, members={m: r for m, r in short.members.items() if m != "best_random"}
    )
    rows = rows_of([compared_of("a", NATS, REWARD), short])
    assert ("overall", "best_random") not in rows
    assert rows["overall", "mode"].exact_match is None  # one task was not graded


def test_nothing_compared_gives_no_rows():
    assert score_rows([], seed=0) == []


def test_sampled_harnesses_have_a_key_of_their_own():
    data = [jax.random.key_data(deployed_key(seed)).tolist() for seed in (0, 0, 1)]
    assert data[0] == data[1] != data[2]
