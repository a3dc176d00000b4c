# SPDX-License-Identifier: Apache-2.0
"""Class folders of image datasets: their names, and labels for a given list of classes. Uses only the objects' keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock import _native

__all__ = ["has_folder_labels", "has_folders", "labels", "names"]

_MAX_SHOWN = 5


def has_folder_labels(source: _native.Source) -> bool:
    """True if the labels are the indexes of the class folders in this listing."""
    format_facts = json.loads(source.format)
    return format_facts["name"] == "images" and format_facts.get("labels") is None


def has_folders(source: _native.Source) -> bool:
    """True if every file is in a class folder."""
    return all("/" in source.key(number) for number in range(source.objects))


def names(source: _native.Source) -> tuple[str, ...]:
    """Return the names of the class folders, in the order of their labels.

    Raises:
        ConfigError: The dataset has no class folders, or some files are not in a class folder.
    """
    if not has_folder_labels(source):
        raise ConfigError(
            f"{source.url} has no class folders",
            where="classes",
            hint='open a folder of images that contains a folder for each class, with format="images"',
        )
    return tuple(sorted(set(_folders(source))))


def labels(source: _native.Source, classes: Sequence[str]) -> dict[str, Any]:
    """Return the label of each file (the position of its class folder in `classes`), for the format's description.

    Raises:
        ConfigError: A class folder is not in `classes`, or some files are in no folder.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    folders = _folders(source)
    unknown = sorted(set(folders) - set(numbers))
    if unknown:
        shown = ", ".join(f"`{name}`" for name in unknown[:_MAX_SHOWN]) + (", …" if len(unknown) > _MAX_SHOWN else "")
        raise ConfigError(
            f"classes: {len(unknown):,} class folders of {source.url} are not among the {len(numbers):,} given "
            f"classes: {shown}",
            where="classes",
            hint="give the classes of a dataset that has all of these folders, or a pattern that leaves them out",
        )
    files = [source.key(number) for number in range(source.objects)]
    return {"place": "classes", "files": files, "values": {"int": [numbers[name] for name in folders]}}


def _folders(source: _native.Source) -> list[str]:
    """Return the class folder of each file."""
    keys = [source.key(number) for number in range(source.objects)]
    loose = [key for key in keys if "/" not in key]
    if loose:
        raise ConfigError(
            f"{source.url}: {len(loose):,} of {len(keys):,} images are not in a class folder (first: {loose[0]})",
            where="classes",
            hint='give labels from a file: penstock.formats.images(labels="labels.csv")',
        )
    return [key.partition("/")[0] for key in keys]
