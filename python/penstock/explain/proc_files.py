# SPDX-License-Identifier: Apache-2.0
"""Parsers of files below /proc (proc(5)): pure functions of the text of a file. Field numbers are the numbers in the
manual page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "BlockedCall",
    "Mount",
    "ThreadTimes",
    "find_mount",
    "parse_io",
    "parse_mountinfo",
    "parse_schedstat",
    "parse_stat",
    "parse_status",
    "parse_syscall",
]


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Content of /proc/PID/stat or /proc/PID/task/TID/stat. Times are in clock ticks."""

    pid: int
    comm: str
    state: str
    parent: int
    session: int
    user_ticks: int
    system_ticks: int
    threads: int
    start_ticks: int
    rss_pages: int
    block_delay_ticks: int


def parse_stat(text: str) -> ThreadTimes | None:
    """Parse a stat file; None if it is damaged. A command name may contain spaces and parentheses."""
    first, last = text.find("("), text.rfind(")")
    fields = text[last + 1 :].split()
    if first < 0 or last < first or len(fields) < 40:
        return None
    try:
        return ThreadTimes(
            pid=int(text[:first]),
            comm=text[first + 1 : last],
            state=fields[0],
            parent=int(fields[1]),
            session=int(fields[3]),
            user_ticks=int(fields[11]),
            system_ticks=int(fields[12]),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
            rss_pages=int(fields[21]),
            block_delay_ticks=int(fields[39]),
        )
    except ValueError:
        return None


def parse_io(text: str) -> dict[str, int]:
    """Parse /proc/PID/io: bytes and calls by name (`rchar`, `syscr`, `read_bytes`, ...)."""
    found = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip().isdecimal():
            found[name.strip()] = int(value)
    return found


def parse_schedstat(text: str) -> tuple[int, int]:
    """Parse a schedstat file: nanoseconds on a core, and nanoseconds of waiting for a core; zeros if it is damaged."""
    fields = text.split()
    if len(fields) < 2 or not (fields[0].isdecimal() and fields[1].isdecimal()):
        return 0, 0
    return int(fields[0]), int(fields[1])


def parse_status(text: str) -> dict[str, str]:
    """Parse /proc/PID/status into its fields."""
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in text.splitlines()) if colon}


@dataclass(frozen=True, slots=True)
class BlockedCall:
    """System call in which a thread is blocked. `fd` is its first argument if the call takes a descriptor. `page_fault`
    represents a thread that is blocked outside of a system call, because it reads a mapped file.
    """

    name: str
    fd: int | None = None


# Numbers of the system calls that the attribution uses, by machine. Source: arch/x86/entry/syscalls/syscall_64.tbl and
# include/uapi/asm-generic/unistd.h of Linux 6.18.
_X86_64 = {
    0: "read", 1: "write", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 17: "pread64", 19: "readv", 23: "select",
    35: "nanosleep", 42: "connect", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4",
    74: "fsync", 78: "getdents", 202: "futex", 217: "getdents64", 230: "clock_nanosleep", 232: "epoll_wait",
    247: "waitid", 257: "openat", 262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
    295: "preadv", 332: "statx", 426: "io_uring_enter", 437: "openat2", 439: "faccessat2", 441: "epoll_pwait2",
}  # fmt: skip
_AARCH64 = {
    22: "epoll_pwait", 56: "openat", 61: "getdents64", 63: "read", 64: "write", 65: "readv", 67: "pread64",
    69: "preadv", 72: "pselect6", 73: "ppoll", 79: "newfstatat", 80: "fstat", 82: "fsync", 95: "waitid", 98: "futex",
    101: "nanosleep", 115: "clock_nanosleep", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg",
    212: "recvmsg", 260: "wait4", 291: "statx", 426: "io_uring_enter", 437: "openat2", 439: "faccessat2",
    441: "epoll_pwait2",
}  # fmt: skip
_TAKES_FD = frozenset({
    "read", "write", "pread64", "readv", "preadv", "recvfrom", "recvmsg", "sendto", "sendmsg", "fstat", "fsync",
    "getdents", "getdents64", "connect",
})  # fmt: skip


def parse_syscall(text: str, machine: str) -> BlockedCall | None:
    """Parse /proc/PID/task/TID/syscall; None if the thread runs, or if the call is not in the tables above.

    Args:
        machine: As `platform.machine()` returns it.
    """
    table = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(machine, {})
    fields = text.split()
    if fields[:1] == ["-1"]:  # blocked outside of a system call
        return BlockedCall("page_fault")
    if len(fields) < 2 or not fields[0].isdecimal():
        return None
    name = table.get(int(fields[0]))
    if name is None:
        return None
    if name not in _TAKES_FD:
        return BlockedCall(name)
    try:
        return BlockedCall(name, int(fields[1], 16) & 0xFFFFFFFF)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/PID/mountinfo."""

    mount_point: str
    kind: str
    source: str
    device: str

    @property
    def place(self) -> str:
        """`local`, `remote`, `fuse` or `memory`."""
        if self.kind.startswith("fuse") and self.kind not in ("fuseblk", "fusectl"):
            return "fuse"
        if self.kind in _REMOTE or self.kind.startswith(("nfs", "ceph", "gpfs")):
            return "remote"
        return "memory" if self.kind in _MEMORY else "local"


_REMOTE = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "ceph", "gpfs", "glusterfs", "9p", "virtiofs", "afs", "orangefs",
    "wekafs", "panfs",
})  # fmt: skip
_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "proc", "sysfs", "devpts", "mqueue", "cgroup2"})
_ESCAPED = re.compile(r"\\([0-7]{3})")


def parse_mountinfo(text: str) -> list[Mount]:
    """Parse /proc/PID/mountinfo. Damaged lines are skipped."""
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if dash and len(fields) >= 6 and len(rest) >= 2:
            found.append(Mount(_unescape(fields[4]), rest[0], _unescape(rest[1]), fields[2]))
    return found


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def find_mount(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount that contains an absolute path: the mount with the longest mount point or, of several equal
    ones, the last.
    """
    best = None
    for mount in mounts:
        point = mount.mount_point.rstrip("/")
        within = path == point or path.startswith(point + "/")
        if within and (best is None or len(point) >= len(best.mount_point.rstrip("/"))):
            best = mount
    return best
