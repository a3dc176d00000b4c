# SPDX-License-Identifier: Apache-2.0
"""`from penstock.torch import Loader, MapDataset`: the public names of the torch adapter, so that they can be imported too."""

from penstock.feed.random_access import MapDataset
from penstock.feed.torch import Loader

__all__ = ["Loader", "MapDataset"]
