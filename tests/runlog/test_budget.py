"""Budget: phases sum up, time is counted once, limits and resume hold."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaharness.errors import InputError
from metaharness.runlog.budget import Budget, BudgetCounter, Counts


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_nested_phases_count_in_those_around_them():
    clock = Clock()
    counter = BudgetCounter(clock=clock)
    clock.now += 1
    with counter.phase("train"):
        counter.add(token_forwards=10, lm_calls=1)
        clock.now += 2
        with counter.phase("validation"):
            counter.add(token_forwards=5, padded_tokens=3)
            clock.now += 4
        counter.add(backward_tokens=7)
        clock.now += 8
    counter.add(generated_tokens=1)
    assert counter.counts("train/validation") == Counts(
        token_forwards=5, padded_tokens=3, seconds=4
    )
    assert counter.counts("train") == Counts(
        lm_calls=1, token_forwards=15, padded_tokens=3, backward_tokens=7, seconds=14
    )
    assert counter.counts() == Counts(
        lm_calls=1,
        token_forwards=15,
        padded_tokens=3,
        backward_tokens=7,
        generated_tokens=1,
        seconds=15,
    )
    assert counter.phases() == ("", "train", "train/validation")


def test_a_phase_of_the_same_beginning_is_another_phase():
    counter = BudgetCounter()
    with counter.phase("train"), counter.phase("a"):
        counter.add(lm_calls=1)
    with counter.phase("training"):
        counter.add(lm_calls=10)
    assert counter.counts("train").lm_calls == 1
    assert counter.counts("never").lm_calls == 0


def test_a_phase_that_raises_is_closed():
    counter = BudgetCounter()
    with pytest.raises(KeyError), counter.phase("train"):
        raise KeyError
    counter.add(lm_calls=1)
    assert counter.counts("train").lm_calls == 0


@given(st.lists(st.sampled_from(["a", "b", "up", "tick", "call"]), max_size=30))
def test_own_counts_of_all_phases_sum_to_the_whole(moves):
    clock = Clock()
    counter = BudgetCounter(clock=clock)
    opened, calls = [], 0
    for move in moves:
        if move == "up" and opened:
            opened.pop().__exit__(None, None, None)
        elif move in "ab":
            opened.append(counter.phase(move))
            opened[-1].__enter__()
        elif move == "tick":
            clock.now += 1
        elif move == "call":
            counter.add(lm_calls=1)
            calls += 1
    whole = counter.counts()
    assert whole.lm_calls == calls
    assert whole.seconds == clock.now - Clock.now
    tops = [path for path in counter.phases() if path and "/" not in path]
    assert sum(counter.counts(p).lm_calls for p in tops) <= whole.lm_calls


def test_tokens_of_both_passes_count_towards_the_limit():
    counter = BudgetCounter({"train": Budget(max_tokens=100)})
    with counter.phase("train"):
        counter.add(token_forwards=60, padded_tokens=1000)
        assert counter.exceeded() == ""
        assert counter.share_used("train") == pytest.approx(0.6)
        counter.add(backward_tokens=40)
        assert counter.exceeded() == "train: 100 of 100 tokens"
    assert counter.exceeded("train") == "train: 100 of 100 tokens"
    assert counter.exceeded() == ""  # only open phases


def test_each_kind_of_limit_stops_and_the_run_has_one_of_its_own():
    clock = Clock()
    counter = BudgetCounter(
        {"": Budget(max_seconds=3, max_calls=2)},
        clock=clock,
    )
    with counter.phase("train"):
        clock.now += 2.9
        assert counter.exceeded() == ""
        clock.now += 0.1
        assert counter.exceeded() == "the run: 3.0 of 3.0 seconds"
    calls = BudgetCounter({"": Budget(max_calls=2)})
    with calls.phase("train"):
        calls.add(lm_calls=2)
        assert calls.exceeded() == "the run: 2 of 2 calls"
        assert calls.exceeded("train") == ""


def test_no_limit_is_never_reached():
    counter = BudgetCounter()
    counter.add(lm_calls=10**9, token_forwards=10**12)
    assert counter.exceeded() == "" and counter.share_used() == 0


def test_a_counter_resumes_where_its_state_was_taken():
    clock = Clock()
    first = BudgetCounter(clock=clock)
    with first.phase("train"), first.phase("validation"):
        first.add(lm_calls=3)
        clock.now += 5
        state = json.loads(json.dumps(first.state()))
    later = Clock()
    second = BudgetCounter.from_state(
        state, {"train": Budget(max_calls=4)}, clock=later
    )
    assert second.counts("train/validation") == Counts(lm_calls=3, seconds=5)
    with second.phase("train"):
        second.add(lm_calls=1)
        later.now += 1
        assert second.exceeded() == "train: 4 of 4 calls"
    assert second.counts().seconds == 6
    assert second.phases() == first.phases()


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_limits_that_nothing_can_meet_are_refused(limit):
    with pytest.raises(InputError, match="max_seconds: expected more than 0"):
        Budget(max_seconds=limit)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_names_that_would_be_paths_are_refused(name):
    with (
        pytest.raises(ValueError, match="a name without '/'"),
        BudgetCounter().phase(name),
    ):
        pass
