"""Answer one question with a learned harness, or without any."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from components.templates import Template
from metaharness.errors import InputError
from metaharness.harness.learned import Learned
from metaharness.harness.render import Renderer
from metaharness.harness.tables import pad_tokens
from metaharness.model.generate import make_decode, read_questions
from metaharness.model.load import Model
from metaharness.model.prefix import encode_prefix


class Answer(NamedTuple):
    """text: what the model wrote; prompt: what it read, special tokens included."""

    text: str
    prompt: str


def generate(
    model: Model,
    question: str,
    learned: Learned | None = None,
    *,
    task: str | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
) -> Answer:
    """Put a question through a learned harness and let the model answer.

    learned: None asks with no exemplars and no instruction. task: whose harness, where
    several were learned. temperature: 0 is greedy. A plain-text template has no end of
    turn: its answer ends at the first empty line, as its exemplars' answers do.

    Raises InputError: no text, an unknown task, or a prompt beyond the model's context.
    """
    if not question.strip():
        raise InputError("question: expected text, got none; write one")
    template, exemplars = learned.parts(task) if learned else (Template("bare"), ())
    renderer = Renderer(model.tokenizer)
    prompt = renderer.prompt(template, exemplars, question)
    limit = model.config.max_positions
    if len(prompt) + max_new_tokens > limit:
        raise InputError(
            f"prompt: expected at most {limit} tokens with the answer, got "
            f"{len(prompt)} and {max_new_tokens} new ones; shorten the question or "
            "lower the limit of new tokens"
        )
    asked = renderer.question(template, question)
    prefix = prompt[: len(prompt) - len(asked)]
    ids = _decode(model, prefix, asked, max_new_tokens, temperature, seed)
    text = model.tokenizer.decode(ids)
    if not template.chat:
        text = text.split("\n\n", 1)[0]
    return Answer(text, renderer.prompt_text(template, exemplars, question))


def _decode(
    model: Model,
    prefix: Sequence[int],
    question: Sequence[int],
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> list[int]:
    decode = make_decode(
        max_new_tokens=max_new_tokens,
        stop_ids=model.tokenizer.eos_ids,
        temperature=temperature,
    )

    def run(decoder, prefix, prefix_len, question, question_len, key):
        encoded = encode_prefix(decoder, prefix, prefix_len)
        prompted = read_questions(
            decoder, encoded, question, question_len, num_new=max_new_tokens
        )
        return decode(decoder, encoded, prompted, key)

    out = jax.jit(run)(
        model.decoder,
        jnp.asarray(pad_tokens([list(prefix)], len(prefix))),
        jnp.asarray([len(prefix)], jnp.int32),
        jnp.asarray(pad_tokens([list(question)], len(question)))[None],
        jnp.asarray([[len(question)]], jnp.int32),
        jax.random.key(seed)[None, None],
    )
    tokens, lengths = jax.device_get((out.tokens, out.lengths))
    return tokens[0, 0, : lengths[0, 0]].tolist()
