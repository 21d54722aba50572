"""Many texts at once: requests sorted into few jitted batches of a few shapes.

Rows that share a prefix share one encoding of it. Shapes are rounded up, so that a
handful of them is compiled whatever the requests are.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.keys import row_keys
from metaharness.model.decoder import Decoder
from metaharness.model.generate import (
    Decoding,
    Prompted,
    answer_nats,
    make_advance,
    read_questions,
    start_decoding,
)
from metaharness.model.load import Model
from metaharness.model.prefix import Prefix, encode_prefix

_SEGMENT = 32  # tokens written between two looks for stop texts
_NARROWEST = 8
_PADDED_ROWS = 4  # a group is padded to so many times its rows at most


class Request(NamedTuple):
    """One text to be written.

    prefix: tokens that other requests may share (head and exemplars); question: tokens
    after it; stops: texts that end it and are not part of it; temperature: 0 is greedy;
    seed: of its sample, in [0, 2**32), unused when greedy. options: tokens of the texts
    to choose from; nothing is written then, each is scored.
    """

    prefix: tuple[int, ...]
    question: tuple[int, ...]
    max_new_tokens: int
    stops: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    options: tuple[tuple[int, ...], ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prefix) + len(self.question)


class Completion(NamedTuple):
    """What was written.

    num_tokens: tokens written, those of a stop text counted; nats: their summed
    negative log-probability at temperature 1, a stop token's too; ended: False where
    the limit of tokens cut it. option_nats: summed nats of each option of the request.
    """

    text: str
    num_tokens: int
    nats: float
    ended: bool
    option_nats: tuple[float, ...] = ()

    @property
    def confidence(self) -> float:
        """Geometric mean of the tokens' probabilities, in (0, 1]."""
        return math.exp(-self.nats / max(self.num_tokens, 1))


class Batch(NamedTuple):
    """Requests that ran together.

    completions: (place of the request, what was written); token_forwards: tokens that
    went through the model, a shared prefix once; padded_tokens: padding beside them.
    """

    completions: list[tuple[int, Completion]]
    token_forwards: int
    padded_tokens: int


class Completer:
    """Writes texts with one model; make it once, its compiled shapes are kept.

    tokens_at_once: of prompts and answers in one batch, padding included; memory grows
    with it. rows_at_once: most rows of one batch that share a prefix.
    """

    def __init__(
        self,
        model: Model,
        *,
        rows_at_once: int = 64,
        tokens_at_once: int = 16384,
        implementation: str = "xla",
    ) -> None:
        if rows_at_once < 1 or tokens_at_once < 1:
            raise ValueError(
                "completer: expected rows_at_once and tokens_at_once of at least 1, "
                f"got {rows_at_once} and {tokens_at_once}"
            )
        self._model = model
        self._rows, self._tokens = rows_at_once, tokens_at_once
        self._implementation = implementation

    @property
    def digest(self) -> str:
        """Of the weights that write, and of how their numbers are rounded."""
        kind = self._model.decoder.dtype
        platform = jax.default_backend()
        return f"{self._model.digest} {kind} {self._implementation} {platform}"

    def batches(self, requests: Sequence[Request]) -> Iterator[Batch]:
        """Complete every request, batch by batch."""
        written = [i for i, request in enumerate(requests) if not request.options]
        chosen = [i for i, request in enumerate(requests) if request.options]
        for run, places in ((self._write, written), (self._choose, chosen)):
            for block in _plan(requests, places, self._rows, self._tokens):
                yield run(block, requests)

    def __call__(self, requests: Sequence[Request]) -> list[Completion]:
        """Complete every request, in their order."""
        found = dict(
            pair for batch in self.batches(requests) for pair in batch.completions
        )
        return [found[place] for place in range(len(requests))]

    def _write(self, block: "_Block", requests: Sequence[Request]) -> Batch:
        asked = block.padded(requests)
        decoder, room = self._model.decoder, block.room
        start = _jitted_start(room, self._implementation)
        prefix, prompted, decoding = start(decoder, *_prompts(block, asked))
        heat = np.array([[r.temperature for r in g] for g in asked], np.float32)
        keys = row_keys(np.array([[r.seed for r in g] for g in asked]))
        advance = _jitted_advance(self._model.tokenizer.eos_ids, not heat.any())
        stops = any(r.stops for g in asked for r in g)
        over = np.ones(heat.shape, bool)
        for row, group in zip(over, block.groups, strict=False):
            row[: len(group)] = False
        decoding = decoding._replace(done=jnp.asarray(over))  # padding writes nothing
        until = 0
        while until < room and not over.all():
            until = min(until + _SEGMENT, room) if stops else room
            decoding = advance(
                decoder, prefix, prompted, decoding, keys, jnp.asarray(heat), until
            )
            over = np.array(decoding.done)
            if stops and until < room:
                tokens, lengths = jax.device_get((decoding.tokens, decoding.lengths))
                for g, r in zip(*np.nonzero(~over), strict=True):
                    ids = tokens[g, r, : lengths[g, r]]
                    over[g, r] = self._cut(ids, asked[g][r].stops)[1]
                decoding = decoding._replace(done=jnp.asarray(over))
        out = jax.device_get(
            (decoding.tokens, decoding.lengths, decoding.nats, decoding.stopped)
        )
        completions = [
            (place, self._completion(requests[place], *(x[g, r] for x in out)))
            for g, group in enumerate(block.groups)
            for r, place in enumerate(group)
        ]
        new = sum(one.num_tokens for _, one in completions)
        return block.batch(completions, requests, new, over.size * until)

    def _choose(self, block: "_Block", requests: Sequence[Request]) -> Batch:
        asked = block.padded(requests)
        most = max(len(r.options) for g in asked for r in g)
        score = _jitted_options(block.room, self._implementation)
        options = np.zeros((block.num_groups, block.num_rows, most, block.room), int)
        lengths = np.zeros(options.shape[:3], int)
        for g, group in enumerate(asked):
            for r, request in enumerate(group):
                for o, ids in enumerate(request.options):
                    options[g, r, o, : len(ids)] = ids
                    lengths[g, r, o] = len(ids)
        nats = jax.device_get(
            score(
                self._model.decoder,
                *_prompts(block, asked),
                jnp.asarray(options, jnp.int32),
                jnp.asarray(lengths, jnp.int32),
            )
        )
        completions = []
        for g, group in enumerate(block.groups):
            for r, place in enumerate(group):
                own = nats[g, r, : len(requests[place].options)]
                one = Completion("", 0, float(own.min()), True, tuple(own.tolist()))
                completions.append((place, one))
        return block.batch(completions, requests, int(lengths.sum()), options.size)

    def _completion(self, request, tokens, length, nats, stopped) -> Completion:
        ids = tokens[:length]
        num, found = self._cut(ids, request.stops)
        text = self._model.tokenizer.decode(ids[:num].tolist())
        if found:
            text = text[: min(at for at in _places(text, request.stops) if at >= 0)]
        counted = num + int(stopped and not found)
        return Completion(
            text, int(num), float(nats[:counted].sum()), bool(found or stopped)
        )

    def _cut(self, ids: np.ndarray, stops: tuple[str, ...]) -> tuple[int, bool]:
        """Fewest tokens whose text holds a stop, and whether there is one."""
        decode = self._model.tokenizer.decode
        if not stops or not _holds(decode(ids.tolist()), stops):
            return len(ids), False
        low, high = 1, len(ids)
        while low < high:
            middle = (low + high) // 2
            if _holds(decode(ids[:middle].tolist()), stops):
                high = middle
            else:
                low = middle + 1
        return low, True


