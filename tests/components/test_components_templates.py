"""Templates put the question in once, and share an encoded pool where they can."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.templates import NAMED, Template, check_templates, named


@given(st.text(min_size=1))
def test_any_question_is_put_in_verbatim(question):
    template = Template("t", question="Q {question} {x} %s {0}", shot="{question}!")
    assert template.ask(question) == "Q " + question + " {x} %s {0}"
    assert template.show(question) == question + "!"


@pytest.mark.parametrize("text", ["no placeholder", "{question} {question}", ""])
@pytest.mark.parametrize("field", ["question", "shot"])
def test_the_placeholder_stands_once(field, text):
    with pytest.raises(ValueError, match=f"expected {{question}} once in '{field}'"):
        Template("t", **{field: text})


def test_plain_text_ends_its_question_with_a_line_break():
    with pytest.raises(ValueError, match="to end with a line break"):
        Template("t", question="{question}", shot="{question}\n", chat=False)
    Template("t", question="{question}\n", shot="{question}\n", chat=False)


def test_the_final_turn_does_not_change_the_pool_but_all_else_does():
    base = Template("a")
    assert Template("b", question="{question}?").cache_key == base.cache_key
    for other in (
        Template("b", shot="Q: {question}"),
        Template("b", system="s"),
        Template("b", system=""),
        Template("b", question="{question}\n", shot="{question}\n", chat=False),
    ):
        assert other.cache_key != base.cache_key


@pytest.mark.parametrize("name", NAMED)
def test_ready_sets_are_valid_pools_of_which_several_share_one_cache(name):
    templates = named(name)
    check_templates(templates)
    keys = [template.cache_key for template in templates]
    assert keys.count(keys[0]) >= 3


def test_the_default_set_has_a_system_line_and_a_plain_style():
    templates = named("default")
    assert any(t.system for t in templates)
    assert any(not t.chat for t in templates)


def test_an_unknown_set_names_the_known_ones():
    with pytest.raises(ValueError, match="default, short, math, code, got 'maths'"):
        named("maths")


def test_the_same_text_under_two_names_is_refused():
    with pytest.raises(ValueError, match="same text in 'a' and 'b'"):
        check_templates((Template("a"), Template("b")))
    with pytest.raises(ValueError, match="got 'a' at positions 0 and 1"):
        check_templates((Template("a"), Template("a", system="s")))
