"""How well the gated pool ranks harnesses: Spearman over random ones, with interval."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaharness import keys
from metaharness.harness.objective import Problem, gated_losses, measured_losses
from metaharness.harness.space import Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.stats import spearman

_RESAMPLES = 1000


def gate_agreement(
    space: Space,
    *,
    num: int,
    seed: int,
    counter: BudgetCounter,
    num_packs: int = 4,
    pack_width: int = 128,
    chunk: int = 8,
) -> dict[str, dict[str, Any]]:
    """Task -> Spearman of gated and sequential loss over ``num`` random harnesses.

    Both losses are of the same validation items; the template is the first one for all,
    so that only exemplars differ. ``low`` and ``high`` are the 95% bootstrap interval
    over harnesses.
    """
    packs = space.pack("validation", width=pack_width)
    index = jnp.arange(min(num_packs, packs.items.shape[1]), dtype=jnp.int32)
    index = jnp.broadcast_to(index, (space.num_tasks, *index.shape))
    shots = np.stack(
        [
            [
                choice.exemplars
                for choice in space.harness.random_choices(
                    num,
                    task,
                    space.num_tasks,
                    keys.host_generator(
                        seed, stage="validation", step=task, purpose="draw"
                    ),
                )
            ]
            for task in range(space.num_tasks)
        ]
    )
    weights = jax.nn.one_hot(shots, len(space.harness.candidates)).sum(axis=2)
    template = jnp.zeros(shots.shape[:2], jnp.int32)
    active = jnp.ones((space.num_tasks,), bool)
    problem = Problem(space.model.decoder, space.table, packs, space.encode_pool())

    @jax.jit
    def both(problem, template, shots, weights):
        static = {"chunk": chunk, "implementation": space.implementation}
        sequential = measured_losses(
            problem, template, shots, index, active, width=space.width, **static
        )
        return sequential, gated_losses(
            problem, template, weights, index, active, **static
        )

    with counter.phase("gate"):
        sequential, gated = jax.device_get(
            both(problem, template, jnp.asarray(shots), weights)
        )
        counter.add(
            lm_calls=2 * shots.shape[0] * num,
            token_forwards=int(sequential.tokens.sum() + gated.tokens.sum())
            + space.pool_tokens,
        )
    rng = keys.host_generator(seed, stage="validation", step=0, purpose="bootstrap")
    out = {}
    for task, a, b in zip(space.tasks, sequential.loss, gated.loss, strict=True):
        draws = rng.integers(num, size=(_RESAMPLES, num))
        resampled = [spearman(a[rows], b[rows]) for rows in draws]
        low, high = np.nanquantile(resampled, [0.025, 0.975])
        out[task.name] = {
            "spearman": float(spearman(a, b)),
            "low": float(low),
            "high": float(high),
            "num_harnesses": num,
            "sequential_sd": float(a.std(ddof=1)),
        }
    return out
