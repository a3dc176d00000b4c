# SPDX-License-Identifier: Apache-2.0
"""`from penstock.torch import Loader, MapDataset`: the public names of the torch adapter, so that they can be imported too."""

from penstock.extras import require

require("penstock.torch", "torch")

from penstock.feed.map_dataset import MapDataset  # noqa: E402 - torch is there now
from penstock.feed.torch import Loader  # noqa: E402

__all__ = ["Loader", "MapDataset"]
