"""What every gradient estimator is: pure functions in three phases.

    state = estimator.init(key, logits)
    draw = estimator.draw(key, logits, state)         # which harnesses to evaluate
    losses = ...                                      # the caller's model, or a host
    credit = estimator.credit(logits, draw, losses, slope, state)

The estimate of d E[loss] / d logits is the gradient of

    sum(draw.coef * losses) + credit.surrogate

where ``coef`` and, for estimators with a path, ``weights`` depend on the logits. One
model evaluation serves every slot, and grading may happen on the host between phases
two and three. ``step.value_and_grad`` and ``step.ask`` / ``step.tell`` assemble it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from estimators.family import Family

VALUES, PATH, PROBE_SLOPE = "values", "path", "probe_slope"
"""What an estimator may need of the objective: its values, its gradient in the weights,
the slope of its relaxed form at the probe."""


class Memo(NamedTuple):
    """What ``credit`` and ``rebuild`` must know of a draw besides its outcomes.

    Attributes:
      mask: bool `[pool]`, the candidates that were allowed.
      group: int32 `[rows]`; rows of one group are independent draws of this slot under
        one and the same condition, so leave-one-out means stay within a group.
      noise: what else was drawn (Gumbel noise, free draws), or None.
    """

    mask: jax.Array
    group: jax.Array
    noise: Any = None


class Draw(NamedTuple):
    """Rows to evaluate; in a joint draw every field but ``coef`` is a dict by slot.

    Attributes:
      outcomes: int32 `[rows, k]`, hard choices. A subset's order is uniform.
      weights: float `[rows, pool]` (ranking: `[rows, k, pool]`), what a differentiable
        model consumes; differentiable in the logits where the estimator has a path.
      coef: float `[rows]`, how losses are averaged: 1 / rows, or probabilities.
      memo: ``Memo``; in a joint draw the slots' own draws.
      probe: float `[pool]` (ranking: `[k, pool]`) of sum k, an interior point
        independent of this step's draws where a slope is wanted, or None.
    """

    outcomes: Any
    weights: Any
    coef: jax.Array
    memo: Any
    probe: Any = None


class Credit(NamedTuple):
    """The estimator's extra term.

    Attributes:
      surrogate: scalar; its gradient in the logits is the estimator's extra term.
      state: the state after this step.
      metrics: name -> scalar (joint: slot -> those).
    """

    surrogate: jax.Array
    state: Any
    metrics: dict[str, Any]


class Spec(NamedTuple):
    """Static facts about an estimator.

    Attributes:
      name: as in the catalogue.
      family: of the slot; a joint estimator has slot -> family.
      needs: subset of {VALUES, PATH, PROBE_SLOPE}.
      unbiased: whether the expectation is the exact gradient of the expected loss.
      hard_forward: whether the evaluated weights are those of a deployable harness.
      rows: rows of a draw.
      min_rows: fewest rows of one group.
      evaluations: (n, k) -> model evaluations per step, a probe slope counting as one.
      enumerates: whether the rows are all outcomes, each once.
      weighted: whether rows are drawn together, each with its own coefficient; they
        cannot be split into strata.
      learns_from: name of the loss that a mapping of losses is read by.
      parts: slot -> spec of a joint estimator, else None.
    """

    name: str
    family: Family | Mapping[str, Family]
    needs: frozenset[str]
    unbiased: bool
    hard_forward: bool
    rows: int
    min_rows: int
    evaluations: Callable[[int, int], int]
    enumerates: bool = False
    weighted: bool = False
    learns_from: str = "likelihood"
    parts: "Mapping[str, Spec] | None" = None


class Estimator(NamedTuple):
    """Pure functions; shapes are static, keys explicit, nothing is changed in place.

    Attributes:
      init: (key, logits) -> state.
      draw: (key, logits, state, mask=None) -> Draw.
      credit: (logits, draw, losses, slope, state) -> Credit. Losses `[rows]`, or a
        mapping loss name -> `[rows]`; slope as ``draw.probe``, or None.
      spec: ``Spec``.
      rebuild: (logits, draw, state) -> Draw with the same outcomes and memo, its
        weights, coefficients and probe recomputed at these logits. ``draw`` is this
        after sampling; it differentiates a draw that has been to a host, and enumerates
        draws in tests.
    """

    init: Callable[..., Any]
    draw: Callable[..., Draw]
    credit: Callable[..., Credit]
    spec: Spec
    rebuild: Callable[[Any, Draw, Any], Draw]


def refuse_family(name: str, family: Family, kinds: tuple[str, ...]) -> None:
    """Refuse a family that an estimator does not fit.

    Raises:
      ValueError: the family's kind is not among ``kinds``.
    """
    if family.kind not in kinds:
        raise ValueError(
            f"estimator {name} does not fit the family {family.kind}; "
            f"it fits {', '.join(kinds)}."
        )


def loss_of(losses: jax.Array | Mapping[str, jax.Array], name: str) -> jax.Array:
    """The named loss; a bare array serves every name.

    Raises:
      ValueError: the mapping lacks the name.
    """
    if not isinstance(losses, Mapping):
        return losses
    if name not in losses:
        raise ValueError(
            f"loss {name!r} is missing among {sorted(losses)}; return it from the "
            "objective or name another one."
        )
    return losses[name]
