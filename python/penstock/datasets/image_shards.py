# SPDX-License-Identifier: Apache-2.0
"""Writes images as TFRecords with ImageNet's features, as WebDataset's tar shards, or as class folders.

Owns the encoding of records and the names of shards. Does not draw pixels.
"""

from __future__ import annotations

import json
import tarfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock import _native
from penstock.atomic_file import atomic_file
from penstock.datasets.files import write_atomically, write_errors
from penstock.datasets.image_classes import ImageClass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import IO

    from penstock.datasets.image_scenes import Picture

__all__ = ["FORMATS", "ImageFormat", "Record", "encode", "end_of_shard", "shard_files", "shard_name", "write_file"]

ImageFormat = Literal["tfrecord", "tar", "folder"]
FORMATS: tuple[ImageFormat, ...] = ("tfrecord", "tar", "folder")
_CHANNELS = {"RGB": 3, "L": 1, "CMYK": 4}
_COLORSPACE = {"RGB": "RGB", "L": "Grayscale", "CMYK": "CMYK"}


@dataclass(frozen=True, slots=True)
class Record:
    """One image with its names. `label` counts from 0, and differs from the number of the class `of` if it is wrong on
    purpose.

    Attributes:
        key: Unique name without an extension, such as `n00000001_17`.
        data: Stored bytes, which differ from `picture.jpeg` if the image is broken on purpose.
    """

    key: str
    label: int
    of: ImageClass
    picture: Picture
    data: bytes

    @property
    def filename(self) -> str:
        """Name of the file, as in ImageNet."""
        return f"{self.key}.JPEG"


def shard_name(kind: ImageFormat, split: str, shard: int, shards: int) -> str:
    """Return the name of a shard in the folder of its split.

    TFRecords have the names that TensorFlow's ImageNet readers expect, such as `train-00000-of-01024`. Tar shards have
    the names of WebDataset's ShardWriter with the split in front, such as `train-000000.tar`.
    """
    return f"{split}-{shard:05d}-of-{shards:05d}" if kind == "tfrecord" else f"{split}-{shard:06d}.tar"


@contextmanager
def shard_files(paths: Sequence[Path]) -> Iterator[list[IO[bytes]]]:
    """Context manager of open shards. At its end, the shards are synced, and appear together."""
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(write_errors(path))
        yield [stack.enter_context(atomic_file(path)) for path in paths]


def encode(kind: ImageFormat, record: Record) -> bytes:
    """Encode a record for a shard."""
    return _example(record) if kind == "tfrecord" else _members(record)


def end_of_shard(kind: ImageFormat) -> bytes:
    """Return the bytes after the last record: the two empty blocks of a tar archive, or none."""
    return bytes(2 * tarfile.BLOCKSIZE) if kind == "tar" else b""


def write_file(folder: Path, record: Record) -> None:
    """Write a record as a file of its class folder. The label is the number of the folder."""
    write_atomically(folder / ImageClass(record.label).synset / record.filename, record.data)


def _example(record: Record) -> bytes:
    """Encode a record as tf.Example with the features of TensorFlow's ImageNet conversion. Labels count from 1."""
    picture, boxes = record.picture, record.picture.boxes
    return _native.encode_tfrecord(
        {
            "image/encoded": record.data,
            "image/filename": record.filename.encode(),
            "image/format": b"JPEG",
            "image/colorspace": _COLORSPACE[picture.mode].encode(),
            "image/channels": [_CHANNELS[picture.mode]],
            "image/height": [picture.height],
            "image/width": [picture.width],
            "image/class/label": [record.label + 1],
            "image/class/synset": record.of.synset.encode(),
            "image/class/text": record.of.text.encode(),
            "image/object/bbox/xmin": [box[0] for box in boxes],
            "image/object/bbox/ymin": [box[1] for box in boxes],
            "image/object/bbox/xmax": [box[2] for box in boxes],
            "image/object/bbox/ymax": [box[3] for box in boxes],
            "image/object/bbox/label": [record.label + 1] * len(boxes),
        }
    )


def _members(record: Record) -> bytes:
    """Encode a record as the tar members `KEY.jpg`, `KEY.cls` and `KEY.json`. Labels count from 0."""
    picture = record.picture
    facts = {
        "filename": record.filename,
        "label": record.label,
        "synset": record.of.synset,
        "text": record.of.text,
        "width": picture.width,
        "height": picture.height,
        "colorspace": _COLORSPACE[picture.mode],
        "channels": _CHANNELS[picture.mode],
        "bbox": [[round(side, 6) for side in box] for box in picture.boxes],
    }
    members = (("jpg", record.data), ("cls", str(record.label).encode()), ("json", json.dumps(facts).encode()))
    return b"".join(_native.tar_member(f"{record.key}.{extension}", data) for extension, data in members)
