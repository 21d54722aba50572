"""Packing loses nothing: every item once, whole, and the same rows in all templates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_space import TEMPLATES, make_model

from metaharness.errors import TaskError
from metaharness.harness.packing import draw_packs, pack_items, take_packs
from metaharness.harness.render import Renderer
from metaharness.model.likelihood import Rows
from metaharness.tasks.task import Item

RENDERER = Renderer(make_model().tokenizer)
TEXT = st.text("0123456789", min_size=1, max_size=24)
TASKS = st.lists(
    st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=9), min_size=1, max_size=3
)


def items_of(tasks):
    return [
        [Item(f"{t}.{i}", q, a) for i, (q, a) in enumerate(pairs)]
        for t, pairs in enumerate(tasks)
    ]


def make_packs(tasks, *, width):
    return jax.device_get(pack_items(tasks, TEMPLATES, RENDERER, width=width))


def length_of(item):
    """Tokens that an item takes at most, over all templates."""
    questions = [RENDERER.question(t, item.question) for t in TEMPLATES]
    return max(map(len, questions)) + len(RENDERER.answer(item.answer))


def read_pack(packs, task, template, pack):
    """Item index -> (question and answer tokens, answer tokens), from the arrays."""
    rows = Rows(*(array[task, template, pack] for array in packs.rows))
    found = {}
    for slot, item in enumerate(packs.items[task, pack]):
        here = np.flatnonzero(rows.segments == slot + 1)
        mine = np.flatnonzero(rows.owner == slot)
        if item < 0:
            assert not len(here) and not len(mine)
            continue
        assert (np.diff(here) == 1).all(), "an item lies in one stretch"
        assert rows.positions[here].tolist() == list(range(len(here)))
        answer = rows.targets[mine].tolist()
        assert packs.num_answer[task, pack, slot] == len(answer)
        # Each scored place holds the token before its target.
        assert rows.score_at[mine].tolist() == list(here[-len(answer) :])
        found[int(item)] = (rows.tokens[here].tolist() + answer[-1:], answer)
    used = rows.segments > 0
    assert packs.num_tokens[task, template, pack] == used.sum()
    assert (rows.tokens[~used] == 0).all()
    return found


@given(tasks=TASKS, width=st.integers(16, 120))
def test_every_item_is_packed_once_and_whole(tasks, width):
    tasks = items_of(tasks)
    packs = make_packs(tasks, width=width)
    longest = max(length_of(item) for items in tasks for item in items)
    assert packs.rows.tokens.shape[-1] == max(width, longest)
    for task, items in enumerate(tasks):
        num = int(packs.num_packs[task])
        assert (packs.items[task, num:] == -1).all()
        for template, shown in enumerate(TEMPLATES):
            seen = {}
            for pack in range(packs.items.shape[1]):
                found = read_pack(packs, task, template, pack)
                assert not set(found) & set(seen)
                seen |= found
                assert bool(found) == (pack < num)
            assert set(seen) == set(range(len(items)))
            for index, (tokens, answer) in seen.items():
                gold = RENDERER.answer(items[index].answer)
                asked = RENDERER.question(shown, items[index].question)
                assert answer == gold and tokens == asked + gold


@given(tasks=TASKS, width=st.integers(48, 120))
def test_items_lie_in_the_first_row_with_room(tasks, width):
    tasks = items_of(tasks)
    packs = make_packs(tasks, width=width)
    width = packs.rows.tokens.shape[-1]
    for items, rows in zip(tasks, packs.items, strict=True):
        bins = [[int(i) for i in row if i >= 0] for row in rows]
        assert all(row == sorted(row) for row in bins)
        for place, row in enumerate(bins):
            for item in row:
                for before in bins[:place]:
                    earlier = sum(length_of(items[i]) for i in before if i < item)
                    assert earlier + length_of(items[item]) > width


def test_a_task_without_items_is_refused():
    with pytest.raises(TaskError, match="task 1: expected at least one item"):
        pack_items([[Item("a", "1", "2")], []], TEMPLATES, RENDERER, width=32)


def test_taken_packs_are_the_rows_of_one_task_and_template():
    tasks = items_of([[("1" * n, "2") for n in (9, 9, 9)], [("3", "4")]])
    packs = make_packs(tasks, width=24)
    assert packs.num_packs.tolist() == [3, 1]
    index = np.array([2, 0], np.int32)
    rows, real, tokens = take_packs(packs, np.int32(0), np.int32(1), index)
    for taken, whole in zip(rows, packs.rows, strict=True):
        assert (taken == whole[0, 1][index]).all()
    assert real.tolist() == [[True], [True]]
    assert int(tokens) == int(packs.num_tokens[0, 1, 2] + packs.num_tokens[0, 1, 0])
    _, real, tokens = take_packs(packs, np.int32(1), np.int32(0), index)
    assert real.tolist() == [[False], [True]]  # the other task has one pack
    assert int(tokens) == int(packs.num_tokens[1, 0, 0])


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def draw_many(key, num_packs, total, num, times):
    draw = functools.partial(draw_packs, total=total, num=num)
    return jax.vmap(draw, (0, None))(jax.random.split(key, times), num_packs)


@pytest.mark.parametrize("num_packs", [1, 3, 5, 7])
def test_drawn_packs_are_real_different_and_equally_likely(num_packs):
    times, total, num = 2000, 7, 3
    drawn = np.asarray(
        draw_many(jax.random.key(0), jnp.int32(num_packs), total, num, times)
    )
    real = min(num, num_packs)
    counts = np.bincount(drawn[:, :real].ravel(), minlength=total)
    assert counts[num_packs:].sum() == 0, "an empty pack was drawn before a real one"
    assert all(len(set(row)) == num for row in drawn.tolist())
    assert (drawn[:, real:] >= num_packs).all() and drawn.max() < total
    share = real / num_packs
    error = np.sqrt(times * share * (1 - share))
    assert (np.abs(counts[:num_packs] - times * share) <= 5 * error).all()
