# SPDX-License-Identifier: Apache-2.0
"""Public names of the torch adapter: loaders of data, and storage of checkpoints."""

from penstock.extras import require

require("penstock.torch", "torch")

from penstock.feed.checkpoint.folder import Checkpoint, latest_checkpoint, list_checkpoints  # noqa: E402
from penstock.feed.checkpoint.reader import CheckpointReader  # noqa: E402 - torch is there now
from penstock.feed.checkpoint.writer import CheckpointWriter  # noqa: E402 - torch is there now
from penstock.feed.map_dataset import MapDataset  # noqa: E402 - torch is there now
from penstock.feed.torch import Loader  # noqa: E402

__all__ = [
    "Checkpoint",
    "CheckpointReader",
    "CheckpointWriter",
    "Loader",
    "MapDataset",
    "latest_checkpoint",
    "list_checkpoints",
]
