"""Going on with a run that was stopped: only as the run that it was."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from components.extraction import parser_digest
from metaharness.errors import InputError, RunError
from metaharness.harness.slots import Harness
from metaharness.model.load import Model
from metaharness.runlog import jsonfile
from metaharness.runlog.report_data import from_json
from metaharness.runlog.rundir import RunDirectory
from metaharness.tasks.task import Task
from metaharness.train.config import TrainConfig
from metaharness.train.config_file import check_same, read_config


def data_digests(
    model: Model, tasks: Sequence[Task], harness: Harness
) -> dict[str, str]:
    """What a run reads: name -> sha256 of the weights, the pools, each task, and of the
    code that reads answers where a policy decides what an answer is."""
    parser = {"parser": parser_digest()} if harness.output else {}
    pools = hashlib.sha256(jsonfile.dumps(harness).encode()).hexdigest()
    return {
        "model": model.digest,
        "harness": pools,
        **parser,
        **{task.name: task.fingerprint for task in tasks},
    }


def stored_config(path: Path, kind: type = TrainConfig) -> TrainConfig:
    """The configuration that a run was started with.

    Raises RunError: there is no run, or it is of another version.
    """
    run = RunDirectory.open(path)
    return read_config(run.config, kind, source=str(run.path / "config.json"))


def open_to_resume(
    path: Path, asked: TrainConfig | None, digests: Mapping[str, str]
) -> tuple[RunDirectory, TrainConfig]:
    """The run and the configuration to go on with.

    asked: None takes the run's own.

    Raises:
        RunError: there is no run, or it is finished.
        InputError: the configuration, the weights, the pools or a task are not those
            that the run was started with.
    """
    run = RunDirectory.open(path)
    config = stored_config(path)
    if asked is not None:
        check_same(config, asked)
        config = asked
    known = run.provenance.get("data", {})
    changed = [
        name for name in {**known, **digests} if known.get(name) != digests.get(name)
    ]
    if changed:
        raise InputError(
            f"resume: expected the data that {path} was started with, got other "
            f"contents for {', '.join(changed)}; restore them, or start a new run"
        )
    if (run.path / "report.json").is_file():
        made = from_json(run.read_json("report.json"))
        if made.complete:
            raise RunError(
                f"{path}: expected a run that was stopped, found a finished one; its "
                f"report is {run.report_file}"
            )
    return run, config
