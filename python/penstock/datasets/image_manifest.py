# SPDX-License-Identifier: Apache-2.0
"""Manifest of a generated image dataset, `dataset.json`: its settings, shards with sizes, classes and broken images.

Owns the names of the dataset's files, and compares the files with the manifest. Writes no images.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.datasets.files import write_atomically
from penstock.datasets.image_classes import ImageClass
from penstock.errors import ConfigError, Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.datasets.image_plan import ImageSpec, Task

__all__ = [
    "MANIFEST",
    "damaged_shards",
    "made_with",
    "mark_incomplete",
    "read_manifest",
    "refuse_damaged_folders",
    "refuse_different",
    "sample_paths",
    "write_manifest",
]

MANIFEST = "dataset.json"
_SCHEMA_VERSION = 1
_KEYS = {"settings", "made_with", "complete"}


def sample_paths(out: Path, spec: ImageSpec, task: Task) -> list[Path]:
    """Return the files of a task: one shard per copy, or one file per image and copy."""
    folder = out / task.split
    if spec.format != "folder":
        return [folder / name for name in spec.shard_names(task)]
    return [
        folder / ImageClass(spec.label(task.split, image)).synset / f"{spec.key(task.split, image, copy)}.JPEG"
        for image in range(task.first, task.stop)
        for copy in range(spec.copies_of(task.split))
    ]


def read_manifest(out: Path) -> dict[str, Any] | None:
    """Return the manifest in a folder, or None if the folder has none.

    Raises:
        Corrupt: The manifest is not JSON.
        ConfigError: It is the manifest of another kind of dataset.
    """
    path = out / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Corrupt(f"{path} is not JSON: {error}", where=str(path)) from None
    if not isinstance(manifest, dict) or manifest.get("kind") != "images" or not manifest.keys() >= _KEYS:
        raise ConfigError(f"{path} does not describe a dataset of images", hint="choose an empty folder")
    return manifest


def refuse_different(out: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise ConfigError if a dataset has other settings or package versions than this run."""
    different = [name for name in wanted if found.get(name) != wanted[name]]
    if different:
        name = different[0]
        raise ConfigError(
            f"{out} contains a dataset with other settings or package versions; it has {name} = {found.get(name)}, but"
            f" this run has {wanted[name]} (different: {', '.join(different)})",
            where=str(out),
            hint="choose an empty folder, or repeat the settings and versions of the dataset to complete it",
        )


def made_with() -> dict[str, str]:
    """Versions of the packages on which the bytes depend."""
    import numpy as np
    import PIL
    from PIL import features

    return {"numpy": np.__version__, "pillow": PIL.__version__, "libjpeg": str(features.version("jpg"))}


def write_manifest(out: Path, spec: ImageSpec, tasks: list[Task], *, is_complete: bool) -> dict[str, Any]:
    """Write `dataset.json`, and return its content. The content does not depend on the run, so that the bytes are
    reproducible, too.
    """
    splits: dict[str, Any] = {}
    for split in spec.splits:
        copies = spec.copies_of(split)
        splits[split] = {"images": spec.images_of(split), "records": spec.images_of(split) * copies}
        if not is_complete:
            continue
        mine = [task for task in tasks if task.split == split]
        if spec.format == "folder":
            sizes = (path.stat().st_size for task in mine for path in sample_paths(out, spec, task))
            splits[split]["size_bytes"] = sum(sizes)
            continue
        shards = {
            path.name: {"name": path.name, "records": task.stop - task.first, "size_bytes": path.stat().st_size}
            for task in mine
            for path in sample_paths(out, spec, task)
        }
        splits[split]["shards"] = [shards[name] for name in sorted(shards)]
    manifest = {
        "schema_version": _SCHEMA_VERSION,
        "kind": "images",
        "complete": is_complete,
        "settings": spec.settings(),
        "made_with": made_with(),
        "splits": splits,
        "broken": list(_broken(spec)),
        "classes": [
            {"label": number, "synset": ImageClass(number).synset, "text": ImageClass(number).text}
            for number in range(spec.classes)
        ],
    }
    _save(out, manifest)
    return manifest


def mark_incomplete(out: Path, manifest: dict[str, Any]) -> None:
    """Mark the dataset as incomplete, and keep the sizes of its shards."""
    _save(out, {**manifest, "complete": False})


def _save(out: Path, manifest: dict[str, Any]) -> None:
    write_atomically(out / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")


def damaged_shards(out: Path, spec: ImageSpec, manifest: dict[str, Any], tasks: list[Task]) -> set[Path]:
    """Return the shards that have another size than in the manifest of a complete run."""
    splits = manifest.get("splits", {})
    sizes: dict[tuple[str, str], int] = {
        (split, shard["name"]): shard["size_bytes"]
        for split in spec.splits
        for shard in splits.get(split, {}).get("shards", ())
    }
    if not sizes:
        return set()
    found = (path for task in tasks for path in sample_paths(out, spec, task) if path.exists())
    return {path for path in found if path.stat().st_size != sizes.get((path.parent.name, path.name))}


def refuse_damaged_folders(out: Path, spec: ImageSpec, manifest: dict[str, Any], tasks: list[Task]) -> None:
    """Raise Corrupt if class folders have another size than in the manifest, which has no sizes of single files."""
    for split in spec.splits:
        stated = manifest.get("splits", {}).get(split, {}).get("size_bytes")
        if stated is None:
            continue
        stored = sum(p.stat().st_size for task in tasks if task.split == split for p in sample_paths(out, spec, task))
        if stored != stated:
            raise Corrupt(
                f"{out / split}: the images have {stored:,} bytes, but {MANIFEST} states {stated:,}",
                where=str(out / split),
                hint=f"remove the damaged files, or {out / split}, and repeat the command to write them again",
            )


def _broken(spec: ImageSpec) -> Iterator[dict[str, Any]]:
    for image, kind in spec.broken_images.items():
        for copy in range(spec.replicate):
            yield {"key": spec.key("train", image, copy), "kind": kind, "label": spec.label("train", image)}
