# SPDX-License-Identifier: Apache-2.0
"""Fixtures with a fresh emulator and third-party clients: the AWS CLI as a program, and the botocore library inside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AWS = Path(sys.executable).with_name("aws")


class Served:
    """A running emulator (`server`) over `folder`."""

    bucket = "bucket"

    def __init__(self, folder: Path, server: Any) -> None:
        self.folder, self.server, self.url = folder, server, server.url

    def aws(self, *argv: object, code: int | None = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `aws ...`, which must exit with `code` unless that is None."""
        done = subprocess.run(
            [str(AWS), *map(str, argv)],
            env={**os.environ, **self.server.env, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert code is None or done.returncode == code, done.stderr
        return done

    def client(self, **config: Any) -> Any:
        """botocore's S3 client from the AWS CLI's package; `config` holds further settings."""
        from awscli.botocore.config import Config
        from awscli.botocore.session import Session

        return Session().create_client(
            "s3",
            endpoint_url=self.server.endpoint,
            region_name=self.server.region,
            aws_access_key_id=self.server.access_key,
            aws_secret_access_key=self.server.secret_key,
            config=Config(retries={"max_attempts": 1, "mode": "standard"}, **config),
        )


@pytest.fixture
def served(emulator, tmp_path):
    folder = tmp_path / "bucket"
    folder.mkdir()
    return Served(folder, emulator(folder))


@pytest.fixture
def s3(served):
    """`s3("get_object", Key=...)` returns the response, or the code of the error."""
    client = served.client()

    def ask(verb, **arguments):
        try:
            return getattr(client, verb)(Bucket=served.bucket, **arguments)
        except client.exceptions.ClientError as error:
            return error.response["Error"]["Code"]

    return ask
