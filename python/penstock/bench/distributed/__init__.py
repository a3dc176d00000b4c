# SPDX-License-Identifier: Apache-2.0
"""Runs one benchmark on many hosts: phases start together at an agreed time, and the hosts' rows are merged.

`launch` starts an `agent` on every node through a launcher and collects the results. The agents connect to the first
node. The `leader` there compares their clocks, starts phases and merges rows. `follower` is the agent's side of this
connection.
"""

from penstock.bench.distributed.launch import Fleet

__all__ = ["Fleet"]
