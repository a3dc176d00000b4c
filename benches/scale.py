# SPDX-License-Identifier: Apache-2.0
"""Measures how a stage scales with the number of objects: time and peak memory of listing, planning and journaling.

    python benches/scale.py stage 327680     # tiny objects in a folder, staged, then staged again (nothing to do)
    python benches/scale.py list 327680      # the same folder through our S3 emulator: index only
    python benches/scale.py plan 10000000    # a synthetic Parquet manifest, planned for 64 nodes

Each step is its own process; the kernel counts its seconds and its peak resident memory. Both include the start of
Python and its imports (about 40 MB). Quote the load average with each figure, since the load of the machine affects it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = str(Path(sys.executable).with_name("penstock"))


def step(name: str, *arguments: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Runs `penstock` and prints its time and peak memory."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=out, env={**os.environ, **(env or {})})
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        if child.returncode:
            raise SystemExit(f"{name} ended with {child.returncode}")
        out.seek(0)
        facts: dict[str, Any] = json.loads(out.read().splitlines()[-1])
    row = {
        "step": name,
        "seconds": round(seconds, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": round(usage.ru_maxrss * 1024 / 1e6),
        "load": os.getloadavg()[0],
    }
    print(json.dumps(row), flush=True)
    return facts


def fill(folder: Path, count: int) -> None:
    """Makes `count` files of 20 to 60 bytes, 1,000 per folder."""
    for at in range(count):
        if at % 1000 == 0:
            (folder / f"part-{at // 1000:05}").mkdir(parents=True)
        (folder / f"part-{at // 1000:05}/univ_{at:08}_{at % 64:03}.tfrecord").write_bytes(b"x" * (20 + at % 41))


def synthetic(path: Path, count: int) -> None:
    """Writes a manifest of `count` objects, like that of an S3 listing."""
    root = Path(__file__).resolve().parent.parent
    example = ("--quiet", "-p", "penstock-dataset", "--example", "synthetic_manifest", "--", str(path), str(count))
    subprocess.run(["cargo", "run", *example], cwd=root, check=True)


def main(what: str, count: int) -> None:
    from penstock import _native

    print(json.dumps({"profile": _native.__profile__}), flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-scale-") as name:
        work = Path(name)
        if what == "plan":
            synthetic(work / "m.parquet", count)
            print(json.dumps({"manifest_mb": round((work / "m.parquet").stat().st_size / 1e6)}), flush=True)
            flags = ("--manifest", work / "m.parquet", "--dry-run", "--nodes", 64, "--node", 0, "--json")
            facts = step("plan", "stage", "s3://synthetic/train/", work / "dst", *flags)
            worst = max(facts["shares"]) * 64 / sum(facts["shares"])
            print(json.dumps({"objects": facts["objects_total"], "max_over_mean": round(worst, 5)}))
            return
        fill(work / "src", count)
        if what == "list":
            from penstock.emulator import Emulator

            with Emulator(work) as served:
                url = f"{served.url.rstrip('/')}/src/"
                facts = step("index", "index", url, "-o", work / "m", "--json", env=served.env)
            print(json.dumps({"objects": facts["objects"], "requests": facts["requests"], "format": facts["format"]}))
            return
        for again in ("stage", "again"):
            facts = step(again, "stage", work / "src", work / "dst", "--json", "--quiet")
            print(json.dumps({key: facts[key] for key in ("objects", "moved", "skipped")}), flush=True)
        manifest = next((work / "dst/.penstock").glob("manifest.*"))
        print(json.dumps({"manifest": manifest.name, "mb": round(manifest.stat().st_size / 1e6, 1)}))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("stage", "list", "plan"):
        raise SystemExit(__doc__)
    main(sys.argv[1], int(sys.argv[2]))
