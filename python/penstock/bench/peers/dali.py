# SPDX-License-Identifier: Apache-2.0
"""Driver for DALI on the CPU: its WebDataset reader with DALI's own index files, its JPEG decoder and its crops."""

from __future__ import annotations

import importlib
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("nvidia-dali-cuda120", "numpy")

_made: dict[str, Any] = {}


def _index(archive: str, out: Path) -> None:
    """Return an index in the form of DALI's `wds2idx`: one line per sample with the extension, offset, size and name of
    each member.
    """
    lines: list[list[str]] = []
    last = None
    with tarfile.open(archive) as opened:
        for member in opened:
            key, _, extension = member.name.partition(".")
            if key != last:
                lines.append([])
                last = key
            lines[-1] += [extension, str(member.offset_data), str(member.size), member.name]
    out.write_text(f"v1.2 {len(lines)}\n" + "".join(" ".join(line) + "\n" for line in lines))


def begin(task: dict[str, Any]) -> None:
    """Writes the indexes, and builds the pipeline."""
    from nvidia.dali import fn, pipeline_def, types

    images = importlib.import_module("images")
    (_, spec, member), (_, _, label) = images.named(task)
    indexes = [str(Path(task["work"]) / f"{number:05d}.idx") for number in range(len(task["files"]))]
    for archive, index in zip(task["files"], indexes, strict=True):
        _index(archive, Path(index))
    size = (spec["height"], spec["width"])

    @pipeline_def(batch_size=task["batch"], num_threads=len(task["cores"]), device_id=None)  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        jpegs, labels = fn.readers.webdataset(
            paths=task["files"],
            index_paths=indexes,
            ext=[member, label],
            missing_component_behavior="error",
            name="reader",
            pad_last_batch=False,
        )
        if spec["crop"] == "random":
            images = fn.resize(fn.decoders.image_random_crop(jpegs, device="cpu"), size=size)
        else:
            images = fn.resize(fn.decoders.image(jpegs, device="cpu"), resize_shorter=spec["resize"])
            images = fn.crop(images, crop=size, dtype=types.UINT8)
        if spec["flip"]:
            images = fn.flip(images, horizontal=fn.random.coin_flip(probability=spec["flip"]))
        return images, labels

    _made["pipeline"] = pipeline()
    _made["pipeline"].build()
    _made["samples"] = _made["pipeline"].epoch_size("reader")


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Runs one epoch. DALI completes the last batch with rows of the next epoch; this driver drops those rows."""
    import numpy as np

    images = importlib.import_module("images")
    (picture, _, _), (label, number, _) = images.named(task)
    left = _made["samples"]
    while left > 0:
        images, labels = _made["pipeline"].run()
        rows = min(left, task["batch"])
        values = [int(bytes(np.asarray(labels.at(row)))) for row in range(rows)]
        yield {picture: images.as_array()[:rows], label: np.array(values, number["dtype"])}
        left -= rows
    _made["pipeline"].reset()
