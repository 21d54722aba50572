"""Where a run's metrics go: ``metrics.jsonl`` first, then copies for other viewers.

The file is the truth: what cannot be written to it stops the run. A copy never does:
one that fails is switched off and the run says so at its end.
"""

import contextlib
import importlib
import importlib.util
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from metaharness.errors import InputError
from metaharness.runlog.jsonfile import json_safe
from metaharness.runlog.metrics import MetricsLog
from metaharness.runlog.rundir import RunDirectory

PROJECT = "metaharness"  # where W&B and Trackio list the runs


class MetricSink(Protocol):
    """Takes the rows of one run in their order."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Takes one row: nested JSON with its update under "step"."""

    def close(self) -> None:
        """Writes out what is held back."""


class SinkKind(NamedTuple):
    """What a name of a sink stands for.

    package: module that has to be installed; setup.cfg has an extra of the sink's name
    for it. open: makes the sink of a run from its directory, its resolved config and
    the last step that a resumed run keeps (None for a new run). What it raises, and
    what the sink raises later, costs the run this copy and no more.
    """

    package: str
    open: Callable[[RunDirectory, Mapping[str, Any], int | None], MetricSink]


class Sinks:
    """The metrics file of a run and its copies. A context manager.

    Attributes:
      log: the file, first in everything.
      notes: one sentence for each copy that was switched off.
    """

    def __init__(self, log: MetricsLog):
        self.log = log
        self.notes: list[str] = []
        self._copies: dict[str, MetricSink] = {}

    def add(self, name: str, make: Callable[[], MetricSink]) -> None:
        """Opens one more copy, which gets the rows from now on."""
        try:
            self._copies[name] = make()
        except Exception as error:
            self._note(name, "could not be opened and is off", error)

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes a row to the file, then to each copy that still works."""
        self.log.append(row)
        for name, sink in list(self._copies.items()):
            try:
                sink.append(row)
            except Exception as error:
                where = f"failed at step {row.get('step')} and was switched off"
                self._note(name, where, error)
                del self._copies[name]
                with contextlib.suppress(Exception):  # what it holds may be of use
                    sink.close()

    def close(self) -> None:
        """Closes the file, then the copies."""
        self.log.close()
        while self._copies:
            name, sink = self._copies.popitem()
            try:
                sink.close()
            except Exception as error:
                self._note(name, "failed when it was closed", error)

    def __enter__(self) -> "Sinks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, name: str, what: str, error: Exception) -> None:
        said = textwrap.shorten(str(error), 200) or "no message"
        self.notes.append(
            f"Metrics for {name} {what} ({type(error).__name__}: {said}); "
            "metrics.jsonl is complete."
        )


def check_sinks(names: Sequence[str]) -> None:
    """Refuses what cannot be opened; cheap, to be called before a run is made.

    Raises InputError: an unknown name, one twice, or a package that is not installed.
    """
    for place, name in enumerate(names):
        if name not in SINKS:
            raise InputError(
                f"sinks: expected names among {', '.join(SINKS)}, got {name!r}; use "
                "these or none (metrics.jsonl is always written)"
            )
        if name in names[:place]:
            raise InputError(
                f"sinks: expected different names, got {name!r} twice; name it once"
            )
        package = SINKS[name].package
        spec = importlib.util.find_spec(package)
        # A mere folder of that name, as wandb leaves one where it ran, has no origin.
        if spec is None or spec.origin is None:
            raise InputError(
                f"sink {name!r}: expected the package {package}, found it not "
                f"installed; pip install 'metaharness[{name}]'"
            )


def open_sinks(
    names: Sequence[str],
    run: RunDirectory,
    config: Mapping[str, Any],
    *,
    resume_at: int | None = None,
    step: int | None = None,
) -> Sinks:
    """The metrics of a run, open for appending.

    Args:
      names: copies besides the file, keys of `SINKS`.
      run: its directory.
      config: resolved configuration, for viewers that show it.
      resume_at: bytes of the file that a resumed run keeps; None keeps all.
      step: last step that a resumed run keeps; later ones come again. None: a new run.

    Raises:
      InputError: see `check_sinks`.
      RunError: the file is not what the checkpoint counts on.
    """
    check_sinks(names)
    sinks = Sinks(run.metrics(resume_at=resume_at))
    try:
        for name in names:
            opener = SINKS[name].open
            sinks.add(name, lambda opener=opener: opener(run, config, step))
    except BaseException:  # Ctrl-C while one connects
        sinks.close()
        raise
    return sinks


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a row by path, without its step; text, flags, None and NaN left out.

    ``{"loss": {"sum": 2.0}, "p": [0.5]}`` gives ``{"loss/sum": 2.0, "p/0": 0.5}``.
    """
    return dict(_leaves("", {k: v for k, v in json_safe(row).items() if k != "step"}))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, list):
        value = {str(index): item for index, item in enumerate(value)}
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{path}/{key}".removeprefix("/"), item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


