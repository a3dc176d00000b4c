# SPDX-License-Identifier: Apache-2.0
"""Makes the reference runs of `results/` on this machine: small runs, each in a folder that `penstock report` reads.

    python benches/reference_runs.py FOLDER_ON_DISK results/DATE

Each run is one `penstock` command, which is printed as it starts. The rates are valid for this machine under its load
at the time, which is in the label.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.emulator import Emulator

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
SWEEP = ("--file-size", "64KiB,1MiB,4MiB", "--threads", "1,4,16", "--files", "8", "--phases", "write,read,delete")
OBJECTS = ("--size", "64KiB,4MiB", "--concurrency", "1,8,32", "--objects", "64", "--operations", "put,get,head,delete")


def measured(out: Path, *words: str, env: dict[str, str] | None = None) -> None:
    """Runs one bench command and stores its rows."""
    argv = [PENSTOCK, "bench", *words, "-o", str(out), "--label", f"load {os.getloadavg()[0]:.1f}"]
    print(" ".join(argv[:5]), "...", file=sys.stderr)
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def main() -> int:
    """Run all."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    disk, out = Path(sys.argv[1]), Path(sys.argv[2])
    measured(out / "disk", "storage", str(disk / "bench"), *SWEEP)
    measured(out / "disk-three-hosts", "storage", str(disk / "bench"), "--nodes", "3", *SWEEP)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir="/dev/shm") as memory:
        measured(out / "memory", "storage", f"{memory}/bench", *SWEEP)
        bucket = Path(memory) / "bucket"
        bucket.mkdir()
        with Emulator(bucket) as store:
            measured(out / "object-store", "object", store.url, *OBJECTS, env=store.env)
        with Emulator(bucket, tier="azure-hot", scale=0.01) as store:
            limit = ("--duration", "2s", "--ramp", "1s")
            measured(
                out / "object-store-throttled",
                "object",
                store.url,
                *OBJECTS[:2],
                "--concurrency",
                "8,64",
                *limit,
                env=store.env,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
