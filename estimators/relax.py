"""RELAX: the score function with a learned, differentiable control variate."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from estimators.decisions import decisions
from estimators.family import Family
from estimators.interface import VALUES, Credit, Draw, Estimator, Spec, loss_of
from estimators.network import Network, linear_and_tanh
from estimators.noise import perturbed_given
from estimators.rows import (
    at_least_float32,
    counted_losses,
    equal_coef,
    leave_one_out,
    sample_rows,
    sampled,
)
from estimators.schedule import check_tau, tau_at


class RelaxState(NamedTuple):
    """State of ``relax``.

    Attributes:
      step: int32, credits so far.
      tau: float32, temperature now in force.
      params: of the network.
      optimizer: its state.
      scale: the network's unit in units of the loss: decayed spread of the losses.
    """

    step: jax.Array
    tau: jax.Array
    params: Any
    optimizer: Any
    scale: jax.Array


def relax(
    family: Family,
    *,
    samples: int = 8,
    tau: float | optax.Schedule = 1.0,
    network: Network | None = None,
    optimizer: optax.GradientTransformation | None = None,
) -> Estimator:
    """``mean_s sum_t (LOO(f)_s - c_t) grad log p_t + grad c(z_t) - grad c(z'_t)``.

    An outcome is a sequence of decisions t (``decisions``; one for a categorical), z_t
    are perturbed log-probabilities of its options and z'_t the same given the option
    taken; c is a network of the history, the softmax of z_t / tau in the place of the
    decision, and zeros after it. z and z' share their noise, so c is read once.

    Grathwohl et al. 2018 (equation 8; for sequences, section 3.3); conditional noise of
    Tucker et al. 2017 (REBAR); Plackett-Luce: Gadetsky et al. 2020, who perturb the
    whole order at once. Here c is a network alone (their LAX surrogate), f is never
    read at soft weights, and f enters less the mean of the other rows.

    *Unbiased* for any network. Its parameters descend the squared length of each
    step's estimate, an unbiased estimate of the variance up to a constant, one
    optimiser step per credit. Untrained it is ``reinforce`` with leave-one-out, and
    trained it stays near it on most problems of ``experiments.compare_estimators``: a
    network of soft choices explains little of what is left. ``proxy`` explains the hard
    choices.

    Evaluations per step: ``samples``. State: ``RelaxState``.

    Args:
      family: any kind.
      samples: rows, at least 2.
      tau: temperature of the network's input, at least 0.1; or a schedule of the step.
      network: default ``linear_and_tanh(16)``.
      optimizer: of the network; default Adam at 0.03.

    Raises:
      ValueError: an argument out of range.
    """
    if samples < 2:
        raise ValueError(f"estimator relax: {samples} samples; draw at least 2.")
    check_tau("relax", tau)
    network = network or linear_and_tanh(16)
    optimizer = optimizer or optax.adam(0.03)
    subset = family.kind == "subset"
    num_decisions = family.n if subset else family.k
    num_options = 2 if subset else family.n
    num_features = {
        "categorical": family.n,
        "subset": 2 * family.n,  # history, and which candidates are decided
        "ranking": family.k * family.n,
    }[family.kind]

    def features_of(soft: jax.Array, before: jax.Array) -> jax.Array:
        """Network input `[rows, decision, feature]` of soft options and history."""
        here = jnp.eye(num_decisions, dtype=soft.dtype)
        if subset:
            decided = jnp.broadcast_to(
                jnp.triu(jnp.ones_like(here)), (*soft.shape[:2], family.n)
            )
            return jnp.concatenate([before + here * soft[..., 1:], decided], axis=-1)
        placed = jnp.einsum("tj,rtp->rtjp", here, soft)
        return before + placed.reshape(before.shape)

    def terms(logits: jax.Array, params: Any, draw: Draw, losses: Any, kept: Any):
        """Scalar whose gradient in the logits is the estimate."""
        tau, scale = kept
        made = decisions(family, logits, draw.memo.mask, draw.outcomes)
        given = perturbed_given(made.log_prob, made.index, draw.memo.noise)
        # the same values, moving with the log-probabilities at fixed noise
        free = made.log_prob + jax.lax.stop_gradient(given - made.log_prob)

        def control(perturbed: jax.Array) -> jax.Array:
            soft = jax.nn.softmax(perturbed / tau)
            return scale * network.apply(params, features_of(soft, made.before))

        picked = jnp.take_along_axis(made.log_prob, made.index[..., None], axis=-1)
        value = control(jax.lax.stop_gradient(given))
        score = jnp.sum((losses[:, None] - value) * picked[..., 0], axis=-1)
        path = jnp.sum(control(free) - control(given), axis=-1)
        return jax.lax.stop_gradient(draw.coef) @ (score + path)

    def init(key: jax.Array, logits: jax.Array) -> RelaxState:
        dtype = at_least_float32(logits).dtype
        params = network.init(key, num_features)
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        start = tau_at(tau, jnp.zeros((), jnp.int32))
        return RelaxState(
            start.step, start.tau, params, optimizer.init(params), jnp.zeros((), dtype)
        )

    def draw(
        key: jax.Array, logits: jax.Array, state: RelaxState, mask: Any = None
    ) -> Draw:
        row_key, noise_key = jax.random.split(key)
        outcomes = sample_rows(row_key, family, logits, mask, samples)
        shape = (samples, num_decisions, num_options)
        dtype = at_least_float32(logits).dtype
        noise = jax.random.gumbel(noise_key, shape, dtype)
        return rebuild(logits, sampled(family, outcomes, mask, noise), state)

    def rebuild(logits: jax.Array, draw: Draw, state: RelaxState) -> Draw:
        del state
        dtype = at_least_float32(logits).dtype
        weights = family.weights(draw.outcomes, dtype)
        return draw._replace(weights=weights, coef=equal_coef(draw, dtype))

    def credit(
        logits: jax.Array,
        draw: Draw,
        losses: jax.Array | Mapping[str, jax.Array],
        slope: Any,
        state: RelaxState,
    ) -> Credit:
        del slope
        logits = at_least_float32(logits)
        losses = counted_losses(loss_of(losses, spec.learns_from), draw)
        losses = leave_one_out(losses.astype(logits.dtype), draw.memo.group)
        kept = (state.tau.astype(logits.dtype), state.scale)
        surrogate = terms(logits, state.params, draw, losses, kept)

        fixed = jax.lax.stop_gradient(logits)
        spread = jnp.sqrt(jnp.mean(losses**2))
        decay = jnp.where(state.step == 0, 0.0, 0.9)
        scale = decay * state.scale + (1 - decay) * spread
        unit = jnp.where(scale > 0, scale, 1.0)

        def length(params: Any) -> jax.Array:
            estimate = jax.grad(terms)(
                fixed, params, draw, losses / unit, (kept[0], jnp.ones_like(scale))
            )
            return jnp.sum(estimate**2)

        size, slope_of_size = jax.value_and_grad(length)(state.params)
        updates, opt = optimizer.update(slope_of_size, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        after = tau_at(tau, state.step + 1)
        new_state = RelaxState(after.step, after.tau, params, opt, scale)
        metrics = {
            "tau": state.tau,
            "advantage_std": jnp.std(losses),
            "estimate_norm": jnp.sqrt(size) * unit,
        }
        return Credit(surrogate, new_state, metrics)

    spec = Spec(
        name="relax",
        family=family,
        needs=frozenset({VALUES}),
        unbiased=True,
        hard_forward=True,
        rows=samples,
        min_rows=2,
        evaluations=lambda n, k: samples,
    )
    return Estimator(init, draw, credit, spec, rebuild)
