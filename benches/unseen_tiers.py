# SPDX-License-Identifier: Apache-2.0
"""Predicts an epoch on tiers that the planner has never seen, from a probe, and then measures it.

    python benches/unseen_tiers.py FOLDER_ON_DISK results/DATE/unseen-tiers [--only TEXT] [--probe-time 30s]

For each case: `penstock probe` measures the store, `penstock plan` predicts an epoch from the probe's card and logs the
prediction, and then `penstock train` measures the epoch on an emulated accelerator. The store starts afresh before the
epoch, so burst credits are full and ramps begin again, as for a job that starts on a rested store. The prediction is the
median of `penstock plan --simulate`, which reads burst credits, ramps and refusals from the card's phases. The output
also has the figure of the step model, which does not use them.

The limits that the tier book can express are served by the emulator, the others by `shaped_store`, and those of the
disk are set in the kernel (needs root). Two ordinary tiers are controls; `plan_check.py` measures more paths. Each case
appends its prediction to `predicted.jsonl` before it is measured, and its error to `errors.jsonl`; `predictions.jsonl` is
the log of `penstock plan`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from accounting import tier
from shaped_store import Shape, ShapedStore

from penstock.bench.loop_disk import LoopDisk, Rate
from penstock.emulator import Emulator

if TYPE_CHECKING:
    from collections.abc import Iterator

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
SAMPLES, MADE, VOXELS, BATCH, ACCELERATOR = 512, 32, 64, 4, "h100"
RAW_BYTES = VOXELS**3 * 8
IN_FLIGHT = 64  # of the loader, by default
MB = 1e6


@dataclass(frozen=True)
class Case:
    """One store or disk, and how its epoch is predicted and measured.

    Attributes:
        book: Tier book of the emulator, for limits that it can express.
        shape: Limits of `shaped_store`.
        disk: Limits that the kernel enforces.
    """

    name: str
    group: str
    book: str = ""
    shape: Shape | None = None
    disk: tuple[Rate | None, Rate | None] | None = None


CASES = (
    Case("object store, 12 MB/s and 30 ms", "ordinary", tier(30, read_bytes=("account", 12 * MB))),
    Case("object store, 503 above 40 requests/s", "ordinary", tier(20, 1.0, read_requests=("account", 40))),
    Case("burst credits", "unseen", shape=Shape(bytes_per_s=10 * MB, burst_per_s=50 * MB, credits=90 * MB)),
    Case("latency that grows with load", "unseen", shape=Shape(latency_s=0.01, latency_per_request_s=0.024)),
    Case("503 above 9 requests in flight", "unseen", shape=Shape(latency_s=0.2, max_in_flight=9)),
    Case("slow ramp", "unseen", shape=Shape(bytes_per_s=24 * MB, ramp_from_per_s=3 * MB, doubling_s=3.0)),
    Case(
        "two limits, bytes and requests",
        "unseen",
        tier(25, 0.5, read_bytes=("account", 16 * MB), read_requests=("account", 40)),
    ),
    Case("disk limited by the kernel", "unseen", disk=(Rate(300.0), Rate(12 * MB))),
)


def run(*words: str, env: dict[str, str]) -> dict[str, Any]:
    """Run one penstock command with --json; return its document."""
    done = subprocess.run(
        [PENSTOCK, *words, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=600,
        check=False,
    )
    if not done.stdout.strip():
        raise SystemExit(f"penstock {' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


@contextmanager
def served(case: Case, folder: Path, data: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Start the case's store afresh: URL of the data, what to probe, and variables of the client."""
    with ExitStack() as stack:
        if case.disk is not None:
            mount = folder / "mount"
            mount.mkdir(exist_ok=True)
            ios, moved = case.disk
            disk = stack.enter_context(LoopDisk(mount, size_bytes=2 << 30, ios=None, moved=None, images=folder))
            subprocess.run(["cp", "-r", str(data), str(data.parent / "probe.bin"), str(mount)], check=True)
            subprocess.run(["sync"], check=True)
            Path("/proc/sys/vm/drop_caches").write_text("1")
            disk.limit(ios=ios, moved=moved)
            yield str(mount / data.name), str(mount / "probe.bin"), {}
        else:
            book = folder / "tier.toml"
            book.write_text(case.book or tier())
            store = stack.enter_context(Emulator(data.parent, tier="truth", tiers=book))
            env = dict(store.env)
            if case.shape is not None:
                env["AWS_ENDPOINT_URL"] = stack.enter_context(ShapedStore(store.endpoint, case.shape)).endpoint
            yield f"{store.url}{data.name}/", f"{store.url}{data.name}/", env


