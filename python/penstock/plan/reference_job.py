# SPDX-License-Identifier: Apache-2.0
"""Reference job of the first study: the published figures, figures derived from them, and a contradiction in them.

The source is an article by NAG, 2021: CosmoFlow on ND40rs_v2 nodes with a pooled NVMe file system. Derived figures are
marked.
"""

from __future__ import annotations

import msgspec

from penstock.plan.model import TrainingJob

__all__ = ["EMULATED_V100_SAMPLE_S", "JOB", "PUBLISHED", "Published"]

# 4 nodes x 8 V100, one process per GPU, batch 4 per process: 262,144 / 128 = 2,048 steps per epoch (derived).
_STEPS_PER_S = 2.3  # of the BeeOND run, read from the authors' plot; 15 min per epoch gives 2.28

JOB = TrainingJob(
    samples=262_144,
    held_out=65_536,
    epochs=48,
    nodes=4,
    ranks_per_node=8,
    batch_per_rank=4,
    # Step rate of the 32 published GPUs with local NVMe storage. This rate is the highest one observed for that code,
    # not a proven maximum.
    compute_step_s=1 / _STEPS_PER_S,
    sample_bytes=16_777_216,  # 128^3 x 4 x int16
    stored_bytes=round(1.1e12 / 327_680),  # "5.1 TB -> 1.1 TB" over 262,144 + 65,536 files: 3.36 MB each
    cores_per_node=40,  # ND40rs_v2
    # "NIC per node 5-6 Gb/s". The lower value is used, so that the prediction is not too optimistic.
    nic_bytes_per_s=5e9 / 8,
    # The article: "one storage account gives 50 Gb/s at most".
    account_bytes_per_s=50e9 / 8,
)

# Time per sample of MLPerf Storage's emulated V100, in seconds (mlcommons/storage, cosmoflow_v100.yaml): 107 samples/s
# per GPU. No real run is as fast: the article measured 9.2 samples/s, and MLPerf HPC v0.7 measured 12 to 28.
EMULATED_V100_SAMPLE_S = 0.00936


class Published(msgspec.Struct, frozen=True):
    """One column of the article's result table. A value is None if the article does not state it."""

    path: str
    epoch_min: str
    run_h: str
    usd: str
    epoch_min_value: float
    run_h_value: float
    usd_value: float
    steps_per_s: float
    stage_min: float | None = None


# Published results. Each value is stored as the printed text, and as a number for charts.
PUBLISHED = {
    "hot-mount": Published("Hot blob through a FUSE mount", "> 120", "> 110", "~$12,000", 120.0, 110.0, 12_000.0, 0.24),
    "premium-mount": Published(
        "Premium blob through a FUSE mount", "~75", "> 60", "~$7,000", 75.0, 60.0, 7_000.0, 0.42
    ),
    "pool": Published(
        "pooled NVMe, staged first",
        "15",
        "just over 11.5",
        "~$1,200",
        15.0,
        11.5,
        1_200.0,
        _STEPS_PER_S,
        stage_min=13.0,
    ),
}

STAGE_RAW_MIN = 35.0  # duration of staging 5.1 TB to 4 nodes
STAGE_GZIP_MIN = 13.0  # duration of staging 1.1 TB to 4 nodes, decompressed during the transfer
RAW_BYTES = 5.1e12
GZIP_BYTES = 1.1e12

CONTRADICTION = (
    "The article contradicts itself by 8 %: its plot reads 0.42 steps/s on Premium (81 min an epoch, $6,874), "
    "its text says 75 min and ~$7,000, while 48 x 75 min x $105.75/h is $6,345."
)
