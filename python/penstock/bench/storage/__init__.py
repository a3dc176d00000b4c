# SPDX-License-Identifier: Apache-2.0
"""Benchmark of disks, pools and other paths: points of a sweep, phases of a point, one row per phase."""

from penstock.bench.storage.run import run
from penstock.bench.storage.spec import PHASES, Point, StorageBench
from penstock.bench.storage.sweeps import SWEEPS, nag_beeond

__all__ = ["PHASES", "SWEEPS", "Point", "StorageBench", "nag_beeond", "run"]
