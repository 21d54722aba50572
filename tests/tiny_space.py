"""A harness space that compiles in a moment: random decoder, byte tokenizer, two tasks.

Everything is built in memory and is the same in every run.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from components.exemplars import Exemplar
from components.templates import Template
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import Space, build_space
from metaharness.harness.tables import pad_tokens
from metaharness.model.config import DecoderConfig
from metaharness.model.decoder import Decoder, decoder_logits, decoder_shapes
from metaharness.model.load import Model
from metaharness.model.tokenizer import Tokenizer
from metaharness.tasks.task import Item, Task, fingerprint

# ChatML as the embedded model has it: a system turn of its own where none is given.
CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nHi<|im_end|>\n"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG = DecoderConfig(
    architecture="llama",
    vocab_size=264,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=512,
)
LONGEST = 256  # tokens of any prompt with its answer


def make_tokenizer(chat_template: str | None = CHATML) -> Tokenizer:
    """One token a byte, and one for each role and mark of a chat."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(t, normalized=False) for t in ("<|im_start|>", "<|im_end|>")]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False) for t in ("system", "user", "assistant")]
    )
    return Tokenizer.from_backend(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token="<|im_end|>",
            pad_token="<|im_end|>",
            chat_template=chat_template,
        )
    )


def make_decoder(dtype: jnp.dtype = jnp.float32) -> Decoder:
    """Random weights; queries are large, so that it matters what the context says."""
    rng = np.random.default_rng(7)
    arrays = {}
    for name, shape in decoder_shapes(CONFIG).items():
        if name.endswith("norm"):
            array = rng.uniform(0.5, 1.5, shape)
        else:
            fan_in = shape[-1] if name == "embed" else shape[-2]
            array = rng.normal(size=shape) * fan_in**-0.5
        scale = 2.0 if name.endswith("q_proj") else 1.0
        arrays[name] = jnp.asarray(scale * array, dtype)
    return Decoder.from_arrays(CONFIG, arrays)


@functools.cache
def make_model() -> Model:
    """The decoder with its tokenizer."""
    return Model(make_decoder(), CONFIG, make_tokenizer(), "tiny", "0" * 64)


def exact(text: str, item: Item) -> float:
    """Reward 1 for the gold answer, else 0."""
    return float(text == item.answer)


def make_task(
    name: str, sign: str, rule: Callable[[int, int], object], *, num: int = 8
) -> Task:
    """``num`` items in every split; question and answer have a few bytes each."""
    pairs = [(a, b) for a in range(9) for b in range(9)][:: 81 // (4 * num)]
    items = [
        Item(f"{name}{i}", f"{a}{sign}{b}", str(rule(a, b)))
        for i, (a, b) in enumerate(pairs)
    ]
    splits = {
        split: tuple(items[place::4][:num])
        for place, split in enumerate(("pool", "train", "validation", "test"))
    }
    return Task(
        name,
        **splits,
        scorer=exact,
        max_new_tokens=5,
        stop=("\n",),
        fingerprint=fingerprint(splits),
        source="made in memory",
    )


@functools.cache
def make_tasks() -> tuple[Task, Task]:
    """Sums, and pairs written the other way round."""
    return (
        make_task("sum", "+", lambda a, b: a + b),
        make_task("swap", "~", lambda a, b: f"{b}, {a}"),
    )


TEMPLATES = (
    Template("bare"),
    Template("result", question="{question}\n=?"),
    Template("plain", question="Q{question}\n", shot="Q{question}\n", chat=False),
)


def make_space(
    k: int = 2, *, pool: int = 4, templates: Sequence[Template] = TEMPLATES
) -> Space:
    """Both tasks with ``pool`` candidates each, half of them bad; ``k=0``: no slot."""
    tasks = make_tasks()
    slot = Exemplars.from_tasks(tasks, pool=pool, k=k, share_right=0.5) if k else None
    return build_space(make_model(), Harness(slot, Templates(tuple(templates))), tasks)


def equal_lengths(num: int = 5) -> tuple[Exemplar, ...]:
    """Exemplars that all have the same number of tokens."""
    return tuple(Exemplar(f"e{i}", f"{i}*{9 - i}", f"{3 * i:02}") for i in range(num))


@jax.jit
def _log_probs(decoder: Decoder, tokens: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(decoder_logits(decoder, tokens)[0])


def plain_log_probs(decoder: Decoder, ids: Sequence[int]) -> np.ndarray:
    """Next-token log-probabilities ``[time, vocab]`` of one plain causal pass."""
    tokens = pad_tokens([list(ids)], LONGEST)  # causal: padding on the right is unseen
    return np.asarray(_log_probs(decoder, tokens))[: len(ids)]


def plain_nats(decoder: Decoder, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Summed nats of ``answer`` after ``prompt``, from one plain causal pass."""
    at = np.arange(len(prompt) - 1, len(prompt) + len(answer) - 1)
    log_p = plain_log_probs(decoder, [*prompt, *answer])
    return -float(log_p[at, list(answer)].sum())
