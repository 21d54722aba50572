"""From an estimator and an objective to gradients in the logits and in theta.

    draw = ask(estimator, key, logits, state)
    evaluated = evaluate(estimator, objective)(draw, theta, batch)  # or a host's losses
    told = tell(estimator, logits, draw, losses, state, slope, weights_grad)

``value_and_grad`` is the three in a row. Item batches may be split: ``evaluate`` is a
mean over items, so its results for equal parts average; ``tell`` then runs once.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from estimators.interface import PATH, PROBE_SLOPE, Draw, Estimator, Spec, loss_of
from estimators.rows import at_least_float32

_ONLY = ""  # stands for the one slot or the one loss where there are no names


class Evaluated(NamedTuple):
    """Losses of a draw, and what flows back through the model.

    Attributes:
      losses: float `[rows]`, or loss name -> `[rows]`.
      weights_grad: gradient of sum(coef * losses) in ``draw.weights`` where the
        estimator has a path, else None; joint: slot -> those, each from the loss that
        the slot names.
      theta_grad: gradient of sum(coef * losses) in theta, or None without theta.
    """

    losses: Any
    weights_grad: Any
    theta_grad: Any


class Told(NamedTuple):
    """What a step learned.

    Attributes:
      value: scalar, or loss name -> scalar: sum(coef * losses).
      logits_grad: of the logits' structure.
      state: after the step.
      metrics: name -> scalar; joint, slot -> those.
    """

    value: Any
    logits_grad: Any
    state: Any
    metrics: dict[str, Any]


class Step(NamedTuple):
    """One step: the fields of ``Evaluated`` and ``Told``, and the draw."""

    value: Any
    logits_grad: Any
    theta_grad: Any
    state: Any
    metrics: dict[str, Any]
    draw: Draw
    losses: Any


def ask(
    estimator: Estimator, key: jax.Array, logits: Any, state: Any, mask: Any = None
) -> Draw:
    """The rows to evaluate: ``estimator.draw`` without a gradient, ready for a host."""
    return jax.lax.stop_gradient(estimator.draw(key, logits, state, mask))


def evaluate(
    estimator: Estimator,
    objective: Callable[..., Any],
    *,
    theta_learns_from: str = "likelihood",
) -> Callable[..., Evaluated]:
    """Returns ``run(draw, theta, *args) -> Evaluated``.

    The objective is differentiated only where needed: in the weights if a slot has a
    path, in theta if theta is not None. Values-only estimators thus take any jittable
    objective.

    Args:
      estimator: single or joint.
      objective: (draw, theta, *args) -> losses `[rows]`, or loss name -> `[rows]`.
      theta_learns_from: the loss whose gradient theta gets, where losses are named.
    """
    spec = estimator.spec

    def run(draw: Draw, theta: Any, *args: Any) -> Evaluated:
        with_path = _with_path(spec, draw.weights)

        def losses_of(weights: Any, theta: Any) -> Any:
            if spec.parts is None:
                weights = draw.weights if weights is None else weights
            else:
                weights = {
                    slot: draw.weights[slot] if own is None else own
                    for slot, own in weights.items()
                }
            losses = objective(draw._replace(weights=weights), theta, *args)
            return jax.tree.map(at_least_float32, losses)

        coef = jax.lax.stop_gradient(draw.coef)
        if theta is None and not jax.tree.leaves(with_path):
            return Evaluated(losses_of(with_path, None), with_path, None)
        losses, pull = jax.vjp(losses_of, with_path, theta)
        if not isinstance(losses, Mapping):
            _check_losses({_ONLY: losses}, coef)
            return Evaluated(losses, *pull(coef.astype(losses.dtype)))
        _check_losses(losses, coef)

        def gradient(name: str) -> tuple[Any, Any]:
            """In weights and theta of the averaged loss of this name."""
            loss_of(losses, name)
            shares = {other: coef * (other == name) for other in losses}
            return pull(
                {other: s.astype(losses[other].dtype) for other, s in shares.items()}
            )

        read = _losses_read(spec)
        slots = with_path if spec.parts is not None else {_ONLY: with_path}
        names = {read[slot] for slot, own in slots.items() if own is not None}
        if theta is not None:
            names.add(theta_learns_from)
        # one backward pass per name, whatever the number of slots that read it
        grads = {name: gradient(name) for name in sorted(names)}
        theta_grad = None if theta is None else grads[theta_learns_from][1]
        if spec.parts is None:
            own = None if with_path is None else grads[spec.learns_from][0]
            return Evaluated(losses, own, theta_grad)
        weights_grad = {
            slot: None if own is None else grads[read[slot]][0][slot]
            for slot, own in slots.items()
        }
        return Evaluated(losses, weights_grad, theta_grad)

    return run


def tell(
    estimator: Estimator,
    logits: Any,
    draw: Draw,
    losses: Any,
    state: Any,
    slope: Any = None,
    weights_grad: Any = None,
) -> Told:
    """Gradients in the logits from the losses of a draw.

    Args:
      estimator: that made the draw.
      logits: at which the draw was made.
      draw: from ``ask``.
      losses: float `[rows]`, or loss name -> `[rows]`.
      state: from which the draw was made.
      slope: gradient of the relaxed objective at ``draw.probe``, of its structure, or
        None.
      weights_grad: from ``evaluate``; needed by slots with a path.

    Raises:
      ValueError: an estimator with a path got no ``weights_grad``, or losses of a wrong
        shape.
    """
    spec = estimator.spec
    logits = jax.tree.map(at_least_float32, logits)
    losses = jax.tree.map(at_least_float32, losses)
    losses, slope, weights_grad = jax.lax.stop_gradient((losses, slope, weights_grad))
    if PATH in spec.needs and not jax.tree.leaves(weights_grad):
        raise ValueError(
            f"estimator {spec.name} learns through its weights but got no "
            "weights_grad; pass that of evaluate()."
        )
    named = losses if isinstance(losses, Mapping) else {_ONLY: losses}

    def terms(logits: Any) -> tuple[tuple[jax.Array, dict[str, jax.Array]], tuple]:
        fresh = estimator.rebuild(logits, draw, state)
        _check_losses(named, fresh.coef)
        credit = estimator.credit(logits, fresh, losses, slope, state)
        own = credit.surrogate
        for grad, weights in _pairs(spec, weights_grad, fresh.weights):
            own += jnp.sum(grad * weights)
        averages = {name: _average(fresh.coef, loss) for name, loss in named.items()}
        return (own, averages), (credit.state, credit.metrics)

    (own, averages), pull, (new_state, metrics) = jax.vjp(terms, logits, has_aux=True)

    def gradient(name: str) -> Any:
        """Of the estimator's own terms and of the averaged loss of this name."""
        one = {
            other: jnp.full_like(average, other == name)
            for other, average in averages.items()
        }
        return pull((jnp.ones_like(own), one))[0]

    if not isinstance(losses, Mapping):
        return Told(averages[_ONLY], gradient(_ONLY), new_state, metrics)
    read = _losses_read(spec)
    grads = {name: gradient(name) for name in sorted(set(read.values()))}
    if spec.parts is None:
        return Told(averages, grads[spec.learns_from], new_state, metrics)
    picked = {slot: grads[read[slot]][slot] for slot in logits}
    return Told(averages, picked, new_state, metrics)


