# SPDX-License-Identifier: Apache-2.0
"""A plan file of study A (STUDIES A), with the published limits and prices, for the tests of the planner."""

from __future__ import annotations

import copy

import msgspec
import pytest

from penstock.plan.spec_file import parse

STUDY_A = msgspec.toml.decode("""
name = "cosmoflow-staged"
nodes = 4

[dataset]                      # 5.1 TB of TFRecords, 1.1 TB as gzip
samples = 262_144
held_out = 65_536
raw = "5.1TB"
stored = "1.1TB"
codec = "gzip"

[workload]
epochs = 48
batch = 4
reference = "cosmoflow/v100@2021"

[[machine]]
name = "ND40rs_v2"
accelerators = 8
cores = 40
nic = "5Gbit/s"                # "5-6 Gb/s": the lower one
payload_share = 0.956          # 1448 bytes of payload in a frame of 1514
fabric = "100Gbit/s"
disk = "2.9TB"
disk_read = "3GB/s"
disk_write = "2.5GB/s"
price = "azure-vm-nd40rs_v2"

[[store]]
name = "hot"
tier = "azure-hot@2021"        # 50 Gb/s for an account

[[path]]
name = "pool, as published"
kind = "pool"
store = "hot"
form = "plain"
steps_per_s = 2.3

[[path]]
name = "gzip pool"
kind = "pool"
store = "hot"
form = "gzip"

[[path]]
name = "Premium mount"
kind = "mount"
store = "hot"
steps_per_s = 0.42

[[path]]
name = "Hot mount"
kind = "mount"
store = "hot"
steps_per_s = 0.24

[[path]]
name = "stream gzip"
kind = "stream"
store = "hot"
form = "gzip"

[[path]]
name = "node cache"
kind = "node-cache"
store = "hot"
form = "gzip"

[place]
region = "South Central US"
""")


@pytest.fixture
def document():
    """The decoded plan file, free to be changed."""
    return copy.deepcopy(STUDY_A)


@pytest.fixture
def spec(document):
    return parse(document)
