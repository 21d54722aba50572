"""A pool is never empty and names each candidate once."""

import pytest

from components.pools import check_pool


def test_distinct_names_pass():
    check_pool("template", ["a", "b"])


def test_an_empty_pool_is_refused():
    with pytest.raises(ValueError, match="'template': expected at least 1 candidate"):
        check_pool("template", [])


def test_a_duplicate_is_refused_with_both_positions():
    with pytest.raises(ValueError, match="got 'b' at positions 1 and 3"):
        check_pool("template", ["a", "b", "c", "b"])
