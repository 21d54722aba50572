"""Scorers that run code: one sandbox for the whole process, opened at its first use."""

import atexit
import os
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from metaharness.sandbox import Sandbox
    from metaharness.tasks.split_grading import Grade
    from metaharness.tasks.task import Item, Scorer


class Grader(Protocol):
    """Grades a completion of an item; only broken data makes it raise."""

    def __call__(
        self, item: "Item", completion: str, sandbox: "Sandbox"
    ) -> "Grade": ...


class _Shared:
    """A sandbox that is opened once in each process, for all of its threads.

    A forked child opens its own: the helper process behind a sandbox talks to the
    process that started it. The child gets a new lock as well, since a thread of the
    parent may have held the old one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._watched = False

    def get(self) -> "Sandbox":
        with self._lock:
            if not self._watched:
                os.register_at_fork(after_in_child=self._after_fork)
                atexit.register(self.close)
                self._watched = True
            if self._sandbox is None:
                from metaharness.sandbox import open_sandbox

                self._sandbox = open_sandbox()
            return self._sandbox

    def close(self) -> None:
        """Ends it; the next `get` opens another one."""
        with self._lock:
            opened, self._sandbox = self._sandbox, None
        if opened is not None:
            opened.close()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._sandbox = None


_SHARED = _Shared()


def shared_sandbox() -> "Sandbox":
    """This process's sandbox, opened at the first call and closed at exit.

    Raises SandboxError on a machine that cannot isolate: nothing runs unconfined.
    """
    return _SHARED.get()


def close_shared_sandbox() -> None:
    """Ends this process's sandbox, if one is open; the next use opens another."""
    _SHARED.close()


def execution_scorer(grade: Grader) -> "Scorer":
    """A scorer that grades in the shared sandbox: 1 for a pass, else 0.

    Total in the text. Raises SandboxError where `shared_sandbox` does, which says
    something about the machine and nothing about the answer.
    """

    def score(text: str, item: "Item") -> float:
        return float(grade(item, text, shared_sandbox()).passed)

    return score
