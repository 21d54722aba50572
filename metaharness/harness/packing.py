"""Pack items into rows, once: batches are then gathers on the device."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from components.templates import Template
from metaharness.errors import TaskError
from metaharness.harness.render import Renderer
from metaharness.model.likelihood import Rows
from metaharness.tasks.task import Item


class Packs(NamedTuple):
    """Packed items of one or several tasks, under every template.

    A *pack* is one row of items; it holds the same items under every template.

    rows: ``Rows`` with leading axes ``[task, template, pack]``.
    items: int32 ``[task, pack, slot]``: index of the item in its task, -1 on padding.
    num_packs: int32 ``[task]``; packs past it are empty.
    num_tokens: int32 ``[task, template, pack]``, tokens without padding.
    num_answer: int32 ``[task, pack, slot]``, answer tokens of each item.
    """

    rows: Rows
    items: jax.Array
    num_packs: jax.Array
    num_tokens: jax.Array
    num_answer: jax.Array


class _Piece(NamedTuple):
    questions: list[list[int]]  # one a template
    answer: list[int]

    @property
    def length(self) -> int:
        return max(map(len, self.questions)) + len(self.answer)


def pack_items(
    tasks: Sequence[Sequence[Item]],
    templates: Sequence[Template],
    renderer: Renderer,
    *,
    width: int,
) -> Packs:
    """Pack each task's items, first fit in their order, into rows of ``width`` tokens.

    ``width`` grows to the longest item. Raises TaskError when a task has no item.
    """
    pieces = []
    for number, items in enumerate(tasks):
        if not items:
            raise TaskError(f"task {number}: expected at least one item to pack, got 0")
        pieces.append(
            [
                _Piece(
                    [renderer.question(t, item.question) for t in templates],
                    renderer.answer(item.answer),
                )
                for item in items
            ]
        )
    width = max([width, *(piece.length for task in pieces for piece in task)])
    bins = [_first_fit([piece.length for piece in task], width) for task in pieces]
    num_packs = max(map(len, bins))
    slots = max(len(pack) for task in bins for pack in task)
    answers = max(
        sum(len(task[i].answer) for i in pack)
        for task, packs in zip(pieces, bins, strict=True)
        for pack in packs
    )
    lead = (len(tasks), len(templates), num_packs)
    rows = Rows(
        tokens=np.zeros((*lead, width), np.int32),
        positions=np.zeros((*lead, width), np.int32),
        segments=np.zeros((*lead, width), np.int32),
        score_at=np.zeros((*lead, answers), np.int32),
        targets=np.zeros((*lead, answers), np.int32),
        owner=np.full((*lead, answers), slots, np.int32),
    )
    packed = np.full((len(tasks), num_packs, slots), -1, np.int32)
    num_answer = np.zeros((len(tasks), num_packs, slots), np.int32)
    num_tokens = np.zeros(lead, np.int32)
    for task, packs in enumerate(bins):
        for pack, members in enumerate(packs):
            packed[task, pack, : len(members)] = members
            num_answer[task, pack, : len(members)] = [
                len(pieces[task][i].answer) for i in members
            ]
            for template in range(len(templates)):
                at = (task, template, pack)
                num_tokens[at] = _fill(
                    Rows(*(array[at] for array in rows)),
                    [
                        (pieces[task][i].questions[template], pieces[task][i].answer)
                        for i in members
                    ],
                )
    return Packs(
        Rows(*map(jnp.asarray, rows)),
        jnp.asarray(packed),
        jnp.asarray([len(packs) for packs in bins], jnp.int32),
        jnp.asarray(num_tokens),
        jnp.asarray(num_answer),
    )


def take_packs(packs: Packs, task: jax.Array, template: jax.Array, index: jax.Array):
    """Rows ``[..., pack]`` of one task under one template, and their item mask.

    task, template: int32 scalars; index: int32 ``[pack]``. Returns rows, bool
    ``[pack, slot]`` and the number of tokens without padding.
    """
    rows = Rows(*(array[task, template][index] for array in packs.rows))
    real = packs.items[task][index] >= 0
    return rows, real, packs.num_tokens[task, template][index].sum()


def draw_packs(key: jax.Array, num_packs: jax.Array, total: int, num: int) -> jax.Array:
    """``num`` different packs out of the first ``num_packs`` of ``total``.

    Where a task has fewer packs than ``num``, empty ones fill up.
    """
    noise = jax.random.uniform(key, (total,))
    noise = jnp.where(jnp.arange(total) < num_packs, noise, 2.0)
    return jnp.argsort(noise)[:num].astype(jnp.int32)


def _first_fit(lengths: list[int], width: int) -> list[list[int]]:
    packs: list[list[int]] = []
    room: list[int] = []
    for item, length in enumerate(lengths):
        place = next((i for i, free in enumerate(room) if free >= length), None)
        if place is None:
            packs.append([])
            room.append(width)
            place = len(packs) - 1
        packs[place].append(item)
        room[place] -= length
    return packs


def _fill(row: Rows, items: list[tuple[list[int], list[int]]]) -> int:
    """Write one row in place; the number of tokens written."""
    at = scored = 0
    for segment, (question, answer) in enumerate(items):
        ids = question + answer[:-1]  # the last answer token is only a target
        row.tokens[at : at + len(ids)] = ids
        row.positions[at : at + len(ids)] = np.arange(len(ids))
        row.segments[at : at + len(ids)] = segment + 1
        for offset, target in enumerate(answer):
            row.score_at[scored] = at + len(question) - 1 + offset
            row.targets[scored] = target
            row.owner[scored] = segment
            scored += 1
        at += len(ids)
    return at
