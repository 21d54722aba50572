"""The weighted context: exact at the vertices, with finite, right slopes everywhere."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaharness.model import attention
from metaharness.model.attention import Context, attend

ORACLE = Path(__file__).parents[1] / "data" / "choice_oracles.json"


def inputs(seed=0, *, rows=2, times=3, context=7, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(seed), 6)

    def draw(key, *shape):
        return jax.random.normal(key, shape, jnp.float32).astype(dtype)

    query = draw(keys[0], 1, rows, times, 4, 8)
    own = draw(keys[1], 1, rows, times, 2, 8), draw(keys[2], 1, rows, times, 2, 8)
    shared = Context(draw(keys[3], 1, context, 2, 8), draw(keys[4], 1, context, 2, 8))
    mask = jnp.broadcast_to(
        jnp.tril(jnp.ones((times, times), bool)), (1, rows, times, times)
    )
    return query, *own, mask, shared


def spread(weights, rows=2):
    return jnp.broadcast_to(jnp.asarray(weights, jnp.float32), (1, rows, len(weights)))


def textbook(query, keys, values, mask, shared, weights):
    """Softmax attention in float64, one query at a time."""
    out = np.zeros(query.shape)
    _, rows, times, heads, dim = query.shape
    for r, t, h in itertools.product(range(rows), range(times), range(heads)):
        k = h // (heads // keys.shape[-2])
        every = np.concatenate([shared.keys[0, :, k], keys[0, r, :, k]]).astype(float)
        vals = np.concatenate([shared.values[0, :, k], values[0, r, :, k]]).astype(
            float
        )
        scores = every @ np.asarray(query[0, r, t, h], float) / np.sqrt(dim)
        mass = np.concatenate([weights, mask[0, r, t]]) * np.exp(scores - scores.max())
        out[0, r, t, h] = mass @ vals / mass.sum()
    return out


def test_equals_textbook_attention_with_interior_weights():
    args = inputs()
    weights = np.array([1, 0, 0.3, 0.3, 0.9, 1, 0.05])
    got = attend(*args, spread(weights))
    np.testing.assert_allclose(got, textbook(*args, weights), atol=2e-6)


def test_k_hot_weights_are_bitwise_attention_over_the_chosen_keys():
    query, keys, values, mask, shared = inputs()
    kept = np.array([0, 3, 4])
    weights = np.zeros(7)
    weights[kept] = 1
    gated = attend(query, keys, values, mask, shared, spread(weights))
    chosen = Context(*(x[:, kept] for x in shared))
    plain = attend(query, keys, values, mask, chosen, spread(np.ones(3)))
    np.testing.assert_allclose(gated, plain, atol=1e-6)
    zeroed = Context(
        *(jnp.where(weights[None, :, None, None] > 0, x, 77.0) for x in shared)
    )
    other = attend(query, keys, values, mask, zeroed, spread(weights))
    assert (gated == other).all(), "an excluded key reached the output"


@pytest.mark.parametrize(
    "weights",
    [[0.2, 0.5, 0.3, 1, 1, 0.7, 0.1], [1, 0, 0, 1, 0, 1, 1], [0] * 7],
    ids=["interior", "k-hot", "zero"],
)
def test_gradient_in_the_weights_equals_finite_differences(weights):
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else _x64():
        args = jax.tree.map(
            lambda x: x if x.dtype == bool else x.astype(jnp.float64), inputs()
        )
        probe = jax.random.normal(jax.random.key(9), args[0].shape, jnp.float64)

        def loss(w):
            gate = jnp.broadcast_to(w, (1, 2, 7))
            return (attend(*args, gate) * probe).sum()

        w = jnp.asarray(weights, jnp.float64)
        slope = jax.grad(loss)(w)
        for i in range(7):
            # One-sided (second order) at the boundary: weights may not be negative.
            step = 1e-5
            e = step * jnp.eye(7, dtype=jnp.float64)[i]
            if w[i] > step:
                numeric = (loss(w + e) - loss(w - e)) / (2 * step)
            else:
                numeric = (-3 * loss(w) + 4 * loss(w + e) - loss(w + 2 * e)) / (
                    2 * step
                )
            assert slope[i] == pytest.approx(float(numeric), rel=1e-5, abs=1e-8)


def _x64():
    from jax.experimental import enable_x64

    return enable_x64()


def test_matches_the_stored_oracle():
    oracle = json.loads(ORACLE.read_text())["gated_attention"]
    at = np.arange(7)[:, None]
    keys = np.sin(1.7 * (3 * at + np.arange(3)) + 0.1)
    values = np.sin(1.7 * (2 * at + np.arange(2)) + 0.9)
    owner = np.array(oracle["owner"])
    # Dimension 3 is odd; pad to 4 and undo the change of scale in the query.
    query = np.array(oracle["query"]) * oracle["scale"] * np.sqrt(4)
    keys, values = (
        np.pad(x, ((0, 0), (0, 4 - x.shape[1])))[None, :, None].astype(np.float32)
        for x in (keys, values)
    )
    shared = Context(jnp.asarray(keys[:, 1:]), jnp.asarray(values[:, 1:]))

    def out(w):
        result = attend(
            jnp.asarray(np.pad(query, (0, 1)), jnp.float32)[None, None, None, None],
            jnp.asarray(keys[:, :1])[None],
            jnp.asarray(values[:, :1])[None],
            jnp.ones((1, 1, 1, 1), bool),
            shared,
            w[owner[1:]][None, None],
        )
        return result[0, 0, 0, 0, :2]

    for name, expected in oracle.items():
        if not name.startswith("["):
            continue
        w = jnp.asarray(json.loads(name), jnp.float32)
        np.testing.assert_allclose(out(w), expected["output"], atol=1e-6)
        np.testing.assert_allclose(
            jax.jacobian(out)(w), expected["jacobian"], rtol=2e-5, atol=2e-6
        )


def test_bfloat16_stays_finite_with_tiny_weights():
    args = inputs(dtype=jnp.bfloat16)
    for scale in (1e-8, 1e-4, 1.0):
        w = jnp.full((7,), scale, jnp.float32).at[0].set(0.0)
        value, slope = jax.value_and_grad(
            lambda w: attend(*args, jnp.broadcast_to(w, (1, 2, 7))).astype(float).sum()
        )(w)
        assert jnp.isfinite(value) and jnp.isfinite(slope).all()


def test_an_excluded_key_with_a_huge_score_does_no_harm():
    query, keys, values, mask, shared = inputs()
    loud = shared._replace(keys=shared.keys.at[:, 2].mul(200.0))
    weights = np.array([1, 1, 0, 1, 1, 1, 1])

    def total(w):
        return attend(query, keys, values, mask, loud, spread(w)).sum()

    quiet = textbook(query, keys, values, mask, shared, weights).sum()
    value, slope = jax.value_and_grad(total)(jnp.asarray(weights, jnp.float32))
    assert float(value) == pytest.approx(quiet, rel=1e-4)
    assert jnp.isfinite(slope).all()


@pytest.mark.parametrize("times", [3, 4])
def test_queries_in_turns_give_what_all_at_once_give(monkeypatch, times):
    query, keys, values, mask, shared = inputs(times=times)
    weights = spread([1, 0, 0.3, 0.3, 0.9, 1, 0.05])
    wanted = jnp.cos(jnp.arange(query.size, dtype=jnp.float32)).reshape(query.shape)

    def run(*args):
        def total(query, keys, values, shared, weights):
            out = attend(query, keys, values, mask, shared, weights)
            return (out * wanted).sum(), out

        grad = jax.grad(total, argnums=(0, 1, 2, 3, 4), has_aux=True)
        return jax.tree.leaves(grad(*args))

    whole = run(query, keys, values, shared, weights)
    monkeypatch.setattr(attention, "QUERIES_AT_ONCE", 2)
    turns = run(query, keys, values, shared, weights)
    for one, other in zip(turns, whole, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.parametrize("gradient", [False, True])
def test_memory_for_scores_does_not_grow_with_the_square_of_the_text(gradient):
    def temporary(times):
        half = jnp.bfloat16
        query = jax.ShapeDtypeStruct((1, 4, times, 2, 8), half)
        own = jax.ShapeDtypeStruct((1, 4, times, 1, 8), half)

        def run(q, k, v):
            return attend(q, k, v, None)

        if gradient:
            run = jax.grad(lambda *args: attend(*args, None).astype(float).sum())
        lowered = jax.jit(run).lower(query, own, own)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    short, long = temporary(1024), temporary(4096)
    assert long < 6 * short, "16 times where all scores are kept"


def test_context_and_weights_come_together():
    query, keys, values, mask, shared = inputs()
    with pytest.raises(ValueError, match="context and weights"):
        attend(query, keys, values, mask, shared)
    with pytest.raises(ValueError, match="implementation"):
        attend(query, keys, values, mask, implementation="flash")


def test_the_fused_path_can_be_traced_under_vmap(monkeypatch):
    """Shapes alone, without its device: a mask of one head broke the batching rule."""
    fused = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(fused, "check_cudnn_version", lambda *_, **__: 91000)
    monkeypatch.setattr(fused, "check_compute_capability", lambda *_, **__: True)

    def loss(query, keys, values, mask, shared_keys, shared_values, weights):
        out = attend(
            query,
            keys,
            values,
            mask,
            Context(shared_keys, shared_values),
            weights,
            implementation="cudnn",
        )
        return (out.astype(jnp.float32) ** 2).sum()

    lead, time, kv_heads, heads, dim, context = (3, 1, 2), 8, 2, 4, 8, 6
    half = jnp.bfloat16
    shared = jax.ShapeDtypeStruct((3, 1, context, kv_heads, dim), half)
    own = jax.ShapeDtypeStruct((*lead, time, kv_heads, dim), half)
    arguments = (
        jax.ShapeDtypeStruct((*lead, time, heads, dim), half),
        own,
        own,
        jax.ShapeDtypeStruct((*lead, time, time), bool),
        shared,
        shared,
        jax.ShapeDtypeStruct((*lead, context), jnp.float32),
    )
    grads = jax.eval_shape(jax.vmap(jax.grad(loss, argnums=(0, 6))), *arguments)
    assert [grad.shape for grad in grads] == [x.shape for x in arguments[::6]]
