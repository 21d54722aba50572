"""Ctrl-C at a place where nothing is lost.

The first one is remembered, so that the work in hand ends whole; the second one
interrupts at once.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deferred_interrupt(message: str = "") -> Iterator[Callable[[], bool]]:
    """Inside, the first SIGINT only makes the yielded function say True.

    ``message`` then goes to standard error. Outside the main thread, where no handler
    can be set, nothing changes.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number, frame):
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        if message:
            print(message, file=sys.stderr, flush=True)

    signal.signal(signal.SIGINT, handle)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
