# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the stage benchmarks against other copiers: the server, the copier commands, and the cost of a run.

The server is versitygw, a third party's, so that no contestant has an advantage. The AWS CLI uploads the objects; it
sends a CRC64NVME with each, as S3's own clients have done since 2025. `make setup-peers-stage` installs all programs
that run here.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / ".tools"
BIN = TOOLS / "bin"
PENSTOCK = Path(sys.executable).with_name("penstock")
KEYS = {"AWS_ACCESS_KEY_ID": "bench-key", "AWS_SECRET_ACCESS_KEY": "bench-secret-key", "AWS_REGION": "us-east-1"}
AMBIENT = ("AWS_", "RCLONE_", "PENSTOCK_", "SLURM_", "PMI", "OMPI_")


@dataclass(frozen=True)
class Spent:
    """One run of one program: wall seconds, CPU seconds including its children, exit code, end of its output."""

    wall_s: float
    cpu_s: float
    code: int
    output: str


def environment(endpoint: str, home: Path) -> dict[str, str]:
    """The variables that the copiers need to reach the server; the caller's own AWS and S3 settings are removed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(AMBIENT)}
    home.mkdir(parents=True, exist_ok=True)
    for name, client in (("aws-classic", "classic"), ("aws-crt", "crt")):
        (home / name).write_text(f"[default]\ns3 =\n  preferred_transfer_client = {client}\n")
    # Each object is uploaded in one request, so that the store has a checksum and an MD5 of the whole.
    (home / "aws-upload").write_text("[default]\ns3 =\n  multipart_threshold = 4GB\n")
    return (
        kept
        | KEYS
        | {
            "AWS_DEFAULT_REGION": KEYS["AWS_REGION"],
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(home / "aws-classic"),
            "AWS_SHARED_CREDENTIALS_FILE": str(home / "none"),
            "S3_ENDPOINT_URL": endpoint,
            "RCLONE_CONFIG": str(home / "rclone.conf"),
            "RCLONE_CONFIG_P_TYPE": "s3",
            "RCLONE_CONFIG_P_PROVIDER": "Other",
            "RCLONE_CONFIG_P_ENV_AUTH": "true",
            "RCLONE_CONFIG_P_ENDPOINT": endpoint,
            "RCLONE_CONFIG_P_REGION": KEYS["AWS_REGION"],
            "PYTHONWARNINGS": "ignore",
        }
    )


def copy_command(name: str, bucket: str, dst: Path, *, options: Sequence[str] = ()) -> list[str]:
    """Command that copies `bucket/set/` to a folder, with the flags that the copier's documentation recommends for
    speed.
    """
    aws = [str(TOOLS / "awscrt/bin/aws"), "s3", "cp", "--recursive", "--only-show-errors", *options]
    commands: dict[str, list[str]] = {
        "penstock": [str(PENSTOCK), "stage", f"s3://{bucket}/set/", str(dst), "--quiet", *options],
        "s5cmd": [str(BIN / "s5cmd"), "--log", "error", "cp", *options, f"s3://{bucket}/set/*", f"{dst}/"],
        "rclone": [
            str(BIN / "rclone"),
            "copy",
            "--fast-list",
            "--transfers",
            "16",
            "--checkers",
            "16",
            *options,
            f"p:{bucket}/set",
            str(dst),
        ],
        "aws": [*aws, f"s3://{bucket}/set/", str(dst)],
        "aws-crt": [*aws, f"s3://{bucket}/set/", str(dst)],
    }
    return commands[name]


def own_environment(name: str, env: dict[str, str]) -> dict[str, str]:
    """Environment of a copier. AWS's two clients differ only in their config file."""
    if name != "aws-crt":
        return env
    return env | {"AWS_CONFIG_FILE": str(Path(env["AWS_CONFIG_FILE"]).with_name("aws-crt"))}


def measure(argv: Sequence[str], env: dict[str, str], *, limit_s: float = 900) -> Spent:
    """Runs a command to its end; returns its cost, exit code and output."""
    begin = time.monotonic()
    child = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - begin
    if wall > limit_s:
        raise TimeoutError(f"{argv[0]} took {wall:.0f} s")
    return Spent(wall, usage.ru_utime + usage.ru_stime, child.returncode, output.decode(errors="replace")[-2000:])


def tree(folder: Path) -> dict[str, Path]:
    """Files under a folder, without Penstock's own state."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(".penstock"):
            found[name] = path
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def versitygw(folder: Path) -> Iterator[str]:
    """Starts a server over a folder whose sub-folders are buckets; yields its endpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = subprocess.Popen(
        [str(BIN / "versitygw"), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)],
        env={
            **os.environ,
            "ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(400):
            if server.poll() is not None:
                raise RuntimeError("versitygw did not start; `make setup-peers` installs it")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def upload(source: Path, bucket: str, env: dict[str, str], *options: str, checksum: bool = True) -> None:
    """Uploads a folder to `bucket/set/`."""
    aws = str(TOOLS / "awscrt/bin/aws")
    env = uploading(env) | ({} if checksum else {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"})
    subprocess.run(
        [aws, "s3", "cp", "--recursive", "--only-show-errors", *options, str(source), f"s3://{bucket}/set/"],
        env=env,
        check=True,
    )


def uploading(env: dict[str, str]) -> dict[str, str]:
    return env | {"AWS_CONFIG_FILE": str(Path(env["AWS_CONFIG_FILE"]).with_name("aws-upload"))}


def upload_one(source: Path, bucket: str, key: str, env: dict[str, str]) -> None:
    """Replaces one object of `bucket/set/`."""
    aws = str(TOOLS / "awscrt/bin/aws")
    subprocess.run(
        [aws, "s3", "cp", "--only-show-errors", str(source), f"s3://{bucket}/set/{key}"], env=env, check=True
    )


def context() -> dict[str, Any]:
    """Provenance fields that every row must have."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return {
        "schema_version": 1,
        "when_s": round(time.time()),
        "commit": git("rev-parse", "HEAD"),
        "dirty": bool(git("status", "--porcelain")),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    output = {}
    for name, argv in {
        "penstock": [str(PENSTOCK), "--version"],
        "s5cmd": ["go", "version", "-m", str(BIN / "s5cmd")],
        "rclone": [str(BIN / "rclone"), "version"],
        "aws": [str(TOOLS / "awscrt/bin/aws"), "--version"],
        "igzip": ["igzip", "--version"],
        "gunzip": ["gunzip", "--version"],
    }.items():
        if shutil.which(argv[0]) or Path(argv[0]).exists():
            ran = subprocess.run(argv, capture_output=True, text=True, check=False)
            lines = (ran.stdout + ran.stderr).splitlines()
            output[name] = lines[0] if lines else ""
    output["s5cmd"] = "v2.3.0"
    return output


def write_row(row: dict[str, Any], name: str) -> None:
    out = ROOT / f"runs/bench/{name}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")
