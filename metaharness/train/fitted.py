"""What training leaves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.train.deploy import mode_choices
from metaharness.train.guards import Watch
from metaharness.train.state import TrainState
from metaharness.train.trust import GateRecord


class Finalist(NamedTuple):
    """A harness that may be deployed, and where it comes from."""

    choice: Choice
    name: str


class Standing(NamedTuple):
    """What validation items said of a task's finalists, the likeliest first.

    losses: mean of each; gain: the likeliest's loss less the smallest one; error:
    standard error of the gain, paired by item; deployed: place of the one to deploy.
    """

    finalists: tuple[Finalist, ...]
    losses: tuple[float, ...]
    num_items: int
    gain: float
    error: float
    deployed: int


@dataclass(frozen=True)
class Fitted:
    """Result of training.

    state: the last state, or the best validated one; trace: one row an update (as in
    ``metrics.jsonl``); validations: one row a validation; gate: pairs of gated and
    sequential losses; trusted: bool ``[task]``; watch: what validation found; stopped:
    why training ended before its last update, or ""; notes: what a reader should know;
    returned: whether the state is an earlier one, which validated best; deployed: the
    harness of each task, where something else than likelihood decided; standing: by
    task, what it was chosen from.
    """

    state: TrainState
    trace: list[dict[str, Any]]
    gate: GateRecord
    trusted: np.ndarray
    stopped: str
    validations: list[dict[str, Any]] = field(default_factory=list)
    watch: Watch = Watch()
    notes: tuple[str, ...] = ()
    returned: bool = False
    deployed: tuple[Choice, ...] | None = None
    standing: Mapping[str, Standing] = field(default_factory=dict)

    def choices(self, space: Space) -> list[Choice]:
        """The harness of each task that is deployed: its likeliest, or ``deployed``."""
        if self.deployed is not None:
            return list(self.deployed)
        return mode_choices(space, self.state)
