# SPDX-License-Identifier: Apache-2.0
"""One benchmark on many hosts at once: phases begin together at an agreed time, and the hosts' rows are merged.

`launch` starts an `agent` on every node through a launcher and collects the results. The agents connect to the first
node. Its `leader` compares their clocks, starts phases and merges rows; `follower` is each agent's end of that
connection.
"""

from penstock.bench.distributed.launch import Fleet

__all__ = ["Fleet"]
