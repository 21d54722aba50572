"""From logits to harnesses: the likeliest one, and samples."""

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.harness.slots import Choice
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.train.state import Logits, TrainState, chances


def probabilities(space: Space, state: TrainState) -> dict[str, np.ndarray]:
    """Slot -> chance of each candidate to be chosen, ``[task, pool]``."""
    return jax.device_get(chances(space, state.logits))


def mode(space: Space, logits: Logits) -> dict[str, jax.Array]:
    """Slot -> the likeliest outcome of each task, int32 ``[task, k]``, ascending."""
    return {
        slot: family.distribution(logits[slot], jnp.asarray(space.masks[slot]))
        .mode()
        .reshape(space.num_tasks, -1)
        for slot, family in space.families.items()
    }


def mode_choices(space: Space, state: TrainState) -> list[Choice]:
    """The likeliest harness of each task; exemplars in the order of their ids."""
    return _choices(space, jax.device_get(mode(space, state.logits)))


def sampled_choices(
    space: Space, state: TrainState, num: int, key: jax.Array
) -> list[list[Choice]]:
    """``num`` harnesses of each task from the learned probabilities."""
    out = []
    for number in range(num):
        picked = {}
        for index, (slot, family) in enumerate(sorted(space.families.items())):
            law = family.distribution(
                state.logits[slot], jnp.asarray(space.masks[slot])
            )
            own = jax.random.fold_in(jax.random.fold_in(key, number), index)
            picked[slot] = np.asarray(law.sample(seed=own))
        out.append(_choices(space, picked))
    return [list(task) for task in zip(*out, strict=True)]


def _choices(space: Space, picked: dict[str, np.ndarray]) -> list[Choice]:
    out = []
    for task in range(space.num_tasks):
        shots: tuple[int, ...] = ()
        if EXEMPLARS in picked:
            shots = tuple(sorted(int(i) for i in picked[EXEMPLARS][task]))
        single = {
            slot: int(picked[slot][task].reshape(-1)[0])
            for slot in (TEMPLATE, *space.harness.policy_slots)
        }
        out.append(Choice(shots, **single))
    return out
