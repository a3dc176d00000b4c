# SPDX-License-Identifier: Apache-2.0
"""Run the guards that no test runner or linter covers. Exit 0 if all hold, else 1 with one line per violation."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.guards import circles, crates, leaks, length, licence, ownership, prose, public_names, readers, skips  # noqa: E402 - the root must be on the path first

GUARDS = (licence, length, leaks, crates, circles, readers, public_names, skips, ownership, prose)


def main() -> int:
    breaches = [f"{guard.__name__.rpartition('.')[2]}: {line}" for guard in GUARDS for line in guard.find(ROOT)]
    for line in breaches:
        print(line)
    print(f"guards: {len(GUARDS)} rules, {len(breaches)} breaches")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
