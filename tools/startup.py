# SPDX-License-Identifier: Apache-2.0
"""Measures the time of `import penstock` and `penstock --help` beyond a bare interpreter's (best of n runs).

Prints each time and its budget (DESIGN §6). The test in tests/house fails only if a budget is exceeded by far, because
times on a shared machine vary.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["BUDGETS_S", "GROSS", "Startup", "measure"]

BUDGETS_S = {"import penstock": 0.150, "penstock --help": 0.250}
# A time above this multiple of its budget is an error.
GROSS = 4.0


@dataclass(frozen=True)
class Startup:
    """One command's cost over the bare interpreter, and its budget."""

    name: str
    bare_s: float
    over_bare_s: float
    budget_s: float

    @property
    def gross(self) -> bool:
        return self.over_bare_s > GROSS * self.budget_s

    def __str__(self) -> str:
        return f"{self.name}: {self.over_bare_s * 1000:.0f} ms over a bare interpreter's {self.bare_s * 1000:.0f} ms (budget {self.budget_s * 1000:.0f} ms)"


def measure(repeats: int = 7) -> list[Startup]:
    """The best of n runs of each command. The commands run by turns, so that a busy moment affects all alike."""
    commands = {
        "bare": [sys.executable, "-c", "pass"],
        "import penstock": [sys.executable, "-c", "import penstock"],
        "penstock --help": [str(Path(sys.executable).with_name("penstock")), "--help"],
    }
    best = dict.fromkeys(commands, float("inf"))
    for _ in range(repeats):
        for name, argv in commands.items():
            start_s = time.perf_counter()
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            best[name] = min(best[name], time.perf_counter() - start_s)
    bare_s = best.pop("bare")
    return [Startup(name, bare_s, took_s - bare_s, BUDGETS_S[name]) for name, took_s in best.items()]


def main() -> int:
    rows = measure()
    if "--json" in sys.argv:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        for row in rows:
            print(row)
    return 1 if any(row.gross for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
