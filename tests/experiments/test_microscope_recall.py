"""The recall model and its gate, with weights that were not trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.microscope import recall, recall_model
from experiments.microscope.recall_model import NUM_KEYS, SEPARATOR, START, read


@pytest.fixture(scope="module")
def weights():
    return recall_model.init_weights(jax.random.key(0))


def test_a_one_hot_gate_is_the_model_with_that_exemplar_alone(weights):
    pool = recall._pool(weights, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    values = rng.integers(NUM_KEYS, size=NUM_KEYS)
    keys = rng.permutation(NUM_KEYS)[: recall.POOL]
    wrong = rng.random(recall.POOL) < recall.WRONG
    shift = rng.integers(1, NUM_KEYS, size=recall.POOL)
    shown = np.where(wrong, (values[keys] + shift) % NUM_KEYS, values[keys])
    found = jax.jit(recall.gated_loss(weights))(pool, jnp.eye(recall.POOL)[:3])
    mask = jnp.tril(jnp.ones((5, 5), bool))
    prompts = [
        [START, keys[place], NUM_KEYS + shown[place], SEPARATOR, asked]
        for place in range(3)
        for asked in range(NUM_KEYS)
    ]
    read_all = jax.jit(jax.vmap(lambda prompt: read(weights, prompt, at, mask)[0][-1]))
    at = jnp.arange(5)
    nats = -jax.nn.log_softmax(read_all(jnp.array(prompts)))
    nats = np.asarray(nats).reshape(3, NUM_KEYS, NUM_KEYS)[
        :, np.arange(NUM_KEYS), values
    ]
    np.testing.assert_allclose(found, nats @ np.asarray(pool.frequency), rtol=1e-4)


def test_the_slope_at_a_vertex_is_finite_and_that_of_one_sided_differences(weights):
    pool = recall._pool(weights, np.random.default_rng(1))
    loss = jax.jit(recall.gated_loss(weights))
    vertex = jnp.eye(recall.POOL)[2]
    slope = jax.jit(jax.grad(loss, argnums=1))(pool, vertex)
    assert np.isfinite(slope).all()
    step = 1e-3 * jnp.eye(recall.POOL)[5]
    difference = (loss(pool, vertex + step) - loss(pool, vertex)) / 1e-3
    assert slope[5] == pytest.approx(float(difference), rel=0.1, abs=2e-3)


def test_an_excluded_exemplar_with_a_huge_score_does_no_harm(weights):
    """Its exponential overflows beside those that count, unless it is held back."""
    pool = recall._pool(weights, np.random.default_rng(1))
    keys = pool.cache.keys.copy()
    keys[:, 4:7] *= 1e4
    loud = pool._replace(cache=pool.cache._replace(keys=keys))
    share = jnp.eye(recall.POOL)[4]
    loss = jax.jit(recall.gated_loss(weights))
    assert loss(loud, share) == pytest.approx(float(loss(pool, share)), rel=1e-5)
    assert np.isfinite(jax.jit(jax.grad(loss, argnums=1))(loud, share)).all()


def test_training_prompts_ask_what_they_say():
    prompts = jax.jit(jax.vmap(recall_model._prompt))
    found = prompts(jax.random.split(jax.random.key(0), 400))
    tokens, positions, mask, targets = map(np.asarray, found)
    queries = recall_model.QUERIES
    context = tokens.shape[1] - queries
    answered, right, total = 0, 0, 0
    for row in range(400):
        seen = np.asarray(mask[row, -1, :context])
        length = int(seen.sum())
        assert positions[row, -1] == length
        shots = np.asarray(tokens[row, 1:length]).reshape(-1, 3)
        shown = {int(key): int(value) - NUM_KEYS for key, value, _ in shots}
        assert len(shown) == len(shots) and (shots[:, 2] == SEPARATOR).all()
        for asked, target in zip(tokens[row, -queries:], targets[row], strict=True):
            total += 1
            if int(asked) in shown:
                answered += 1
                right += shown[int(asked)] == int(target)
    assert right == answered
    assert answered / total == pytest.approx(0.7, abs=0.05)


def test_weights_come_back_from_their_file(weights, tmp_path):
    path = tmp_path / "weights.npz"
    recall_model.save(path, weights, 0.75)
    again, loss = recall_model.load(path)
    assert loss == 0.75
    jax.tree.map(np.testing.assert_array_equal, weights, again)


def test_a_few_steps_of_training_lower_the_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(recall_model, "BATCH", 8)
    weights, loss = recall_model.train(40, 0, quiet=True)
    # wild guesses of a fresh model cost more than a uniform one
    assert loss < np.log(NUM_KEYS) + 0.3
    problem_of = recall.problem
    recall_model.save(tmp_path / "recall-40-0.npz", weights, loss)
    problem = problem_of(2, tmp_path, 0, steps=40)
    assert problem.losses.shape == (2, recall.POOL)
    assert f"{loss:.3f} nats" in problem.about
