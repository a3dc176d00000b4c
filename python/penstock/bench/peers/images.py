# SPDX-License-Identifier: Apache-2.0
"""Decodes JPEG bytes to pixels with Pillow and torchvision, for peers without a decoder."""

from __future__ import annotations

import io
from typing import Any


def transform(spec: dict[str, Any], *, tensors: bool = False) -> Any:
    """Converts a Pillow image (or a CHW tensor) to a uint8 tensor in HWC order, with torchvision's crop, resize and
    flip.
    """
    from torchvision.transforms import v2

    size = (spec["height"], spec["width"])
    if spec["crop"] == "random":
        steps = [v2.RandomResizedCrop(size, antialias=True)]
    else:
        steps = [v2.Resize(spec["resize"], antialias=True), v2.CenterCrop(size)]
    if spec["flip"]:
        steps.append(v2.RandomHorizontalFlip(spec["flip"]))
    if not tensors:
        steps.append(v2.PILToTensor())
    shaped = v2.Compose(steps)
    return lambda image: shaped(image).permute(1, 2, 0).contiguous()


def opened(data: Any) -> Any:
    """Decodes an image to a Pillow image in RGB."""
    from PIL import Image

    return Image.open(io.BytesIO(data)).convert("RGB")


def members(paths: list[str]) -> Any:
    """Reads the samples of WebDataset's tars with the standard library, as dicts of extension -> bytes."""
    import tarfile

    for path in paths:
        sample: dict[str, Any] = {}
        with tarfile.open(path) as archive:
            for member in archive:
                key, _, extension = member.name.partition(".")
                if sample and sample["__key__"] != key:
                    yield sample
                    sample = {}
                opened_member = archive.extractfile(member)
                assert opened_member is not None
                sample["__key__"] = key
                sample[extension] = opened_member.read()
        if sample:
            yield sample


def named(task: dict[str, Any]) -> tuple[tuple[str, dict[str, Any], str], tuple[str, dict[str, Any], str]]:
    """Returns the image field and the label field, each with its description and its tar member."""
    fields = task["fields"]
    (picture,) = [name for name in fields if fields[name]["kind"] == "image"]
    (label,) = [name for name in fields if name != picture]
    of = {name: spec["of"][0] if spec["of"] else name for name, spec in fields.items()}
    return (picture, fields[picture], of[picture]), (label, fields[label], of[label])
