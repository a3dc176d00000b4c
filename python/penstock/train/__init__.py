# SPDX-License-Identifier: Apache-2.0
"""Training harness: runs a workload on data from any URL, over epochs and ranks, and returns one result.

    from penstock.train import TrainSpec, run
    record = run(TrainSpec(workload="cosmoflow", data="s3://frames/train/", global_batch=8, epochs=4))

The harness is not a training framework. It imports torch only when a rank of a torch workload starts.
"""

from penstock.train.launch import run
from penstock.train.progress import Progress
from penstock.train.source import Feed, FeedFactory, FeedRequest
from penstock.train.spec import TrainSpec

__all__ = ["Feed", "FeedFactory", "FeedRequest", "Progress", "TrainSpec", "run"]
