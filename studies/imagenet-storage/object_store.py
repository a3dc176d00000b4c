# SPDX-License-Identifier: Apache-2.0
"""Trains from S3 that refuses requests at scale F: without a cache in both epochs, and with the node cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock import tiers
from penstock.demo.mount_tier import as_toml
from penstock.emulator import Emulator
from penstock.study.result import Claim, PartResult, Table, Value

from .images import make_objects
from .training import Training, demand_of, run_training

if TYPE_CHECKING:
    from penstock.study.run import Context

__all__ = ["run"]

TIER = "s3-standard@2026"
_QUEUE_S = 0.1


def _refusing(scale: float) -> tiers.Tier:
    """The tier without its queue, as S3 refuses and does not queue, and with the rate of a connection divided by F.

    A single image then takes as long as in the cloud, and requests above the limit are refused.
    """
    tier = tiers.find(TIER)
    limits = tuple(
        msgspec.structs.replace(limit, value=limit.value / scale) if limit.scope == "connection" else limit
        for limit in tier.limits
    )
    assert tier.queue is not None
    return msgspec.structs.replace(tier, limits=limits, queue=msgspec.structs.replace(tier.queue, value=_QUEUE_S))


def run(context: Context) -> PartResult:
    """Run two epochs each way, on a server of its own each."""
    size, scale = context.size, context.size["s3_scale"]
    model = context.study.tables["model"][size["s3_model"]]
    context.progress("making the images")
    bucket = context.scratch / "bucket"
    make_objects(bucket, images=size["s3_images"], replicate=size["replicate"])
    limit = (tiers.find(TIER).rate("read-requests", "prefix") or 0.0) * scale
    page = context.scratch / "tiers.toml"
    page.write_text(as_toml(_refusing(scale)), encoding="utf-8")
    gpus, rows, found = 8, [], {}
    for way in ("without cache", "with node cache"):
        context.progress(f"{way}, two epochs of {model['label']} on {gpus} V100, {limit:.0f} GET/s allowed")
        with Emulator(bucket, tier=TIER, scale=scale, tiers=page) as server:
            folder = context.scratch / "node-cache"
            folder.mkdir(exist_ok=True)
            variables = {**server.env, "PENSTOCK_SCRATCH": str(folder) if way == "with node cache" else ""}
            task = Training(
                data=f"{server.url}train/", model=model, gpus=gpus, scale=scale, batch=size["batch"], epochs=2
            )
            record = run_training(task, context.scratch / way.replace(" ", "-"), variables)
            served = server.stats()
        rates = [epoch["samples"] / epoch["wall_s"] for epoch in record.epoch_times if epoch["wall_s"]]
        passes = record.loader.get("passes", [])
        found[way] = {
            "images_per_s": rates,
            "requests": served["requests"],
            "throttles": served["throttles"],
            "bytes": served["bytes_out"],
            "passes": [
                {k: p.get(k) for k in ("requests", "throttles", "throttle_s", "bytes_in", "limiting")} for p in passes
            ],
        }
        rows += [
            (
                way,
                str(number + 1),
                f"{rate:,.1f}",
                f"{_of(passes, number, 'requests'):,}",
                f"{_of(passes, number, 'throttles'):,}",
                f"{rate / scale:,.0f}",
            )
            for number, rate in enumerate(rates)
        ]
    plain, cached = found["without cache"], found["with node cache"]
    demand = demand_of(model, gpus) * scale
    refused = int(cached["passes"][1]["throttles"] or 0) if len(cached["passes"]) > 1 else None
    measured = {}
    if plain["images_per_s"]:
        measured["s3-limit"] = Value(
            plain["images_per_s"][-1] / scale, f"{plain['throttles']:,} requests refused", scale=scale
        )
    if len(cached["images_per_s"]) > 1:
        here = "" if refused is None else f"; {refused:,} requests refused"
        measured["s3-cached"] = Value(
            cached["images_per_s"][1] / scale, f"the node's disk and cores{here}", scale=scale
        )
    claims = (
        Claim("S3 refuses requests of 8 V100 without a cache", f"{plain['throttles']:,} of {plain['requests']:,} requests refused", plain["throttles"] > 0),
        Claim("the second epoch with the node cache is refused nothing", "not counted" if refused is None else f"{refused:,} refusals", None if refused is None else refused == 0),
        Claim("the second epoch with the node cache is faster than without", f"{cached['images_per_s'][-1]:,.0f} against {plain['images_per_s'][-1]:,.0f} images/s", cached["images_per_s"][-1] > plain["images_per_s"][-1]),
    )  # fmt: skip
    table = Table(
        f"{TIER} at F = {scale:g}: {limit:.0f} GET/s; {model['label']} on {gpus} V100 asks {demand:,.0f} images/s",
        ("way", "epoch", "images/s", "requests", "refused", "/ F, images/s"), tuple(rows), left=1,
        note="Each image is an object below one prefix, so it is a GET of its own. With the node cache, the first epoch fetches each image once, and later epochs ask the store for nothing. S3 answers 503 today; the article saw 4xx.",
    )  # fmt: skip
    return PartResult(measured=measured, claims=claims, blocks=(table,), data=found)


def _of(passes: list[dict[str, Any]], number: int, name: str) -> int:
    return int(passes[number].get(name) or 0) if number < len(passes) else 0
