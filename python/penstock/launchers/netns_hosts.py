# SPDX-License-Identifier: Apache-2.0
"""Emulated hosts on one machine, for rehearsals and tests: network namespaces on a switch with rate-limited links.

Each host has its own network, name, processes and disk. When the first process of its namespaces is killed, the kernel
ends all processes in them, as in a power cut. Needs root. A host has no network connection to other machines.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.child_process import deferred_signals
from penstock.errors import ConfigError, Denied, NotFound, SystemFault
from penstock.ownership import (
    NotOwned,
    OwnedFolder,
    check_parents,
    has_mark,
    signal_on_parent_death,
    signal_process,
    start_time,
)
from penstock.protocols import Node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["Hosts"]

_STATE = Path("/run/penstock-hosts")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,15}")
_READY_S = 10.0
_NO_PID = 2**31 - 1  # never a valid pid: above the largest pid_max of Linux
# Program of each host's first process. It only reaps exited processes.
_INIT = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(flush=True)
os.dup2(os.open("/dev/null", os.O_RDWR), 1)
while True:
    signal.pause()
"""
# Sets features of a network device: NAME, then pairs of a command of ethtool and its value. The tool is often missing.
_ETHTOOL = """
import array, fcntl, socket, struct, sys
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for command, value in zip(sys.argv[2::2], sys.argv[3::2]):
    setting = array.array("I", [int(command, 16), int(value)])
    fcntl.ioctl(link, 0x8946, struct.pack("16sP16x", sys.argv[1].encode(), setting.buffer_info()[0]))
"""
_SET_TSO, _SET_GRO = "0x1f", "0x2c"  # ETHTOOL_STSO and ETHTOOL_SGRO of linux/ethtool.h
_MAX_DEFERRED_POLLS = 2**31 - 1  # napi_defer_hard_irqs: the timer never stops, so a packet after a pause waits, too


