# SPDX-License-Identifier: Apache-2.0
"""One bench on many hosts at once: phases begin together at an agreed moment, and their rows become one.

`fleet` starts an `agent` on every node through a launcher and hears what comes of it. The agents meet on the first node:
its `leader` compares their clocks, lets phases begin and merges rows; each agent's own end of that is a `member`.
"""

from penstock.bench.hosts.fleet import Fleet

__all__ = ["Fleet"]
