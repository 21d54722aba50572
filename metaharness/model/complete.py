"""Many texts at once: requests sorted into few jitted batches of a few shapes.

Rows that share a prefix share one encoding of it. Shapes are rounded up and used again,
so that a handful of them is compiled whatever the requests are.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.errors import InputError
from metaharness.keys import row_keys
from metaharness.model.batching import Block, Shapes, plan_blocks, prompt_arrays
from metaharness.model.load import Model
from metaharness.model.request import Batch, Completion, Request
from metaharness.model.writing import jitted_advance, jitted_options, jitted_start

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
        self._written, self._chosen = Shapes(), Shapes()

    @property
    def digest(self) -> str:
        """Of the weights that write, and of how their numbers are rounded."""
        kind = self._model.decoder.dtype
        platform = jax.default_backend()
        return f"{self._model.digest} {kind} {self._implementation} {platform}"

    def batches(self, requests: Sequence[Request]) -> Iterator[Batch]:
        """Complete every request, batch by batch.

        A batch that does not fit into the device's memory is halved, and so are those
        after it. Raises InputError where a single request does not fit.
        """
        written = [i for i, request in enumerate(requests) if not request.options]
        chosen = [i for i, request in enumerate(requests) if request.options]
        yield from self._run(self._write, requests, written, self._written)
        yield from self._run(self._choose, requests, chosen, self._chosen)

    def _run(
        self,
        run: Callable[[Block, Sequence[Request]], Batch],
        requests: Sequence[Request],
        places: Sequence[int],
        shapes: Shapes,
    ) -> Iterator[Batch]:
        blocks = plan_blocks(requests, places, self._rows, self._tokens)
        for block in shapes.settle(blocks, self._tokens):
            try:
                batch = run(block, requests)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                self._halve(block)
            else:
                yield batch
                continue
            yield from self._run(run, requests, block.places, shapes)

    def _halve(self, block: Block) -> None:
        """Plan smaller batches than one that did not fit. Raises InputError."""
        if len(block.places) == 1:
            raise InputError(
                "memory: expected room on the device for one text of "
                f"{block.num_slots:,} tokens, got too little; load the model in "
                "bfloat16, take a smaller one, or end what else uses the device"
            )
        self._tokens = min(self._tokens, block.num_slots // 2)
        warnings.warn(
            f"a batch of {block.num_slots:,} tokens did not fit into the device's "
            f"memory; from here on they have at most {self._tokens:,}",
            RuntimeWarning,
            stacklevel=2,
        )

    def __call__(self, requests: Sequence[Request]) -> list[Completion]:
        """Complete every request, in their order."""
        found = dict(
            pair for batch in self.batches(requests) for pair in batch.completions
        )
        return [found[place] for place in range(len(requests))]

    def _write(self, block: Block, requests: Sequence[Request]) -> Batch:
        asked = block.padded(requests)
        decoder, room = self._model.decoder, block.room
        start = jitted_start(room, self._implementation)
        prefix, prompted, decoding = start(decoder, *prompt_arrays(block, asked))
        heat = np.array([[r.temperature for r in g] for g in asked], np.float32)
        keys = row_keys(np.array([[r.seed for r in g] for g in asked]))
        advance = jitted_advance(self._model.tokenizer.eos_ids, not heat.any())
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
        score = jitted_options(block.room, self._implementation)
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
