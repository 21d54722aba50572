"""Size and place of a low-rank adapter; loads no arrays."""

import math
from dataclasses import dataclass

from metaharness.errors import InputError

TARGETS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
"""Every linear layer of a block. Embedding and output matrix are never adapted: where
they are tied an update of one would silently be one of the other."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Size and place of an adapter; every field is static under jit."""

    rank: int = 8
    """columns of A and rows of B, at least 1"""
    alpha: float = 16.0
    """the update is scaled by alpha / rank, > 0"""
    targets: tuple[str, ...] = TARGETS
    """linear layers that are adapted, some of ``TARGETS``"""
    dropout: float = 0.0
    """share of each adapted layer's input that training drops, in [0, 1)"""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(
                f"lora.rank: expected at least 1, got {self.rank}; raise it"
            )
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise InputError(
                f"lora.alpha: expected a number > 0, got {self.alpha}; raise it"
            )
        if not 0 <= self.dropout < 1:
            raise InputError(
                f"lora.dropout: expected [0, 1), got {self.dropout}; lower it"
            )
        unknown = [name for name in self.targets if name not in TARGETS]
        if unknown or not self.targets or len(set(self.targets)) < len(self.targets):
            raise InputError(
                f"lora.targets: expected different ones of {', '.join(TARGETS)}, got "
                f"{', '.join(self.targets) or 'none'}; embeddings are not adapted"
            )

    @property
    def scale(self) -> float:
        """Factor of the update, alpha / rank."""
        return self.alpha / self.rank
