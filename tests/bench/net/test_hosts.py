# SPDX-License-Identifier: Apache-2.0
"""Tests that `bench net` finds the bandwidth and the slow link that the kernel imposes on emulated hosts. Issue 16."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.launchers.netns_hosts import Hosts

pytestmark = [pytest.mark.system, pytest.mark.needs_root, pytest.mark.needs_torch]

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
RATE = 125e6  # 1 Gbit/s
LATENCY_S = 1e-4
# tc counts Ethernet, IP and TCP headers; the rest of a frame of 1,514 bytes is the benchmark's data.
PAYLOAD_SHARE = 1448 / 1514


@pytest.fixture(scope="module")
def hosts():
    with Hosts.up(f"t{uuid4().hex[:8]}", 3, rate_bytes_per_s=RATE, latency_s=LATENCY_S) as up:
        yield up


def net(hosts, *arguments):
    done = subprocess.run(
        [PENSTOCK, "bench", "net", "--set", f"hosts={hosts.name}", "--json", *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def limit(hosts, host, rate):
    """Change the limit of what a host sends."""
    hosts._in(
        host, "tc", "qdisc", "replace", "dev", "e0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"
    )


def test_bandwidth_between_hosts_is_that_of_the_shape_within_3_per_cent(hosts):
    found = net(hosts, "bw", "--min-size", "128KiB", "--max-size", "1MiB", "--iterations", "6", "--warm-up", "1")
    fit = found["verdict"]["fits"]["osu_bw"]
    assert fit["beta_bytes_per_s"] == pytest.approx(RATE * PAYLOAD_SHARE, rel=0.03)
    [finding] = found["verdict"]["findings"]
    assert finding["kind"] == "bandwidth-bound"
    wire = float(finding["text"].rsplit("headers ", 1)[1].split(" Gbit/s")[0])
    assert wire == pytest.approx(1, rel=0.03)


def test_planted_slow_link_is_named_with_its_direction(hosts):
    limit(hosts, "h3", "300mbit")
    try:
        found = net(hosts, "--pairs", "--rounds", "3", "--pairs-size", "256KiB")
    finally:
        limit(hosts, "h3", f"{RATE * 8:.0f}bit")
    findings = found["verdict"]["findings"]
    [node] = [each for each in findings if each["kind"] == "slow-node"]
    assert (node["hosts"], node["ranks"]) == (["h3"], [2])
    assert "from this node" in node["text"]
    # On a busy machine the scheduler may delay one other pair's small messages; its bandwidth must not be blamed.
    assert not [each for each in findings if each["kind"] == "slow-pair" and " times slower" in each["text"]]
