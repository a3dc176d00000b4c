# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures of all tests: a clean environment, the CLI, the strict S3 peer, and the policy of markers.

A missing peer is a failure, never a skip: `make test` installs everything that the tests need.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from tests import peer_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.peer_stores import S3Peer

ROOT = Path(__file__).resolve().parent.parent

# Variables of a job, a cloud or the user's settings, which could change a test's result.
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
    "HF_",
    "HUGGING_FACE_",
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
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Shells start background jobs so, and every program under test would inherit it: no Ctrl-C would end one.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [n for n in os.environ if n.startswith(_AMBIENT) or n in _AMBIENT_EXACT]:
        del os.environ[name]
    # Tests must not use the user's settings files or a metadata address.
    nowhere = str(Path(__file__).with_name("no-such-file"))
    os.environ.update(
        AWS_CONFIG_FILE=nowhere,
        AWS_SHARED_CREDENTIALS_FILE=nowhere,
        AWS_EC2_METADATA_DISABLED="true",
        XDG_CONFIG_HOME=nowhere,
        MPLCONFIGDIR=tempfile.gettempdir(),  # otherwise, matplotlib would create `nowhere`
        PENSTOCK_CACHE="",
    )


# The tier `system`: tests of whole systems of processes (launchers, pools, ranks, demo runs, documentation pages), and
# tests that look at the whole machine. A test is selected by file, by folder or by its fixtures.
_SYSTEM = (
    "arrays/rtm/",
    "bench/test_app_hosts.py",
    "bench/test_app_runs.py",
    "bench/test_disks.py",
    "bench/test_distributed.py",
    "bench/test_objects.py",
    "cli/test_secrets.py",
    "cli/test_signals.py",
    "cluster/test_bad_nodes.py",
    "cluster/test_cluster.py",
    "datasets/test_images.py",
    "demo/test_demo.py",
    "docs/test_code_blocks.py",
    "docs/test_first_hour.py",
    "engines/",
    "explain/test_bad_programs.py",
    "explain/test_verdicts.py",
    "feed/test_hedge.py",
    "feed/test_outages.py",
    "hdfs/",
    "job/test_job_everywhere.py",
    "job/test_job_loss.py",
    "job/test_lost_host.py",
    "job/test_node_loss_recovery.py",
    "job/test_paths.py",
    "job/test_run.py",
    "job/test_submit.py",
    "launchers/",
    "pool/test_pool_leases.py",
    "probe/test_files.py",
    "probe/test_objects.py",
    "rtm/",
    "stage/test_everywhere.py",
    "stage/test_launches.py",
    "stage/test_races.py",
    "stage/test_ranks_end.py",
    "stage/test_scale.py",
    "stage/test_signals.py",
    "studies/",
    "train/",
    "workloads/test_images_runs.py",
)
# Tests of that tier that measure this machine, so they run one at a time.
_ALONE = (
    "bench/",
    "demo/",
    "explain/",
    "feed/test_hedge.py",
    "probe/",
    "stage/test_scale.py",
    "studies/",
    "train/test_data_path_cost.py",
    "train/test_scaling.py",
)
# Pages of the documentation whose code blocks measure this machine.
_ALONE_PAGES = {
    "containers", "explain", "measure", "measure-network", "measure-storage", "plan", "probe", "studies", "what-limits-training",
}  # fmt: skip
# Files that take 5 seconds or more; `make check` leaves them out.
_SLOW = (
    "arrays/test_commands.py",
    "arrays/test_convert.py",
    "arrays/test_lossy.py",
    "arrays/test_mdio.py",
    "arrays/test_osdu.py",
    "arrays/test_segy_slice.py",
    "arrays/test_templates.py",
    "bench/storage/test_gpu.py",
    "bench/storage/test_storage.py",
    "bench/test_ab.py",
    "bench/test_accelerator.py",
    "bench/test_verdict.py",
    "cli/test_audit_order.py",
    "cli/test_peek.py",
    "config/test_consent.py",
    "explain/test_programs.py",
    "feed/test_decode.py",
    "feed/test_map.py",
    "feed/test_map_workers.py",
    "feed/test_memory.py",
    "feed/test_patches.py",
    "job/test_specs.py",
    "plan/test_simulation.py",
    "plan/test_simulation_published.py",
    "probe/test_doctor.py",
    "report/test_in_browser.py",
    "report/test_page.py",
    "report/test_plan_page.py",
    "report/test_reference_runs.py",
    "report/test_runs.py",
    "report/test_scaling_page.py",
    "report/test_sweep.py",
    "report/test_train_section.py",
    "stage/test_hostile.py",
    "stage/test_part_checksums.py",
)
_SYSTEM_FIXTURES = {"charliecloud", "hdfs", "hosts", "jars", "slurm_hosts", "ssh", "sshds"}
# Fixtures that start servers; `make check` leaves out their tests.
_SERVERS_BY_PARAMETER = {"az", "azure", "google", "gs", "versitygw"}
_SERVERS = {"azure", "bucket", "emulator", "google", "site", "slow_bucket", "twins", "versitygw"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sets the tier of each test."""
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here).as_posix() if item.path.is_relative_to(here) else ""
        fixtures = set(getattr(item, "fixturenames", ()))
        # A test that asks for its server by a parameter does not name the fixture.
        named = (
            {value for value in item.callspec.params.values() if isinstance(value, str)}
            if hasattr(item, "callspec")
            else set()
        )
        marks = {mark.name for mark in item.iter_markers()}
        if place.startswith(_SYSTEM) or fixtures & _SYSTEM_FIXTURES or "needs_browser" in marks:
            item.add_marker("system")
        page = getattr(getattr(item, "callspec", None), "params", {}).get("page")
        if place.startswith(_ALONE) or (isinstance(page, Path) and page.stem in _ALONE_PAGES):
            item.add_marker("alone")
        if place.startswith(_SLOW):
            item.add_marker("slow")
        if fixtures & _SERVERS or named & _SERVERS_BY_PARAMETER:
            item.add_marker("needs_server")


_ran = 0


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts the tests that ran, in this process or in a worker of xdist."""
    global _ran
    _ran += report.when == "call" and not report.skipped


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fails a job that picks a marker and runs no test, even if it only skipped tests."""
    picked, is_worker = session.config.getoption("markexpr"), hasattr(session.config, "workerinput")
    if picked and exitstatus == 0 and not session.config.getoption("collectonly") and not is_worker and _ran == 0:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@dataclass(frozen=True)
class Ran:
    """The result of one finished command line."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stand-ins for libcuda and libcufile."""
    folder = tmp_path_factory.mktemp("driver")
    source = ROOT / "tests" / "standin_gpu.c"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", folder / "libcuda.so.1", source], check=True
    )
    (folder / "libcufile.so.0").symlink_to("libcuda.so.1")
    return folder


