# SPDX-License-Identifier: Apache-2.0
"""Runs one benchmark on many hosts: phases start together at an agreed time, and the hosts' rows are merged.

`launch` starts an `agent` on every node through a launcher and collects the results. The agents connect to the first
node. On that node, the `leader` compares the agents' clocks, starts phases and merges rows. `follower` is an agent's
end of the connection to the leader.
"""

from penstock.bench.distributed.launch import Fleet

__all__ = ["Fleet"]