class Hosts:
    """A set of emulated hosts. `up` creates it; `attach` opens a set that another process has created.

    Example: `with Hosts.up("rehearsal", 3, rate_bytes_per_s=125e6) as hosts:`
    """

    def __init__(self, name: str, state: dict[str, Any]) -> None:
        self.name = name
        self.folder = _STATE / name
        self._state = state
        self._held: dict[str, subprocess.Popen[bytes]] = {}

    # ------------------------------------------------------------ lifecycle

    @classmethod
    def up(
        cls,
        name: str,
        count: int,
        *,
        rate_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        stays: bool = False,
    ) -> Hosts:
        """Create the hosts `h1` to `hN`.

        Args:
            rate_bytes_per_s: Rate of each host's link, in each direction; None means unlimited.
            latency_s: Longest delay of a packet between two hosts, at most 0.1 s. The kernel reads the packets that a
                host has received only at each tick of a timer with this period, as in interrupt moderation. So a round
                trip takes one or two periods. A tick costs about 1 us of CPU time per host.
            stays: Keep the hosts until `down`, even after this process has ended.

        Raises:
            ConfigError: The name or the number is invalid, or the name is in use.
            Denied: Not root.
            SystemFault: A namespace or a link could not be created.
        """
        _check(name)
        if not 1 <= count <= 64:
            raise ConfigError(f"hosts: {count} is not between 1 and 64")
        if not (latency_s == 0 or 1e-5 <= latency_s <= 0.1):
            raise ConfigError(f"latency: must be 0, or from 10 us to 0.1 s (got {latency_s:g} s)")
        _STATE.mkdir(mode=0o755, exist_ok=True)
        _clear_dead()
        try:
            (_STATE / name).mkdir(mode=0o755)
        except FileExistsError:
            raise ConfigError(
                f"hosts: `{name}` already exists", hint=f"run penstock cluster rehearse {name} --end"
            ) from None
        hosts = cls(name, {"pids": {}, "subnet": "", "rate": rate_bytes_per_s})
        try:
            hosts._make(count, rate_bytes_per_s, latency_s, stays=stays)
        except BaseException:
            hosts.down()
            raise
        return hosts

    @classmethod
    def attach(cls, name: str) -> Hosts:
        """Open hosts that another process has created.

        Raises:
            ConfigError: The name is invalid.
            Denied: Not root, or other users could have changed the folder of the hosts (a link, or writable by others).
            NotFound: Hosts of that name do not exist.
        """
        _check(name)
        try:
            state = _state_of(name)
        except NotOwned as error:
            raise Denied(f"hosts: {error}", hint=error.hint or None) from None
        except (OSError, ValueError, KeyError, TypeError):
            raise NotFound(
                f"hosts: `{name}` does not exist", hint=f"run penstock cluster rehearse {name} --nodes 3"
            ) from None
        return cls(name, state)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def down(self) -> None:
        """Kill all processes of the hosts, and remove the hosts and their disks. Safe to call twice."""
        for host in list(self._state["pids"]):
            self.kill(host)
        try:
            with OwnedFolder(str(self.folder)) as folder:
                folder.remove()
        except FileNotFoundError:
            return
        except OSError as error:
            raise SystemFault(f"hosts: {self.folder} cannot be removed: {error}", where=str(self.folder)) from error

    def kill(self, host: str) -> None:
        """Kill a host as in a power cut: its processes and its link end. Its disk remains, but is inaccessible."""
        pid, at = self._state["pids"].get(host, (0, 0))
        mark = _mark(self.name).encode()
        if signal_process(pid, signal.SIGKILL, lambda pid: start_time(pid) == at and has_mark(pid, mark.__eq__)):
            until = time.monotonic() + _READY_S
            while start_time(pid) == at and time.monotonic() < until:
                time.sleep(0.01)
            if host in self._held:
                self._held.pop(host).wait()

    def cut(self, host: str, *, is_up: bool = False) -> None:
        """Disconnect a host's link, or reconnect it if `is_up` is true. The host's processes continue."""
        self._ip(None, "link", "set", f"v{self._index(host)}", "up" if is_up else "down")

    # ------------------------------------------------------------ used by launchers

    def nodes(self) -> list[Node]:
        """The hosts, including killed ones."""
        subnet = self._state["subnet"]
        return [Node(name, f"{subnet}.{self._index(name)}") for name in self._state["pids"] if name != "switch"]

    def disk(self, host: str) -> Path:
        """Path of a host's disk on this machine. Inside the host, the path is `own_disk`."""
        return self.folder / host

    @property
    def own_disk(self) -> str:
        """Path of a host's disk inside the host."""
        return str(self.folder / "disk")

    def enter(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the local command line that runs `argv` on a host."""
        return [
            "nsenter",
            f"--target={self._pid(host)}",
            "--net",
            "--uts",
            "--mount",
            "--pid",
            "--",
            *argv,
        ]

    # ------------------------------------------------------------ internals

    def _pid(self, host: str) -> int:
        """Process id of a host's first process, or an impossible id if it has ended, because its pid may be reused."""
        pid, at = self._state["pids"][host]
        return int(pid) if start_time(pid) == at else _NO_PID

    def _index(self, host: str) -> int:
        return int(host.removeprefix("h"))

    def _make(self, count: int, rate_bytes_per_s: float | None, latency_s: float, *, stays: bool) -> None:
        number = int.from_bytes(os.urandom(2), "big")
        subnet = self._state["subnet"] = f"10.{number % 200 + 20}.{number // 256}"
        names = [f"h{at}" for at in range(1, count + 1)]
        (self.folder / "disk").mkdir()
        (self.folder / "etc-hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{subnet}.{at} {name}\n" for at, name in enumerate(names, 1))
        )
        self._hold("switch", ["--net"], stays=stays)
        self._ip(None, "link", "add", "br0", "type", "bridge")
        self._ip(None, "link", "set", "br0", "up")
        for at, name in enumerate(names, 1):
            (self.folder / name).mkdir()
            pid = self._hold(
                name,
                [
                    "--net",
                    "--uts",
                    "--mount",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--mount-proc",
                    "--propagation",
                    "slave",
                ],
                stays=stays,
            )
            pair = f"v{at}"
            self._ip(None, "link", "add", pair, "type", "veth", "peer", "name", "e0", "netns", str(pid))
            self._ip(None, "link", "set", pair, "master", "br0", "up")
            self._ip(name, "addr", "add", f"{subnet}.{at}/24", "dev", "e0")
            self._ip(name, "link", "set", "lo", "up")
            self._ip(name, "link", "set", "e0", "up")
            if rate_bytes_per_s is not None:
                bits = f"{round(rate_bytes_per_s * 8)}bit"
                for where, device in ((None, pair), (name, "e0")):
                    self._in(
                        where,
                        "tc",
                        "qdisc",
                        "add",
                        "dev",
                        device,
                        "root",
                        "tbf",
                        "rate",
                        bits,
                        "burst",
                        "256kb",
                        "latency",
                        "50ms",
                    )
            self._in(name, "hostname", name)
            # Mount a new sysfs; without it, /sys would show the network devices of the machine.
            self._in(name, "mount", "-t", "sysfs", "none", "/sys")
            if latency_s:
                self._delay(name, pair, latency_s)
            self._in(name, "mount", "--bind", str(self.folder / "etc-hosts"), "/etc/hosts")
            self._in(name, "mount", "--bind", str(self.folder / name), str(self.folder / "disk"))
        (self.folder / "hosts.json").write_text(json.dumps(self._state))

    def _delay(self, host: str, pair: str, latency_s: float) -> None:
        """Let the kernel read the packets for a host at the ticks of a timer.

        veth has such a timer only if the receiver has GRO and the sender (`pair`, the switch's end) has no TSO.
        """
        python = (sys.executable, "-S", "-E", "-c")
        self._in(None, *python, _ETHTOOL, pair, _SET_TSO, "0")
        self._in(host, *python, _ETHTOOL, "e0", _SET_GRO, "1")
        for file, value in (
            ("napi_defer_hard_irqs", _MAX_DEFERRED_POLLS),
            ("gro_flush_timeout", round(latency_s * 1e9)),
        ):
            self._in(host, "sh", "-c", f"echo {value} > /sys/class/net/e0/{file}")

    def _hold(self, name: str, spaces: list[str], *, stays: bool) -> int:
        """Start the first process of a host's namespaces; return its process id on this machine."""
        with deferred_signals():
            self._held[name] = started = subprocess.Popen(
                ["env", _mark(self.name), "unshare", *spaces, sys.executable, "-S", "-E", "-c", _INIT],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                # `unshare` is killed with this process, and `--kill-child` then kills the host.
                preexec_fn=None if stays else partial(signal_on_parent_death, signal.SIGKILL),
            )
        assert started.stdout is not None
        assert started.stderr is not None
        with started.stdout, started.stderr:
            if started.stdout.readline() != b"\n":
                raise SystemFault(
                    f"hosts: namespaces for {name} could not be created: "
                    f"{started.stderr.read().decode(errors='replace').strip()}"
                )
        # With --pid, `unshare` itself is outside the namespace; its child is the host's first process.
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        pid = int(children[0]) if "--pid" in spaces else started.pid
        self._state["pids"][name] = (pid, start_time(pid))
        return pid

    def _in(self, host: str | None, *command: str) -> None:
        pid = self._pid(host or "switch")
        spaces = ["--net"] if host is None else ["--net", "--uts", "--mount"]
        done = subprocess.run(
            ["nsenter", f"--target={pid}", *spaces, "--", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemFault(f"hosts: {' '.join(command)}: {done.stderr.strip()}")

    def _ip(self, host: str | None, *command: str) -> None:
        self._in(host, "ip", *command)


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"hosts: `{name}` is not a valid name (a letter, then at most 15 letters, digits and dashes)")
    if os.geteuid() != 0:
        raise Denied("hosts: network namespaces require root")


def _mark(name: str) -> str:
    """Environment variable that marks the first process of every host."""
    return f"PENSTOCK_HOSTS={name}"


def _state_of(name: str) -> dict[str, Any]:
    """Read the state file that `up` wrote, with the pid and start time of each host's first process.

    Its folder must be writable by root only.
    """
    with OwnedFolder(check_parents(str(_STATE / name))) as folder:
        found = json.loads(folder.read("hosts.json") or b"")
    if not all(isinstance(pid, int) and isinstance(at, int) for pid, at in found["pids"].values()):
        raise ValueError(f"{name}: hosts.json")
    return dict(found)


def _clear_dead() -> None:
    """Remove the folders that a killed process left: those of hosts without a live process."""
    for entry in _STATE.iterdir():
        if not _NAME.fullmatch(entry.name):
            continue
        with suppress(OSError, ValueError, KeyError, TypeError):
            pids = _state_of(entry.name)["pids"]
            if not any(start_time(pid) == at for pid, at in pids.values()):
                with OwnedFolder(str(entry)) as folder:
                    folder.remove()
