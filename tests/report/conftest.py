# SPDX-License-Identifier: Apache-2.0
"""Fixture with a comparison as the demo writes it, made of plain numbers, so report tests need no run."""

import math

import pytest

from penstock.report.comparison import (
    Comparison,
    Learning,
    PathFacts,
    Predicted,
    PriceRow,
    PublishedFacts,
    Rehearsal,
    ScalePoint,
    TierRow,
)

HOT = PublishedFacts("Hot blob through a FUSE mount", "> 120", "> 110", "~$12,000", 110.0, 12_000.0)
POOL = PublishedFacts("pooled NVMe, staged first", "15", "just over 11.5", "~$1,200", 11.5, 1_200.0)
LOSSES = [0.42 * math.exp(-i / 14) + 0.11 + 0.02 * math.sin(i * 1.7) for i in range(32)]


def path(name, label, how, rate, wait, first, size, stage, limit, hours, usd, published=None):
    step = 128 / rate
    return PathFacts(
        name=name,
        label=label,
        how=how,
        losses=list(LOSSES),
        samples_per_s=rate,
        wait_share=wait,
        first_batch_s=first,
        bytes=size,
        throttles=0,
        stage_s=stage,
        limited_by=limit,
        predicted=Predicted(
            hours * 60 / 48,
            hours - stage / 3600,
            stage / 3600,
            usd,
            rate,
            limit,
            {"compute": 0.435, "reader": step - 0.435},
        ),
        requests=1536,
        step_parts_s={"accelerators": step * (1 - wait), "data wait": step * wait},
        model_samples_per_s=rate * 1.03,
        published=published,
        run=f"2026-11-21-{name}",
    )


def comparison(**changes):
    facts = {
        "created": "2026-11-21 21:50 UTC",
        "scale": 0.125,
        "headline": [
            "Streaming gzip straight from the Hot account does the published job in 11.9 h for $1,258.",
            "One raw file at a time, as the mount reads, takes 46 h and $4,840 by the same model; the article measured more than 110 h and about $12,000.",
        ],
        "lead": "Four paths from object storage to the same model. Losses agree to the last bit, so the paths differ in time and money only.",
        "paths": [
            path(
                "as-published",
                "raw files, Hot mount",
                "Whole raw files, one at a time per GPU, no read-ahead, from the Hot tier.",
                76.6,
                0.74,
                1.3,
                3_221_000_000,
                0.0,
                "one file at a time: latency and one connection",
                45.7,
                4833,
                HOT,
            ),
            path(
                "streamed-hot",
                "gzip stream, Hot",
                "The gzip'd objects as they lie in the Hot tier, read ahead, inflated late.",
                289.0,
                0.02,
                0.21,
                553_000_000,
                0.0,
                "the accelerators",
                11.9,
                1258,
            ),
            path(
                "streamed-premium",
                "gzip stream, Premium",
                "The same from the Premium tier.",
                291.0,
                0.015,
                0.12,
                553_000_000,
                0.0,
                "the accelerators",
                11.9,
                1257,
            ),
            path(
                "staged",
                "staged to disk",
                "Copied and inflated to the local disk first, then read from there.",
                292.0,
                0.01,
                0.05,
                184_000_000,
                2.3,
                "the accelerators",
                12.1,
                1280,
                POOL,
            ),
        ],
        "learning": Learning(
            mae=0.402,
            mae_constant=0.503,
            identical=True,
            digest="9f2c4be1d07a335c",
            samples=256,
            held_out=64,
            voxels=32,
            epochs=4,
            batch=32,
            parameters=270_000,
        ),
        "rehearsal": Rehearsal(
            voxels=64,
            samples=512,
            distinct=64,
            epochs=3,
            batch=128,
            step_s=0.4348,
            sample_bytes=2_097_152,
            stored_bytes=360_000,
        ),
        "tiers": [
            TierRow("azure-hot", "egress", "account", "50 Gb/s", "6.25 Gb/s", "Azure scalability targets", "2021-06")
        ],
        "prices": [
            PriceRow("azure-vm-nd40rs_v2", "$26.438 / hour", "South Central US", "SkyPilot catalog v6", "2024-12")
        ],
        "prices_line": "prices as of 2024-07 to 2024-12, all older than 12 months (oldest: 28 months): check them before you spend",
        "notes": [
            "The accelerators are emulated: a step waits 435 ms.",
            "Predictions are modelled from stated limits, not measured on the cluster.",
        ],
        "machine": {
            "cpu": "AMD EPYC, 2 cores",
            "memory": "24 GiB",
            "kernel": "6.18",
            "python": "3.11",
            "penstock": "0.1.0",
        },
        "scaling": [
            ScalePoint(
                p,
                n,
                min(73.6 * n, 1862 if p.startswith("streamed") else math.inf) * (0.26 if p == "as-published" else 1),
                "x",
            )
            for p in ("as-published", "streamed-hot", "streamed-premium", "staged")
            for n in range(1, 65)
        ],
        "seconds": 112.0,
    }
    return Comparison(**{**facts, **changes})


@pytest.fixture
def facts():
    return comparison()
