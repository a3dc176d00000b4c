# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the stage tests: buckets of known content, and `penstock` as a background process."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Bucket:
    """A folder served over S3: objects under `set/`, and their expected inflated content."""

    url: str
    folder: Path
    env: dict[str, str]
    want: dict[str, bytes]

    @property
    def stored_bytes(self) -> int:
        return sum(p.stat().st_size for p in (self.folder / "set").rglob("*") if p.is_file())


def tree(folder: Path) -> dict[str, bytes]:
    """Files under a folder, without Penstock's own state."""
    return {
        name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith(".penstock")
    }


def facts(ran: Any) -> dict[str, Any]:
    return json.loads(ran.out.strip().splitlines()[-1])


def program() -> str:
    return str(Path(sys.executable).with_name("penstock"))


def launch(*arguments: object, env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Starts `penstock` in the background, with stdout and stderr in `log`."""
    with log.open("wb") as out:
        return subprocess.Popen(
            [program(), *map(str, arguments)],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )


def await_true(condition: Any, limit_s: float = 60) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.01)


def fill(folder: Path, count: int, size: int, seed: int = 7) -> dict[str, bytes]:
    rng, want = random.Random(seed), {}
    (folder / "set/d").mkdir(parents=True)
    for at in range(count):
        body = rng.randbytes(rng.randrange(size)) + bytes(size // 4)
        packed = at % 3 != 0
        want[f"d/f{at:03d}.bin"] = body
        path = folder / f"set/d/f{at:03d}.bin{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(body, 1, mtime=0) if packed else body)
    return want
