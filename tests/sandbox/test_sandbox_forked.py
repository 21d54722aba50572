"""The forked sandbox refuses, recovers, and believes nothing that a child says."""

import errno
import json
import os
import platform
import signal
import socket
import struct
import time

import pytest

from metaharness.errors import SandboxError
from metaharness.sandbox import ForkedSandbox, Limits, Outcome, open_sandbox, seccomp
from metaharness.sandbox import forked as forked_module
from metaharness.sandbox.session import Session

LINUX = pytest.mark.skipif(not os.path.exists("/proc/self"), reason="needs Linux")


def reply(message: object) -> bytes:
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">I", len(text)) + text


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        (reply(["ok", 7, ""]), Outcome.OK),
        (reply(["ok", 7]), Outcome.CRASHED),
        (reply(["ok", ["x", 1], ""]), Outcome.CRASHED),
        (reply(["ok", {"a": 1}, ""]), Outcome.CRASHED),
        (reply(["ok", 7, 7]), Outcome.CRASHED),
        (reply({"ok": 7}), Outcome.CRASHED),
        (reply(["end", "ok", "", ""]), Outcome.CRASHED),
        (reply(["end", "wall", "", ""]), Outcome.CRASHED),
        (reply(["tool", "none", ["l"]]), Outcome.CRASHED),
        (reply(["tool", "t", 3]), Outcome.CRASHED),
        (reply(["tool", "t", ["l", "x" * 200_000]]), Outcome.CALLS),
        (reply(b"\xff\xfe"), Outcome.CRASHED),
        (reply(b"[" * 100_000), Outcome.CRASHED),
        (struct.pack(">I", 1 << 31), Outcome.RESULT),
        (b"\0\0", Outcome.CRASHED),
    ],
)
def test_a_forged_message_is_checked_for_form(sent, wanted):
    channel, child = socket.socketpair()
    leash, parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent.send(json.dumps([0, 0.01, ""]).encode())
    child.sendall(sent)
    child.shutdown(socket.SHUT_WR)
    session = Session(channel, leash, Limits(), "test")
    result = session.call("f", (), {"t": lambda: None})
    assert result.outcome is wanted, result
    assert session.alive == (wanted is Outcome.OK)
    for end in (channel, child, leash, parent):
        end.close()


@pytest.mark.parametrize(
    ("name", "value"), [("platform", "darwin"), ("maxsize", (1 << 31) - 1)]
)
def test_a_machine_without_a_filter_is_refused(monkeypatch, name, value):
    monkeypatch.setattr(f"metaharness.sandbox.seccomp.sys.{name}", value)
    with pytest.raises(SandboxError, match="expected .* got .*; run on 64-bit Linux"):
        open_sandbox()


@LINUX
@pytest.mark.parametrize(
    "wall", ["install_filter(libc, program)", "call_prctl(libc, _PR_SET_DUMPABLE, 0)"]
)
def test_a_wall_that_does_not_close_is_found_before_use(monkeypatch, tmp_path, wall):
    """A copy of the code without the filter is refused; without a raise, not run."""
    folder = tmp_path / "metaharness" / "sandbox"
    folder.mkdir(parents=True)
    for path in forked_module._ZYGOTE.parent.glob("*.py"):
        text = path.read_text()
        if path.name == "isolate.py":
            assert f"    {wall}\n" in text
            broken = "pass" if "filter" in wall else "raise OSError(1, 'refused')"
            text = text.replace(f"    {wall}\n", f"    {broken}\n")
        (folder / path.name).write_text(text)
    monkeypatch.setattr(forked_module, "_ZYGOTE", folder / "zygote.py")
    with pytest.raises(SandboxError, match="expected a kernel that confines a child"):
        ForkedSandbox()


@LINUX
def test_a_helper_that_does_not_start_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(forked_module, "_ZYGOTE", tmp_path / "missing.py")
    with pytest.raises(SandboxError, match="helper process to start"):
        ForkedSandbox()


def test_unknown_names_and_features_are_refused():
    with pytest.raises(SandboxError, match="expected one of 'auto', 'forked', got 'x'"):
        open_sandbox("x")


@LINUX
def test_a_missing_feature_is_refused():
    with pytest.raises(SandboxError, match="without .'numpy'."):
        open_sandbox(need=["exec", "numpy"])
    with open_sandbox(need=["exec", "os-wall"]) as sandbox:
        assert {"exec", "os-wall"} <= sandbox.features


@pytest.mark.parametrize(
    "field", [{"cpu_s": 0.0}, {"wall_s": float("nan")}, {"calls": -1}, {"wall_s": 1e9}]
)
def test_limits_out_of_range_are_refused(field):
    with pytest.raises(SandboxError, match="pass a number in that range"):
        Limits(**field)


@LINUX
def test_the_helper_is_replaced_when_it_was_killed():
    with ForkedSandbox() as sandbox:
        program = sandbox.load("def f():\n    return 1", limits=Limits(wall_s=10.0))
        with sandbox.load("def f():\n    return 2", keep=True) as kept:
            assert kept.call("f").value == 2
            os.kill(sandbox._zygote._process.pid, signal.SIGKILL)
            sandbox._zygote._process.wait()
            # the kernel ends the inner helper and its children a moment later
            assert within(5.0, lambda: kept.call("f").outcome is Outcome.CRASHED)
        assert within(5.0, lambda: program.call("f").outcome is Outcome.OK)
        assert program.call("f").value == 1


