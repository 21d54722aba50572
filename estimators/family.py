"""Static description of one slot's choice, from which estimators are built."""

import dataclasses
import math

import distrax
import jax
import jax.numpy as jnp
import numpy as np

from estimators.categorical import Categorical
from estimators.outcomes import combinations, permutations
from estimators.ranking import Ranking
from estimators.subset import Subset

KINDS = ("categorical", "subset", "ranking")


@dataclasses.dataclass(frozen=True)
class Family:
    """The kind of choice and its sizes.

    Attributes:
      kind: "categorical" (1 of n), "subset" (k of n) or "ranking" (ordered k of n).
      n: pool size.
      k: how many are taken; 1 for a categorical.

    Raises:
      ValueError: unknown kind, or k outside 1..n.
    """

    kind: str
    n: int
    k: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f"family {self.kind!r} is unknown; use one of {', '.join(KINDS)}."
            )
        if not 1 <= self.k <= self.n:
            raise ValueError(
                f"family {self.kind}: takes {self.k} of a pool of {self.n}; "
                f"take between 1 and {self.n}."
            )
        if self.kind == "categorical" and self.k != 1:
            raise ValueError(
                f"family categorical takes 1, not {self.k}; use subset or ranking."
            )

    def distribution(
        self, logits: jax.Array, mask: jax.Array | None = None
    ) -> distrax.Distribution:
        """The law at these logits.

        Args:
          logits: real `[..., n]`.
          mask: bool `[..., n]`, True means allowed; None allows all.

        Raises:
          ValueError: the pool axis is not n, or k is above the allowed candidates.
        """
        if jnp.shape(logits)[-1:] != (self.n,):
            raise ValueError(
                f"family {self.kind}: logits {list(jnp.shape(logits))} for a pool of "
                f"{self.n} candidates; rebuild the family after editing the pool."
            )
        if self.kind == "categorical":
            return Categorical(logits, mask)
        if self.kind == "subset":
            return Subset(logits, self.k, mask)
        return Ranking(logits, self.k, mask)

    @property
    def num_outcomes(self) -> int:
        """How many outcomes there are, excluded candidates included."""
        if self.kind == "ranking":
            return math.perm(self.n, self.k)
        return math.comb(self.n, self.k)

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """Shape of one row of weights: `[k, n]` for a ranking, `[n]` otherwise."""
        return (self.k, self.n) if self.kind == "ranking" else (self.n,)

    def enumerate(self) -> np.ndarray:
        """Every outcome, int32 `[num_outcomes, k]`.

        Raises:
          ValueError: more outcomes than ``outcomes.LIMIT``.
        """
        if self.kind == "ranking":
            return permutations(self.n, self.k)
        return combinations(self.n, self.k)

    def weights(self, outcomes: jax.Array, dtype: jnp.dtype = jnp.float32) -> jax.Array:
        """Outcomes int `[..., k]` as k-hot `[..., n]`; ranking, `[..., k, n]`."""
        hot = jax.nn.one_hot(outcomes, self.n, dtype=dtype)
        return hot if self.kind == "ranking" else jnp.sum(hot, axis=-2)
