# SPDX-License-Identifier: Apache-2.0
"""What all rooms' tests share: a clean environment, the CLI, the strict S3 peer, and the policy of markers.

A missing peer is a failure, never a skip: `make test` installs what the tests need.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent

# What a job, a cloud or a user's own settings would leak into a test.
_AMBIENT = (
    "SLURM_",
    "OMPI_",
    "PMI",
    "PMIX",
    "MPI_",
    "MV2_",
    "HOROVOD_",
    "TORCHELASTIC_",
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "HADOOP_",
    "PENSTOCK_",
    "PBS_",
    "FLUX_",
    "PALS_",
    "MPIRUN_",
    "IDENTITY_",
    "CLOUDSDK_",
)
_AMBIENT_EXACT = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "COLUMNS",
)


def pytest_configure(config: pytest.Config) -> None:
    for name in [n for n in os.environ if n.startswith(_AMBIENT) or n in _AMBIENT_EXACT]:
        del os.environ[name]
    # No file of the user's and no metadata address may answer for a test.
    nowhere = str(Path(__file__).with_name("no-such-file"))
    os.environ.update(
        AWS_CONFIG_FILE=nowhere,
        AWS_SHARED_CREDENTIALS_FILE=nowhere,
        AWS_EC2_METADATA_DISABLED="true",
        XDG_CONFIG_HOME=nowhere,
        PENSTOCK_CACHE="",
    )
    config.stash[_RAN] = 0


_RAN = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call" and not report.skipped:
        item.config.stash[_RAN] += 1
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A job that picks a marker and runs no test has failed, also when all that it collected was skipped."""
    picked = session.config.getoption("markexpr")
    if picked and exitstatus == 0 and not session.config.getoption("collectonly") and session.config.stash[_RAN] == 0:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@dataclass(frozen=True)
class Ran:
    """One command line that has ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def run_cli() -> Callable[..., Ran]:
    """`run_cli("stage", src, dst, env={...}, cwd=..., timeout_s=60)`: the installed `penstock`, as a user would run it."""
    program = Path(sys.executable).with_name("penstock")

    def run(
        *arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 60
    ) -> Ran:
        done = subprocess.run(
            [str(program), *map(str, arguments)],
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """`with`-less: `store = emulator(folder=..., tier="s3-standard", scale=1.0)`; `.url`, `.env`; all end with the test.

    Without a folder it serves a new, empty one under tmp_path.
    """
    from penstock.emulation import Emulator

    with ExitStack() as running:

        def start(folder: Path | None = None, *, tier: str = "none", scale: float = 1.0) -> Any:
            if folder is None:
                folder = tmp_path / f"bucket-{uuid4().hex[:8]}"
                folder.mkdir()
            return running.enter_context(Emulator(folder, tier=tier, scale=scale))

        yield start


@dataclass(frozen=True)
class S3Peer:
    """A running S3 server that is not ours, over a folder: each sub-folder is a bucket."""

    endpoint: str
    folder: Path
    access_key: str = "penstock-test"
    secret_key: str = field(default="penstock-test-secret", repr=False)
    region: str = "us-east-1"

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }

    def bucket(self, name: str) -> Path:
        """The folder of a bucket, made when it is not there."""
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name


def _find_versitygw() -> str:
    # Where `make setup-peers` puts it, then PATH, then where `go install` puts it.
    places = [
        ROOT / ".tools/bin/versitygw",
        shutil.which("versitygw"),
        Path(os.environ.get("GOPATH", Path.home() / "go")) / "bin/versitygw",
    ]
    for place in places:
        if place and os.access(place, os.X_OK):
            return str(place)
    pytest.fail("versitygw is not here; `make setup-peers` installs it", pytrace=False)


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Peer]:
    """The strict S3 peer, one for the session; a test takes a bucket of its own name."""
    program = _find_versitygw()
    folder = tmp_path_factory.mktemp("versitygw")
    log = tmp_path_factory.mktemp("versitygw-log") / "log"
    with socket.socket() as probe:  # it cannot choose a port by itself
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    peer = S3Peer(f"http://127.0.0.1:{port}", folder)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)],
            env={**os.environ, "ROOT_ACCESS_KEY": peer.access_key, "ROOT_SECRET_KEY": peer.secret_key},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        _await_port(process, port, log)
        yield peer
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    pytest.fail(
        f"versitygw did not start (exit {process.poll()}): {log.read_text(errors='replace')[-500:]}", pytrace=False
    )
