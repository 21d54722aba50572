"""Adapters: the base at first, merged = beside, exact gradients, PEFT's logits."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaharness.errors import WeightsError
from metaharness.model.assemble import assemble
from metaharness.model.config import DecoderConfig
from metaharness.model.decoder import Decoder, decoder_logits, random_decoder
from metaharness.model.lora import (
    LoraPair,
    init_lora,
    merge_lora,
    theta_digest,
    theta_shapes,
    with_lora,
)
from metaharness.model.lora_config import TARGETS, LoraConfig
from metaharness.model.lora_file import load_lora, save_lora
from metaharness.model.safetensors import read_safetensors

DATA = Path(__file__).parents[1] / "data" / "model"
ADAPTERS = sorted(path.name for path in DATA.glob("lora_*"))
CONFIG = DecoderConfig(
    architecture="qwen3",
    vocab_size=37,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    qkv_bias=True,
    qk_norm=True,
)
TOKENS = np.random.default_rng(0).integers(37, size=(2, 9))


@pytest.fixture(scope="module")
def decoder():
    return random_decoder(jax.random.key(0), CONFIG)


def some_theta(lora, seed=1, config=CONFIG):
    rng = np.random.default_rng(seed)
    return {
        name: LoraPair(
            *(jnp.asarray(0.3 * rng.normal(size=s), jnp.float32) for s in pair)
        )
        for name, pair in theta_shapes(lora, config).items()
    }


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_untrained_adapter_is_the_base_bit_for_bit(dtype):
    base = random_decoder(jax.random.key(0), CONFIG, dtype)
    lora = LoraConfig(rank=4)
    theta = init_lora(jax.random.key(1), lora, CONFIG)
    assert all(not pair.b.any() and pair.a.any() for pair in theta.values())
    bound = CONFIG.intermediate_size**-0.5
    assert float(jnp.abs(theta["down_proj"].a).max()) == pytest.approx(bound, rel=0.1)

    @jax.jit
    def run(base, theta):
        return decoder_logits(with_lora(base, theta, lora), TOKENS)

    plain = jax.jit(lambda base: decoder_logits(base, TOKENS))(base)
    np.testing.assert_array_equal(run(base, theta), plain)


@pytest.mark.parametrize("targets", [TARGETS, ("k_proj",), ("up_proj", "o_proj")])
def test_merged_equals_beside(decoder, targets):
    lora = LoraConfig(rank=3, alpha=6.0, targets=targets)
    theta = some_theta(lora)
    beside = decoder_logits(with_lora(decoder, theta, lora), TOKENS)
    merged = decoder_logits(merge_lora(decoder, theta, lora), TOKENS)
    np.testing.assert_allclose(beside, merged, atol=1e-4)
    change = np.abs(beside - decoder_logits(decoder, TOKENS)).max()
    assert change > 0.05
    double = LoraConfig(rank=3, alpha=12.0, targets=targets)
    doubled = decoder_logits(merge_lora(decoder, theta, double), TOKENS)
    assert np.abs(doubled - merged).max() > 0.01


def test_the_gradient_is_that_of_finite_differences():
    lora = LoraConfig(rank=2, alpha=3.0)
    with jax.enable_x64(True):
        arrays = random_decoder(jax.random.key(0), CONFIG).to_arrays()
        wide = {name: jnp.asarray(x, jnp.float64) for name, x in arrays.items()}
        base = Decoder.from_arrays(CONFIG, wide)
        theta = jax.tree.map(lambda x: x.astype(jnp.float64), some_theta(lora))

        @jax.jit
        def loss(theta):
            logits = decoder_logits(with_lora(base, theta, lora), TOKENS)
            logp = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float64))
            return -jnp.take_along_axis(logp, TOKENS[:, 1:, None], axis=-1).mean()

        grads = jax.jit(jax.grad(loss))(theta)
        rng, step = np.random.default_rng(2), 1e-5
        for _ in range(3):
            ray = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), theta)
            ends = [
                loss(jax.tree.map(lambda x, d, s=s: x + s * step * d, theta, ray))
                for s in (1, -1)
            ]
            slope = sum(
                jnp.vdot(g, d)
                for g, d in zip(
                    jax.tree.leaves(grads), jax.tree.leaves(ray), strict=True
                )
            )
            assert float(ends[0] - ends[1]) / (2 * step) == pytest.approx(
                float(slope), rel=1e-5
            )
    assert all(g.any() for g in jax.tree.leaves(grads))


def test_dropout_drops_inputs_only_where_a_key_is_given(decoder):
    lora = LoraConfig(rank=3, dropout=0.5)
    theta = some_theta(lora)
    run = jax.jit(
        lambda key: decoder_logits(with_lora(decoder, theta, lora, key=key), TOKENS)
    )
    plain = decoder_logits(with_lora(decoder, theta, lora), TOKENS)
    one, again, other = (run(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-3 and np.abs(one - plain).max() > 1e-3
    off = LoraConfig(rank=3)
    same = decoder_logits(with_lora(decoder, theta, off, key=jax.random.key(0)), TOKENS)
    np.testing.assert_array_equal(same, plain)


def test_dropout_keeps_the_mean_of_a_layer():
    """One linear layer alone: the mean over keys is the undropped update."""
    one = DecoderConfig(
        architecture="llama", vocab_size=8, hidden_size=8, intermediate_size=8,
        num_layers=1, num_heads=2, num_kv_heads=2, head_dim=4,
    )  # fmt: skip
    base = random_decoder(jax.random.key(0), one)
    lora = LoraConfig(rank=2, targets=("down_proj",), dropout=0.25)
    small = jax.tree.map(lambda x: 0.01 * x, some_theta(lora, config=one))
    tokens = TOKENS[:1, :4] % 8

    def run(key):
        return decoder_logits(with_lora(base, small, lora, key=key), tokens)

    drawn = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(3), 20_000))
    plain = decoder_logits(with_lora(base, small, lora), tokens)
    error = np.asarray(drawn.std(0)) / np.sqrt(len(drawn))
    assert np.abs(np.asarray(drawn.mean(0) - plain) / (error + 1e-7)).max() < 5
    gap = np.abs(np.asarray(plain - decoder_logits(base, tokens))).max()
    assert gap > 20 * error.max()  # a tenth of the update would be seen


def test_digests_tell_adapters_apart():
    lora = LoraConfig(rank=2, targets=("q_proj", "v_proj"))
    one, other = some_theta(lora), some_theta(lora)
    assert theta_digest(one) == theta_digest(other)
    moved = one | {
        "q_proj": one["q_proj"]._replace(b=one["q_proj"].b.at[0, 0, 0].add(1))
    }
    swapped = {"q_proj": one["v_proj"], "v_proj": one["q_proj"]}
    assert len({theta_digest(x) for x in (one, moved, swapped)}) == 3


@pytest.mark.parametrize("name", ADAPTERS)
def test_saved_adapters_have_the_logits_that_peft_computes(name, tmp_path):
    assert len(ADAPTERS) == 3
    base = DATA / name.replace("lora", "tiny")
    decoder = assemble(*read_safetensors(base))
    theta, lora = load_lora(DATA / name, decoder.config)
    stored = np.load(DATA / name / "logits.npz")
    tokens = jnp.asarray(stored["tokens"])
    for adapted in (with_lora, merge_lora):
        logits = decoder_logits(adapted(decoder, theta, lora), tokens)
        shown = np.asarray(logits)[..., stored["ids"]]
        np.testing.assert_allclose(shown, stored["logits"], atol=1e-4)
    plain = np.load(base / "logits.npz")["logits"]
    assert np.abs(plain - stored["logits"]).max() > 0.05
    save_lora(tmp_path / "again", theta, lora, base=base.name)
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        again = (tmp_path / "again" / file).read_bytes()
        assert again == (DATA / name / file).read_bytes()
    with pytest.raises(WeightsError, match="holds an adapter already"):
        save_lora(tmp_path / "again", theta, lora, base=base.name)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"use_dora": True}, "use_dora: expected False, got True"),
        ({"bias": "all"}, "bias: expected 'none', got 'all'"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"target_modules": "all-linear"}, "expected a list of names"),
        ({"target_modules": ["q_proj", "lm_head"]}, "embeddings are not adapted"),
        ({"target_modules": ["q_proj"]}, "no place for"),
        ({"r": 2}, "belongs to another model"),
        ({"peft_type": "IA3"}, "peft_type: expected 'LORA'"),
    ],
)
def test_adapters_that_mean_something_else_are_refused(change, message, tmp_path):
    folder = tmp_path / "adapter"
    shutil.copytree(DATA / "lora_llama_tied", folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    config, _ = read_safetensors(DATA / "tiny_llama_tied")
    with pytest.raises(WeightsError, match=message):
        load_lora(folder, config)


def test_missing_and_damaged_adapters_are_named(tmp_path):
    with pytest.raises(WeightsError, match="adapter_config.json: cannot be read"):
        load_lora(tmp_path, CONFIG)
    folder = tmp_path / "adapter"
    shutil.copytree(DATA / "lora_llama_tied", folder)
    (folder / "adapter_model.safetensors").write_bytes(b"cut")
    config, _ = read_safetensors(DATA / "tiny_llama_tied")
    with pytest.raises(WeightsError, match="adapter_model.safetensors: cannot be read"):
        load_lora(folder, config)


def test_wrong_settings_and_wrong_pairs_are_refused(decoder):
    for settings, message in (
        ({"rank": 0}, "rank: expected at least 1"),
        ({"alpha": 0.0}, "alpha: expected a number > 0"),
        ({"dropout": 1.0}, r"dropout: expected \[0, 1\)"),
        ({"targets": ("embed",)}, "embeddings are not adapted"),
        ({"targets": ()}, "got none"),
        ({"targets": ("q_proj", "q_proj")}, "expected different ones"),
    ):
        with pytest.raises(ValueError, match=message):
            LoraConfig(**settings)
    lora = LoraConfig(rank=2, targets=("q_proj",))
    theta = some_theta(lora)
    with pytest.raises(ValueError, match="expected pairs for down_proj"):
        with_lora(decoder, theta, LoraConfig(rank=2, targets=("down_proj",)))
    with pytest.raises(ValueError, match=r"q_proj.a: expected shape \(2, 16, 3\)"):
        merge_lora(decoder, theta, LoraConfig(rank=3, targets=("q_proj",)))
    carried = with_lora(decoder, theta, lora)
    with pytest.raises(ValueError, match="already carries an adapter"):
        with_lora(carried, theta, lora)
    with pytest.raises(ValueError, match="use lora.merge_lora"):
        carried.to_arrays()
