"""Where the gate can be trusted: does it rank harnesses as sequential prompts do?"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from metaharness.stats import spearman


@dataclass
class GateRecord:
    """Pairs of gated and sequential losses of the same harnesses on the same items.

    Both are centred within their step and template, because steps read different items
    and templates differ by more than exemplars do.
    """

    num_tasks: int
    gated: list[list[float]] = field(default_factory=list)
    sequential: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gated = [[] for _ in range(self.num_tasks)]
        self.sequential = [[] for _ in range(self.num_tasks)]

    def add(
        self, gated: np.ndarray, sequential: np.ndarray, template: np.ndarray
    ) -> None:
        """Losses and templates of one step, each ``[task, row]``."""
        for task in range(self.num_tasks):
            for value in np.unique(template[task]):
                rows = template[task] == value
                for kept, losses in (
                    (self.gated, gated),
                    (self.sequential, sequential),
                ):
                    part = losses[task][rows]
                    kept[task].extend((part - part.mean()).tolist())

    def spearman(self) -> np.ndarray:
        """Rank correlation of each task, NaN where there are under three pairs."""
        return np.array(
            [
                spearman(np.array(a), np.array(b)) if len(a) >= 3 else np.nan
                for a, b in zip(self.gated, self.sequential, strict=True)
            ]
        )

    def num_pairs(self) -> Sequence[int]:
        """Pairs of each task."""
        return [len(pairs) for pairs in self.gated]

    def trusted(self, threshold: float) -> np.ndarray:
        """Bool ``[task]``: correlation known and at least ``threshold``."""
        if threshold <= -1:
            return np.ones((self.num_tasks,), bool)
        return np.nan_to_num(self.spearman(), nan=-1.0) >= threshold
