# SPDX-License-Identifier: Apache-2.0
"""Driver for SPDL: reads archives with its tar reader, and decodes, crops and batches images with FFmpeg, in
threads.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("spdl", "torch")


def begin(task: dict[str, Any]) -> None:  # noqa: ARG001 - one of a driver's three functions
    """Only imports SPDL, because each pass builds its own pipeline."""
    importlib.import_module("spdl.io")
    importlib.import_module("spdl.pipeline")


def _filter(spec: dict[str, Any]) -> str:
    """FFmpeg filter that resizes the shorter side and crops the centre. FFmpeg has no filter for random crops."""
    if spec["crop"] == "random":
        raise ValueError("SPDL does not support RandomResizedCrop")
    shorter, height, width = spec["resize"], spec["height"], spec["width"]
    return f"scale={shorter}:{shorter}:force_original_aspect_ratio=increase,crop={width}:{height},format=pix_fmts=rgb24"


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One epoch."""
    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder

    images = importlib.import_module("images")
    (picture, spec, member), (label, number, other) = images.named(task)
    kind, text = getattr(torch, number["dtype"]), _filter(spec)

    def samples() -> Iterator[tuple[Any, int]]:
        for path in task["files"]:
            held: dict[str, Any] = {}
            for name, data in spdl.io.iter_tarfile(Path(path).read_bytes()):
                held[name.partition(".")[2]] = data
                if member in held and other in held:
                    yield held[member], int(bytes(held[other]))
                    held = {}

    def decode(rows: list[tuple[Any, int]]) -> dict[str, Any]:
        frames = [spdl.io.decode_packets(spdl.io.demux_image(bytes(data)), filter_desc=text) for data, _ in rows]
        images = spdl.io.to_torch(spdl.io.convert_frames(frames))
        return {picture: images, label: torch.tensor([value for _, value in rows], dtype=kind)}

    cores = len(task["cores"])
    built = PipelineBuilder().add_source(samples()).aggregate(task["batch"]).pipe(decode, concurrency=cores)
    pipeline = built.add_sink(4).build(num_threads=cores)
    with pipeline.auto_stop():
        yield from pipeline
