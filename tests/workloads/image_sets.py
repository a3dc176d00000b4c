# SPDX-License-Identifier: Apache-2.0
"""Small sets of JPEG images with classes that can be learnt: as TFRecord, tar shards and class folders."""

from __future__ import annotations

import io
import tarfile

import numpy as np
from PIL import Image

from tests.feed.tfrecords import example, frame


def jpeg(label, number, *, classes=4, height=80, width=96):
    """Stripes whose direction and colour depend on the class, with noise and a phase that depend on the number."""
    rng = np.random.default_rng([label, number])
    y, x = np.mgrid[0:height, 0:width]
    angle = np.pi * label / classes
    stripes = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 0.4 + rng.uniform(0, 6))
    colour = 0.5 + 0.5 * np.cos(2 * np.pi * (label / classes + np.arange(3) / 3))
    pixels = 128 + 90 * stripes[..., None] * colour + rng.normal(0, 15, (height, width, 3))
    out = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def samples(count, classes=4, first=0):
    """Pairs of JPEG and label from 0."""
    return [(jpeg(n % classes, first + n, classes=classes), n % classes) for n in range(count)]


def write_tfrecord(folder, pairs, *, first_label=1, shards=2):
    """ImageNet's feature names; labels count from 1."""
    folder.mkdir(parents=True)
    for shard in range(shards):
        records = [
            frame(example(**{"image/encoded": [data], "image/class/label": [label + first_label]}))
            for data, label in pairs[shard::shards]
        ]
        (folder / f"train-{shard:05}-of-{shards:05}.tfrecord").write_bytes(b"".join(records))


def write_tar(folder, pairs, *, shards=2, has_labels=True):
    """WebDataset: members KEY.jpg and KEY.cls; labels count from 0."""
    folder.mkdir(parents=True)
    for shard in range(shards):
        with tarfile.open(folder / f"shard-{shard:04}.tar", "w") as archive:
            for number, (data, label) in enumerate(pairs[shard::shards]):
                members = {"jpg": data, "cls": str(label).encode()} if has_labels else {"jpg": data}
                for suffix, content in members.items():
                    member = tarfile.TarInfo(f"{shard}-{number:04}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def write_folders(folder, pairs):
    """One folder per class, in the order of the labels."""
    for number, (data, label) in enumerate(pairs):
        home = folder / f"class-{label:03}"
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{number:05}.jpg").write_bytes(data)
