"""How far trained weights moved from the base: KL on validation items' answers."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.harness.packing import Packs, take_packs
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.harness.tables import pad_tokens
from metaharness.model.decoder import Decoder
from metaharness.model.divergence import item_divergence
from metaharness.model.prefix import encode_prefix
from metaharness.runlog.budget import BudgetCounter

_PACKS_AT_ONCE = 2  # bounds the memory: two rows of logits over the whole vocabulary


class AnswerDivergence(NamedTuple):
    """KL of each item's answer.

    nats: float64 ``[item]``, summed over its tokens; num_answer: int ``[item]``.
    """

    nats: np.ndarray
    num_answer: np.ndarray


Progressed = Callable[[int, int], None]
Measure = Callable[[Decoder, int, Choice, Progressed], AnswerDivergence]


def num_blocks(packs: Packs, task: int) -> int:
    """Steps that ``make_divergence`` takes for one task."""
    return -(-int(packs.num_packs[task]) // _PACKS_AT_ONCE)


def make_divergence(space: Space, packs: Packs, counter: BudgetCounter) -> Measure:
    """A measure of KL(adapted || base) on the packed items' gold answers.

    It takes the adapted decoder, a task's number, the harness that the items are read
    under and a callback (blocks done, of how many); it returns one entry an item.
    Each prefix is encoded once for each of the two decoders, memory does not grow with
    the number of items.
    """
    num_items = packs.items.shape[-1]

    @jax.jit
    def encode(decoder, tokens, length):
        return encode_prefix(
            decoder, tokens[None], length[None], implementation=space.implementation
        )

    @jax.jit
    def block(decoder, base, packs, prefixes, task, template, index):
        rows, _, _ = take_packs(packs, task, template, index)
        return item_divergence(
            decoder,
            base,
            jax.tree.map(lambda x: x[None], rows),
            *prefixes,
            num_items=num_items,
            implementation=space.implementation,
        )[0]

    def measure(
        decoder: Decoder, task: int, choice: Choice, on_progress: Progressed
    ) -> AnswerDivergence:
        ids = space.prefix_tokens(choice)
        tokens = jnp.asarray(pad_tokens([ids], max(space.width, len(ids)))[0])
        prefixes = [
            encode(model, tokens, jnp.int32(len(ids)))
            for model in (decoder, space.model.decoder)
        ]
        counter.add(token_forwards=2 * len(ids))
        num = int(packs.num_packs[task])
        places = np.asarray(packs.items[task])
        answers = np.asarray(packs.num_answer[task])
        lengths = np.asarray(packs.num_tokens[task, choice.template])
        found = AnswerDivergence(
            np.zeros(places.max() + 1), np.zeros(places.max() + 1, int)
        )
        for done, first in enumerate(range(0, num, _PACKS_AT_ONCE)):
            # a short block repeats its last pack, so that every block has one shape
            index = np.minimum(first + np.arange(_PACKS_AT_ONCE), num - 1)
            nats = block(
                decoder,
                space.model.decoder,
                packs,
                prefixes,
                jnp.int32(task),
                jnp.int32(choice.template),
                jnp.asarray(index, jnp.int32),
            )
            real = places[index] >= 0
            found.nats[places[index][real]] = np.asarray(nats)[real]
            found.num_answer[places[index][real]] = answers[index][real]
            own = np.unique(index)
            counter.add(
                lm_calls=2 * int((places[own] >= 0).sum()),
                token_forwards=2 * int(lengths[own].sum()),
            )
            on_progress(done + 1, num_blocks(packs, task))
        return found

    return measure
