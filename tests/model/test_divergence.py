"""KL to the base on gold answers is that of two plain passes, token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from tiny_space import CONFIG, make_space, plain_log_probs

from metaharness.harness.packing import take_packs
from metaharness.harness.slots import Choice
from metaharness.harness.tables import pad_tokens
from metaharness.model.divergence import item_divergence, kl_nats
from metaharness.model.lora import init_lora, merge_lora, with_lora
from metaharness.model.lora_config import LoraConfig
from metaharness.model.prefix import encode_prefix

LORA = LoraConfig(rank=2, alpha=2)
TASK, CHOICE = 1, Choice((6, 4), 1)


def theta(scale):
    start = init_lora(jax.random.key(0), LORA, CONFIG)
    rng = np.random.default_rng(3)
    return {
        name: pair._replace(
            b=jnp.asarray(scale * rng.normal(size=pair.b.shape), jnp.float32)
        )
        for name, pair in start.items()
    }


@pytest.fixture(scope="module")
def space():
    return make_space(2)


@pytest.fixture(scope="module")
def packs(space):
    return space.pack("validation", width=48, limit=7)


@pytest.fixture(scope="module")
def measured(space, packs):
    """``(decoder, base) -> [pack, item]`` of all packs of one task, jitted once."""
    ids = space.prefix_tokens(CHOICE)
    tokens, length = pad_tokens([ids], space.width), np.array([len(ids)], np.int32)

    @jax.jit
    def run(decoder, base, packs):
        every = jnp.arange(packs.items.shape[1])
        rows, _, _ = take_packs(packs, TASK, CHOICE.template, every)
        return item_divergence(
            decoder,
            base,
            jax.tree.map(lambda x: x[None], rows),
            encode_prefix(decoder, tokens, length),
            encode_prefix(base, tokens, length),
            num_items=packs.items.shape[-1],
        )[0]

    return lambda decoder, base: np.asarray(run(decoder, base, packs))


def dense(space, decoder, base, item):
    """The same sum from whole vocabularies of two plain passes, in float64."""
    template, exemplars = space.harness.parts(CHOICE)
    prompt = space.renderer.prompt(template, exemplars, item.question)
    answer = space.renderer.answer(item.answer)
    at = np.arange(len(prompt) - 1, len(prompt) + len(answer) - 1)
    log_p, log_q = (
        plain_log_probs(model, [*prompt, *answer])[at].astype(float)
        for model in (decoder, base)
    )
    return (np.exp(log_p) * (log_p - log_q)).sum()


def test_every_item_is_the_dense_sum_over_its_answer(space, packs, measured):
    base = space.model.decoder
    decoder = merge_lora(base, theta(0.3), LORA)
    found = measured(decoder, base)
    items = np.asarray(packs.items[TASK])
    assert items.shape[-1] > 1, "no row holds several items: nothing was tested"
    assert (items < 0).any(), "no row lacks an item: padding was not tested"
    for at in np.ndindex(items.shape):
        if items[at] < 0:
            assert found[at] == 0
            continue
        item = space.tasks[TASK].validation[items[at]]
        assert found[at] == pytest.approx(dense(space, decoder, base, item), rel=1e-4)
        turned = dense(space, base, decoder, item)
        assert found[at] != pytest.approx(turned, rel=1e-3), "either direction fits"


def test_an_adapter_that_changes_nothing_diverges_by_nothing(space, measured):
    beside = with_lora(space.model.decoder, theta(0.0), LORA)
    assert (measured(beside, space.model.decoder) == 0).all()


@pytest.mark.parametrize("scale", [1e-2, 1.0, 30.0])
def test_kl_of_logits_is_that_of_scipy_in_float64(scale):
    rng = np.random.default_rng(0)
    logits, base = 10 + scale * rng.normal(size=(2, 5, 400)).astype(np.float32)
    log_p, log_q = (
        scipy.special.log_softmax(x.astype(float), axis=-1) for x in (logits, base)
    )
    expected = scipy.special.rel_entr(np.exp(log_p), np.exp(log_q)).sum(-1)
    found = jax.jit(kl_nats)(logits, base)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_narrow_logits_are_widened_and_unequal_shapes_refused():
    rng = np.random.default_rng(0)
    narrow = jnp.asarray(rng.normal(size=(2, 5, 400)), jnp.bfloat16)
    found = kl_nats(*narrow)
    assert found.dtype == jnp.float32
    wide = kl_nats(*narrow.astype(jnp.float32))
    np.testing.assert_array_equal(found, wide)
    with pytest.raises(AssertionError):
        kl_nats(narrow[0], narrow[1][:1])
