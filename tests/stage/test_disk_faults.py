# SPDX-License-Identifier: Apache-2.0
"""Tests failing disks: our file system faultfs (benches/peers/stage/faultfs) returns EIO or ENOSPC. Issue 4."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from stage_kit import facts, tree

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def failing(folder: Path, *flags: str, at: Path | None = None):
    """A folder on a failing disk; yields it, and a dict that gets the counts of injected faults at the end."""
    program = ROOT / ".tools/bin/faultfs"
    if not program.exists():
        pytest.fail("faultfs is not here; `make setup-peers` builds it", pytrace=False)
    inner, mount, counts = folder / "disk", at or folder / "mount", {}
    inner.mkdir(exist_ok=True)
    mount.mkdir(exist_ok=True)
    server = subprocess.Popen([str(program), *flags, str(inner), str(mount)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "ready\n"
        yield mount, counts
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            output, _ = server.communicate(timeout=20)
        finally:
            server.kill()
            subprocess.run(["umount", "-l", str(mount)], check=False, stderr=subprocess.DEVNULL)
    counts.update(json.loads(output.splitlines()[-1]))


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("call", "errno", "code"),
    [
        ("write", "EIO", "system"),
        ("fsync", "EIO", "system"),
        ("rename", "EIO", "system"),
        ("write", "ENOSPC", "no-space"),
        ("create", "ENOSPC", "no-space"),
    ],
)
def test_stage_onto_a_disk_whose_every_call_fails_says_so_and_shows_nothing(
    call, errno, code, bucket, run_cli, tmp_path
):
    with failing(tmp_path, "-rate", "1", "-calls", call, "-errors", errno) as (mount, counts):
        ran = run_cli("stage", bucket.url, mount / "dst", "--decompress", "--json", env=bucket.env)
        assert (ran.code, f"error[{code}]" in ran.err, "Traceback" in ran.err) == (3, True, False), ran.err
        assert str(mount) in ran.err
        assert tree(mount / "dst") == {}
    assert set(counts) == {f"{call} {errno}"}


@pytest.mark.needs_root
def test_stage_onto_a_failing_disk_ends_whole_when_run_again(bucket, run_cli, tmp_path):
    (bucket.folder / "set/large.bin").write_bytes(large := os.urandom(20 << 20))
    want = bucket.want | {"large.bin": large}
    with failing(tmp_path, "-rate", "0.01", "-seed", "5") as (mount, counts):
        for _ in range(40):
            ran = run_cli("stage", bucket.url, mount / "dst", "--decompress", "--json", env=bucket.env)
            assert "Traceback" not in ran.err
            assert all(want[name] == body for name, body in tree(mount / "dst").items())
            if ran.code == 0:
                break
            assert ran.code == 3, ran.err
        assert (ran.code, tree(mount / "dst") == want) == (0, True), ran.err
    assert sum(counts.values()) >= 3


@pytest.mark.needs_root
def test_parts_of_a_large_object_whose_sync_failed_are_not_taken_up_again(bucket, run_cli, tmp_path):
    """After a failed fsync, the page cache may hold bytes that the disk lacks, and the next fsync may succeed."""
    (bucket.folder / "set/large.bin").write_bytes(large := os.urandom(20 << 20))
    dst = tmp_path / "dst"
    parts = dst / ".penstock/stage/parts"
    parts.mkdir(parents=True)
    with failing(tmp_path, "-rate", "1", "-calls", "fsync", "-errors", "EIO", at=parts) as (_, counts):
        ran = run_cli("stage", f"{bucket.url}large.bin", dst, "--json", env=bucket.env)
        assert (ran.code, "error[system]" in ran.err) == (3, True), ran.err
        assert not list(parts.iterdir())
    assert counts == {"fsync EIO": 1}
    again = run_cli("stage", f"{bucket.url}large.bin", dst, "--json", env=bucket.env)
    assert (again.code, facts(again)["resumed_bytes"], tree(dst)) == (0, 0, {"large.bin": large}), again.err


@pytest.mark.needs_root
def test_verify_of_a_file_that_the_disk_cannot_read_names_it(bucket, run_cli, tmp_path):
    dst = tmp_path / "dst"
    run_cli("stage", bucket.url, dst, "--decompress", "--quiet", env=bucket.env)
    (dst / "d").rename(tmp_path / "disk")
    with failing(tmp_path, "-rate", "1", "-calls", "read", "-errors", "EIO", at=dst / "d") as (_, counts):
        ran = run_cli("verify", dst, "--json")
    found = {wrong["file"]: wrong["problem"] for wrong in facts(ran)["failed"]}
    filled = {name for name, body in bucket.want.items() if body}
    assert (ran.code, found) == (1, dict.fromkeys(filled, "unreadable")), ran.err
    assert "Input/output error" in ran.out
    assert counts["read EIO"] > 0
