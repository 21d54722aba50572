"""Independent choices over named slots: the law of a whole harness."""

from collections.abc import Mapping

import distrax
import jax
import numpy as np

from estimators.outcomes import check_countable


class Product(distrax.Distribution):
    """Independent choices; outcomes are dicts slot -> int32 `[k]`.

    Args:
      slots: slot name -> distribution of this package, all of one batch shape.

    Raises:
      ValueError: no slot, or batch shapes that differ.
    """

    def __init__(self, slots: Mapping[str, distrax.Distribution]):
        super().__init__()
        if not slots:
            raise ValueError("Product: no slots; give at least one distribution.")
        shapes = {slot: dist.batch_shape for slot, dist in slots.items()}
        if len(set(shapes.values())) > 1:
            raise ValueError(f"Product: batch shapes differ, {shapes}; give one shape.")
        self._slots = dict(slots)

    @property
    def slots(self) -> dict[str, distrax.Distribution]:
        """The distribution of each slot."""
        return dict(self._slots)

    @property
    def event_shape(self) -> dict[str, tuple[int, ...]]:
        return {slot: dist.event_shape for slot, dist in self._slots.items()}

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return next(iter(self._slots.values())).batch_shape

    def _sample_n(self, key: jax.Array, n: int) -> dict[str, jax.Array]:
        keys = jax.random.split(key, len(self._slots))
        return {
            slot: dist.sample(seed=keys[i], sample_shape=(n,))
            for i, (slot, dist) in enumerate(self._slots.items())
        }

    def log_prob(self, value: Mapping[str, jax.Array]) -> jax.Array:
        """Sum over the slots of their log-probabilities, `[...]`."""
        return sum(dist.log_prob(value[slot]) for slot, dist in self._slots.items())

    def entropy(self) -> jax.Array:
        """Sum of the slots' entropies in nats, `[...]`."""
        return sum(dist.entropy() for dist in self._slots.values())

    def kl_divergence(self, other_dist: "Product") -> jax.Array:
        """Sum of the slots' divergences in nats, `[...]`.

        Raises:
          ValueError: other slots, or a slot of another family or size.
        """
        others = other_dist.slots if isinstance(other_dist, Product) else {}
        if set(others) != set(self._slots):
            raise ValueError(
                f"divergence of a Product of slots {sorted(self._slots)} from "
                f"{type(other_dist).__name__} of {sorted(others)}; give the same slots."
            )
        return sum(
            dist.kl_divergence(others[slot]) for slot, dist in self._slots.items()
        )

    def mode(self) -> dict[str, jax.Array]:
        """The likeliest outcome of each slot."""
        return {slot: dist.mode() for slot, dist in self._slots.items()}

    def marginals(self) -> dict[str, jax.Array]:
        """Marginals of each slot."""
        return {slot: dist.marginals() for slot, dist in self._slots.items()}

    def enumerate(self) -> dict[str, np.ndarray]:
        """Every harness: slot -> int32 `[outcomes, k]`, the last slot varying fastest.

        Raises:
          ValueError: more harnesses than ``outcomes.LIMIT``.
        """
        tables = {slot: dist.enumerate() for slot, dist in self._slots.items()}
        sizes = [len(table) for table in tables.values()]
        check_countable(int(np.prod(sizes, dtype=object)), "harnesses")
        index = np.unravel_index(np.arange(int(np.prod(sizes))), sizes)
        return {
            slot: table[rows]
            for (slot, table), rows in zip(tables.items(), index, strict=True)
        }
