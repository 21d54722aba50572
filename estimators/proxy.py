"""The gradient of a learned network's expectation, alone or as control variate."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from estimators.expectation import expected, free_outcomes
from estimators.family import Family
from estimators.interface import VALUES, Credit, Draw, Estimator, Spec, loss_of
from estimators.network import Network, linear_and_tanh
from estimators.replay import Replay, empty_replay, remember, unexplained
from estimators.rows import (
    at_least_float32,
    counted_losses,
    equal_coef,
    leave_one_out,
    sample_rows,
    sampled,
    score_term,
)
from estimators.window import rows_kept


class ProxyState(NamedTuple):
    """State of ``proxy``.

    Attributes:
      step: int32, credits so far.
      params: of the network.
      optimizer: its state.
      scale: the network's unit in units of the loss: its spread over the window.
      replay: old rows.
      heldout: decayed sums of squares about the mean, `[2]`: what the network left of
        each step's losses before it saw them, and what there was.
    """

    step: jax.Array
    params: Any
    optimizer: Any
    scale: jax.Array
    replay: Replay
    heldout: jax.Array


def proxy(
    family: Family,
    *,
    samples: int = 8,
    window: int | None = None,
    residual: float = 1.0,
    inner_steps: int = 16,
    network: Network | None = None,
    optimizer: optax.GradientTransformation | None = None,
    free_draws: int = 256,
) -> Estimator:
    """``grad E[h] + residual * mean_s LOO(f - h)_s grad log p(outcome_s)``.

    h is a network of the choice vector (k-hot; ranking: one one-hot per place, flat),
    fitted to the losses of the last ``window`` rows by ``inner_steps`` optimiser steps
    per credit on the squared error about the means of the steps, in units of their
    spread. E[h] is enumerated, or taken from free draws that no model sees
    (``expectation``). As control variate: Grathwohl et al. 2018 and Gu et al. 2016
    (MuProp), with a network fitted to values.

    residual 1 (default): unbiased, because h then comes from past steps only.
    residual 0: plug-in, *biased* by the fit; this step's rows enter the fit.
    between: both terms, h from past steps; biased by (1 - residual) of the fit's error.

    The metric ``heldout_r2`` is the share of a step's loss variance that the network
    explained before it saw these rows (sums over steps with decay 0.9). Where it is
    below 0 the proxy adds noise.

    Evaluations per step: ``samples``. State: ``ProxyState``.

    Args:
      family: any kind.
      samples: rows per step, at least 2.
      window: rows kept, a multiple of ``samples``; None takes about 64.
      residual: share of the leave-one-out residual, in [0, 1].
      inner_steps: at least 1.
      network: default ``linear_and_tanh(32)``.
      optimizer: of the network; default Adam at 0.01.
      free_draws: at least 2.

    Raises:
      ValueError: an argument out of range.
    """
    for ok, what in (
        (samples >= 2, f"{samples} samples; draw at least 2"),
        (0 <= residual <= 1, f"residual {residual}; give one in [0, 1]"),
        (inner_steps >= 1, f"{inner_steps} inner steps; take at least 1"),
        (free_draws >= 2, f"{free_draws} free draws; use at least 2"),
    ):
        if not ok:
            raise ValueError(f"estimator proxy: {what}.")
    window = rows_kept(window, samples, "proxy")
    network = network or linear_and_tanh()
    optimizer = optimizer or optax.adam(0.01)
    num_features = family.n * (family.k if family.kind == "ranking" else 1)

    def features_of(outcomes: jax.Array, dtype: jnp.dtype) -> jax.Array:
        return family.weights(outcomes, dtype).reshape(len(outcomes), num_features)

    def init(key: jax.Array, logits: jax.Array) -> ProxyState:
        dtype = at_least_float32(logits).dtype
        params = network.init(key, num_features)
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        rows = empty_replay(window, num_features, dtype)
        return ProxyState(
            jnp.zeros((), jnp.int32),
            params,
            optimizer.init(params),
            jnp.zeros((), dtype),
            rows,
            jnp.zeros((2,), dtype),
        )

    def draw(
        key: jax.Array, logits: jax.Array, state: ProxyState, mask: Any = None
    ) -> Draw:
        row_key, free_key = jax.random.split(key)
        outcomes = sample_rows(row_key, family, logits, mask, samples)
        free = free_outcomes(free_key, family, logits, mask, free_draws)
        return rebuild(logits, sampled(family, outcomes, mask, free), state)

    def rebuild(logits: jax.Array, draw: Draw, state: ProxyState) -> Draw:
        del state
        dtype = at_least_float32(logits).dtype
        weights = family.weights(draw.outcomes, dtype)
        return draw._replace(weights=weights, coef=equal_coef(draw, dtype))

    def train(params: Any, state: Any, rows: Replay, scale: Any) -> tuple[Any, Any]:
        targets = rows.losses / jnp.where(scale > 0, scale, 1.0)

        def error(params: Any) -> jax.Array:
            predicted = network.apply(params, rows.features)
            rest, _ = unexplained(predicted, targets, rows.weight, rows.block)
            return rest / jnp.maximum(jnp.sum(rows.weight), 1.0)

        def one(carry: tuple, _: None) -> tuple:
            params, state = carry
            updates, state = optimizer.update(jax.grad(error)(params), state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(one, (params, state), length=inner_steps)[0]

    def credit(
        logits: jax.Array,
        draw: Draw,
        losses: jax.Array | Mapping[str, jax.Array],
        slope: Any,
        state: ProxyState,
    ) -> Credit:
        del slope
        logits = at_least_float32(logits)
        losses = counted_losses(loss_of(losses, spec.learns_from), draw)
        losses = losses.astype(logits.dtype)
        coef, group = jax.lax.stop_gradient(draw.coef), draw.memo.group
        features = features_of(draw.outcomes, logits.dtype)
        before = state.scale * network.apply(state.params, features)
        kept = remember(state.replay, features, losses, coef, group, state.step)
        _, spread = unexplained(0.0, kept.losses, kept.weight, kept.block)
        scale = jnp.sqrt(spread / jnp.maximum(jnp.sum(kept.weight), 1.0))
        params, opt = train(state.params, state.optimizer, kept, scale)
        new = residual == 0
        used, unit = (params, scale) if new else (state.params, state.scale)

        def predict(outcomes: jax.Array) -> jax.Array:
            return unit * network.apply(used, features_of(outcomes, logits.dtype))

        surrogate = expected(family, logits, draw, predict, draw.memo.noise)
        if residual > 0:
            rest = leave_one_out(losses - before, group)
            surrogate += residual * score_term(family, logits, draw, rest)
        sums = jnp.stack(unexplained(before, losses, coef, group))
        heldout = 0.9 * state.heldout + sums
        metrics = {
            "heldout_r2": 1 - heldout[0] / jnp.where(heldout[1] > 0, heldout[1], 1.0),
            "window_rows": jnp.sum(kept.weight > 0),
        }
        new_state = ProxyState(state.step + 1, params, opt, scale, kept, heldout)
        return Credit(surrogate, new_state, metrics)

    spec = Spec(
        name="proxy",
        family=family,
        needs=frozenset({VALUES}),
        unbiased=residual == 1,
        hard_forward=True,
        rows=samples,
        min_rows=2,
        evaluations=lambda n, k: samples,
    )
    return Estimator(init, draw, credit, spec, rebuild)
