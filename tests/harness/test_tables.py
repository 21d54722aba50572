"""A prompt assembled on the device is the same tokens that Python concatenates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_space import TEMPLATES, equal_lengths, make_model, make_space

from components.exemplars import Exemplar
from components.templates import Template
from metaharness.errors import HarnessError
from metaharness.harness.render import Renderer
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates
from metaharness.harness.tables import (
    PromptTable,
    assemble_prefix,
    build_prompt_table,
    pad_tokens,
    prefix_width,
)

STYLES, POOL, HEAD, SHOT, WIDTH = 2, 4, 3, 5, 20
assemble = functools.partial(jax.jit, static_argnames="width")(assemble_prefix)


def ids(longest):
    return st.lists(st.integers(1, 99), min_size=1, max_size=longest)


@st.composite
def pieces(draw):
    """Heads [style], shots [style][candidate], and the template -> style map."""
    heads = [draw(ids(HEAD)) for _ in range(STYLES)]
    shots = [[draw(ids(SHOT)) for _ in range(POOL)] for _ in range(STYLES)]
    style_of = draw(st.lists(st.integers(0, STYLES - 1), min_size=3, max_size=3))
    return heads, shots, style_of


def table_of(heads, shots, style_of):
    return PromptTable(
        jnp.asarray(pad_tokens(heads, HEAD)),
        jnp.asarray([len(h) for h in heads], jnp.int32),
        jnp.asarray(np.stack([pad_tokens(row, SHOT) for row in shots])),
        jnp.asarray([[len(s) for s in row] for row in shots], jnp.int32),
        jnp.asarray(style_of, jnp.int32),
    )


@pytest.mark.parametrize("k", range(4))
@given(data=st.data())
def test_assembled_prefix_is_python_concatenation(k, data):
    heads, shots, style_of = data.draw(pieces())
    template = data.draw(st.integers(0, 2))
    chosen = data.draw(st.permutations(range(POOL)))[:k]
    style = style_of[template]
    expected = sum((shots[style][i] for i in chosen), heads[style])
    tokens, length = assemble(
        table_of(heads, shots, style_of),
        np.int32(template),
        np.array(chosen, np.int32),
        width=WIDTH,
    )
    assert int(length) == len(expected)
    assert tokens.tolist() == expected + [0] * (WIDTH - len(expected))


@given(pieces(), st.integers(0, POOL))
def test_prefix_width_is_the_longest_prefix_and_no_more(made, k):
    heads, shots, style_of = made
    longest = max(
        len(head) + sum(sorted(map(len, row))[POOL - k :])
        for head, row in zip(heads, shots, strict=True)
    )
    assert prefix_width(table_of(*made), k) == longest


def test_a_spaces_prefixes_are_those_of_its_renderer_and_fit_exactly():
    space = make_space(2)
    rng = np.random.default_rng(0)
    lengths = []
    for task in range(2):
        for choice in space.harness.random_choices(20, task, 2, rng):
            tokens, length = assemble(
                space.table,
                np.int32(choice.template),
                np.array(choice.exemplars, np.int32),
                width=space.width,
            )
            assert tokens[: int(length)].tolist() == space.prefix_tokens(choice)
            lengths.append(int(length))
    assert max(lengths) <= space.width
    by_length = np.argsort(np.asarray(space.table.shot_lengths).max(axis=0))[-2:]
    choices = [Choice(tuple(map(int, by_length)), t) for t in range(3)]
    assert max(len(space.prefix_tokens(c)) for c in choices) == space.width


def test_templates_that_differ_in_the_question_alone_share_a_style():
    system = Template("system", system="Add.")
    harness = Harness(Exemplars(equal_lengths(2), 1), Templates((system, *TEMPLATES)))
    renderer = Renderer(make_model().tokenizer)
    table = build_prompt_table(harness, renderer)
    assert table.style_of.tolist() == [0, 1, 1, 2]
    for template, style in zip(harness.template.pool, (0, 1, 1, 2), strict=True):
        head = table.heads[style, : int(table.head_lengths[style])]
        assert head.tolist() == renderer.head(template)
        for candidate, exemplar in enumerate(harness.candidates):
            shot = table.shots[style, candidate]
            shot = shot[: int(table.shot_lengths[style, candidate])]
            assert shot.tolist() == renderer.shot(template, exemplar)


def test_without_exemplars_a_prefix_is_the_head():
    space = make_space(0)
    assert space.table.shot_lengths.shape == (2, 0)
    tokens, length = assemble(
        space.table, np.int32(2), np.zeros(0, np.int32), width=space.width
    )
    assert tokens[: int(length)].tolist() == space.renderer.head(TEMPLATES[2])
    assert space.width == max(map(int, space.table.head_lengths))


def test_an_exemplar_beyond_the_limit_is_named():
    pool = (*equal_lengths(1), Exemplar("long", "1" * 30, "2"))
    harness = Harness(Exemplars(pool, 1))
    renderer = Renderer(make_model().tokenizer)
    longest = max(len(renderer.shot(t, pool[1])) for t in harness.template.pool)
    build_prompt_table(harness, renderer, max_shot_tokens=longest)
    with pytest.raises(HarnessError, match=rf"'long': expected at most {longest - 1}"):
        build_prompt_table(harness, renderer, max_shot_tokens=longest - 1)
