# SPDX-License-Identifier: Apache-2.0
"""Fixtures for pool tests: hosts for pools, and a home folder that keeps pool records inside the test."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from penstock.cluster import Cluster
from penstock.launchers.netns_hosts import Hosts

_JARS = Path(__file__).resolve().parents[2] / ".tools/hadoop/lib"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def hosts():
    with Hosts.up(f"t{uuid4().hex[:8]}", 3, rate_bytes_per_s=125e6) as up:
        yield up


@pytest.fixture
def cluster(hosts, home):
    with Cluster.open("local", {"hosts": hosts.name}) as made:
        yield made


@pytest.fixture
def jars() -> str:
    if not list(_JARS.glob("hadoop-client-minicluster-*.jar")):
        pytest.fail("Hadoop is not here; `make setup-peers` installs it", pytrace=False)
    return str(_JARS)
