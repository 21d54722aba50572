"""Requests sorted into blocks of few shapes: groups of rows that share a prefix."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.model.request import Batch, Completion, Request

_NARROWEST = 8
_PADDED_ROWS = 4  # a group is padded to so many times its rows at most
_PADDED_TOKENS = 3  # and a block to so many times its tokens, to spare a compilation


class Block(NamedTuple):
    """Requests that run together: groups of places, each of one prefix."""

    groups: list[list[int]]
    num_groups: int
    num_rows: int
    prefix_width: int
    question_width: int
    room: int

    @property
    def places(self) -> list[int]:
        """Of all its requests."""
        return [place for group in self.groups for place in group]

    @property
    def num_slots(self) -> int:
        """Tokens that it holds, padding included."""
        row = self.question_width + self.room
        return self.num_groups * (self.prefix_width + self.num_rows * row)

    def holds(self, other: "Block") -> bool:
        """Whether the other's rows can run in this one's shape."""
        return self.room == other.room and (
            self.num_groups >= other.num_groups
            and self.num_rows >= other.num_rows
            and self.prefix_width >= other.prefix_width
            and self.question_width >= other.question_width
        )

    def padded(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Padding repeats the first group and, in each group, its first row."""
        groups = [*self.groups]
        groups += [groups[0]] * (self.num_groups - len(groups))
        rows = [[*g, *[g[0]] * (self.num_rows - len(g))] for g in groups]
        return [[requests[place] for place in group] for group in rows]

    def batch(
        self,
        completions: list[tuple[int, Completion]],
        requests: Sequence[Request],
        answer_tokens: int,
        answer_slots: int,
    ) -> Batch:
        """What ran, its cost counted."""
        prompt = sum(len(requests[group[0]].prefix) for group in self.groups)
        prompt += sum(len(requests[i].question) for g in self.groups for i in g)
        slots = self.prefix_width + self.num_rows * self.question_width
        ran = prompt + answer_tokens
        padded = self.num_groups * slots + answer_slots - ran
        return Batch(completions, ran, padded)


class Shapes:
    """Shapes that blocks have had, so that later ones take them again.

    A program is compiled for each shape, which takes longer than many batches of it;
    episodes with tools have a new one in every other batch.
    """

    def __init__(self) -> None:
        self._seen: list[Block] = []

    def settle(self, blocks: Iterable[Block], tokens: int) -> Iterator[Block]:
        """Each block in the smallest seen shape that holds it, or in its own.

        tokens: of a block, padding included, that padding may not pass.
        """
        for block in blocks:
            most = min(_PADDED_TOKENS * block.num_slots, tokens)
            most = max(most, block.num_slots)
            wider = [
                seen
                for seen in self._seen
                if seen.holds(block) and seen.num_slots <= most
            ]
            if wider:
                shape = min(wider, key=lambda seen: seen.num_slots)
                block = shape._replace(groups=block.groups)
            else:
                self._seen.append(block._replace(groups=[]))
            yield block


def plan_blocks(
    requests: Sequence[Request], chosen: Sequence[int], rows: int, tokens: int
) -> Iterator[Block]:
    """Blocks of the chosen requests: at most ``rows`` of one prefix, and ``tokens`` in
    all where more than one request is in it."""
    shared: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for place in chosen:
        request = requests[place]
        room = request.max_new_tokens
        if request.options:
            room = round_up(max(map(len, request.options)), 4)
        if not request.prefix or not request.question or room < 1:
            raise ValueError(
                "request: expected a prefix, a question and at least 1 new token, got "
                f"{len(request.prefix)}, {len(request.question)} and {room}"
            )
        shared.setdefault((request.prefix, room), []).append(place)
    groups: dict[int, list[list[int]]] = {}
    for (_, room), places in shared.items():
        places.sort(key=lambda place: len(requests[place].question))
        while places:
            group = [places.pop()]  # the longest: it decides the width
            width = round_up(len(requests[group[0]].question), _NARROWEST)
            most = max(1, min(rows, tokens // (width + room)))
            while places and len(group) < most:
                group.append(places.pop())
            groups.setdefault(room, []).append(group)
    for room, own in groups.items():
        yield from _merged(own, requests, room, tokens)


def _merged(
    groups: list[list[int]], requests: Sequence[Request], room: int, tokens: int
) -> Iterator[Block]:
    """Blocks of several groups: a step of writing reads all weights, whatever it
    writes, so that padding costs less than another block. Groups of much fewer rows
    are not padded to many."""

    def block(some: list[list[int]]) -> Block:
        prefixes = [len(requests[group[0]].prefix) for group in some]
        questions = [len(requests[group[0]].question) for group in some]
        return Block(
            some,
            _next_power(len(some)),
            max(_next_power(len(group)) for group in some),
            round_up(max(prefixes), _NARROWEST),
            round_up(max(questions), _NARROWEST),
            room,
        )

    groups.sort(key=lambda group: (-len(group), -len(requests[group[0]].prefix)))
    some: list[list[int]] = []
    for group in groups:
        wider = block([*some, group])
        many = wider.num_rows > _PADDED_ROWS * _next_power(len(group))
        if some and (many or wider.num_slots > tokens):
            yield block(some)
            some = []
        some.append(group)
    yield block(some)


def prompt_arrays(block: Block, asked: list[list[Request]]) -> tuple[jax.Array, ...]:
    """Prefixes, their lengths, questions and theirs, padded."""
    questions = [[r.question for r in group] for group in asked]
    return (
        _padded([group[0].prefix for group in asked], block.prefix_width),
        jnp.asarray([len(group[0].prefix) for group in asked], jnp.int32),
        jnp.stack([_padded(rows, block.question_width) for rows in questions]),
        jnp.asarray([[len(q) for q in rows] for rows in questions], jnp.int32),
    )


def round_up(length: int, least: int) -> int:
    """The next of least * (1, 1.5, 2, 3, 4, 6, ...), so that few shapes are traced."""
    size = least
    while size < length:
        if length <= size * 3 // 2:
            return size * 3 // 2
        size *= 2
    return size


def _next_power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _padded(rows: Sequence[Sequence[int]], width: int) -> jax.Array:
    out = np.zeros((len(rows), width), np.int32)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return jnp.asarray(out)
