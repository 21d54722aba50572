"""Progress of long work: a live bar on a terminal, a plain line every five seconds.

Work that ends sooner leaves no plain line. Everything goes to standard error.
"""

import threading
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

_EVERY_SECONDS = 5.0


class Progress:
    """Context manager around one piece of work.

    A thread of its own writes the lines, so that a long compilation or a stuck step
    shows as well.
    """

    def __init__(
        self,
        name: str,
        *,
        total: int | None = None,
        quiet: bool = False,
        console: Console | None = None,
        every_s: float = _EVERY_SECONDS,
    ):
        """
        Args:
          name: what is being done.
          total: steps to do; None where unknown.
          quiet: show nothing.
          console: where to; standard error by default.
          every_s: seconds between plain lines.
        """
        self._name = name
        self._total = total
        self._quiet = quiet
        self._console = console or Console(stderr=True)
        self._every_s = every_s
        self._step = 0
        self._values: Mapping[str, float] = {}
        self._bar: RichProgress | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def update(self, step: int, values: Mapping[str, float] | None = None) -> None:
        """Sets what is shown.

        Args:
          step: steps done so far.
          values: numbers to show, by name; the last ones stay when None.
        """
        self._step = step
        self._updated = time.monotonic()
        if values is not None:
            self._values = dict(values)
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0], completed=step, live=_words(self._values)
            )

    def __enter__(self) -> "Progress":
        self._start = self._updated = time.monotonic()
        if self._quiet:
            return self
        if self._console.is_terminal:
            self._bar = _bar(self._console)
            self._bar.add_task(self._name, total=self._total, live="")
            self._bar.start()
        else:
            self._thread = threading.Thread(target=self._write_lines, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._thread is not None:
            self._stop.set()
            self._thread.join()

    def _write_lines(self) -> None:
        wrote = False
        while not self._stop.wait(self._every_s):
            self._write_line()
            wrote = True
        if wrote:  # the last numbers of work that was shown
            self._write_line()

    def _write_line(self) -> None:
        steps = (
            f"{self._step}" if self._total is None else f"{self._step}/{self._total}"
        )
        seconds = f"{time.monotonic() - self._start:.0f} s{self._time_left()}"
        parts = [f"{self._name}  {steps}", _words(self._values), seconds]
        self._console.print(
            "  ".join(part for part in parts if part),
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def _time_left(self) -> str:
        """From the mean time of the steps that are done; "" where it cannot be said."""
        if self._total is None or not 0 < self._step < self._total:
            return ""
        per_step = (self._updated - self._start) / self._step
        this_step = max(0.0, self._updated + per_step - time.monotonic())
        left = this_step + per_step * (self._total - self._step - 1)
        return f", about {left:.0f} s left"


def _bar(console: Console) -> RichProgress:
    return RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[live]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def _words(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())
