"""The same numbers on a GPU as on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs_gpu import MARKS
from tiny_space import TEMPLATES, make_space

from metaharness.model.attention import Context, attend
from metaharness.model.complete import Completer
from metaharness.model.likelihood import Rows, item_nats
from metaharness.model.load import Model, load_model
from metaharness.model.prefix import encode_pool, key_weights
from metaharness.model.request import Request
from metaharness.runlog.budget import BudgetCounter
from metaharness.train.config import EvalConfig, TrainConfig
from metaharness.train.loop import fit
from metaharness.train.search_config import SearchConfig

pytestmark = MARKS
MODEL = "smollm2-135m"
SHOTS = ("Q: 2 + 3\nA: 5\n", "Q: cat\nA: cats\n", "Q: hot\nA: cold\n", "\n")


@pytest.fixture(scope="module")
def on_cpu() -> Model:
    """The embedded model in float32, on the CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        return load_model(MODEL)


@pytest.fixture(scope="module")
def on_gpu() -> dict[str, Model]:
    return {kind: load_model(MODEL, dtype=kind) for kind in ("float32", "bfloat16")}


def requests(model: Model) -> list[Request]:
    encode = model.tokenizer.encode
    prefix = tuple(encode("".join(SHOTS)))
    questions = ("Q: dog\nA:", "Q: 4 + 4\nA:", "Q: What is the capital of France?\nA:")
    options = tuple(tuple(encode(text)) for text in (" dogs", " 8", " Paris", " red"))
    return [
        Request(prefix, tuple(encode(question)), 8, options=options)
        for question in questions
    ]


def option_nats(model: Model) -> np.ndarray:
    """float ``[question, option]``"""
    found = Completer(model)(requests(model))
    return np.array([one.option_nats for one in found])


def slopes(model: Model, implementation: str) -> np.ndarray:
    """Gradient of a question's mean nats to the weights of exemplars in its pool."""
    encode = model.tokenizer.encode
    width = max(len(encode(shot)) for shot in SHOTS)
    shots = np.zeros((len(SHOTS), width), np.int32)
    lengths = np.zeros(len(SHOTS), np.int32)
    for row, shot in enumerate(SHOTS):
        ids = encode(shot)
        shots[row, : len(ids)], lengths[row] = ids, len(ids)
    head = jnp.asarray(encode("Answer.\n"), jnp.int32)
    ids = jnp.asarray(encode("Q: dog\nA: dogs"), jnp.int32)[None, None]
    time = ids.shape[2]
    rows = Rows(
        tokens=ids,
        positions=jnp.arange(time)[None, None],
        segments=jnp.ones_like(ids),
        score_at=jnp.asarray([[[time - 2]]]),
        targets=ids[..., -1:],
        owner=jnp.zeros((1, 1, 1), jnp.int32),
    )

    def loss(weights, decoder):
        pool = encode_pool(
            decoder, head, jnp.int32(head.size), jnp.asarray(shots), lengths
        )
        return item_nats(
            decoder,
            rows,
            pool.end[None],
            pool.context,
            key_weights(pool, weights)[None],
            num_items=1,
            implementation=implementation,
        ).mean()

    weights = jnp.full(len(SHOTS), 0.5, jnp.float32)
    return np.asarray(jax.jit(jax.grad(loss))(weights, model.decoder))


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_nats_of_options_are_those_of_the_cpu(on_cpu, on_gpu):
    with jax.default_device(jax.devices("cpu")[0]):
        expected = option_nats(on_cpu)
    with jax.default_matmul_precision("highest"):
        exact = option_nats(on_gpu["float32"])
    np.testing.assert_allclose(exact, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(option_nats(on_gpu["float32"]), expected, rtol=0.02)
    np.testing.assert_allclose(
        option_nats(on_gpu["bfloat16"]), expected, rtol=0.05, atol=0.1
    )


def test_slopes_of_exemplars_are_those_of_the_cpu(on_cpu, on_gpu):
    with jax.default_device(jax.devices("cpu")[0]):
        expected = slopes(on_cpu, "xla")
    exact = slopes(on_gpu["float32"], "xla")
    np.testing.assert_allclose(exact, expected, rtol=0.05, atol=0.01)
    for implementation in ("xla", "cudnn"):
        half = slopes(on_gpu["bfloat16"], implementation)
        assert cosine(half, expected) > 0.99, implementation
        assert 0.9 < np.linalg.norm(half) / np.linalg.norm(expected) < 1.1


@pytest.mark.parametrize("time", [16, 7])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_fused_attention_is_the_plain_one(time, masked, shared):
    rng = np.random.default_rng(time)
    group, row, kv_heads, heads, dim, context = 2, 3, 2, 4, 64, 12

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.bfloat16)

    query = normal(group, row, time, heads, dim)
    own = [normal(group, row, time, kv_heads, dim) for _ in "kv"]
    ahead = [normal(group, context, kv_heads, dim) for _ in "kv"]
    gate = jnp.asarray(rng.uniform(0.1, 1, (group, row, context)), jnp.float32)
    mask = None
    if masked:
        seen = rng.random((group, row, time, time)) < 0.7
        mask = jnp.asarray(np.tril(seen) | np.eye(time, dtype=bool))
    wanted = normal(*query.shape).astype(jnp.float32)

    def loss(query, own, ahead, gate, implementation):
        extra = (Context(*ahead), gate) if shared else ()
        out = attend(query, *own, mask, *extra, implementation=implementation)
        return (out.astype(jnp.float32) * wanted).sum() / wanted.size

    run = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)), static_argnums=4)
    plain, fused = (
        [np.asarray(x, np.float32).ravel() for x in jax.tree.leaves(found)]
        for found in (run(query, own, ahead, gate, kind) for kind in ("xla", "cudnn"))
    )
    for one, other in zip(plain, fused, strict=True):
        if one.any() or other.any():
            assert cosine(one, other) > 0.999
            assert np.linalg.norm(one - other) < 0.03 * np.linalg.norm(one)


def test_a_training_s_first_losses_are_those_of_the_cpu():
    config = TrainConfig(
        search=SearchConfig(
            warmup_steps=1,
            relaxed_steps=1,
            measured_steps=1,
            trust=-1,
            samples=4,
            relaxed_samples=2,
            pack_width=64,
            packs=2,
            window=16,
            chunk=4,
        ),
        evaluation=EvalConfig(train_items=8, validation_items=4, test_items=3),
        quiet=True,
    )

    def losses():
        space = make_space(2, templates=TEMPLATES[:2])
        fitted = fit(space, config, counter=BudgetCounter())
        return [value for row in fitted.trace for value in row["loss"].values()]

    found = losses()
    with jax.default_device(jax.devices("cpu")[0]):
        expected = losses()
    np.testing.assert_allclose(found, expected, rtol=0.02)
