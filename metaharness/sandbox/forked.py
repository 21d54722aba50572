"""The sandbox for Linux: a confined child of our own, forked for each program."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from metaharness.errors import SandboxError
from metaharness.sandbox import seccomp
from metaharness.sandbox.protocol import Limits, Outcome, Result, Tool
from metaharness.sandbox.session import Session
from metaharness.sandbox.values import Plain

NAME = "forked"
_START_S = 60.0
_END_S = 5.0
_FEATURES = frozenset({"full-python", "exec", "os-wall", "hard-memory", "fresh-state"})
_ZYGOTE = Path(__file__).with_name("zygote.py")
# What a child must not be able to do; each line is tried inside before first use.
_PROBE = """
import errno, mmap, os, signal, socket
def open_file(): os.open("/", os.O_RDONLY)
def list_folder(): os.listdir("/")
def make_process(): os.fork() or os._exit(0)
def make_socket(): socket.socket()
def signal_self(): os.kill(os.getpid(), 0)
def move_timer(): signal.setitimer(signal.ITIMER_PROF, 0)
def make_code(): mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
def find_open():
    done = []
    for act in (open_file, list_folder, make_process, make_socket, signal_self,
                move_timer, make_code):
        try:
            act()
        except BaseException as error:
            if not isinstance(error, OSError) or error.errno != errno.EPERM:
                done.append(f"{act.__name__} ({type(error).__name__})")
            continue
        done.append(act.__name__)
    return done
"""


class ForkedSandbox:
    """Children of one helper process, confined by a system-call filter.

    Safe to use from several threads. Raises SandboxError where this machine cannot
    confine them: there is no weaker way to run.
    """

    name = NAME

    def __init__(self) -> None:
        missing = seccomp.unsupported()
        if missing:
            raise SandboxError(
                f"sandbox 'forked': expected {missing}; run on 64-bit Linux, or in a "
                "Linux virtual machine."
            )
        self._lock = threading.Lock()
        self._closed = False
        self._zygote = _Zygote()
        self.features = _FEATURES | self._zygote.modes
        try:
            self._probe()
        except BaseException:
            self.close()
            raise

    def load(
        self, source: str, *, keep: bool = False, limits: Limits | None = None
    ) -> "ForkedProgram":
        return ForkedProgram(self, source, keep=keep, limits=limits or Limits())

    def open_session(self, limits: Limits) -> Session:
        """A new child, which has loaded nothing yet."""
        with self._lock:
            if self._closed:
                raise SandboxError(
                    "sandbox 'forked': expected an open sandbox, got a closed one; "
                    "call open_sandbox() again."
                )
            try:
                return self._zygote.fork(limits)
            except OSError:  # its process was killed from outside: start another one
                self._zygote.close()
                self._zygote = _Zygote()
                return self._zygote.fork(limits)

    def close(self) -> None:
        """Ends every child and their parent."""
        with self._lock:
            self._closed = True
            self._zygote.close()

    def __enter__(self) -> "ForkedSandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _probe(self) -> None:
        limits = Limits(cpu_s=5.0, wall_s=30.0)
        result = self.load(_PROBE, limits=limits).call("find_open")
        if result.outcome is not Outcome.OK or result.value != []:
            got = result.error or result.value
            raise SandboxError(
                "sandbox 'forked': expected a kernel that confines a child "
                f"(CONFIG_SECCOMP_FILTER), got {got}; run on such a kernel, outside "
                "of emulators that ignore seccomp."
            )


class ForkedProgram:
    """One source; a fresh child for each call, or one for all calls when kept."""

    def __init__(
        self, sandbox: ForkedSandbox, source: str, *, keep: bool, limits: Limits
    ) -> None:
        self._sandbox, self._source = sandbox, source
        self._keep, self._limits = keep, limits
        self._session: Session | None = None

    def call(
        self,
        entry: str,
        *args: Plain,
        tools: Mapping[str, Tool] | None = None,
        limits: Limits | None = None,
    ) -> Result:
        if self._keep and limits is not None:
            raise SandboxError(
                "call: expected no limits for a kept program, got some; its calls "
                "share those given to load."
            )
        if self._session is not None:
            return self._session.call(entry, args, tools or {})
        if self._keep:
            result = self.start()
            loaded = result.outcome is Outcome.OK
            return self.call(entry, *args, tools=tools) if loaded else result
        session, result = self._open(limits or self._limits)
        try:
            if result.outcome is Outcome.OK:
                result = session.call(entry, args, tools or {})
        finally:
            cpu_s = session.close()
        return replace(result, cpu_s=cpu_s)

    async def acall(
        self,
        entry: str,
        *args: Plain,
        tools: Mapping[str, Tool] | None = None,
        limits: Limits | None = None,
    ) -> Result:
        return await asyncio.to_thread(
            self.call, entry, *args, tools=tools, limits=limits
        )

    def start(self) -> Result:
        """Loads a kept program before its first call; what loading it gave."""
        if not self._keep or self._session is not None:
            raise SandboxError(
                "start: expected a kept program that has not started, got another; "
                "load it with keep=True and start it once."
            )
        self._session, result = self._open(self._limits)
        return result

    def _open(self, limits: Limits) -> tuple[Session, Result]:
        session = self._sandbox.open_session(limits)
        result = session.load(self._source)
        if result.outcome is not Outcome.OK:
            result = replace(result, cpu_s=session.close())
        return session, result

    def close(self) -> None:
        """Ends a kept program's child."""
        if self._session is not None:
            self._session.close()

    def __enter__(self) -> "ForkedProgram":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Zygote:
    """The helper process and the control socket to it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                number = theirs.fileno()
                command = [sys.executable, "-P", "-s", "-S", "-B", str(_ZYGOTE)]
                self._process = subprocess.Popen(
                    [*command, str(number)],
                    pass_fds=(number,),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    # none of the host's variables; one order of sets in every run
                    env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"},
                    start_new_session=True,  # an interrupt is the host's business
                )
            self._end = weakref.finalize(self, _end, self._control, self._process)
            self._control.settimeout(_START_S)
            ready = self._control.recv(1 << 12)
            self.modes = frozenset(json.loads(ready)) if ready else None
        except OSError as error:
            self._control.close()
            raise SandboxError(
                "sandbox 'forked': expected its helper process to start, got "
                f"{error}; check that {sys.executable} and {_ZYGOTE} can be read."
            ) from error
        if self.modes is None:
            self.close()
            raise SandboxError(
                "sandbox 'forked': expected its helper process to start, got its end; "
                f"to see why, run {' '.join(command)} 0"
            )

    def fork(self, limits: Limits) -> Session:
        """Raises OSError when the helper process is gone."""
        channel, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        leash, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with inner, outer:
                message = json.dumps(asdict(limits)).encode()
                numbers = [inner.fileno(), outer.fileno()]
                socket.send_fds(self._control, [message], numbers)
        except BaseException:
            channel.close()
            leash.close()
            raise
        return Session(channel, leash, limits, NAME)

    def close(self) -> None:
        self._end()


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
