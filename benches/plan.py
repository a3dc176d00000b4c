# SPDX-License-Identifier: Apache-2.0
"""Measures how long a plan of 1,000 configurations takes: predictions, frontier, break-even, sensitivity and JSON.

    .venv/bin/python benches/plan.py [--repeats 7] [--json]

The plan is study A's, with its six paths at 1 to 167 nodes (1,002 configurations). Reading the plan file and the price
book counts; starting Python does not. Prints the medians of wall and CPU time; other processes change the wall time.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from penstock.plan import prediction_log
from penstock.plan.result import as_json, make_plan
from penstock.plan.spec_file import load
from penstock.price import book

PLAN = """
name = "cosmoflow"
nodes = "1..167"
[dataset]
samples = 262_144
held_out = 65_536
raw = "5.1TB"
stored = "1.1TB"
codec = "gzip"
[workload]
epochs = 48
batch = 4
reference = "cosmoflow/v100@2021"
[[machine]]
name = "ND40rs_v2"
accelerators = 8
cores = 40
nic = "5Gbit/s"
fabric = "100Gbit/s"
disk = "2.9TB"
disk_read = "3GB/s"
disk_write = "2.5GB/s"
price = "azure-vm-nd40rs_v2"
[[store]]
name = "hot"
tier = "azure-hot@2021"
"""
KINDS = ("stream", "stage", "pool", "mount", "node-cache")


def plan_text() -> str:
    paths = [f'[[path]]\nkind = "{kind}"\nstore = "hot"\nform = "gzip"\n' for kind in KINDS]
    return PLAN + "".join(paths) + '[[path]]\nname = "raw"\nkind = "stream"\nstore = "hot"\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    walls, cpus, rows = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spec.toml"
        file.write_text(plan_text())
        for _ in range(given.repeats):
            wall, cpu = time.perf_counter(), time.process_time()
            result = make_plan(load(file), book.load(), dt.datetime.now(dt.UTC))
            as_json(result)
            prediction_log.append(prediction_log.rows_of(result), Path(folder))
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
            rows = len(result.rows)
    found = {
        "configurations": rows,
        "wall_s": statistics.median(walls),
        "cpu_s": statistics.median(cpus),
        "repeats": given.repeats,
        "load": os.getloadavg()[0],
    }
    if given.json:
        print(json.dumps(found))
    else:
        print(
            f"{rows:,} configurations: {found['wall_s']:.3f} s wall, {found['cpu_s']:.3f} s CPU "
            f"(median of {given.repeats}; load average {found['load']:.1f})"
        )


if __name__ == "__main__":
    main()
