"""The first Ctrl-C only asks, the second interrupts, and none is left behind."""

import os
import signal
import threading

import pytest

from metaharness.runlog.interrupt import deferred_interrupt


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_nothing_is_asked_without_a_signal():
    with deferred_interrupt() as asked:
        assert not asked()


def test_the_first_only_asks(capsys):
    with deferred_interrupt("stopping after this update") as asked:
        press()
        assert asked() and asked()
    printed = capsys.readouterr()
    assert printed.err == "stopping after this update\n" and printed.out == ""


def test_nothing_is_printed_without_a_message(capsys):
    with deferred_interrupt() as asked:
        press()
        assert asked()
    assert capsys.readouterr() == ("", "")


def test_the_second_interrupts_at_once():
    reached = []
    with pytest.raises(KeyboardInterrupt):
        with deferred_interrupt():
            press()
            reached.append("first")
            press()
            reached.append("second")
    assert reached == ["first"]


def test_each_use_begins_unasked():
    for _ in range(2):
        with deferred_interrupt() as asked:
            assert not asked()
            press()
            assert asked()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_handler_from_before_is_put_back(error):
    def own(number, frame):
        raise AssertionError("not now")

    before = signal.signal(signal.SIGINT, own)
    try:
        with pytest.raises(error) if error else deferred_interrupt():
            with deferred_interrupt():
                assert signal.getsignal(signal.SIGINT) is not own
                if error:
                    raise error
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_changes_nothing():
    """No handler can be set there; the main thread's stays."""
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with deferred_interrupt("never printed") as asked:
            seen.append((asked(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
