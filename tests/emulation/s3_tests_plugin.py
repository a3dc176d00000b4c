# SPDX-License-Identifier: Apache-2.0
"""Runs Ceph's s3-tests against `penstock emulate`: a pytest plugin for that suite (docs/reference/emulator.md).

Each test gets its own endpoint over an empty folder. An endpoint serves a single bucket, so every bucket name that the
suite requests is mapped to that bucket's name. Tests of a missing bucket are the exception.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

PENSTOCK = os.environ.get("PENSTOCK", "penstock")
ACCESS, SECRET = "S3TESTSMAIN", "s3-tests-main-secret"
ROOT = Path(tempfile.mkdtemp(prefix="s3-tests-"))
bucket = "not-set"
numbers = itertools.count()


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


PORT = _free_port()


def pytest_configure() -> None:
    lines = ["[DEFAULT]", "host = 127.0.0.1", f"port = {PORT}", "is_secure = False", "[fixtures]", "bucket prefix = x-{random}-"]  # fmt: skip
    # The suite needs several accounts. The endpoint has one account, and rejects the keys of the others.
    for number, section in enumerate(["s3 main", "s3 alt", "s3 tenant", "iam", "iam root", "iam alt root"]):
        name = f"user{number}"
        access, secret = (ACCESS, SECRET) if number == 0 else (f"OTHER{number}", "none")
        lines += [f"[{section}]", f"access_key = {access}", f"secret_key = {secret}", f"user_id = {name}"]
        lines += [f"display_name = {name}", f"email = {name}@example.com", "api_name =", "tenant = none"]
    config = ROOT / "s3tests.conf"
    config.write_text("\n".join(lines) + "\n")
    os.environ.update(S3TEST_CONF=str(config), AWS_DEFAULT_REGION="us-east-1")
    import s3tests.functional as suite

    # The suite's set-up and tear-down delete every bucket; here the folder is removed instead.
    suite.setup = suite.teardown = lambda: None
    suite.get_new_bucket_name = lambda: bucket


def pytest_unconfigure() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global bucket
    folder = ROOT / f"bucket-{next(numbers)}"
    folder.mkdir()
    item.folder = folder
    bucket = folder.name + ("-absent" if "notexist" in item.name else "")
    keys = {"PENSTOCK_EMULATE_ACCESS_KEY": ACCESS, "PENSTOCK_EMULATE_SECRET_KEY": SECRET}
    command = [PENSTOCK, "emulate", str(folder), "--bind", f"127.0.0.1:{PORT}", "--json"]
    item.emulator = subprocess.Popen(command, env={**os.environ, **keys}, stdout=subprocess.PIPE)
    json.loads(item.emulator.stdout.readline())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    item.emulator.kill()
    item.emulator.communicate()
    shutil.rmtree(item.folder)
