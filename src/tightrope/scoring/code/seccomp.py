"""Which system calls may generated code make? A list of those that a computation needs; every other one fails.

The filter is a classic BPF program over (architecture, number, arguments), built here so that nothing has to be
installed. Sockets, new processes and threads, execve, signals to others, ptrace, mount, unshare, io_uring, bpf,
keyrings, shared memory and whatever a later kernel brings are not on the list and answer EPERM; clone3 answers ENOSYS.
Three calls are on it for some arguments only: fcntl (F_SETOWN with F_SETSIG is a kill in disguise), ioctl (TIOCSTI
types into a terminal), prlimit64 (the limits of another process).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
"""Byte offsets in struct seccomp_data; an argument has eight bytes, low half first on both architectures."""
CLONE3 = 435

AUDIT_ARCH: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

X86_64: Mapping[str, int] = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16,
    "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23, "sched_yield": 24,
    "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37,
    "setitimer": 38, "getpid": 39, "exit": 60, "uname": 63, "fcntl": 72, "flock": 73, "fsync": 74, "fdatasync": 75,
    "truncate": 76, "ftruncate": 77, "getdents": 78, "getcwd": 79, "chdir": 80, "fchdir": 81, "rename": 82, "mkdir": 83,
    "rmdir": 84, "unlink": 87, "readlink": 89, "umask": 95, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98,
    "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110,
    "sigaltstack": 131, "arch_prctl": 158, "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204,
    "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232, "epoll_ctl": 233, "openat": 257, "mkdirat": 258,
    "newfstatat": 262, "unlinkat": 263, "renameat": 264, "readlinkat": 267, "faccessat": 269, "pselect6": 270,
    "ppoll": 271, "set_robust_list": 273, "utimensat": 280, "epoll_pwait": 281, "eventfd2": 290, "epoll_create1": 291,
    "dup3": 292, "pipe2": 293, "prlimit64": 302, "renameat2": 316, "getrandom": 318, "statx": 332, "rseq": 334,
    "faccessat2": 439,
}  # fmt: skip

AARCH64: Mapping[str, int] = {
    "getcwd": 17, "eventfd2": 19, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22, "dup": 23, "dup3": 24,
    "fcntl": 25, "ioctl": 29, "flock": 32, "mkdirat": 34, "unlinkat": 35, "renameat": 38, "truncate": 45,
    "ftruncate": 46, "faccessat": 48, "chdir": 49, "fchdir": 50, "openat": 56, "close": 57, "pipe2": 59,
    "getdents64": 61, "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68,
    "pselect6": 72, "ppoll": 73, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "fsync": 82, "fdatasync": 83,
    "utimensat": 88, "exit": 93, "exit_group": 94, "set_tid_address": 96, "futex": 98, "set_robust_list": 99,
    "nanosleep": 101, "getitimer": 102, "setitimer": 103, "clock_gettime": 113, "clock_getres": 114,
    "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "sigaltstack": 132,
    "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "times": 153, "uname": 160, "getrlimit": 163,
    "getrusage": 165, "umask": 166, "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175,
    "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179, "brk": 214, "munmap": 215, "mremap": 216,
    "mmap": 222, "mprotect": 226, "madvise": 233, "prlimit64": 261, "renameat2": 276, "getrandom": 278, "statx": 291,
    "rseq": 293, "faccessat2": 439,
}  # fmt: skip

NUMBERS: Mapping[str, Mapping[str, int]] = {"x86_64": X86_64, "aarch64": AARCH64}

CONDITIONS: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "fcntl": (1, (0, 1, 2, 3, 4, 5, 6, 7, 1030)),  # duplicate, flags, locks
    "ioctl": (1, (0x5401, 0x5421, 0x5450, 0x5451, 0x541B)),  # TCGETS (isatty), FIONBIO, FIONCLEX, FIOCLEX, FIONREAD
    "prlimit64": (0, (0,)),
}
"""Call -> (which argument, the values it may have)."""


def filter_program(machine: str) -> bytes:
    """An array of struct sock_filter for ``machine`` (``platform.machine()``). Raises KeyError for another one.

    >>> len(filter_program("x86_64")) % 8
    0
    """
    numbers = NUMBERS[machine]
    refuse = instruction(RETURN, ERRNO | errno.EPERM)
    program = [
        instruction(LOAD, ARCHITECTURE_AT),
        instruction(JUMP_IF_EQUAL, AUDIT_ARCH[machine], 1, 0),
        instruction(RETURN, KILL_PROCESS),
        instruction(LOAD, NUMBER_AT),
        *answer(CLONE3, [instruction(RETURN, ERRNO | errno.ENOSYS)]),
    ]
    for name, number in numbers.items():
        if name not in CONDITIONS:
            program += answer(number, [instruction(RETURN, ALLOW)])
            continue
        argument, values = CONDITIONS[name]
        checks = [instruction(LOAD, ARGUMENTS_AT + 8 * argument)]
        for value in values:
            checks += answer(value, [instruction(RETURN, ALLOW)])
        program += answer(number, [*checks, refuse])
    return b"".join([*program, refuse])


def instruction(code: int, operand: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, operand)


def answer(value: int, then: Sequence[bytes]) -> list[bytes]:
    """``then`` where the loaded word is ``value``, else go on behind it."""
    return [instruction(JUMP_IF_EQUAL, value, 0, len(then)), *then]
