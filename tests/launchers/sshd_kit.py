# SPDX-License-Identifier: Apache-2.0
"""Starts real sshds on loopback, for tests of connections by ssh."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ports import free_port

# HOME is not this user's: otherwise, the shells would run its .bashrc, which may print lines.
_CONFIG = """
HostKey {folder}/host{at}
AuthorizedKeysFile {folder}/authorized{at}
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
MaxStartups 100
LogLevel ERROR
SetEnv HOME={folder}
"""


class Sshds:
    """`count` sshds of one user on loopback, each with its own host key and its own list of authorized keys.

    `shell` is the user's login shell, set by a private /etc/passwd in a mount namespace; by default it is unchanged.
    """

    def __init__(self, folder: Path, count: int, shell: str = "") -> None:
        self.folder = folder
        self._shell = shutil.which(shell) if shell else ""
        if self._shell is None:
            pytest.fail(f"{shell} is not here; `make setup-peers` installs it", pytrace=False)
        self._running = ExitStack()
        self.ports: list[int] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        program = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin:/bin")
        if program is None:
            pytest.fail("sshd is not here; `make setup-peers` installs it", pytrace=False)
        self._program = program
        for name in ("mine", "stranger", *(f"host{at}" for at in range(count))):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd requires this folder with any configuration
        for at in range(count):
            self._start(at)
        known = [f"[127.0.0.1]:{port} {(folder / f'host{at}.pub').read_text()}" for at, port in enumerate(self.ports)]
        (folder / "known").write_text("".join(known))

    def _start(self, at: int) -> None:
        port = free_port()
        (self.folder / f"authorized{at}").write_bytes((self.folder / "mine.pub").read_bytes())
        config = self.folder / f"config{at}"
        config.write_text(_CONFIG.format(folder=self.folder, at=at))
        line = [self._program, "-D", "-e", "-f", str(config), "-o", f"ListenAddress=127.0.0.1:{port}"]
        if self._shell:
            own = pwd.getpwuid(os.geteuid())
            (self.folder / "passwd").write_text(
                f"{own.pw_name}:x:{own.pw_uid}:{own.pw_gid}::{own.pw_dir}:{self._shell}\nsshd:x:22:65534::/run/sshd:/bin/false\n"
            )
            inside = 'mount --bind "$0" /etc/passwd && exec "$@"'
            line = ["unshare", "--mount", "sh", "-c", inside, str(self.folder / "passwd"), *line]
        with (self.folder / f"log{at}").open("wb") as log:
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._running.callback(process.wait, 10)
        self._running.callback(process.kill)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        else:
            pytest.fail(f"sshd did not start: {(self.folder / f'log{at}').read_text()}", pytrace=False)
        self.ports.append(port)
        self.processes.append(process)

    def close(self) -> None:
        self._running.close()

    @property
    def nodes(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def settings(self, **more: object) -> dict[str, object]:
        plain = {"key": str(self.folder / "mine"), "known_hosts": str(self.folder / "known"), "python": sys.executable}
        return {"nodes": self.nodes, **plain, **more}
