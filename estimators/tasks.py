"""An estimator over a leading task axis: logits `[task, pool]`."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from estimators.family import Family
from estimators.interface import Credit, Draw, Estimator
from estimators.masking import check_allowed


def over_tasks(estimator: Estimator) -> Estimator:
    """The estimator for every task at once; the loss is the *mean* over tasks.

    Logits, masks, states, draws, losses, slopes and metrics gain a leading `[task]`
    axis; ``draw.coef`` is `[task, rows]` and sums to 1 over both. The gradient in
    ``logits[t]`` is thus that of task t's expected loss divided by the number of tasks.
    Windows, baselines and draws of one task never touch another's. Spec: rows and
    evaluations are per task.
    """

    def num_tasks(logits: Any) -> int:
        return jax.tree.leaves(logits)[0].shape[0]

    def split(key: jax.Array, logits: Any) -> jax.Array:
        return jax.vmap(jax.random.fold_in, (None, 0))(
            key, jnp.arange(num_tasks(logits))
        )

    def shrink(draw: Draw, factor: float) -> Draw:
        return draw._replace(coef=draw.coef * factor)

    def init(key: jax.Array, logits: Any) -> Any:
        return jax.vmap(estimator.init)(split(key, logits), logits)

    def draw(key: jax.Array, logits: Any, state: Any, mask: Any = None) -> Draw:
        _check_masks(estimator.spec.family, mask)
        rows = jax.vmap(estimator.draw)(split(key, logits), logits, state, mask)
        return shrink(rows, 1.0 / num_tasks(logits))

    def rebuild(logits: Any, draw: Draw, state: Any) -> Draw:
        tasks = num_tasks(logits)
        rows = jax.vmap(estimator.rebuild)(logits, shrink(draw, tasks), state)
        return shrink(rows, 1.0 / tasks)

    def credit(logits: Any, draw: Draw, losses: Any, slope: Any, state: Any) -> Credit:
        tasks = num_tasks(logits)
        each = jax.vmap(estimator.credit)(
            logits, shrink(draw, tasks), losses, slope, state
        )
        return each._replace(surrogate=jnp.mean(each.surrogate))

    return Estimator(init, draw, credit, estimator.spec, rebuild)


def _check_masks(family: Family | Mapping[str, Family], mask: Any) -> None:
    """The laws see traced masks under vmap; a concrete one is refused here."""
    if mask is None:
        return
    if isinstance(family, Mapping):
        for slot, own in mask.items():
            if own is not None:
                check_allowed(own, family[slot].k, f"slot {slot!r}")
    else:
        check_allowed(mask, family.k, family.kind)