@pytest.fixture(scope="session")
def run_cli() -> Callable[..., Ran]:
    """`run_cli("stage", src, dst, env={...}, cwd=..., timeout_s=60)` runs the installed `penstock`, as a user would."""
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
def call_cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`call_cli("stage", "--help")` runs the command line in this process: for tests of texts and exit codes only."""
    from penstock.cli import app

    def call(*arguments: str) -> Ran:
        try:
            app.main(list(arguments))
        except SystemExit as ended:
            return Ran(int(ended.code or 0), *capsys.readouterr())
        return Ran(0, *capsys.readouterr())

    return call


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """`store = emulator(folder=..., tier="s3-standard", scale=1.0)` starts a server with `.url` and `.env`.

    Without a folder it serves a new, empty one under tmp_path. All servers end with the test.
    """
    from penstock.emulator import Emulator

    with ExitStack() as running:

        def start(folder: Path | None = None, *, tier: str = "none", scale: float = 1.0) -> Any:
            if folder is None:
                folder = tmp_path / f"bucket-{uuid4().hex[:8]}"
                folder.mkdir()
            return running.enter_context(Emulator(folder, tier=tier, scale=scale))

        yield start


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Peer]:
    """The strict S3 peer, one for the session; each test uses a separate bucket."""
    with peer_stores.versitygw(tmp_path_factory.mktemp("versitygw")) as peer:
        yield peer
