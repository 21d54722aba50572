"""Known odds: enumeration is exact, and training finds what it shows to be best."""

import numpy as np
import pytest
from tiny_space import make_model

from experiments import retry_policy
from experiments.retry_policy import ODDS, POLICIES, PRICES, expected, learn
from experiments.simulated_model import enumerate_policy
from metaharness.harness.slots import Choice


@pytest.fixture(scope="module")
def space():
    return retry_policy.make_space(make_model())


def test_enumeration_is_the_closed_form(space):
    """Retries until a readable answer: a truncated geometric law."""
    for rolls, item in zip(ODDS.values(), space.tasks[0].train, strict=False):
        right = sum(r.chance for r in rolls if r.text == "7")
        unread = sum(r.chance for r in rolls if not r.text.isdigit())
        for place, num in ((0, 1), (1, 2), (3, 5)):
            choice = Choice((), 0, retry=place)
            found = enumerate_policy(space, item, choice, rolls, token_price=0.0)
            reach = unread ** np.arange(num)  # chance that an attempt is made
            assert found.reward == pytest.approx(right * reach.sum(), abs=1e-12)
            once = enumerate_policy(space, item, Choice((), 0), rolls, 0.0).tokens
            assert found.tokens == pytest.approx(once * reach.sum(), rel=1e-12)
            assert found.loss == pytest.approx(1 - found.reward, abs=1e-12)


def test_a_price_is_paid_for_every_token(space):
    free, dear = expected(space, 0.0), expected(space, 2.0)
    for a, b in zip(free, dear, strict=True):
        assert b.loss == pytest.approx(a.loss + 2.0 * a.tokens / 1000)


def test_retrying_for_ever_is_best_only_while_it_earns(space):
    best = []
    for price in (0.1, 1e3):
        losses = [one.loss for one in expected(space, price)]
        best.append(POLICIES[int(np.argmin(losses))].attempts)
    assert best[0] > 1 and best[1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("price", PRICES)
def test_training_deploys_a_policy_within_one_percent_of_the_best(space, price):
    # the byte tokenizer writes four times as many tokens: a quarter of the price
    truth = expected(space, price / 4)
    row = learn(space, price / 4, truth, updates=300, seed=0)
    assert row.excess <= 0.01, row
    if row.best == "once":
        assert row.attempts == 1
