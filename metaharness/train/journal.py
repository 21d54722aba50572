"""What a run writes while it trains: metrics, and checkpoints that count on them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from metaharness.runlog.rundir import RunDirectory
from metaharness.runlog.sinks import Sinks, open_sinks
from metaharness.train.checkpoint import Checkpoints
from metaharness.train.config import TrainConfig


class Opened(NamedTuple):
    """tree, host: as they were saved, None for a run that starts at its beginning;
    rows: the metrics up to there; notes: in words, what was passed over."""

    tree: Any
    host: dict[str, Any] | None
    rows: list[dict[str, Any]]
    notes: tuple[str, ...]


class Journal:
    """Metrics and checkpoints of one run directory. A context manager."""

    def __init__(
        self, run: RunDirectory, config: TrainConfig, *, resume: bool = False
    ) -> None:
        self._run, self._config, self._resume = run, config, resume
        self._checkpoints = Checkpoints(run.checkpoints, config.checkpoint)
        self._sinks: Sinks | None = None

    def open(self, like: Any) -> Opened:
        """Open the metrics; a resumed run is cut back to its newest whole checkpoint.

        ``like``: a pytree of the structure that ``save`` gets.
        """
        found = self._checkpoints.restore(like) if self._resume else None
        host = found.host if found else None
        notes = found.notes if found else ()
        cut = step = None
        if self._resume:
            cut, step = (host["offset"], host["step"]) if host else (0, 0)
            if not found:
                notes = ("no checkpoint was left; the run starts at its beginning",)
        self._sinks = open_sinks(
            self._config.sinks, self._run, self._run.config, resume_at=cut, step=step
        )
        rows = self._run.read_metrics()
        return Opened(found.tree if found else None, host, rows, notes)

    def append(self, row: Mapping[str, Any]) -> None:
        """One row of metrics."""
        self._sinks.append(row)

    def save(self, at: int, step: int, tree: Any, host: Mapping[str, Any]) -> None:
        """A checkpoint at a place of the schedule, once: the metrics are on disk first.

        host: plain JSON; ``offset`` and ``step`` are added to it.
        """
        if at in self._checkpoints.steps():
            return
        self._sinks.log.sync()
        counted = {"offset": self._sinks.log.offset, "step": step}
        self._checkpoints.save(at, tree, {**host, **counted})

    @property
    def notes(self) -> list[str]:
        """Copies of the metrics that were switched off, in words."""
        return self._sinks.notes if self._sinks else []

    def close(self) -> None:
        if self._sinks:
            self._sinks.close()
        self._checkpoints.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
