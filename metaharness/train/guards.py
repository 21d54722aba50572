"""Guards of training: pure functions, each switched by a field of ``GuardConfig``."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from estimators import Family
from metaharness.train.stage_config import GuardConfig


def mask_at_random(
    key: jax.Array, allowed: jax.Array, *, keep: int, rate: float
) -> jax.Array:
    """Leave each allowed candidate out with chance ``rate``, but keep ``keep`` of them.

    A candidate that dominates is thus absent now and then, and the others are tried.

    Args:
        key: of this update.
        allowed: bool ``[task, pool]``.
        keep: candidates that stay at least, where so many are allowed.
        rate: in [0, 1).
    """
    noise = jax.random.uniform(key, allowed.shape)
    noise = jnp.where(allowed, noise, -1.0)
    kept = min(keep, allowed.shape[-1])
    best = jnp.sort(noise, axis=-1)[..., -kept, None]
    return allowed & ((noise >= rate) | (noise >= best))


def entropy_bonus(
    families: Mapping[str, Family],
    masks: Mapping[str, jax.Array],
    logits: Mapping[str, jax.Array],
) -> jax.Array:
    """Sum over slots of the mean entropy over tasks, nats; logits ``[task, pool]``."""
    total = jnp.zeros(())
    for slot, family in families.items():
        law = family.distribution(logits[slot], masks[slot])
        total += law.entropy().mean()
    return total


class Watch(NamedTuple):
    """What validation remembers.

    best: smallest validation loss so far, nats an answer, or infinity before the first;
    best_step: update of it; worse: validations in a row without a better one.
    """

    best: float = math.inf
    best_step: int = -1
    worse: int = 0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Watch":
        """The inverse of writing it as JSON, which has no infinity."""
        best = math.inf if value["best"] is None else value["best"]
        return cls(best, value["best_step"], value["worse"])


class Verdict(NamedTuple):
    """watch: the next one; improved: this state is the best so far; roll_back: return
    to the last good state."""

    watch: Watch
    improved: bool
    roll_back: bool


def judge(watch: Watch, loss: float, step: int, config: GuardConfig) -> Verdict:
    """What a validation loss (nats an answer) means for the run."""
    if loss < watch.best:
        return Verdict(Watch(loss, step, 0), True, False)
    limit = config.rollback
    # a loss that is not a number is above every limit
    back = limit is not None and not loss <= watch.best + limit
    return Verdict(watch._replace(worse=watch.worse + 1), False, back)


def out_of_patience(watch: Watch, config: GuardConfig) -> bool:
    """Whether too many validations in a row brought nothing better."""
    return 0 < config.patience <= watch.worse
