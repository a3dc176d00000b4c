# SPDX-License-Identifier: Apache-2.0
"""Public alias of the torch adapter: `from penstock.torch import Loader, MapDataset`."""

from penstock.extras import require

require("penstock.torch", "torch")

from penstock.feed.map_dataset import MapDataset  # noqa: E402 - torch is there now
from penstock.feed.torch import Loader  # noqa: E402

__all__ = ["Loader", "MapDataset"]
