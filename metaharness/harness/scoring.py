"""Score concrete harnesses on items: likelihood of the gold answer and real answers.

One read of each question serves both: the gold answer is scored from the question's
cache, and generation continues from it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.harness.tables import pad_tokens
from metaharness.model.batching import round_up
from metaharness.model.generate import answer_nats, make_decode, read_questions
from metaharness.model.prefix import encode_prefix
from metaharness.runlog.budget import BudgetCounter
from metaharness.tasks.task import Item, Task

_LEAST = 32  # tokens of the narrowest question; widths grow in steps, see `round_up`


class Scores(NamedTuple):
    """Results of harnesses on the same items.

    nats: float64 ``[harness, item]``, summed nats of the gold answer.
    num_answer: int ``[item]``, tokens of the gold answer.
    reward: float64 ``[harness, item]`` in [0, 1], or None where nothing was generated.
    outputs: generated texts ``[harness][item]``, or None.
    prompt_tokens: int ``[harness, item]``.
    tokens: float64 ``[harness, item]``, prompt and written tokens of whole episodes, or
        None where no episode was run.
    """

    nats: np.ndarray
    num_answer: np.ndarray
    reward: np.ndarray | None
    outputs: list[list[str]] | None
    prompt_tokens: np.ndarray
    tokens: np.ndarray | None = None


def score_harnesses(
    space: Space,
    task: Task,
    choices: Sequence[Choice],
    items: Sequence[Item],
    *,
    generate: bool,
    counter: BudgetCounter,
    harnesses_at_once: int = 2,
    items_at_once: int = 64,
    tokens_at_once: int = 8192,
    temperature: float = 0.0,
    key: jax.Array | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Score every harness on every item; each prefix is encoded once a block of items.

    A block holds items of similar length, at most ``items_at_once`` of them and about
    ``tokens_at_once`` tokens of each harness; memory grows with both. ``generate`` also
    writes and grades answers (the task needs a scorer). ``key`` is needed when
    ``temperature`` is above 0. Calls ``on_progress(done, total)`` after every block.
    """
    if not choices or not items:
        raise ValueError("score_harnesses: expected at least one harness and one item")
    if generate and task.scorer is None:
        raise ValueError(
            f"task {task.name}: expected a scorer to grade generated answers, got "
            "none; score its likelihood only"
        )
    answers = [space.renderer.answer(item.answer) for item in items]
    questions = {
        template: [
            space.renderer.question(space.harness.template.pool[template], i.question)
            for i in items
        ]
        for template in sorted({choice.template for choice in choices})
    }
    prefixes = [space.prefix_tokens(choice) for choice in choices]
    prefix_width = max([space.width, *map(len, prefixes)])
    item_blocks = _item_blocks(
        [max(map(len, asked)) for asked in zip(*questions.values(), strict=True)],
        list(map(len, answers)),
        items_at_once,
        tokens_at_once,
    )
    answer_most = max(block.answer_width for block in item_blocks)
    run = _make_block(
        num_new=max(answer_most, task.max_new_tokens) if generate else None,
        max_new_tokens=task.max_new_tokens if generate else 0,
        stop_ids=space.model.tokenizer.eos_ids,
        temperature=temperature,
        implementation=space.implementation,
    )
    shape = (len(choices), len(items))
    nats, prompt_tokens = np.zeros(shape), np.zeros(shape, int)
    outputs = [[""] * len(items) for _ in choices]
    blocks = [
        (h, block)
        for h in range(0, len(choices), harnesses_at_once)
        for block in item_blocks
    ]
    for done, (first, block) in enumerate(blocks):
        harnesses = range(first, min(first + harnesses_at_once, len(choices)))
        members, width = block.members, block.width
        # Short blocks repeat their last member, so that every block has one shape.
        h_at = [min(first + j, len(choices) - 1) for j in range(harnesses_at_once)]
        i_at = [members[min(j, len(members) - 1)] for j in range(block.size)]
        rows = [[questions[choices[h].template][i] for i in i_at] for h in h_at]
        scored = run(
            space.model.decoder,
            jnp.asarray(pad_tokens([prefixes[h] for h in h_at], prefix_width)),
            jnp.asarray([len(prefixes[h]) for h in h_at], jnp.int32),
            jnp.asarray(np.stack([pad_tokens(row, width) for row in rows])),
            jnp.asarray([[len(q) for q in row] for row in rows], jnp.int32),
            jnp.asarray(
                np.stack(
                    [pad_tokens([answers[i] for i in i_at], block.answer_width)]
                    * len(h_at)
                )
            ),
            jnp.asarray([[len(answers[i]) for i in i_at]] * len(h_at), jnp.int32),
            _row_keys(key, h_at, i_at),
        )
        block_nats, tokens, lengths = jax.device_get(scored)
        generated = 0
        for row, h in enumerate(harnesses):
            for column, i in enumerate(members):
                nats[h, i] = block_nats[row, column]
                prompt_tokens[h, i] = len(prefixes[h]) + len(rows[row][column])
                if generate:
                    ids = tokens[row, column, : lengths[row, column]]
                    generated += len(ids)
                    text = space.model.tokenizer.decode(ids.tolist())
                    outputs[h][i] = _cut(text, task.stop)
        _count(counter, prefixes, rows, answers, harnesses, members, generated)
        if on_progress:
            on_progress(done + 1, len(blocks))
    reward = None
    if generate:
        reward = np.array(
            [
                [task.scorer(text, item) for text, item in zip(row, items, strict=True)]
                for row in outputs
            ],
            float,
        )
    return Scores(
        nats,
        np.array([len(answer) for answer in answers]),
        reward,
        outputs if generate else None,
        prompt_tokens,
    )


