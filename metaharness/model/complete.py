"""Many texts at once: requests sorted into few jitted batches of a few shapes.

Rows that share a prefix share one encoding of it. Shapes are rounded up, so that a
handful of them is compiled whatever the requests are.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.keys import row_keys
from metaharness.model.batching import Block, plan_blocks, prompt_arrays
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
from metaharness.model.request import Batch, Completion, Request

_SEGMENT = 32  # tokens written between two looks for stop texts


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
            for block in plan_blocks(requests, places, self._rows, self._tokens):
                yield run(block, requests)

    def __call__(self, requests: Sequence[Request]) -> list[Completion]:
        """Complete every request, in their order."""
        found = dict(
            pair for batch in self.batches(requests) for pair in batch.completions
        )
        return [found[place] for place in range(len(requests))]

    def _write(self, block: Block, requests: Sequence[Request]) -> Batch:
        asked = block.padded(requests)
        decoder, room = self._model.decoder, block.room
        start = _jitted_start(room, self._implementation)
        prefix, prompted, decoding = start(decoder, *prompt_arrays(block, asked))
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

    def _choose(self, block: Block, requests: Sequence[Request]) -> Batch:
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
                *prompt_arrays(block, asked),
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


def _places(text: str, stops: Sequence[str]) -> list[int]:
    return [text.find(stop) for stop in stops]


def _holds(text: str, stops: Sequence[str]) -> bool:
    return any(stop in text for stop in stops)


_COMPILED: dict[tuple, Callable] = {}


def _reader(room: int, implementation: str) -> Callable[..., tuple[Prefix, Prompted]]:
    """Reads prompts as ``prompt_arrays`` gives them; ``room`` slots are kept."""

    def read(decoder, prefix, prefix_len, questions, lengths):
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
        return encoded, prompted

    return read


def _jitted_start(room: int, implementation: str) -> Callable:
    read = _reader(room, implementation)

    def start(
        decoder: Decoder, prefix, prefix_len, questions, lengths
    ) -> tuple[Prefix, Prompted, Decoding]:
        encoded, prompted = read(decoder, prefix, prefix_len, questions, lengths)
        decoding = start_decoding(prompted, room)
        return encoded, prompted._replace(cache=None, last=None), decoding

    return _once(("start", room, implementation), lambda: jax.jit(start))


def _jitted_options(room: int, implementation: str) -> Callable:
    read = _reader(room, implementation)

    def score(decoder, prefix, prefix_len, questions, lengths, options, option_len):
        encoded, prompted = read(decoder, prefix, prefix_len, questions, lengths)

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
