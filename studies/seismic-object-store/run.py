# SPDX-License-Identifier: Apache-2.0
"""Repeats study D, an HPC application on object storage: compares volumes, shots and cost with the published figures.

    .venv/bin/python studies/seismic-object-store/run.py [--size NAME] [--only volumes,shots,costs]
        [--out runs/studies/seismic-object-store] [--scratch DIR]

It writes results.json and report.md to the folder of --out. The disk of 64 MB/s needs root; without root, its columns
are empty. The exit code is 0 if all backends contain the same bytes and all images are the same, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import costs  # noqa: E402 - beside this file
import shots  # noqa: E402
import volumes  # noqa: E402

import report  # noqa: E402
from penstock.bench import machine_card  # noqa: E402
from penstock.bench.loop_disk import LoopDisk, Rate  # noqa: E402
from penstock.errors import Denied, PenstockError  # noqa: E402

PARTS = ("volumes", "shots", "costs")
LIMITED = "64 MB/s"


def main() -> int:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    spec, expected = (tomllib.loads((HERE / name).read_text()) for name in ("spec.toml", "expected.toml"))
    parser.add_argument("--size", choices=list(spec["size"]), default="small", help="table of spec.toml [small]")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas [all]")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/studies/seismic-object-store"), help="folder of the report"
    )
    parser.add_argument("--scratch", type=Path, help="folder on the local disk that is measured [the system's]")
    options = parser.parse_args()
    parts = options.only.split(",")
    if set(parts) - set(PARTS):
        parser.error(f"--only: {options.only} is not a list of {', '.join(PARTS)}")
    size, limits = spec["size"][options.size], spec["limits"]
    result: dict[str, Any] = {
        "schema_version": 1, "size": options.size, "spec": size, "limits": limits, "command": f"run.py --size {options.size} --only {options.only}",
        "at": time.strftime("%Y-%m-%d", time.gmtime()), "commit": _commit(), "machine": _machine(), "not_measured": [],
    }  # fmt: skip
    begin = time.monotonic()
    with ExitStack() as running:
        scratch = Path(
            running.enter_context(tempfile.TemporaryDirectory(prefix="penstock-study-", dir=options.scratch))
        )
        disks = {"local": scratch / "local"}
        disks["local"].mkdir()
        if parts != ["costs"]:
            disks |= _limited(running, scratch, size, limits, result)
        if "volumes" in parts:
            result["volumes"] = volumes.measure(size, limits, scratch, disks)
        if "shots" in parts:
            result["shots"] = shots.measure(size, limits, disks)
    if "costs" in parts:
        result["costs"] = costs.measure(spec["cost"], _requests_per_shot(result), expected["cost"])
    result["seconds"] = round(time.monotonic() - begin)
    result["load_average"] = [round(each, 1) for each in os.getloadavg()]
    result["claims"] = report.claims(result, expected)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "report.md").write_text(report.markdown(result, expected))
    print(options.out / "report.md")
    return 1 if any(claim["must"] and claim["holds"] is False for claim in result["claims"]) else 0


def _limited(running: ExitStack, scratch: Path, size: Any, limits: Any, result: dict[str, Any]) -> dict[str, Path]:
    """The disk of 64 MB/s (docs/decisions/0912); nothing where it cannot be made."""
    mount = scratch / "limited"
    mount.mkdir()
    rate = Rate(float(limits["disk_bytes_per_s"]))
    disk = LoopDisk(mount, size_bytes=size["disk_image_bytes"], ios=None, moved=rate, images=scratch)
    try:
        running.enter_context(disk)
    except (Denied, PenstockError) as error:
        result["not_measured"].append(f"the disk of {LIMITED}: {error}")
        return {}
    return {LIMITED: mount}


def _requests_per_shot(result: dict[str, Any]) -> dict[str, float]:
    rows = [row for row in result.get("shots", []) if row["backend"] == "zarr-blosc-s3" and row["workers"] == 1]
    if not rows:
        result["not_measured"].append("requests of a shot: the cost has those of the objects' parts only")
        return {}
    found: dict[str, float] = rows[0]["requests_per_shot"]
    return found


def _machine() -> dict[str, Any]:
    card = machine_card.read()
    return {"cpu": card.cpu, "cores": card.cores, "memory_bytes": card.memory_bytes, "kernel": card.kernel}


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
