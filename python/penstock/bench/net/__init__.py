# SPDX-License-Identifier: Apache-2.0
"""Network benchmarks between ranks: OSU's tests and nccl-tests' over MPI, Gloo and NCCL, with a verdict.

`launch` starts the ranks through a launcher, or runs this process as one rank. `rank` runs on each rank and measures
through a `transport`. `verdict` fits the times, names slow pairs, and states what limits the network.
"""

from __future__ import annotations

from penstock.bench.net.nccl_format import parse_nccl
from penstock.bench.net.osu_format import parse_osu
from penstock.bench.net.plan import NetPlan

__all__ = ["NetPlan", "parse_nccl", "parse_osu"]
