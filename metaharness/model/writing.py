"""The compiled programs of batched writing, each made once in a process."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from metaharness.model.decoder import Decoder
from metaharness.model.generate import (
    Decoding,
    Prompted,
    answer_nats,
    make_advance,
    read_questions,
    start_decoding,
)
from metaharness.model.prefix import Prefix, encode_prefix

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


def jitted_start(room: int, implementation: str) -> Callable:
    """Reads prompts; nothing is written yet, there is room for ``room`` tokens."""
    read = _reader(room, implementation)

    def start(
        decoder: Decoder, prefix, prefix_len, questions, lengths
    ) -> tuple[Prefix, Prompted, Decoding]:
        encoded, prompted = read(decoder, prefix, prefix_len, questions, lengths)
        decoding = start_decoding(prompted, room)
        return encoded, prompted._replace(cache=None, last=None), decoding

    return _once(("start", room, implementation), lambda: jax.jit(start))


def jitted_options(room: int, implementation: str) -> Callable:
    """Nats of each row's options, of at most ``room`` tokens."""
    read = _reader(room, implementation)

    def score(decoder, prefix, prefix_len, questions, lengths, options, option_len):
        encoded, prompted = read(decoder, prefix, prefix_len, questions, lengths)

        def one(option):
            return answer_nats(decoder, encoded, prompted, *option)

        by_option = (jnp.moveaxis(options, 2, 0), jnp.moveaxis(option_len, 2, 0))
        return jnp.moveaxis(jax.lax.map(one, by_option), 0, 2)

    return _once(("options", room, implementation), lambda: jax.jit(score))


def jitted_advance(stop_ids: tuple[int, ...], greedy: bool) -> Callable:
    """Goes on writing: see ``make_advance``."""
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
