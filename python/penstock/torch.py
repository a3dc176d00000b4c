# SPDX-License-Identifier: Apache-2.0
"""Public names of the torch adapter: loaders of data, and storage of checkpoints."""

from typing import TYPE_CHECKING, Any

from penstock.extras import require

require("penstock.torch", "torch")

from penstock.feed.checkpoint.folder import Checkpoint, latest_checkpoint, list_checkpoints  # noqa: E402
from penstock.feed.checkpoint.reader import CheckpointReader  # noqa: E402 - torch is there now
from penstock.feed.checkpoint.writer import CheckpointWriter  # noqa: E402 - torch is there now
from penstock.feed.map_dataset import MapDataset  # noqa: E402 - torch is there now
from penstock.feed.stream_dataset import StreamDataset  # noqa: E402 - torch is there now
from penstock.feed.torch import Loader  # noqa: E402

if TYPE_CHECKING:
    from penstock.feed.trainer import feed_trainer

__all__ = [
    "Checkpoint",
    "CheckpointReader",
    "CheckpointWriter",
    "Loader",
    "MapDataset",
    "StreamDataset",
    "feed_trainer",
    "latest_checkpoint",
    "list_checkpoints",
]


def __getattr__(name: str) -> Any:
    if name == "feed_trainer":  # imports transformers
        from penstock.feed.trainer import feed_trainer

        return feed_trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
