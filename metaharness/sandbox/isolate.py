"""Walls of the forked back end: identity, namespaces, resource limits, the filter.

Loaded inside the wall, so it imports nothing but the standard library and neighbours
that keep to it.
"""

import ctypes
import math
import os
import resource
import signal
from dataclasses import dataclass

from metaharness.sandbox.seccomp import call_prctl, install_filter

NOBODY = 65534
CHANNEL = 3
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_NEWNS, _NEWUTS, _NEWIPC = 0x00020000, 0x04000000, 0x08000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_CAPABILITY_VERSION = 0x20080522
_STACK_BYTES = 8 << 20


@dataclass(frozen=True)
class Baseline:
    """What the idle parent of all children takes: their memory limits come on top.

    address_bytes: address space; data_bytes: private writable memory.
    """

    address_bytes: int
    data_bytes: int


def load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def measure_baseline() -> Baseline:
    with open("/proc/self/statm") as file:
        fields = file.read().split()
    page = resource.getpagesize()
    return Baseline(int(fields[0]) * page, int(fields[5]) * page)


def drop_root() -> str | None:
    """Root becomes `nobody` where the kernel lets it; the name of what was done."""
    if os.getuid() != 0:
        return None
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:
        return None
    return "nobody"


def enter_namespaces(libc: ctypes.CDLL) -> str | None:
    """New user, network, process, IPC, host-name and mount namespaces, where allowed.

    They are a second wall behind the filter: hosts without them lose no check. After
    it the caller must fork: its next child is the first process of the new ones.
    """
    uid, gid = os.getuid(), os.getgid()
    # a process that changed its user may not write its own maps without this
    call_prctl(libc, _PR_SET_DUMPABLE, 1)
    flags = _NEWUSER | _NEWNET | _NEWPID | _NEWIPC | _NEWUTS | _NEWNS
    if libc.unshare(ctypes.c_int(flags)) != 0:
        return None
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError:
            pass  # an unmapped user has fewer rights, not more
    return "namespaces"


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """Gives up the rights that a new user namespace hands out, or that root had."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())


def die_with_parent(libc: ctypes.CDLL) -> None:
    call_prctl(libc, _PR_SET_PDEATHSIG, signal.SIGKILL)


def confine(
    libc: ctypes.CDLL,
    program: bytes,
    baseline: Baseline,
    *,
    cpu_s: float,
    memory_bytes: int,
) -> None:
    """Closes every wall on this freshly forked child; raises OSError if one stays open.

    What cannot be set is an error, except the process count, which root ignores anyway:
    the filter refuses new processes.
    """
    die_with_parent(libc)
    call_prctl(libc, _PR_SET_DUMPABLE, 0)
    whole_s = math.ceil(cpu_s) + 1  # the timer below is exact; this one outlives it
    for which, most in (
        (resource.RLIMIT_AS, baseline.address_bytes + memory_bytes),
        (resource.RLIMIT_DATA, baseline.data_bytes + memory_bytes),
        (resource.RLIMIT_CPU, whole_s),
        (resource.RLIMIT_STACK, _STACK_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, CHANNEL + 1),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))
    # Counts CPU time; its signal's default ends the process, and the filter refuses
    # to move the timer or the handler.
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    install_filter(libc, program)