def spec_text(case: Case, card: dict[str, Any], cpu: dict[str, Any], book: Path, stored: int) -> str:
    """Plan file of a case, with the limits of its card. The rates of the cores are from the first card."""
    found = [one["value"] for one in card["limits"] if (one["what"], one["scope"]) == ("read-bytes", "account")]
    reached = found[0] if found else 5e9
    ratio = cpu["decoded_bytes"] / cpu["stored_bytes"]
    lines = [
        'name = "unseen-tiers"',
        f'[dataset]\nsamples = {SAMPLES}\nraw = "{SAMPLES * RAW_BYTES}B"\nstored = "{stored}B"\ncodec = "gzip"',
        f'[workload]\nepochs = 1\nbatch = {BATCH}\nreference = "cosmoflow/{ACCELERATOR}"',
        f'inflate = "{cpu["inflate_bytes_per_s"] * ratio:.0f}B/s"',
        f'decode = "{cpu["decode_bytes_per_s"]:.0f}B/s"' if cpu["decode_bytes_per_s"] else "",
        f'[[machine]]\nname = "this machine"\naccelerators = 1\ncores = {os.cpu_count()}\nnic = "100Gbit/s"',
        f'[[store]]\nname = "store"\ntier = "{book}#{card["name"]}"\naccount = "{reached:.0f}B/s"',
        f'[[path]]\nname = "{case.name}"\nstore = "store"\nkind = "stream"\nform = "gzip"\nin_flight = {IN_FLIGHT}',
    ]
    return "\n".join(lines) + "\n"


def measure(case: Case, folder: Path, data: Path, cpu: dict[str, Any] | None, out: Path, time_text: str) -> Any:
    """Probe, predict, log, then measure one case. Returns its line, and the rates of the cores."""
    stored = sum(file.stat().st_size for file in data.iterdir())
    with served(case, folder, data) as (_, target, env):
        card = run("probe", target, "--time", time_text, "--price-tier", "none", "--name", "seen", "-o", str(folder / "card"), env=env)  # fmt: skip
    cpu = cpu or card["cpu"]
    spec = folder / "spec.toml"
    spec.write_text(spec_text(case, card, cpu, folder / "card/tier.toml", stored))
    planned = run("plan", str(spec), "--log", str(out), "--simulate", "--replicas", "3", env={})
    prediction = planned["rows"][0]["prediction"]
    simulated = planned["simulations"][0]
    predicted_s = simulated["simulation"]["p50_s"]
    line = {
        "case": case.name,
        "group": case.group,
        "id": planned["rows"][0]["id"],
        "predicted_at": time.time(),
        "predicted_epoch_s": predicted_s,
        "step_model_epoch_s": prediction["epoch_s"],
        "limited_by": next(iter(simulated["simulation"]["binding"]), ""),
        "probe_s": card["spent"]["seconds"],
        "seen": simulated["seen"],
        "unseen": card["unseen"],
    }
    shutil.copy(
        folder / "card" / "card.json",
        out / f"card-{case.name.replace(' ', '-').replace(',', '').replace('/', '-')}.json",
    )
    with (out / "predicted.jsonl").open("a") as log:  # before anything is measured
        log.write(json.dumps(line) + "\n")
    with served(case, folder, data) as (url, _, env):
        words = ["train", "cosmoflow", "--data", url, "--voxels", str(VOXELS), "--batch-size", str(BATCH)]
        words += ["--accelerator", ACCELERATOR, "--label", case.name, "-o", str(folder / "runs")]
        record = run(*words, env=env)
    measured_s = max(one["wall_s"] for one in record["epoch_times"])
    line |= {
        "measured_at": time.time(),
        "measured_epoch_s": measured_s,
        "error": predicted_s / measured_s - 1,
        "throttles": record["throttles"],
        "load": os.getloadavg()[0],
    }
    return line, cpu


def main() -> int:
    """Measure all cases, and print the table."""
    parse = argparse.ArgumentParser()
    parse.add_argument("disk", type=Path)
    parse.add_argument("out", type=Path)
    parse.add_argument("--only", default="")
    parse.add_argument("--probe-time", default="30s")
    given = parse.parse_args()
    folder = given.disk / "unseen-tiers"
    data = folder / "bucket" / "train"
    given.out.mkdir(parents=True, exist_ok=True)
    if not data.exists():
        made = folder / "made"
        run("dataset", "cosmoflow", str(made), "--samples", str(MADE), "--voxels", str(VOXELS), "--cubes-per-universe", "8", env={})  # fmt: skip
        data.mkdir(parents=True)
        for number in range(SAMPLES):
            source = sorted(made.iterdir())[number % MADE]
            os.link(source, data / f"univ_ics_2019-03_a{number // 64:07d}_{number % 64:03d}.tfrecord.gz")
        (data.parent / "probe.bin").write_bytes(os.urandom(64 << 20))
    with served(CASES[1], folder, data) as (url, _, env):
        cpu = run("probe", url, "--time", "10s", "--price-tier", "none", env=env)["cpu"]
    lines = []
    for case in CASES:
        if given.only not in case.name and given.only != case.group:
            continue
        line, cpu = measure(case, folder, data, cpu, given.out, given.probe_time)
        lines.append(line)
        with (given.out / "errors.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(f"| {line['group']} | {line['case']} | {line['predicted_epoch_s']:.1f} | {line['measured_epoch_s']:.1f} | "
              f"{100 * line['error']:+.0f} % | {100 * (line['step_model_epoch_s'] / line['measured_epoch_s'] - 1):+.0f} % | {line['limited_by']} | {line['load']:.0f} |", flush=True)  # fmt: skip
    for group in ("ordinary", "unseen"):
        errors = [abs(line["error"]) for line in lines if line["group"] == group]
        if errors:
            print(f"{group}: median {100 * median(errors):.1f} %, worst {100 * max(errors):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
