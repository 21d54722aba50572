"""The system-call filter (seccomp, Linux): an allow-list of pure computation.

Written against the kernel's interface with ctypes: pyseccomp's last release is of 2021
and needs the C library libseccomp, and a filter this small is one page. Loaded inside
the wall, so it imports nothing but the standard library.
"""

import ctypes
import errno
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH = 0, 4
_PROT_EXEC = 4
_X32_BIT = 0x40000000

# (audit architecture, numbers). Memory, clocks, own ids, locks, random bytes, the end:
# nothing that names a file, a socket, a process or a signal handler.
_X86_64 = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "mmap": 9, "mprotect": 10,
    "munmap": 11, "brk": 12, "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25,
    "madvise": 28, "nanosleep": 35, "getpid": 39, "exit": 60, "gettimeofday": 96,
    "getrusage": 98, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108,
    "sigaltstack": 131, "gettid": 186, "time": 201, "futex": 202,
    "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "getrandom": 318,
}  # fmt: skip
_AARCH64 = {
    "close": 57, "read": 63, "write": 64, "fstat": 80, "exit": 93, "exit_group": 94,
    "futex": 98, "nanosleep": 101, "clock_gettime": 113, "clock_getres": 114,
    "clock_nanosleep": 115, "sched_yield": 124, "restart_syscall": 128,
    "sigaltstack": 132, "rt_sigreturn": 139, "getrusage": 165, "gettimeofday": 169,
    "getpid": 172, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177,
    "gettid": 178, "brk": 214, "munmap": 215, "mremap": 216, "mmap": 222,
    "mprotect": 226, "madvise": 233, "getrandom": 278,
}  # fmt: skip
_MACHINES = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}


def unsupported() -> str | None:
    """Why this machine has no filter, None where it has one."""
    if sys.platform != "linux":
        return f"system-call filters (Linux), got {sys.platform}"
    if platform.machine() not in _MACHINES or sys.maxsize < 1 << 32:
        machine = f"{platform.machine()}, {sys.maxsize.bit_length() + 1} bits"
        return f"a 64-bit {' or '.join(_MACHINES)} machine, got {machine}"
    return None


def build_filter(channel: int) -> bytes:
    """The filter's program: `read` and `write` on one descriptor, no new executable
    memory, a short list of harmless calls; all else returns EPERM, which Python raises
    as PermissionError. A call through another architecture's table ends the process.
    """
    arch, numbers = _MACHINES[platform.machine()]
    program = [_step(_LOAD, _ARCH), _step(_EQUAL, arch, 1, 0), _step(_RETURN, _KILL)]
    program += [_step(_LOAD, _NUMBER)]
    # x32 calls share the architecture word; their numbers carry this bit
    program += [_step(_AT_LEAST, _X32_BIT, 0, 1), _step(_RETURN, _EPERM)]
    for name, number in numbers.items():
        if name in ("read", "write"):
            check = [_step(_LOAD, _argument(0)), _step(_EQUAL, channel, 0, 1)]
        elif name in ("mmap", "mprotect"):
            check = [_step(_LOAD, _argument(2)), _step(_HAS_BITS, _PROT_EXEC, 1, 0)]
        else:
            program += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ALLOW)]
            continue
        check += [_step(_RETURN, _ALLOW), _step(_RETURN, _EPERM)]
        program += [_step(_EQUAL, number, 0, len(check)), *check]
    return b"".join([*program, _step(_RETURN, _EPERM)])


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def install_filter(libc: ctypes.CDLL, program: bytes) -> None:
    """Puts the filter on this process, for ever; raises OSError where it is refused."""
    header = _Program(len(program) // 8, program)
    call_prctl(libc, PR_SET_NO_NEW_PRIVS, 1)
    call_prctl(libc, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def call_prctl(libc: ctypes.CDLL, option: int, *arguments: int) -> None:
    """prctl(2); raises OSError where the kernel refuses."""
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(ctypes.c_int(option), *padded) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}) refused: {errno.errorcode.get(code)}")


def _argument(index: int) -> int:
    return 16 + 8 * index  # the low word: all that the kernel reads of these arguments


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
