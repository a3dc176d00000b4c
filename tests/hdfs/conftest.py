# SPDX-License-Identifier: Apache-2.0
"""Fixture with one HDFS for the session: a NameNode and two DataNodes, run by `cluster.py`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


class Hdfs:
    """A running cluster."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._facts: dict[str, Any] = {}
        self._read()

    def _read(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            pytest.fail("HDFS did not start; `make setup-peers` installs it", pytrace=False)
        self._facts = json.loads(line)

    @property
    def url(self) -> str:
        return f"hdfs://{self._facts['authority']}"

    @property
    def env(self) -> dict[str, str]:
        return {"HADOOP_USER_NAME": "penstock"}

    @property
    def default_env(self) -> dict[str, str]:
        """Environment for `hdfs:///`, whose authority comes from the Hadoop configuration."""
        return {**self.env, "HADOOP_CONF_DIR": self._facts["conf"]}

    @property
    def nodes(self) -> list[int]:
        return list(self._facts["nodes"])

    def start_node(self, node: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"start {node}\n")
        self._process.stdin.flush()
        self._read()

    def put(self, path: str, body: bytes) -> None:
        """Writes a file by WebHDFS, as a third-party client."""
        query = "op=CREATE&overwrite=true&noredirect=true&user.name=foreign"
        where = f"http://127.0.0.1:{self._facts['http']}/webhdfs/v1{urllib.parse.quote(path)}?{query}"
        with urllib.request.urlopen(urllib.request.Request(where, method="PUT"), timeout=30) as answer:
            location = json.load(answer)["Location"]
        request = urllib.request.Request(location, data=body, method="PUT")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 201

    def owner(self, path: str) -> str:
        """Owner of a file, by WebHDFS."""
        query = "op=GETFILESTATUS&user.name=foreign"
        where = f"http://127.0.0.1:{self._facts['http']}/webhdfs/v1{urllib.parse.quote(path)}?{query}"
        with urllib.request.urlopen(where, timeout=30) as answer:
            return str(json.load(answer)["FileStatus"]["owner"])

    def get(self, path: str) -> bytes:
        """Reads by WebHDFS."""
        where = f"http://127.0.0.1:{self._facts['http']}/webhdfs/v1{urllib.parse.quote(path)}?op=OPEN&user.name=foreign"
        with urllib.request.urlopen(where, timeout=60) as answer:
            return bytes(answer.read())


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Hdfs]:
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("cluster.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Hdfs(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)  # Its JVMs die with it.