def value_and_grad(
    estimator: Estimator,
    objective: Callable[..., Any],
    slope: Callable[..., Any] | None = None,
    *,
    theta_learns_from: str = "likelihood",
) -> Callable[..., Step]:
    """Returns ``run(key, logits, state, theta=None, *args, mask=None) -> Step``.

    Args:
      estimator: single, joint, or over tasks.
      objective: (draw, theta, *args) -> losses `[rows]`, or loss name -> `[rows]`; in
        jit.
      slope: (probe, theta, *args) -> gradient of the relaxed objective at the probe, of
        its structure; an evaluation of its own, without a gradient. Needed when the
        estimator's spec says so.
      theta_learns_from: the loss whose gradient theta gets, where losses are named.

    Raises:
      ValueError: the spec wants a slope and none is given.
    """
    wants_slope = PROBE_SLOPE in estimator.spec.needs
    if wants_slope and slope is None:
        raise ValueError(
            f"estimator {estimator.spec.name} reads a slope at its probe; give a slope "
            "function, or build it with use_slope=False."
        )
    evaluated = evaluate(estimator, objective, theta_learns_from=theta_learns_from)

    def run(
        key: jax.Array,
        logits: Any,
        state: Any,
        theta: Any = None,
        *args: Any,
        mask: Any = None,
    ) -> Step:
        draw = ask(estimator, key, logits, state, mask)
        losses, weights_grad, theta_grad = evaluated(draw, theta, *args)
        found = slope(draw.probe, theta, *args) if wants_slope else None
        told = tell(estimator, logits, draw, losses, state, found, weights_grad)
        return Step(
            told.value,
            told.logits_grad,
            theta_grad,
            told.state,
            told.metrics,
            draw,
            losses,
        )

    return run


def _average(coef: jax.Array, loss: jax.Array) -> jax.Array:
    """sum(coef * loss), with digits kept in the gradient.

    Where coefficients depend on the logits they sum to 1, so a constant taken from the
    losses changes no gradient. Rows of coefficient 0 add nothing, whatever they hold.
    """
    counts = jax.lax.stop_gradient(coef) > 0
    loss = jnp.where(counts, loss, 0.0)
    value = jax.lax.stop_gradient(jnp.sum(coef * loss))
    moving = jnp.sum(coef * jnp.where(counts, loss - value, 0.0))
    return value + (moving - jax.lax.stop_gradient(moving))


def _check_losses(losses: Mapping[str, jax.Array], coef: jax.Array) -> None:
    for name, loss in losses.items():
        if loss.shape != coef.shape:
            raise ValueError(
                f"loss {name!r}: shape {list(loss.shape)} for {list(coef.shape)} rows; "
                "return one mean loss per row."
            )


def _losses_read(spec: Spec) -> dict[str, str]:
    """Slot -> the loss it learns from; a single estimator is one slot."""
    parts = {_ONLY: spec} if spec.parts is None else spec.parts
    return {slot: part.learns_from for slot, part in parts.items()}


def _with_path(spec: Spec, weights: Any) -> Any:
    """The weights that carry a path, None elsewhere."""
    if spec.parts is None:
        return weights if PATH in spec.needs else None
    return {
        slot: weights[slot] if PATH in part.needs else None
        for slot, part in spec.parts.items()
    }


def _pairs(spec: Spec, weights_grad: Any, weights: Any) -> list[tuple[Any, Any]]:
    if spec.parts is None:
        return [] if weights_grad is None else [(weights_grad, weights)]
    grads = weights_grad or {}
    return [
        (grads[slot], weights[slot])
        for slot in spec.parts
        if grads.get(slot) is not None
    ]