class _TensorBoard:
    """Event files, by tensorboardX 2.6."""

    def __init__(self, writer: Any):
        self._writer = writer

    def append(self, row: Mapping[str, Any]) -> None:
        if row.get("step") is None:
            return  # it has no place on the axis
        for path, value in scalars(row).items():
            self._writer.add_scalar(path, value, row["step"])

    def close(self) -> None:
        self._writer.close()


class _Tracker:
    """A run of W&B, or of a package with its interface."""

    def __init__(self, run: Any, finish: Callable[[], None]):
        self._run = run
        self._finish = finish

    def append(self, row: Mapping[str, Any]) -> None:
        if row.get("step") is not None:
            self._run.log(scalars(row), step=row["step"])

    def close(self) -> None:
        with _aside():
            self._finish()


def _tensorboard(
    run: RunDirectory, config: Mapping[str, Any], step: int | None
) -> MetricSink:
    """Events after the resumed step are hidden: they come again."""
    writer = importlib.import_module("tensorboardX").SummaryWriter
    return _TensorBoard(
        writer(
            logdir=str(run.path / "tensorboard"),
            purge_step=None if step is None else step + 1,
            flush_secs=10,  # a kill loses what is held back; two minutes by default
            # files are named by the second, and one of the same name is overwritten
            filename_suffix="" if step is None else f".after{step}",
        )
    )


def _wandb(
    run: RunDirectory, config: Mapping[str, Any], step: int | None
) -> MetricSink:
    """As wandb 0.31 takes it; what comes again for a step that it has, it drops."""
    with _aside():
        made = importlib.import_module("wandb").init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=stable_id(run),
            name=run.path.resolve().name,
            dir=str(run.path.resolve()),
            config=json_safe(config),
            resume="allow",
            reinit="create_new",  # leaves a run of the caller's own alone
        )
    return _Tracker(made, made.finish)


def _trackio(
    run: RunDirectory, config: Mapping[str, Any], step: int | None
) -> MetricSink:
    """As trackio 0.43 takes it; a run is found again by its name.

    Rows that come again after a resume are there twice, with equal values.
    """
    trackio = importlib.import_module("trackio")
    with _aside():
        made = trackio.init(
            project=PROJECT,
            name=stable_id(run),
            config=json_safe(config),
            resume="allow",
            embed=False,
        )
    # not made.finish: the package would finish it again, and say so, at exit
    return _Tracker(made, trackio.finish)


def stable_id(run: RunDirectory) -> str:
    """Names a run in other systems, the same after a resume.

    The directory's name and the time of its making: a folder that was deleted and made
    again is another run.
    """
    name = re.sub(r"[^\w.-]+", "-", run.path.resolve().name, flags=re.ASCII)
    created = re.sub(r"\D", "", str(run.provenance.get("created", "")))[:14]
    return f"{name}-{created}".strip("-")


def _aside() -> contextlib.AbstractContextManager[Any]:
    """Standard output is for results; what these packages print goes beside it."""
    return contextlib.redirect_stdout(sys.stderr)


SINKS: dict[str, SinkKind] = {
    "tensorboard": SinkKind("tensorboardX", _tensorboard),
    "wandb": SinkKind("wandb", _wandb),
    "trackio": SinkKind("trackio", _trackio),
}
