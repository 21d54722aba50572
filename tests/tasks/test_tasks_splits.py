"""Splits are disjoint, fixed by the seed, and do not move when items come and go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaharness.errors import TaskError
from metaharness.tasks.normal import normal_question
from metaharness.tasks.splits import (
    distinct,
    fitting_sizes,
    make_splits,
    shuffled,
)
from metaharness.tasks.task import (
    SPLITS,
    Item,
    SplitSizes,
    answer_limits,
    fingerprint,
)


def items(numbers, split=""):
    return [Item(f"{split}:{n}", f"number {n}", str(n)) for n in numbers]


SMALL = SplitSizes(pool=4, train=10, validation=5, test=8)


def questions(splits):
    return {s: {normal_question(i.question) for i in splits[s]} for s in SPLITS}


@given(
    named=st.dictionaries(
        st.sampled_from(["", *SPLITS]), st.lists(st.integers(0, 60), max_size=80)
    ),
    seed=st.integers(0, 5),
)
def test_splits_are_disjoint_whatever_repeats(named, seed):
    official = {split: items(numbers, split) for split, numbers in named.items()}
    try:
        splits = make_splits("t", official, SMALL, seed, at_most=True)
    except TaskError as error:
        assert "distinct items for" in str(error)
        return
    found = questions(splits)
    for a in SPLITS:
        assert len(found[a]) == len(splits[a]) <= getattr(SMALL, a)
        for b in SPLITS:
            assert a == b or not found[a] & found[b]
    for split in SPLITS:
        if split in official and split != "train":
            assert all(item.uid.startswith(f"{split}:") for item in splits[split])
        else:
            assert all(
                item.uid.split(":")[0] in ("", "train") for item in splits[split]
            )


def test_splits_have_the_asked_sizes():
    splits = make_splits("t", {"": items(range(60))}, SMALL, 0)
    assert {s: len(rows) for s, rows in splits.items()} == SMALL.as_dict()


def test_the_same_seed_gives_the_same_splits_in_any_order_of_the_items():
    one = make_splits("t", {"": items(range(60))}, SMALL, 3)
    two = make_splits("t", {"": items(reversed(range(60)))}, SMALL, 3)
    other = make_splits("t", {"": items(range(60))}, SMALL, 4)
    assert one == two and fingerprint(one) == fingerprint(two)
    assert fingerprint(one) != fingerprint(other)


def test_splits_do_not_move_between_versions():
    splits = make_splits("t", {"": items(range(60))}, SMALL, 0)
    assert [item.answer for item in splits["pool"]] == STORED_POOL
    assert fingerprint(splits) == STORED_FINGERPRINT


# make_splits("t", {"": items(range(60))}, SMALL, 0) when the order was fixed
STORED_POOL = ["3", "12", "21", "59"]
STORED_FINGERPRINT = "a9a0faf460a27fae3cb89ced731616b4e05ca213731ef1b3aa99dfdd6807c9db"


def test_new_items_leave_the_order_of_the_old_ones():
    old = [item.uid for item in shuffled(items(range(40)), 0)]
    new = [item.uid for item in shuffled(items(range(80)), 0)]
    assert [uid for uid in new if uid in set(old)] == old


def test_a_larger_train_split_leaves_the_others_alone():
    small = make_splits("t", {"": items(range(60))}, SMALL, 0)
    sizes = SplitSizes(pool=4, train=30, validation=5, test=8)
    large = make_splits("t", {"": items(range(60))}, sizes, 0)
    for split in ("pool", "validation", "test"):
        assert small[split] == large[split]


def test_official_items_that_copy_a_test_item_are_left_out():
    long = "the old man walked to the market with his dog and bought {} green apples"
    test = [Item(f"test:{n}", f"{long.format(n)} {n * 7919}", "a") for n in range(2)]
    train = [*items(range(60), "train"), Item("copy", "Well, " + test[1].question, "a")]
    official = {"train": train, "test": test}
    sizes = SplitSizes(pool=5, train=50, validation=5, test=2)
    splits = make_splits("t", official, sizes, 0)
    assert "copy" not in {item.uid for rows in splits.values() for item in rows}


def test_too_few_items_are_refused_by_split():
    with pytest.raises(TaskError, match="task 't': expected 10 .* 'train', got 3;"):
        make_splits("t", {"": items(range(20))}, SMALL, 0)
    with pytest.raises(TaskError, match="expected 8 distinct items for 'test', got 2"):
        make_splits("t", {"": items(range(60)), "test": items((1, 2))}, SMALL, 0)


def test_a_split_of_no_item_is_refused():
    with pytest.raises(TaskError, match="at least 1 item in 'pool', got 0"):
        SplitSizes(pool=0)


@given(st.integers(8, 400), st.booleans())
def test_fitting_sizes_can_be_filled(number, with_test):
    official = {"": items(range(number))}
    if with_test:
        official["test"] = items(range(1000, 1010), "test")
    most = SplitSizes(pool=16, train=100, validation=20, test=30)
    splits = make_splits("t", official, fitting_sizes(official, most), 0)
    for split in SPLITS:
        assert 1 <= len(splits[split]) <= getattr(most, split)


def test_the_first_of_equal_questions_is_kept():
    doubled = [Item("a", "One  two?", "1"), Item("b", "one two", "2")]
    assert [item.uid for item in distinct(doubled)] == ["a"]


@pytest.mark.parametrize(
    "answers,most,stop",
    [
        (["7", "12"], 16, ("\n",)),
        (["x" * 100], 104, ("\n",)),
        (["a\nb"], 16, ("\n\n",)),
        (["a\n\nb"], 16, ()),
        (["é" * 600], 512, ("\n",)),
        (["7\n"], 16, ("\n",)),
    ],
)
def test_answer_limits_let_every_gold_answer_through(answers, most, stop):
    rows = [Item(str(i), "q", answer) for i, answer in enumerate(answers)]
    assert answer_limits(rows) == (most, stop)
