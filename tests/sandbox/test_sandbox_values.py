"""Values cross the wall exactly, or not at all."""

import json
import math
import time
from collections import Counter, OrderedDict, defaultdict
from enum import IntEnum
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaharness.sandbox.values import MAX_DEPTH, NotPlain, decode, encode

HASHED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
VALUES = st.recursive(
    HASHED | st.sets(HASHED, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(HASHED, inner, max_size=4)
    ),
    max_leaves=20,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(
            lambda tag, rest: [tag, *rest], st.sampled_from("ltsfdib"), st.lists(inner)
        )
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=20,
)


def crossed(value):
    return decode(json.loads(json.dumps(encode(value))))


@given(VALUES)
def test_a_value_arrives_equal_and_of_the_same_types(value):
    got = crossed(value)
    assert got == value and repr(sorted_sets(got)) == repr(sorted_sets(value))


def sorted_sets(value):
    """The same value with each set's members in an order that does not depend on it."""
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, *sorted(repr(sorted_sets(v)) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(sorted_sets, value))
    if isinstance(value, dict):
        return [(sorted_sets(k), sorted_sets(v)) for k, v in value.items()]
    return value


@pytest.mark.parametrize("value", [-0.0, math.inf, -math.inf, 1e-320, -(1 << 300)])
def test_extreme_numbers_arrive(value):
    assert repr(crossed(value)) == repr(value)


def test_a_number_of_more_digits_than_python_prints_arrives():
    assert crossed(1 << 20_000) == 1 << 20_000


def test_nan_and_lone_surrogates_arrive():
    assert math.isnan(crossed(math.nan)) and crossed("\ud800x") == "\ud800x"


@pytest.mark.parametrize(
    "value", [Counter("aab"), OrderedDict(a=1), defaultdict(int, a=1)]
)
def test_a_standard_dict_arrives_as_a_dict(value):
    assert type(crossed(value)) is dict and crossed(value) == dict(value)


class Sly(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Pair(NamedTuple):
    a: int


class Number(IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    "value",
    [Sly("x"), Pair(1), Number.ONE, object(), range(3), len, type, 1j, {"a": Sly("x")}],
)
def test_other_types_and_subclasses_stay_behind(value):
    with pytest.raises(NotPlain, match="type"):
        encode(value)


def test_a_value_inside_itself_stays_behind():
    loop: list = []
    loop.append(loop)
    with pytest.raises(NotPlain, match="nesting"):
        encode(loop)


def test_shared_parts_count_each_time():
    layer: list = ["ha"] * 10
    for _ in range(9):
        layer = [layer] * 10
    with pytest.raises(NotPlain, match="too many parts"):
        encode(layer, max_nodes=10_000)


@given(JSON)
def test_a_hostile_tree_is_a_value_or_refused(tree):
    try:
        decode(tree)
    except NotPlain:
        pass


def test_deep_and_colliding_trees_are_refused_at_once():
    deep: list = ["l"]
    for _ in range(MAX_DEPTH + 1):
        deep = ["l", deep]
    modulus = (1 << 61) - 1  # of the hash of an int
    colliding = ["s", *(k * modulus for k in range(50_000))]
    start = time.process_time()
    for tree in (deep, colliding):
        with pytest.raises(NotPlain):
            decode(tree)
    assert time.process_time() - start < 1.0
