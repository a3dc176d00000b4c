# SPDX-License-Identifier: Apache-2.0
"""Feed: reads a dataset from its store in batches. The sample order is a pure function of seed, epoch and position.

`open` lists a dataset, `Dataset.fields` and `Dataset.shuffle` configure the dataset, and a `Loader` reads it. Batches
are NumPy arrays here, and torch tensors in `penstock.feed.torch`. Framework adapters are imported only when they are
used.
"""

from penstock.feed.audio_fields import audio
from penstock.feed.batch_by import BatchBy, Buckets, Budget, buckets, budget
from penstock.feed.batch_columns import Ragged
from penstock.feed.dataset import Dataset, Schema
from penstock.feed.fields import (
    FieldSpec,
    NestedSpec,
    PaddedSpec,
    PresentSpec,
    RaggedSpec,
    RawListSpec,
    RawSpec,
    TensorSpec,
    TextSpec,
    ragged,
    raw,
    raw_list,
    tensor,
    text,
)
from penstock.feed.image_fields import (
    BoxesSpec,
    ImageSpec,
    KeypointsSpec,
    MaskSpec,
    boxes,
    image,
    keypoints,
    mask,
)
from penstock.feed.list_fields import list  # noqa: A004 - the name in the API
from penstock.feed.loader import Loader
from penstock.feed.mixture import Mixture, mix
from penstock.feed.open_dataset import open  # noqa: A004 - the verb is the API
from penstock.feed.report import Report

__all__ = [
    "BatchBy",
    "BoxesSpec",
    "Buckets",
    "Budget",
    "Dataset",
    "FieldSpec",
    "ImageSpec",
    "KeypointsSpec",
    "Loader",
    "MaskSpec",
    "Mixture",
    "NestedSpec",
    "PaddedSpec",
    "PresentSpec",
    "Ragged",
    "RaggedSpec",
    "RawListSpec",
    "RawSpec",
    "Report",
    "Schema",
    "TensorSpec",
    "TextSpec",
    "audio",
    "boxes",
    "buckets",
    "budget",
    "image",
    "keypoints",
    "list",
    "mask",
    "mix",
    "open",
    "ragged",
    "raw",
    "raw_list",
    "tensor",
    "text",
]
