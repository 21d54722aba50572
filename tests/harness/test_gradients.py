"""Gradients to phi and theta of one backward pass, against differences in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import CONFIG, TEMPLATES, make_decoder, make_space

from estimators import ask, combine, exact, over_tasks, perturbed_marginals, tell
from metaharness.harness.gradients import measured_gradient, relaxed_gradient
from metaharness.harness.objective import Problem, gated_losses, measured_losses
from metaharness.harness.relaxed import PoolCache, encode_pools, task_keys
from metaharness.harness.space import EXEMPLARS, TEMPLATE
from metaharness.model.lora import LoraPair, init_lora, with_lora
from metaharness.model.lora_config import LoraConfig

LORA = LoraConfig(rank=2, alpha=3.0)
STEP = 1e-5


def wide():
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64

    return enable_x64()


class Scene:
    """Two tasks, one template, pairs of four exemplars, everything in float64."""

    def __init__(self):
        self.space = make_space(2, templates=TEMPLATES[:1])
        rng = np.random.default_rng(3)
        decoder = make_decoder(jnp.float64)
        theta = init_lora(jax.random.key(0), LORA, CONFIG)
        self.theta = {
            name: LoraPair(
                pair.a.astype(jnp.float64),
                jnp.asarray(0.3 * rng.normal(size=pair.b.shape)),
            )
            for name, pair in theta.items()
        }
        self.logits = {
            slot: jnp.asarray(rng.normal(size=(2, family.n)))
            for slot, family in self.space.families.items()
        }
        self.masks = {slot: jnp.asarray(m) for slot, m in self.space.masks.items()}
        packs = self.space.pack("train", width=64, limit=4)
        self.index = jnp.asarray(task_keys(self.space.table, self.masks[EXEMPLARS]))
        self.problem = Problem(decoder, self.space.table, packs, None)
        self.packs = jnp.zeros((2, 1), jnp.int32)
        self.static = {"chunk": 2, "implementation": "xla"}

    def adapt(self, theta):
        return with_lora(self.problem.decoder, theta, LORA)

    def cached(self, theta):
        pool = encode_pools(self.adapt(theta), self.space.table)
        return self.problem._replace(cache=PoolCache(pool, self.index))

    def draw(self, estimator):
        state = estimator.init(jax.random.key(1), self.logits)
        return state, ask(estimator, jax.random.key(2), self.logits, state, self.masks)

    def directional(self, value, at, grads, *fixed):
        """Central differences along two directions, and what the gradient says."""
        rng = np.random.default_rng(4)
        pairs = []
        for _ in range(2):
            ray = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), at)
            ends = [
                float(
                    value(
                        jax.tree.map(lambda x, d, s=s: x + s * STEP * d, at, ray),
                        *fixed,
                    )
                )
                for s in (1, -1)
            ]
            said = sum(
                float(jnp.vdot(g, d))
                for g, d in zip(
                    jax.tree.leaves(grads), jax.tree.leaves(ray), strict=True
                )
            )
            pairs.append(((ends[0] - ends[1]) / (2 * STEP), said))
        return np.array(pairs).T


@pytest.fixture(scope="module")
def scene():
    with wide():
        yield Scene()


def measured_scene(scene, chunk=2):
    """All pairs of exemplars, enumerated: the expected loss is a function of phi."""
    parts = {slot: (f, exact(f)) for slot, f in scene.space.families.items()}
    estimator = over_tasks(combine(parts))
    state, draw = scene.draw(estimator)
    out = jax.jit(
        lambda theta: measured_gradient(
            scene.problem,
            scene.adapt,
            theta,
            draw.outcomes[TEMPLATE][..., 0],
            draw.outcomes[EXEMPLARS],
            scene.packs,
            draw.coef,
            width=scene.space.width,
            chunk=chunk,
            implementation="xla",
        )
    )(scene.theta)
    return estimator, state, draw, out


@pytest.fixture(scope="module")
def measured(scene):
    return measured_scene(scene)


def test_sequential_loss_gives_both_gradients(scene, measured):
    estimator, state, draw, out = measured
    told = tell(estimator, scene.logits, draw, out.loss, state)

    @jax.jit
    def of_theta(theta):
        losses = measured_losses(
            scene.problem._replace(decoder=scene.adapt(theta)),
            draw.outcomes[TEMPLATE][..., 0],
            draw.outcomes[EXEMPLARS],
            scene.packs,
            jnp.ones((2,), bool),
            width=scene.space.width,
            **scene.static,
        )
        return (draw.coef * losses.loss).sum()

    difference, said = scene.directional(of_theta, scene.theta, out.theta)
    np.testing.assert_allclose(said, difference, rtol=1e-5)
    assert np.abs(said).min() > 1e-3

    @jax.jit
    def of_phi(logits):
        family, mask = scene.space.families[EXEMPLARS], scene.masks[EXEMPLARS]
        law = family.distribution(logits[EXEMPLARS][:, None], mask[:, None])
        chance = jnp.exp(law.log_prob(draw.outcomes[EXEMPLARS]))
        return (chance * out.loss).sum() / 2

    difference, said = scene.directional(of_phi, scene.logits, told.logits_grad)
    np.testing.assert_allclose(said, difference, rtol=1e-5)


class Gate:
    """One soft draw, and what the gate says of it with each kind of keys."""

    def __init__(self, scene):
        families = scene.space.families
        soft = perturbed_marginals(families[EXEMPLARS], samples=3, tau=0.5)
        parts = {
            EXEMPLARS: (families[EXEMPLARS], soft),
            TEMPLATE: (families[TEMPLATE], exact(families[TEMPLATE])),
        }
        self.estimator = over_tasks(combine(parts, allow_soft_reward=True))
        self.state, self.draw = scene.draw(self.estimator)
        template = self.draw.outcomes[TEMPLATE][..., 0]
        self.weights = self.draw.weights[EXEMPLARS]

        def run(theta, keys_of, exact_keys):
            return relaxed_gradient(
                scene.cached(keys_of),
                scene.adapt,
                theta,
                template,
                self.weights,
                scene.packs,
                self.draw.coef,
                exact=exact_keys,
                **scene.static,
            )

        run = jax.jit(run, static_argnums=2)
        old = jax.tree.map(lambda x: 0.5 * x, scene.theta)
        self.exact = run(scene.theta, scene.theta, True)
        self.stopped = run(scene.theta, scene.theta, False)
        self.stale = run(scene.theta, old, False)

        @jax.jit
        def value(theta, weights):
            losses = gated_losses(
                scene.cached(theta)._replace(decoder=scene.adapt(theta)),
                template,
                weights,
                scene.packs,
                jnp.ones((2,), bool),
                **scene.static,
            )
            return (self.draw.coef * losses.loss).sum()

        self.value = value


@pytest.fixture(scope="module")
def gate(scene):
    return Gate(scene)


@pytest.mark.slow
def test_exact_keys_give_both_gradients(scene, gate):
    difference, said = scene.directional(
        gate.value, scene.theta, gate.exact.theta, gate.weights
    )
    np.testing.assert_allclose(said, difference, rtol=1e-5)
    told = tell(
        gate.estimator,
        scene.logits,
        gate.draw,
        gate.exact.loss,
        gate.state,
        weights_grad={EXEMPLARS: gate.exact.weights, TEMPLATE: None},
    )
    rebuild = jax.jit(
        lambda logits: gate.estimator.rebuild(logits, gate.draw, gate.state).weights
    )
    difference, said = scene.directional(
        lambda logits: gate.value(scene.theta, rebuild(logits)[EXEMPLARS]),
        scene.logits,
        told.logits_grad,
    )
    np.testing.assert_allclose(said, difference, rtol=1e-5)
    assert np.abs(said).min() > 1e-4


def test_stopped_keys_have_the_value_and_not_the_gradient(scene, gate):
    np.testing.assert_allclose(gate.stopped.loss, gate.exact.loss, rtol=1e-12)
    np.testing.assert_allclose(gate.stopped.weights, gate.exact.weights, rtol=1e-9)
    difference, said = scene.directional(
        gate.value, scene.theta, gate.stopped.theta, gate.weights
    )
    assert (np.abs(said - difference) > 1e-2 * np.abs(difference)).all()


def test_stale_keys_have_neither(scene, gate):
    assert (np.abs(gate.stale.loss - gate.exact.loss) > 1e-3).all()
    difference, said = scene.directional(
        gate.value, scene.theta, gate.stale.theta, gate.weights
    )
    assert (np.abs(said - difference) > 1e-2 * np.abs(difference)).all()


@pytest.mark.slow
def test_chunks_change_nothing(scene, measured):
    *_, out = measured
    *_, other = measured_scene(scene, chunk=4)  # six rows: the last chunk is filled up
    np.testing.assert_allclose(other.loss, out.loss, rtol=1e-12)
    np.testing.assert_array_equal(other.tokens, out.tokens)
    for a, b in zip(
        jax.tree.leaves(other.theta), jax.tree.leaves(out.theta), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
