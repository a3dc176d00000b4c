# SPDX-License-Identifier: Apache-2.0
"""Measures the start-up cost of every command: rows go to stdout and to runs/bench/startup.jsonl."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.startup import measure  # noqa: E402 - the root must be on the path first

REPEATS = 15


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    rows = measure(REPEATS)
    out = ROOT / "runs/bench/startup.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    context = {
        "schema_version": 1,
        "when_s": round(time.time()),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain")),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "repeats": REPEATS,
        "statistic": "best",
    }
    with out.open("a") as file:
        for row in rows:
            print(row)
            file.write(json.dumps({**context, **asdict(row)}) + "\n")


if __name__ == "__main__":
    main()
