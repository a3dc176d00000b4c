# SPDX-License-Identifier: Apache-2.0
"""Benchmark of disks, pools and other paths. A sweep has points, a point has phases, and each phase produces one
row.
"""

from penstock.bench.storage.run import run
from penstock.bench.storage.spec import PHASES, Point, StorageBench
from penstock.bench.storage.sweeps import SWEEPS, nag_beeond

__all__ = ["PHASES", "SWEEPS", "Point", "StorageBench", "nag_beeond", "run"]
