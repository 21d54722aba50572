"""The run directory: the product of every command.

config.json       resolved configuration
provenance.json   code, versions, device, data: see `provenance`
metrics.jsonl     one JSON object a line, append-only
checkpoints/      training state (Orbax)
harness.json      learned probabilities and the chosen candidates
baselines.json    best harness of each random search at equal tokens
report.json       the numbers of the report page
report.html       the page itself
"""

import dataclasses
import datetime
import os
from pathlib import Path
from typing import Any

from metaharness.errors import RunError
from metaharness.runlog import jsonfile
from metaharness.runlog.metrics import MetricsLog, read_metrics

_CONFIG = "config.json"
_PROVENANCE = "provenance.json"
_METRICS = "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """Paths and files of one run. Made by `create` or `open`, not directly."""

    path: Path

    @classmethod
    def create(
        cls, path: str | os.PathLike, *, config: Any, provenance: Any
    ) -> "RunDirectory":
        """Makes the directory with its configuration and provenance.

        Args:
          path: must be absent or an empty folder.
          config: resolved configuration, a dataclass or dict.
          provenance: what `provenance.collect` returned.

        Raises:
          RunError: something is there already.
        """
        run = cls(Path(path))
        if run.path.exists() and not run.path.is_dir():
            raise RunError(
                f"{run.path}: expected a new or empty folder, found a file; name"
                " another folder."
            )
        if run.path.is_dir() and any(run.path.iterdir()):
            remedy = (
                "resume that run or name another folder"
                if (run.path / _CONFIG).exists()
                else "name another folder"
            )
            raise RunError(
                f"{run.path}: expected a new or empty folder, found"
                f" {len(list(run.path.iterdir()))} entries; {remedy}."
            )
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_json(_PROVENANCE, provenance)
        # last: a folder with a configuration is a run
        run.write_json(_CONFIG, config)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike) -> "RunDirectory":
        """Opens an existing run.

        Raises:
          RunError: there is no run at that path.
        """
        run = cls(Path(path))
        if not run.path.is_dir():
            raise RunError(f"{run.path}: expected a run directory, found none.")
        if not (run.path / _CONFIG).is_file():
            raise RunError(
                f"{run.path}: expected a run directory, found no {_CONFIG} in it; name"
                " the folder that a command printed as its run."
            )
        return run

    @property
    def config(self) -> dict[str, Any]:
        return self.read_json(_CONFIG)

    @property
    def provenance(self) -> dict[str, Any]:
        return self.read_json(_PROVENANCE)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def harness_file(self) -> Path:
        return self.path / "harness.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def metrics(self, *, resume_at: int | None = None) -> MetricsLog:
        """Metrics file open for appending, cut to ``resume_at`` bytes if given."""
        return MetricsLog(self.path / _METRICS, resume_at=resume_at)

    def read_metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.path / _METRICS)

    def write_json(self, name: str, value: Any) -> None:
        """Writes a file of this run whole or not at all."""
        jsonfile.write_json(self.path / name, value)

    def read_json(self, name: str) -> Any:
        return jsonfile.read_json(self.path / name)


def new_path(parent: str | os.PathLike, command: str) -> Path:
    """A path below parent that does not exist yet: command, date, time (UTC)."""
    now = datetime.datetime.now(datetime.UTC)
    first = Path(parent) / f"{command}-{now:%Y%m%d-%H%M%S}"
    path, number = first, 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path
