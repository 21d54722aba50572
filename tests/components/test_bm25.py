"""BM25 scores are those of the formula, and ties have one order."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.bm25 import best, bm25, words

VOCABULARY = ["red", "fish", "blue", "bird", "sea"]
TEXT = st.lists(st.sampled_from(VOCABULARY), max_size=12).map(" ".join)
TEXTS = st.lists(TEXT, min_size=1, max_size=6)


def test_scores_are_those_computed_by_hand():
    # lengths 2, 3, 4, mean 3; "red" in one text of three, "fish" in two
    scores = bm25("Red fish?", ["red fish", "blue fish, fish", "a bird, bird bird"])
    red, fish = math.log(1 + 2.5 / 1.5), math.log(1 + 1.5 / 2.5)
    first = red / (1 + 1.5 * 0.75) + fish / (1 + 1.5 * 0.75)
    second = fish * 2 / (2 + 1.5 * 1.0)
    assert scores == pytest.approx((first, second, 0.0), abs=1e-15)
    assert scores[:2] == pytest.approx((0.6827449, 0.2685735), abs=1e-6)


def literal(query, texts, k1, b):
    """The formula again, term by term, with no shared code."""
    split = [re.findall(r"\w+", text) for text in texts]
    mean = sum(len(s) for s in split) / len(split)
    result = []
    for s in split:
        total = 0.0
        for word in set(re.findall(r"\w+", query)):
            holding = len([t for t in split if t.count(word) > 0])
            weight = math.log(1 + (len(split) - holding + 0.5) / (holding + 0.5))
            if s.count(word):
                norm = (1 - b) + b * len(s) / mean
                total += weight * s.count(word) / (k1 * norm + s.count(word))
        result.append(total)
    return result


@given(query=TEXT, texts=TEXTS, k1=st.floats(0.1, 3.0), b=st.floats(0.0, 1.0))
def test_scores_agree_with_a_literal_implementation(query, texts, k1, b):
    expected = literal(query, texts, k1, b)
    assert bm25(query, texts, k1=k1, b=b) == pytest.approx(expected, abs=1e-12)


@given(query=TEXT, texts=TEXTS)
def test_a_score_is_zero_just_where_no_word_is_shared(query, texts):
    for score, text in zip(bm25(query, texts), texts, strict=True):
        assert (score > 0.0) == bool(set(words(query)) & set(words(text)))


@given(query=TEXT, texts=TEXTS, data=st.data())
def test_the_order_of_words_and_texts_changes_no_score(query, texts, data):
    order = data.draw(st.permutations(range(len(texts))))
    scores = bm25(query, texts)
    moved = bm25(" ".join(reversed(query.split())), [texts[at] for at in order])
    assert moved == tuple(scores[at] for at in order)
    assert bm25(f"{query} {query}", texts) == scores


def test_a_rare_word_a_repeated_word_and_a_short_text_count_more():
    rare, common, _ = bm25("rare common", ["rare a", "common a", "common a"])
    assert rare > common
    often, once = bm25("fish", ["fish fish sea sea", "fish sea sea sea"])
    assert often > once
    short, long = bm25("fish", ["fish sea", "fish sea sea sea"])
    assert short > long


@pytest.mark.parametrize("query", ["", " \n", "?!", "whale"])
def test_a_query_without_a_shared_word_scores_zero(query):
    assert bm25(query, ["red fish", "blue bird"]) == (0.0, 0.0)


def test_few_and_empty_texts():
    assert bm25("fish", []) == ()
    assert bm25("fish", ["", "?"]) == (0.0, 0.0)
    (one,) = bm25("fish", ["red fish"])
    assert one == pytest.approx(math.log(1 + 0.5 / 1.5) / 2.5)


def test_words_are_folded():
    assert words("The ＦＩＳＨ's x_1, 1903–1904!") == [
        "the", "fish", "s", "x", "1", "1903", "1904"
    ]  # fmt: skip


def test_the_best_come_first_and_of_equals_the_first():
    assert best([0.0, 2.0, 1.0, 2.0], 3) == (1, 3, 2)
    assert best([0.0, 0.0, 0.0], 2) == (0, 1)
    assert best([1.0], 5) == (0,) and best([], 3) == () and best([1.0], 0) == ()
