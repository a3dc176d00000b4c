# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock emulate`: its output, its errors, and how it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

PENSTOCK = Path(sys.executable).with_name("penstock")


@contextmanager
def _running(*argv, env=None):
    process = subprocess.Popen(
        [str(PENSTOCK), "emulate", *map(str, argv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    try:
        assert select.select([process.stdout], [], [], 60)[0], "printed nothing in 60 s"
        yield process
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGINT])
def test_emulate_json_serves_until_a_signal_then_exits_0(tmp_path, ends):
    with _running(tmp_path, "--tier", "azure-hot", "--scale", "0.25", "--json") as process:
        facts = json.loads(process.stdout.readline())
        assert {"endpoint", "url", "access_key", "secret_key", "region"} <= set(facts)
        assert (facts["tier"], facts["scale"], facts["pid"]) == ("azure-hot@2026", 0.25, process.pid)
        host, port = facts["endpoint"].removeprefix("http://").split(":")
        socket.create_connection((host, int(port)), timeout=10).close()
        process.send_signal(ends)
        assert process.wait(20) == 0
        assert process.stdout.read() == ""


def test_emulate_readable_says_limits_their_sources_and_f(tmp_path):
    with _running(tmp_path, "--tier", "azure-hot@2021", "--scale", "0.01") as process:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert "export AWS_ENDPOINT_URL=http://127.0.0.1:" in out
    assert "rates x 0.01 (F)" in out
    assert "62.50 MB/s per account" in out
    assert "NAG 2021" in out
    assert "0 requests" in err


def test_emulate_keys_from_the_environment_are_used(tmp_path):
    env = {"PENSTOCK_EMULATE_ACCESS_KEY": "mine", "PENSTOCK_EMULATE_SECRET_KEY": "my-secret"}
    with _running(tmp_path, "--json", env=env) as process:
        facts = json.loads(process.stdout.readline())
    assert (facts["access_key"], facts["secret_key"]) == ("mine", "my-secret")


def test_emulate_refusals_name_the_thing_and_exit_as_documented(tmp_path, run_cli):
    missing = run_cli("emulate", tmp_path / "no")
    assert (missing.code, "hint:" in missing.err) == (3, True)
    (tmp_path / "file").write_text("")
    no_folder = run_cli("emulate", tmp_path / "file")
    assert (no_folder.code, "hint:" in no_folder.err) == (3, False)  # mkdir would not help
    unknown = run_cli("emulate", tmp_path, "--tier", "warm")
    assert unknown.code == 2
    assert "s3-standard" in unknown.err
    remote = run_cli("emulate", tmp_path, "--bind", "0.0.0.0:0")
    assert remote.code == 2
    assert "--allow-remote" in remote.err
    assert run_cli("emulate", tmp_path, "--scale", "-1").code == 2
    for ran in (missing, unknown, remote):
        assert ran.out == ""
        assert len(ran.err.splitlines()) <= 3


def test_emulate_port_in_use_is_reported(tmp_path, run_cli):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = run_cli("emulate", tmp_path, "--bind", f"127.0.0.1:{port}")
    assert ran.code == 2
    assert f"127.0.0.1:{port} is in use by another program" in ran.err
