# SPDX-License-Identifier: Apache-2.0
"""Four hosts on one machine, with a real Slurm: network namespaces on a bridge.

Each host has its own name, /etc/hosts and private folder. Everything ends with the `with` block.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTS = 4

_HOST = """
hostname "$1" && mount --bind "$2/hosts" /etc/hosts && mount --bind "$2/private/$1" "$2/private/here" && cd "$2" && shift 2
exec "$@"
"""

_SLURM = """
ClusterName=penstock
SlurmctldHost=h1({sub}.1)
SlurmUser=root
SlurmctldPort={port}
SlurmdPort={port1}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SelectType=select/linear
NodeName=h[1-{hosts}] NodeAddr={sub}.[1-{hosts}] CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """`run(host, ...)` runs a command on a host; `srun(...)` runs one through Slurm, from the first host."""

    def __init__(self, folder: Path, *, slurm: str = "") -> None:
        """`slurm` holds further lines for slurm.conf."""
        # Paths of Slurm's and munge's sockets must be short, and munge requires a folder that only root can write to.
        self.folder = folder
        self._more = slurm
        self._mark = uuid4().hex[:5]
        self._sub = f"10.{int(self._mark[:2], 16) % 200 + 20}.{int(self._mark[2:4], 16)}"
        self._running = ExitStack()
        self.private = folder / "private/here"

    def __enter__(self) -> Cluster:
        try:
            self._hosts()
            self._slurm()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def _hosts(self) -> None:
        switch = f"ps{self._mark}"
        (self.folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{self._sub}.{at} h{at}\n" for at in range(1, HOSTS + 1))
        )
        (self.folder / "private/here").mkdir(parents=True)
        self._ip("netns", "add", switch)
        self._running.callback(subprocess.run, ["ip", "netns", "delete", switch], check=False)
        self._ip("-n", switch, "link", "add", "br0", "type", "bridge")
        self._ip("-n", switch, "link", "set", "br0", "up")
        for at in range(1, HOSTS + 1):
            name, pair = f"p{self._mark}{at}", f"v{self._mark}{at}"
            (self.folder / f"private/h{at}").mkdir()
            self._ip("netns", "add", name)
            self._running.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
            self._ip("link", "add", pair, "netns", switch, "type", "veth", "peer", "name", "e0", "netns", name)
            self._ip("-n", switch, "link", "set", pair, "master", "br0", "up")
            self._ip("-n", name, "addr", "add", f"{self._sub}.{at}/24", "dev", "e0")
            self._ip("-n", name, "link", "set", "e0", "up")
            self._ip("-n", name, "link", "set", "lo", "up")

    def line(self, host: int, *command: object) -> list[str]:
        inside = ["unshare", "--uts", "--mount", "--propagation", "slave", "bash", "-c", _HOST, "host", f"h{host}"]
        return ["nsenter", f"--net=/run/netns/p{self._mark}{host}", *inside, str(self.folder), *map(str, command)]

    def _daemon(self, *command: str) -> None:
        log = (self.folder / "daemons.log").open("ab")
        self._running.callback(log.close)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def end() -> None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()

        self._running.callback(end)

    def _slurm(self) -> None:
        folder = self.folder
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._daemon(
            "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}",
            f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        (folder / "state").mkdir()
        port = 20000 + int(self._mark[:3], 16) % 20000
        conf = folder / "slurm.conf"
        conf.write_text(
            _SLURM.format(sub=self._sub, folder=folder, hosts=HOSTS, port=port, port1=port + 1) + self._more
        )
        await_(lambda: (folder / "munge.socket").exists(), "munged", folder)
        self._daemon(*self.line(1, "slurmctld", "-D", "-c", "-f", conf))
        for at in range(1, HOSTS + 1):
            self._daemon(*self.line(at, "slurmd", "-D", "-N", f"h{at}", "-f", conf))
        await_(lambda: self.run(1, "sinfo", "-h", "-o", "%T").stdout.split() == ["idle"], "Slurm", folder)

    def start_sshds(self) -> None:
        """Starts an sshd on every host; writes the key and the known hosts to the home folder of `run`."""
        home = self.folder / "home/.ssh"
        home.mkdir(parents=True, exist_ok=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd requires this folder with any configuration
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / "id_ed25519"], check=True)
        known = ""
        for at in range(1, HOSTS + 1):
            key = self.folder / f"hostkey{at}"
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
            known += f"h{at},{self._sub}.{at} {key.with_suffix('.pub').read_text()}"
            conf = self.folder / f"sshd{at}"
            conf.write_text(
                f"HostKey {key}\nAuthorizedKeysFile {home}/id_ed25519.pub\nPidFile none\nUsePAM no\nStrictModes no\n"
            )
            self._daemon(*self.line(at, "/usr/sbin/sshd", "-D", "-e", "-f", conf))
        (home / "known_hosts").write_text(known)

        def answers(at: int) -> bool:
            probe = f"import socket; socket.create_connection(('h{at}', 22), 2)"
            return self.run(1, "python3", "-c", probe).returncode == 0

        for at in range(1, HOSTS + 1):
            await_(lambda at=at: answers(at), "sshd", self.folder)

    def cut(self, host: int, *, is_up: bool = False) -> None:
        """Takes down or restores a host's link; its processes keep running."""
        self._ip("-n", f"ps{self._mark}", "link", "set", f"v{self._mark}{host}", "up" if is_up else "down")

    @property
    def env(self) -> dict[str, str]:
        """A minimal environment with its own home folder."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        conf = str(self.folder / "slurm.conf")
        return {"PATH": os.environ["PATH"], "HOME": str(home), "SLURM_CONF": conf, "LANG": "C.UTF-8"}

    def run(self, host: int, *command: object, timeout_s: float = 90, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs a command on a host, with a minimal environment."""
        return subprocess.run(
            self.line(host, *command),
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def held(self, host: int) -> Path:
        """A host's private folder, as a path on this machine."""
        return self.folder / f"private/h{host}"


def await_(condition, what: str, folder: Path, limit_s: float = 40) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            log = folder / "daemons.log"
            raise AssertionError(
                f"{what} did not come up: {log.read_text(errors='replace')[-2000:] if log.exists() else ''}"
            )
        time.sleep(0.1)


def short_folder() -> Path:
    """A new folder with a short path, for Unix sockets. Only root can write to it and its parents, as munge requires."""
    folder = Path(f"/run/pen-{uuid4().hex[:8]}")
    folder.mkdir(mode=0o755)
    return folder


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Runs the hosts in a folder of their own, and removes it at the end."""
    folder = short_folder()
    try:
        with Cluster(folder) as running:
            yield running
    finally:
        remove(folder)
