"""The parent of all confined children: loads modules once, then forks on request.

Run as a script with one argument, the descriptor of its control socket. It is started,
never forked, by the host, so that none of the host's memory, secrets or descriptors
are in it. A request carries two sockets: the child's channel, and a leash. A message
on the leash, or its end, kills the child; its wait status and CPU seconds go back on
it. The end of the control socket ends all.
"""

import sys
import types
from pathlib import Path

if __name__ == "__main__":
    # Bare packages instead of the real ones, whose __init__ modules import much more.
    for _name, _path in (
        ("metaharness", Path(__file__).resolve().parents[1]),
        ("metaharness.sandbox", Path(__file__).resolve().parent),
    ):
        _package = types.ModuleType(_name)
        _package.__path__ = [str(_path)]
        sys.modules[_name] = _package

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import warnings
from typing import NoReturn

from metaharness.sandbox import inside, isolate, seccomp

_MAX_OPEN = 4096
# All that confined code can import: a child opens no file.
_PRELOADED = """
abc array ast base64 binascii bisect builtins calendar cmath codecs collections
collections.abc colorsys contextlib copy csv ctypes dataclasses datetime decimal
difflib enum errno fnmatch fractions functools gc glob graphlib hashlib heapq hmac
html inspect io itertools json keyword linecache locale math mmap numbers operator os
pathlib pickle pprint queue random re reprlib resource secrets select shlex signal
socket statistics string stringprep struct subprocess sys textwrap threading time
timeit token tokenize traceback types typing unicodedata urllib.parse uuid warnings
weakref zlib _strptime encodings.ascii encodings.latin_1 encodings.utf_8
encodings.utf_8_sig encodings.utf_16 encodings.utf_16_le encodings.utf_16_be
encodings.utf_32 encodings.cp1252 encodings.idna encodings.rot_13 encodings.hex_codec
encodings.unicode_escape encodings.raw_unicode_escape
""".split()
# Parts that newer interpreters load at first use: of int and str of long numbers (3.12)
# and of ast.unparse (3.14).
_PRELOADED_WHERE_PRESENT = ("_pylong", "_ast_unparse")


class _Child:
    def __init__(self, pid: int, leash: socket.socket) -> None:
        self.pid, self.leash = pid, leash
        self.pidfd = os.pidfd_open(pid)
        self.buried = False


def main(control: socket.socket) -> None:
    for name in _PRELOADED:
        importlib.import_module(name)
    for name in _PRELOADED_WHERE_PRESENT:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    warnings.simplefilter("ignore")
    libc = isolate.load_libc()
    modes = [isolate.drop_root(), isolate.enter_namespaces(libc)]
    if modes[-1]:
        first = os.fork()
        if first:
            control.close()
            os.waitpid(first, 0)
            os._exit(0)
    isolate.drop_capabilities(libc)
    isolate.die_with_parent(libc)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_OPEN, _MAX_OPEN))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # no file can be opened inside, so no path is searched either
    sys.path.clear()
    sys.path_importer_cache.clear()
    control.send(json.dumps([mode for mode in modes if mode]).encode())
    gc.collect()
    gc.freeze()
    _loop(control, libc)


def _loop(control: socket.socket, libc: ctypes.CDLL) -> None:
    program = seccomp.build_filter(isolate.CHANNEL)
    baseline = isolate.measure_baseline()
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ, None)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    message, sockets = _receive(control)
                    if not message:
                        return
                    child = None
                    if len(sockets) == 2:  # fewer: this process is out of descriptors
                        child = _fork(message, sockets, libc, program, baseline)
                    if child:
                        selector.register(child.leash, selectors.EVENT_READ, child)
                        selector.register(child.pidfd, selectors.EVENT_READ, child)
                elif key.data.buried:
                    continue  # both of its events came at once
                elif key.fd == key.data.pidfd:
                    _bury(key.data, selector)
                else:
                    _kill(key.data, selector)


def _receive(control: socket.socket) -> tuple[bytes, list[socket.socket]]:
    message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 2)
    return message, [socket.socket(fileno=number) for number in descriptors]


def _fork(
    message: bytes,
    sockets: list[socket.socket],
    libc: ctypes.CDLL,
    program: bytes,
    baseline: isolate.Baseline,
) -> _Child | None:
    channel, leash = sockets
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        leash.send(json.dumps([None, 0.0, f"no new process: {error}"]).encode())
        leash.close()
        return None
    finally:
        if os.getpid() == parent:
            channel.close()
    if pid:
        return _Child(pid, leash)
    _become_child(channel.fileno(), json.loads(message), libc, program, baseline)


def _become_child(
    channel: int,
    limits: dict,
    libc: ctypes.CDLL,
    program: bytes,
    baseline: isolate.Baseline,
) -> NoReturn:
    try:
        if channel != isolate.CHANNEL:
            os.dup2(channel, isolate.CHANNEL)
        os.closerange(0, isolate.CHANNEL)
        os.closerange(isolate.CHANNEL + 1, _MAX_OPEN)
        isolate.confine(
            libc,
            program,
            baseline,
            cpu_s=limits["cpu_s"],
            memory_bytes=limits["memory_bytes"],
        )
        inside.serve(
            isolate.CHANNEL,
            output_bytes=limits["output_bytes"],
            result_bytes=limits["result_bytes"],
        )
    finally:  # whatever happens here, this process must not return to the loop
        os._exit(1)


def _kill(child: _Child, selector: selectors.BaseSelector) -> None:
    os.kill(child.pid, signal.SIGKILL)
    # the leash may stay readable: from here only the death matters
    selector.unregister(child.leash)
    try:
        child.leash.recv(16)  # unread, it would turn the report into a reset
    except OSError:
        pass


def _bury(child: _Child, selector: selectors.BaseSelector) -> None:
    _, status, usage = os.wait4(child.pid, 0)
    child.buried = True
    if child.leash in selector.get_map():
        selector.unregister(child.leash)
    selector.unregister(child.pidfd)
    os.close(child.pidfd)
    cpu_s = usage.ru_utime + usage.ru_stime
    try:
        child.leash.send(json.dumps([status, cpu_s, ""]).encode())
    except OSError:
        pass  # nobody waits for it
    child.leash.close()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
