# SPDX-License-Identifier: Apache-2.0
"""Test kit: starts the ranks of `penstock train` as real processes, one by one or with `--ranks`, and finds their
descendants.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

# The time limit from a signal to the end of the process.
LIMIT_S = 10
# On a machine that also runs other tests, starting torch in two processes may take this long.
START_S = 90

FLAGS = (
    "--data", "dummy://24", "--global-batch", "4", "--voxels", "32", "--filters", "2", "--set", "base_batch=8",
    "--threads", "1", "--no-save",
)  # fmt: skip
FOREVER = ("--epochs", "1000000")


class Job:
    """One process and its output."""

    def __init__(self, arguments, log: Path, env: dict[str, str], cwd: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "train", *map(str, arguments)],
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **env},
                cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def errors(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.startswith("error[")]

    def await_text(self, text: str, limit_s: float = START_S) -> None:
        until = time.monotonic() + limit_s
        while text not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < until, f"`{text}` did not come: {self.text}"
            time.sleep(0.02)

    def wait(self, limit_s: float) -> int:
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit_s} s: {self.text}") from None

    def end(self) -> None:
        for pid in [*below(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def below(pid: int) -> list[int]:
    """Pids of all descendants of a process."""
    found = []
    for task in Path("/proc").iterdir():
        if task.name.isdecimal():
            with suppress(OSError, IndexError):
                parent = int((task / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == pid:
                    found += [int(task.name), *below(int(task.name))]
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def ranks_below(job: Job) -> dict[int, int]:
    """Pids by rank number, for the ranks that `--ranks` started."""
    found = {}
    for pid in below(job.process.pid):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"penstock.train.worker" in line:
                values = dict(
                    one.partition(b"=")[::2] for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                )
                if b"RANK" in values:
                    found[int(values[b"RANK"])] = pid
    return found
