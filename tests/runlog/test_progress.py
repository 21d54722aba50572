"""Progress: lines off a terminal, a live bar on one, silence when asked."""

import io
import time

from rich.console import Console

from metaharness.runlog.progress import Progress


def console(terminal):
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=100, color_system=None
    )


def text(target):
    return target.file.getvalue()


def wait_for(target, word):
    for _ in range(200):
        if word in text(target):
            return
        time.sleep(0.02)
    raise AssertionError(f"{word!r} never shown: {text(target)!r}")


def test_off_a_terminal_a_line_shows_step_values_and_time_left():
    target = console(terminal=False)
    with Progress("search", total=4, console=target, every_s=0.05) as bar:
        bar.update(1, {"loss": 2.12345})
        wait_for(target, "1/4")
        bar.update(2)
        wait_for(target, "2/4  loss 2.123")
        bar.update(4, {"loss": 1.0})
    lines = text(target).splitlines()
    assert lines[0].startswith("search  1/4  loss 2.123  ")
    assert lines[0].endswith("s left")
    assert lines[-1].startswith("search  4/4  loss 1  ")
    assert "left" not in lines[-1]


def test_time_left_falls_while_a_step_takes_its_time():
    target = console(terminal=False)
    with Progress("search", total=2, console=target, every_s=0.3) as bar:
        time.sleep(2.2)
        bar.update(1)
        time.sleep(1.3)
    left = [
        int(line.split("about ")[1].split()[0])
        for line in text(target).splitlines()
        if "about" in line
    ]
    assert left[0] == 2 and left[-1] == 1
    assert left == sorted(left, reverse=True)


def test_work_that_hangs_before_its_first_step_shows_too():
    target = console(terminal=False)
    with Progress("compile", console=target, every_s=0.05):
        wait_for(target, "compile  0  0 s")


def test_short_work_leaves_no_line():
    target = console(terminal=False)
    with Progress("quick", total=1, console=target) as bar:
        bar.update(1, {"loss": 1.0})
    assert text(target) == ""


def test_on_a_terminal_a_bar_shows_the_live_loss():
    target = console(terminal=True)
    with Progress("search", total=10, console=target) as bar:
        bar.update(7, {"loss": 2.5})
    assert "7/10" in text(target) and "loss 2.5" in text(target)


def test_markup_in_names_is_shown_as_text():
    for terminal in (False, True):
        target = console(terminal)
        with Progress("[red]x[/red]", console=target, every_s=0.02):
            wait_for(target, "[red]x[/red]")


def test_quiet_shows_nothing():
    for terminal in (False, True):
        target = console(terminal)
        with Progress("search", quiet=True, console=target, every_s=0.01) as bar:
            bar.update(1, {"loss": 1.0})
            time.sleep(0.05)
        assert text(target) == ""


def test_lines_stop_when_the_work_raises():
    target = console(terminal=False)
    try:
        with Progress("search", console=target, every_s=0.02):
            wait_for(target, "search")
            raise KeyError
    except KeyError:
        pass
    before = text(target)
    time.sleep(0.1)
    assert text(target) == before
