# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode adds no folder of its own

from stage_kit import Bucket, fill


@pytest.fixture
def put_object(tmp_path):
    """Puts one object with the AWS CLI, which sends keys unchanged."""
    aws = str(Path(sys.executable).with_name("aws"))

    def put(served, key: bytes, body: bytes, *more: str) -> None:
        bucket = served.url.removeprefix("s3://").strip("/")
        (tmp_path / "body").write_bytes(body)
        subprocess.run(
            [
                aws,
                "s3api",
                "put-object",
                "--bucket",
                bucket,
                "--key",
                key.decode(),
                "--body",
                str(tmp_path / "body"),
                *more,
            ],
            env={**os.environ, **served.env},
            stdout=subprocess.DEVNULL,
            check=True,
        )

    return put


@pytest.fixture
def bucket(emulator, tmp_path: Path) -> Bucket:
    """48 objects of up to 60 kB, two thirds gzip'd, in our own emulator."""
    folder = tmp_path / "bucket"
    want = fill(folder, 48, 60_000)
    served = emulator(folder=folder)
    return Bucket(f"{served.url.rstrip('/')}/set/", folder, served.env, want)


@pytest.fixture
def slow_bucket(emulator, tmp_path: Path) -> Bucket:
    """96 objects of up to 400 kB behind a link of some MB/s, so that a test can stop a stage midway."""
    folder = tmp_path / "bucket"
    want = fill(folder, 96, 400_000)
    served = emulator(folder=folder, tier="azure-hot", scale=0.001)
    return Bucket(f"{served.url.rstrip('/')}/set/", folder, served.env, want)