@LINUX
def test_a_closed_sandbox_starts_nothing():
    sandbox = ForkedSandbox()
    program = sandbox.load("def f():\n    return 1")
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxError, match="expected an open sandbox"):
        program.call("f")


SYSCALLS = """
import ctypes, errno
def answered(allowed):
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for number in (*range(600), *range(1 << 30, (1 << 30) + 600)):
        if number in allowed or number in (335, 336):
            continue
        ctypes.set_errno(0)
        refused = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6) == -1
        if not refused or ctypes.get_errno() != errno.EPERM:
            found.append(number)
    return found
def touch(read, write):
    libc = ctypes.CDLL(None, use_errno=True)
    room = ctypes.create_string_buffer(8)
    return [
        (libc.syscall(number, descriptor, room, 0), ctypes.get_errno())
        for number in (read, write) for descriptor in (0, 1, 2, 4, 5)
    ]
"""


@LINUX
def test_every_system_call_off_the_list_is_refused():
    """335 and 336 (uretprobe, uprobe) pass any filter on new kernels: the caller gets
    SIGILL unless a probe of the administrator's stands there.
    """
    _, numbers = seccomp._MACHINES[platform.machine()]
    with ForkedSandbox() as sandbox:
        program = sandbox.load(SYSCALLS, limits=Limits(cpu_s=5.0, wall_s=30.0))
        assert program.call("answered", list(numbers.values())).value == []
        touched = program.call("touch", numbers["read"], numbers["write"]).value
        assert touched == [(-1, errno.EPERM)] * 10


@LINUX
def test_an_answer_in_drips_does_not_stretch_the_wall_limit():
    drip = "import os, time\nos.write(3, bytes([0, 0, 9, 0]))\nwhile True:\n"
    drip += "    time.sleep(0.02)\n    os.write(3, b' ')"
    with ForkedSandbox() as sandbox:
        limits = Limits(cpu_s=2.0, wall_s=0.5)
        start = time.monotonic()
        assert sandbox.load(drip, limits=limits).call("f").outcome is Outcome.WALL
        assert time.monotonic() - start < 5.0


@LINUX
@pytest.mark.parametrize("keep", [False, True])
def test_an_interrupted_call_leaves_no_child(keep):
    def interrupt():
        raise KeyboardInterrupt

    with ForkedSandbox() as sandbox:
        limits = Limits(cpu_s=60.0, wall_s=60.0)
        source = "def f(t):\n    t()\n    while True: pass"
        program = sandbox.load(source, limits=limits, keep=keep)
        with pytest.raises(KeyboardInterrupt):
            program.call("f", tools={"t": interrupt})
        assert children(sandbox) == []


def within(seconds: float, holds) -> bool:
    """Whether it holds before that time is over."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def children(sandbox) -> list[int]:
    """Processes below the sandbox's innermost helper process."""
    pid = sandbox._zygote._process.pid
    below = _below(pid)
    return _below(below[0]) if "namespaces" in sandbox.features else below


def _below(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]


def usage(sandbox) -> tuple[int, int, list[str]]:
    """Open descriptors here and in the helper, and files where programs might write."""
    inner = sandbox._zygote._process.pid
    if "namespaces" in sandbox.features:
        inner = _below(inner)[0]
    own = len(os.listdir("/proc/self/fd"))
    files = sorted(os.listdir(os.getcwd())) + sorted(os.listdir("/"))
    try:
        helper = len(os.listdir(f"/proc/{inner}/fd"))
    except PermissionError:
        helper = 0
    return own, helper, files


def survives(number: int) -> None:
    ends = {
        "def f():\n    return [1, 'a']": Outcome.OK,
        "def f():\n    1 / 0": Outcome.ERROR,
        "import os\nos._exit(0)": Outcome.CRASHED,
        "import os\ndef f():\n    os.fork()": Outcome.ERROR,
        "def f(": Outcome.REFUSED,
    }
    limits = Limits(cpu_s=1.0, wall_s=20.0)
    with ForkedSandbox() as sandbox:
        programs = [(sandbox.load(s, limits=limits), end) for s, end in ends.items()]
        for program, _ in programs:
            program.call("f")
        time.sleep(0.5)  # the helper closes a child's descriptors after its report
        before = usage(sandbox)
        for turn in range(number):
            program, end = programs[turn % len(programs)]
            assert program.call("f").outcome is end
        with sandbox.load("def f():\n    return 1", keep=True, limits=limits) as kept:
            assert all(kept.call("f").value == 1 for _ in range(number // 10))
        assert children(sandbox) == []
        assert within(5.0, lambda: usage(sandbox) == before), usage(sandbox)
        helper = sandbox._zygote._process.pid
    assert not os.path.exists(f"/proc/{helper}")


@LINUX
def test_calls_leave_no_process_descriptor_or_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    survives(200)


@LINUX
@pytest.mark.slow
def test_ten_thousand_calls_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    survives(10_000)
