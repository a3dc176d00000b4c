# SPDX-License-Identifier: Apache-2.0
"""Trains on 1, 2 and 4 ranks from one object store at scale F: each rank stands for a node of 4 P100."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from penstock import tiers
from penstock.emulator import Emulator
from penstock.study.command import penstock_json
from penstock.study.result import Chart, Claim, Line, PartResult, Table, Value

from .images import make_images
from .training import Training, run_training

if TYPE_CHECKING:
    from penstock.study.run import Context

__all__ = ["run"]

TIER = "gcs-standard@2026"
_GPUS = 4
_LIMIT_S = 1800.0


def run(context: Context) -> PartResult:
    """Run `penstock train --scale` with weak scaling."""
    size, scale = context.size, context.size["rank_scale"]
    model = context.study.tables["model"]["resnet50-p100"]
    one = _GPUS * scale * float(model["images_per_s"])
    batch = max(1, round(one / 2))  # two steps a second
    steps = max(6, math.ceil(one * size["rank_seconds"] / batch))
    context.progress("making the images")
    bucket = context.scratch / "bucket"
    images = max(16, math.ceil(steps * batch * max(size["ranks"]) / size["replicate"] * 1.1))
    make_images(bucket, images=min(images, size["images"]), shards=size["shards"], replicate=size["replicate"])
    ranks = ",".join(map(str, size["ranks"]))
    with Emulator(bucket, tier=TIER, scale=scale) as server:
        url = f"{server.url}train/"
        variables = {**server.env, "PENSTOCK_CACHE": str(context.scratch / "index"), "PENSTOCK_SCRATCH": ""}
        context.progress("indexing the shards")
        run_training(
            Training(data=url, model=model, gpus=1000, scale=1.0, batch=8, epochs=1),
            context.scratch / "warm",
            variables,
        )
        context.progress(
            f"{ranks} ranks of {_GPUS} P100 each, {size['repeats']} runs of each, {one:.1f} images/s asked per rank"
        )
        document = penstock_json(
            "train", model["workload"], "--data", url, "--accelerator", model["accelerator"],
            "--set", f"accelerator_scale={_GPUS * scale:.6g}", "--batch-size", batch, "--steps", steps, "--warm-up", 2,
            "--scale", f"ranks={ranks}", "--scaling", "weak", "--repeats", size["repeats"], "--device", "cpu", "--no-save",
            variables=variables, timeout_s=_LIMIT_S,
        )  # fmt: skip
    [variant] = document["summary"]["variants"]
    rows = []
    found = {str(c["ranks"]): sorted(run["value"] for run in c["runs"]) for c in document["cells"]}
    efficiencies = {cell["ranks"]: cell["efficiency"] for cell in variant["cells"]}
    for count in size["ranks"]:
        values = found[str(count)]
        middle, wide = values[len(values) // 2], efficiencies.get(count) or {}
        interval = (
            f"{wide['low']:.1%} to {wide['high']:.1%}" if "low" in wide and wide["low"] is not None else "one run"
        )
        share = wide.get("value")
        rows.append(
            (
                str(count),
                str(count * _GPUS),
                f"{middle:,.1f}",
                "–" if share is None else f"{share:.1%}",
                interval,
                f"{middle / (count * one):.2f}",
                f"{middle / scale:,.0f}",
            )
        )
    most = max(size["ranks"])
    last = efficiencies.get(most) or {}
    account = tiers.find(TIER).rate("read-bytes", "account") or math.inf
    measured, claims = {}, []
    if last.get("value") is not None:
        measured["gcs-efficiency"] = Value(
            last["value"], f"{most} ranks", low=last.get("low"), high=last.get("high"), scale=scale
        )
        claims.append(
            Claim(
                f"the store scales linearly to {most} nodes of 4 P100: efficiency of 0.9 or more",
                f"{last['value']:.1%}",
                last["value"] >= 0.9,
            )
        )
    points = tuple((float(n), found[str(n)][len(found[str(n)]) // 2] / scale) for n in size["ranks"])
    blocks = (
        Table(
            f"{TIER} at F = {scale:g}, ResNet-50 on P100", ("nodes", "P100", "images/s", "efficiency", "95 % interval", "ratio to the ask", "/ F, images/s"),
            tuple(rows), left=0, note=f"Ranks are processes with a barrier after each step. The account's {account / 1e9:.0f} GB/s x F are not reached.",
        ),
        Chart("scaling", "ResNet-50 from GCS, divided by F", "nodes of 4 P100", "images/s", (Line("measured", points), Line("linear", tuple((x, x * points[0][1]) for x, _ in points))), caption="Images/s over the number of nodes, beside a straight line through one node."),
    )  # fmt: skip
    return PartResult(
        measured=measured, claims=tuple(claims), blocks=blocks, data={"runs": found, "efficiency": efficiencies}
    )