def _row_keys(key, h_at, i_at):
    key = jax.random.key(0) if key is None else key
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    by_harness = fold(key, jnp.asarray(h_at))
    return jax.vmap(fold, (0, None))(by_harness, jnp.asarray(i_at))


_BLOCKS: dict[tuple, Callable] = {}


def _make_block(**static) -> Callable:
    """The jitted scorer of one block, one for each set of static arguments."""
    known = tuple(sorted(static.items()))
    if known not in _BLOCKS:
        _BLOCKS[known] = jax.jit(_block_function(**static))
    return _BLOCKS[known]


def _block_function(
    *,
    num_new: int | None,
    max_new_tokens: int,
    stop_ids: tuple[int, ...],
    temperature: float,
    implementation: str,
) -> Callable:
    decode = None
    if max_new_tokens:
        decode = make_decode(
            max_new_tokens=max_new_tokens, stop_ids=stop_ids, temperature=temperature
        )

    def block(decoder, prefix, prefix_len, questions, q_len, answers, answer_len, keys):
        encoded = encode_prefix(
            decoder, prefix, prefix_len, implementation=implementation
        )
        kept = num_new or answers.shape[2]  # the cache has room for what comes next
        prompted = read_questions(decoder, encoded, questions, q_len, num_new=kept)
        nats = answer_nats(decoder, encoded, prompted, answers, answer_len)
        if decode is None:
            return nats, None, None
        out = decode(decoder, encoded, prompted, keys)
        return nats, out.tokens, out.lengths

    return block


def _count(counter, prefixes, rows, answers, harnesses, members, generated) -> None:
    prompt = sum(len(prefixes[h]) for h in harnesses)
    prompt += sum(
        len(rows[row][column])
        for row in range(len(harnesses))
        for column in range(len(members))
    )
    gold = len(harnesses) * sum(len(answers[i]) - 1 for i in members)
    counter.add(
        lm_calls=len(harnesses) * len(members),
        token_forwards=prompt + gold + generated,
        generated_tokens=generated,
    )


def _cut(text: str, stops: tuple[str, ...]) -> str:
    """The text before the first of the stop strings."""
    ends = [text.find(stop) for stop in stops if stop and text.find(stop) >= 0]
    return text[: min(ends)] if ends else text


class _ItemBlock(NamedTuple):
    """Items that are run together, padded to ``size`` rows and these widths."""

    members: list[int]
    size: int
    width: int
    answer_width: int


def _item_blocks(
    questions: Sequence[int],
    answers: Sequence[int],
    items_at_once: int,
    tokens_at_once: int,
) -> list[_ItemBlock]:
    """Blocks of about equal size, short items first; lengths are in tokens."""
    num = len(questions)
    order = sorted(range(num), key=lambda i: questions[i] + answers[i])
    padded = num * (max(questions) + max(answers))
    num_blocks = max(-(-padded // tokens_at_once), -(-num // items_at_once))
    size = -(-num // min(num_blocks, num))
    blocks = []
    for start in range(0, num, size):
        members = order[start : start + size]
        width = round_up(max(questions[i] for i in members), _LEAST)
        answer_width = round_up(max(answers[i] for i in members), 8)
        blocks.append(_ItemBlock(members, size, width, answer_width))
    return blocks
