"""What an update evaluates: losses and gradients of its draw, in one or more parts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange

from estimators import Draw
from metaharness.harness.gradients import measured_gradient, relaxed_gradient
from metaharness.harness.objective import (
    Problem,
    gated_losses,
    measured_losses,
    relaxed_losses,
)
from metaharness.harness.packing import draw_packs
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.train.config import TrainConfig
from metaharness.train.state import TrainState, adapted


class Part(NamedTuple):
    """What one part of the items gives, already weighted by its share of them.

    losses, gated: float32 ``[task, row]``; slope: ``[task, pool]``; weights: ``[task,
    row, pool]``; theta: of theta's structure; forward, backward: int32, tokens. None
    where not asked for.
    """

    losses: jax.Array
    forward: jax.Array
    backward: jax.Array
    gated: jax.Array | None = None
    slope: jax.Array | None = None
    weights: jax.Array | None = None
    theta: Any = None


class Scene(NamedTuple):
    """What a part reads besides its items."""

    space: Space
    config: TrainConfig
    problem: Problem
    state: TrainState
    draw: Draw
    active: jax.Array
    dropped: jax.Array | None

    def adapt(self, theta):
        return adapted(self.problem.decoder, theta, self.config, key=self.dropped)

    @property
    def static(self) -> dict[str, Any]:
        return {
            "chunk": self.config.search.chunk,
            "implementation": self.space.implementation,
        }

    @property
    def template(self) -> jax.Array:
        return self.draw.outcomes[TEMPLATE][..., 0]

    @property
    def shots(self) -> jax.Array:
        if EXEMPLARS in self.draw.outcomes:
            return self.draw.outcomes[EXEMPLARS]
        return jnp.zeros((*self.template.shape, 0), jnp.int32)


def measured_part(scene: Scene, packs, share) -> Part:
    """Losses of sequential prompts; the gate is read for its slope and for trust."""
    problem = scene.problem._replace(decoder=scene.adapt(scene.state.theta))
    losses = measured_losses(
        problem,
        scene.template,
        scene.shots,
        packs,
        scene.active,
        width=scene.space.width,
        **scene.static,
    )
    part = Part(losses.loss * share, losses.tokens.sum(), jnp.int32(0))
    return _read_gate(scene, problem, packs, share, part)


def unread_part(scene: Scene, packs, share) -> Part:
    """Nothing but zeros: no slot learns from the likelihood."""
    zero = jnp.int32(0)
    return Part(jnp.zeros(scene.template.shape, jnp.float32), zero, zero)


def measured_gradient_part(scene: Scene, packs, share) -> Part:
    """As ``measured_part``, and the gradient in theta from the same pass."""
    part = sequential_part(scene, packs, share)
    problem = scene.problem._replace(decoder=scene.adapt(scene.state.theta))
    return _read_gate(scene, problem, packs, share, part)


def sequential_part(scene: Scene, packs, share) -> Part:
    out = measured_gradient(
        scene.problem,
        scene.adapt,
        scene.state.theta,
        scene.template,
        scene.shots,
        packs,
        scene.draw.coef * share,
        width=scene.space.width,
        **scene.static,
    )
    tokens = out.tokens.sum()
    return Part(out.loss * share, tokens, tokens, theta=out.theta)


def _read_gate(scene: Scene, problem, packs, share, part: Part) -> Part:
    probes = scene.draw.probe
    if EXEMPLARS not in scene.draw.outcomes or problem.cache is None:
        return part
    through = gated_losses(
        problem,
        scene.template,
        scene.draw.weights[EXEMPLARS],
        packs,
        scene.active,
        **scene.static,
    )
    part = part._replace(
        gated=through.loss * share, forward=part.forward + through.tokens.sum()
    )
    if probes[EXEMPLARS] is None:
        return part
    likeliest = jnp.argmax(scene.state.logits[TEMPLATE], axis=-1)[:, None]
    at_probe, slopes = relaxed_losses(
        problem,
        likeliest.astype(jnp.int32),
        probes[EXEMPLARS][:, None],
        packs,
        scene.active,
        **scene.static,
    )
    tokens = at_probe.tokens.sum()
    return part._replace(
        slope=slopes[:, 0] * share,
        forward=part.forward + tokens,
        backward=part.backward + tokens,
    )


def relaxed_part(scene: Scene, packs, share) -> Part:
    """Losses of soft rows and their gradient in the rows' weights."""
    problem = scene.problem._replace(decoder=scene.adapt(scene.state.theta))
    losses, slopes = relaxed_losses(
        problem,
        scene.template,
        scene.draw.weights[EXEMPLARS],
        packs,
        scene.active,
        **scene.static,
    )
    tokens = losses.tokens.sum()
    coef = (scene.draw.coef * share)[..., None]
    return Part(losses.loss * share, tokens, tokens, weights=slopes * coef)


def relaxed_gradient_part(scene: Scene, packs, share) -> Part:
    """As ``relaxed_part``, and the gradient in theta from the same pass."""
    out = relaxed_gradient(
        scene.problem,
        scene.adapt,
        scene.state.theta,
        scene.template,
        scene.draw.weights[EXEMPLARS],
        packs,
        scene.draw.coef * share,
        exact=scene.config.weights.cache == "exact",
        **scene.static,
    )
    tokens = out.tokens.sum()
    if scene.config.weights.cache == "exact":
        tokens += scene.space.pool_tokens
    return Part(out.loss * share, tokens, tokens, weights=out.weights, theta=out.theta)


TRAIN_THETA = (sequential_part, measured_gradient_part, relaxed_gradient_part)
"""Parts that have a gradient in theta."""


def update_packs(key: jax.Array, problem: Problem, config: TrainConfig) -> jax.Array:
    """The items of an update: int32 ``[task, pack]``, each task its own."""
    num_packs, total = problem.packs.num_packs, problem.packs.items.shape[1]
    wanted = config.search.packs * config.search.accumulate
    item_keys = jax.random.split(key, num_packs.shape[0])
    return jax.vmap(lambda key, num: draw_packs(key, num, total, wanted))(
        item_keys, num_packs
    )


def in_parts(run, problem: Problem, packs: jax.Array, num: int) -> Part:
    """``run(packs, share)`` over ``num`` parts of the packs, added up.

    share: float32 ``[task, 1]``, the part's share of the update's items. The sum is
    what one part with all packs gives, because losses are means over items.
    """
    if num == 1:
        return run(packs, jnp.ones((packs.shape[0], 1)))
    parts = rearrange(packs, "task (part pack) -> part task pack", part=num)
    counts = jax.vmap(lambda packs: calls_by_task(problem, packs))(parts)
    shares = counts / jnp.maximum(counts.sum(axis=0), 1)

    def add(total, part):
        packs, share = part
        return jax.tree.map(jnp.add, total, run(packs, share[:, None])), None

    start = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(run, parts[0], shares[0][:, None]),
    )
    return jax.lax.scan(add, start, (parts, shares))[0]


def calls_by_task(problem: Problem, packs: jax.Array) -> jax.Array:
    """Items in each task's packs, int32 ``[task]``."""
    chosen = jnp.take_along_axis(problem.packs.items, packs[..., None], axis=1)
    return (chosen >= 0).sum(axis=(1, 2))