class _Block(NamedTuple):
    """Requests that run together: groups of places, each of one prefix."""

    groups: list[list[int]]
    num_groups: int
    num_rows: int
    prefix_width: int
    question_width: int
    room: int

    @property
    def num_slots(self) -> int:
        """Tokens that it holds, padding included."""
        row = self.question_width + self.room
        return self.num_groups * (self.prefix_width + self.num_rows * row)

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


def _plan(
    requests: Sequence[Request], chosen: Sequence[int], rows: int, tokens: int
) -> Iterator[_Block]:
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
) -> Iterator[_Block]:
    """Blocks of several groups: a step of writing reads all weights, whatever it
    writes, so that padding costs less than another block. Groups of much fewer rows
    are not padded to many."""

    def block(some: list[list[int]]) -> _Block:
        prefixes = [len(requests[group[0]].prefix) for group in some]
        questions = [len(requests[group[0]].question) for group in some]
        return _Block(
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


def _prompts(block: _Block, asked: list[list[Request]]) -> tuple[jax.Array, ...]:
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


def _places(text: str, stops: Sequence[str]) -> list[int]:
    return [text.find(stop) for stop in stops]


def _holds(text: str, stops: Sequence[str]) -> bool:
    return any(stop in text for stop in stops)


_COMPILED: dict[tuple, Callable] = {}


def _jitted_start(room: int, implementation: str) -> Callable:
    def start(
        decoder: Decoder, prefix, prefix_len, questions, lengths
    ) -> tuple[Prefix, Prompted, Decoding]:
        encoded = encode_prefix(
            decoder, prefix, prefix_len, implementation=implementation
        )
        prompted = read_questions(
            decoder,
            encoded,
            questions,
            lengths,
            num_new=room,
            implementation=implementation,
        )
        decoding = start_decoding(prompted, room)
        return encoded, prompted._replace(cache=None, last=None), decoding

    return _once(("start", room, implementation), lambda: jax.jit(start))


def _jitted_options(room: int, implementation: str) -> Callable:
    def score(decoder, prefix, prefix_len, questions, lengths, options, option_len):
        encoded = encode_prefix(
            decoder, prefix, prefix_len, implementation=implementation
        )
        prompted = read_questions(
            decoder,
            encoded,
            questions,
            lengths,
            num_new=room,
            implementation=implementation,
        )

        def one(option):
            return answer_nats(decoder, encoded, prompted, *option)

        by_option = (jnp.moveaxis(options, 2, 0), jnp.moveaxis(option_len, 2, 0))
        return jnp.moveaxis(jax.lax.map(one, by_option), 0, 2)

    return _once(("options", room, implementation), lambda: jax.jit(score))


def _jitted_advance(stop_ids: tuple[int, ...], greedy: bool) -> Callable:
    return _once(
        ("advance", stop_ids, greedy),
        lambda: jax.jit(
            make_advance(stop_ids=stop_ids, greedy=greedy), donate_argnums=3
        ),
    )


def _once(name: tuple, make: Callable[[], Callable]) -> Callable:
    """The jitted function of this name, made the first time."""
    if name not in _COMPILED:
        _COMPILED[name] = make()
    return _COMPILED[name]
