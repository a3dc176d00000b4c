# SPDX-License-Identifier: Apache-2.0
"""Compares `penstock bench accelerator` with DLIO, with the same workload file, data and disk, in turns.

    make setup-peers-measure
    python benches/peers/measure/bench_dlio.py FOLDER [--rounds 2] [--only cosmoflow] [--rates 60,100]

Two tools report the same accelerator utilisation for a storage only if the storage is the bottleneck, not the tool. So
the files are on a disk of a stated rate (a loop device under control groups, which needs root) below FOLDER, and caches
are dropped before every run. One more row per workload has no rate limit and warm caches: it shows the cost of each
tool's own loop. UNet3D's records and steps are reduced to a tenth, so that an epoch has sixty steps on a small disk;
its demand (bytes per step time) is the published one. Prints a Markdown table that starts with the difference in
percentage points, Penstock minus DLIO.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.bench.loop_disk import LoopDisk, Rate

ROOT = Path(__file__).resolve().parents[3]
DLIO = ROOT / ".tools/dlio/bin/python"
PENSTOCK = Path(sys.executable).with_name("penstock")

# DLIO's own V100 settings from its configs/workload, with the changes that the module docstring names.
WORKLOADS = {
    "cosmoflow": """
model: cosmoflow
framework: tensorflow
workflow: {{generate_data: False, train: True}}
dataset: {{data_folder: {data}, format: tfrecord, num_files_train: 500, num_samples_per_file: 1, record_length: 2828486, record_length_stdev: 71311}}
reader: {{data_loader: tensorflow, read_threads: 4, batch_size: 1, file_shuffle: seed, sample_shuffle: seed, shuffle_size: 2}}
train: {{epochs: 1, computation_time: 0.00936}}
metric: {{au: 0.70}}
""",
    "unet3d": """
model: unet3d
framework: pytorch
workflow: {{generate_data: False, train: True}}
dataset: {{data_folder: {data}, format: npz, num_files_train: 240, num_samples_per_file: 1, record_length: 14660063, record_length_stdev: 6834181, record_length_resize: 209715}}
reader: {{data_loader: pytorch, read_threads: 4, batch_size: 4, file_shuffle: seed, sample_shuffle: seed}}
train: {{epochs: 1, computation_time: 0.13604}}
metric: {{au: 0.90}}
""",
}
# Equal to the data that DLIO's four readers have in flight. With more read-ahead, more of an epoch's waiting would fall
# into its first step, which the published formula excludes.
READ_AHEAD = {"cosmoflow": "32MiB", "unet3d": "512MiB"}
RATES_MB = {"cosmoflow": (60, 120), "unet3d": (150, 250)}


def cold() -> None:
    """Drops this machine's page cache."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def dlio(workload: Path, name: str, scratch: Path) -> tuple[float, float]:
    """Utilisation in percent and samples per second, from DLIO's own summary."""
    configs = scratch / "configs"
    (configs / "workload").mkdir(parents=True, exist_ok=True)
    (configs / "workload" / f"{name}.yaml").write_text(workload.read_text())
    out = Path(tempfile.mkdtemp(dir=scratch))
    settings = [
        f"workload={name}",
        f"hydra.searchpath=[file://{configs}]",
        f"hydra.run.dir={out}",
        f"++workload.output.folder={out}",
    ]
    ran = subprocess.run(
        [DLIO, "-c", "from dlio_benchmark.main import main; main()", *settings],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "DFTRACER_ENABLE": "0", "CUDA_VISIBLE_DEVICES": ""},
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    try:
        metric = json.loads((out / "summary.json").read_text())["metric"]
    except (OSError, ValueError):
        raise SystemExit(f"DLIO gave no summary:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}") from None
    return metric["train_au_mean_percentage"], metric["train_throughput_mean_samples_per_second"]


def ours(workload: Path, name: str, scratch: Path) -> tuple[float, float]:
    """The same two figures from Penstock's summary, which has DLIO's keys."""
    summary = scratch / "ours.json"
    memory = READ_AHEAD[name]
    argv = [PENSTOCK, "bench", "accelerator", workload, "--memory", memory, "--summary", summary, "--no-save", "--json"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=250)
    if ran.returncode not in (0, 1):
        raise SystemExit(ran.stderr)
    metric = json.loads(summary.read_text())["metric"]
    return metric["train_au_mean_percentage"], metric["train_throughput_mean_samples_per_second"]


def compare(name: str, disk: str, workload: Path, scratch: Path, rounds: int, *, is_cold: bool) -> None:
    """Measures one row of the table in ABBA rounds, and prints it."""
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "dlio": []}
    tools = [("dlio", dlio), ("ours", ours)]
    for at in range(rounds):
        for tool, run in tools if at % 2 == 0 else reversed(tools):
            if is_cold:
                cold()
            found[tool].append(run(workload, name, scratch))
    (au, rate), (dlio_au, dlio_rate) = (
        [statistics.median(run[at] for run in found[tool]) for at in (0, 1)] for tool in ("ours", "dlio")
    )
    spread = max(max(r[0] for r in runs) - min(r[0] for r in runs) for runs in found.values())
    print(
        f"| {au - dlio_au:+.2f} | {rate / dlio_rate:.3f} | {name} | {disk} | {au:.2f} | {dlio_au:.2f} | {spread:.2f} |",
        flush=True,
    )


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=WORKLOADS)
    parser.add_argument("--rates", help="MB/s, instead of the script's; `warm` for no limit")
    asked = parser.parse_args()
    if not DLIO.exists():
        print("DLIO is not here: make setup-peers-measure", file=sys.stderr)
        return 2
    print(f"load {os.getloadavg()[0]:.1f}; {asked.rounds} runs of each tool a row, medians\n")
    print(
        "| AU, points | samples/s, ratio | workload | disk | ours, % | DLIO, % | spread, points |\n|---:|---:|---|---|---:|---:|---:|"
    )
    for name in [asked.only] if asked.only else WORKLOADS:
        rates = asked.rates.split(",") if asked.rates else [*map(str, RATES_MB[name]), "warm"]
        for rate in rates:
            with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=asked.folder) as temporary:
                scratch = Path(temporary)
                mount = scratch / "disk"
                mount.mkdir()
                limit = None if rate == "warm" else Rate(float(rate) * 1e6)
                with LoopDisk(mount, size_bytes=9 << 30, ios=None, moved=None, images=scratch) as disk:
                    workload = scratch / f"{name}.yaml"
                    workload.write_text(WORKLOADS[name].format(data=mount / "data"))
                    subprocess.run(
                        [PENSTOCK, "dataset", "emulated", workload, mount / "data/train"],
                        check=True,
                        stdout=subprocess.DEVNULL,
                    )
                    (mount / "data/valid").mkdir()  # DLIO lists it, also where nothing is evaluated
                    disk.limit(ios=None, moved=limit)
                    result = "no limit, warm" if limit is None else f"{rate} MB/s, cold"
                    compare(name, result, workload, scratch, asked.rounds, is_cold=limit is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
