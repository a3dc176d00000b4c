# SPDX-License-Identifier: Apache-2.0
"""`penstock.open`: lists a dataset, detects its format, and reads the metadata that the format needs. Reads no samples."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import _native, env
from penstock.errors import ConfigError, Denied, NotFound, SystemFault
from penstock.feed import classes as class_folders
from penstock.feed import formats, hdf5_chunks, labels, pool_locality, urls_to_glob
from penstock.feed.dataset import Dataset
from penstock.local_paths import absolute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.feed.formats import Format

__all__ = ["open"]

_LOG = logging.getLogger("penstock.feed")


def open(  # noqa: A001 - the verb is the API
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    manifest: str | os.PathLike[str] | None = None,
    *,
    format: str | Format | None = None,  # noqa: A002 - the argument's name is the API
    records_per_object: int | None = None,
    indexes: str | os.PathLike[str] | None = None,
    indexed: bool = True,
) -> Dataset:
    """Open a dataset: list its objects once. If the object names do not show the format, also read the first bytes of
    one object.

    Args:
        url: A folder, one object, or a pattern (`s3://b/train/*.tfrecord.gz`, `train-{000..127}.tar`, `{train,val}/*`).
            `hf://datasets/ORG/NAME[@REVISION]/...` is a dataset of the Hugging Face Hub; its current commit is read in
            all epochs. A plain path is local, and `~` is the home folder. A list of URLs or paths in one bucket (or
            below one local folder) is one dataset. Its objects are ordered by name, and an object that matches twice is
            read once.
        manifest: A manifest file from `penstock index`, which is used instead of a listing. Only the object versions in
            the manifest are read.
        format: A name, such as `"tfrecord"`, or a value from `penstock.formats`. By default, the format is detected
            from the object names or, if that is impossible, from the first bytes of one object.
        records_per_object: Number of records in every object, if you know it; by default, the records are counted.
        indexes: A folder with index files of other programs (DALI's `.idx`, wids' `index.json`). By default, index
            files beside the objects are used.
        indexed: False disables record counts: TFRecords, tars and JSON lines are read as streams. Each rank reads
            different objects as a whole, records are mixed only within 32 MiB of an object, a loader has no length, and
            ranks have different numbers of batches. A state is valid only for the same rank and the same number of
            ranks.
    Raises:
        NotFound: No object matches, or an object that is named in a list or in braces is missing.
        Unsupported: The format of the objects is not supported; the message contains its name.
        ConfigError: The folder contains an object and its decompressed copy, so that each sample would be read twice.
            Or no object of a URL in a list is read, because all its objects have other formats than the rest of the
            list.
        Denied, Unreachable, Throttled: The store rejected a request or did not respond.
    Warns:
        UserWarning: No format is given, and more objects are ignored than read.
    """
    several: list[str] = []
    if isinstance(url, (str, bytes, os.PathLike)) or not isinstance(url, Iterable):
        text = _located(url, "url")
    else:
        several = [_located(each, "url") for each in url]
        text = urls_to_glob.joined(several)
    if records_per_object is not None and records_per_object < 1:
        raise ConfigError(
            f"records_per_object: must be at least 1 (got {records_per_object})", where="records_per_object"
        )
    if not indexed and records_per_object is not None:
        raise ConfigError("records_per_object: cannot be combined with indexed=False", where="records_per_object")
    listed = None if manifest is None else _read(Path(manifest))
    declared = formats.named(format)
    source = _native.Source.open(
        text,
        listed,
        dict(env.read()),
        None if declared is None else declared.to_json(),
        None if indexes is None else _located(indexes, "indexes"),
    )
    if source.ignored and len(several) > 1:
        _check_all_read(several, source)
    if declared is not None and (declared.labels is not None or declared.classes is not None):
        # Labels and classes refer to paths below the listed folder, which is known only after the listing. Therefore,
        # open the same listing again with the labels and classes.
        if declared.classes is not None:
            facts = class_folders.labels(source, declared.classes)
        elif declared.labels is not None:
            facts = labels.read(
                declared.labels, source.url, dict(env.read()), lambda place: open(place, format="parquet").cache(False)
            )
        known = replace(declared, facts={**declared.facts, "labels": facts})
        found, ignored = source.manifest(), source.ignored
        source = _native.Source.open(source.url, found, dict(env.read()), known.to_json())
        source = _native.Source.restore(found, ignored, source.format)
    if source.ignored:
        _warn_of_ignored(source, is_chosen=declared is not None)
    if declared is not None and declared.name == "hdf5":
        resolved = hdf5_chunks.read(source, declared)
        source = _native.Source.open(source.url, source.manifest(), dict(env.read()), resolved.to_json())
    locality = None
    if (pool := pool_locality.find(source.url, env.read())) is not None:
        source, locality = pool_locality.with_pool_routes(source, pool, env.read())
    return Dataset(
        source,
        records_per_object=records_per_object,
        indexed=indexed,
        locality=locality,
        given_classes=None if declared is None else declared.classes,
    )


def _check_all_read(urls: list[str], source: _native.Source) -> None:
    """Raise an error if no object of a URL in a list is read, because all its objects have other formats."""
    listing = source.manifest()
    keys = [entry["key"] for entry in json.loads(listing)["objects"]]
    unread, patterns = urls_to_glob.without_objects(urls, keys)
    for pattern in patterns if unread is None else ():
        try:
            _native.Source.open(pattern, listing, dict(env.read()), formats.files().to_json())
        except NotFound:
            unread = pattern
            break
    if unread is not None:
        name = json.loads(source.format)["name"]
        raise ConfigError(
            f"url: {unread} contains no {name} objects, but {name} is the format of the other objects in the list",
            where="url",
            hint="remove it from the list, or open it separately and use penstock.mix to read both",
        )


def _warn_of_ignored(source: _native.Source, *, is_chosen: bool) -> None:
    kind, ignored = json.loads(source.format)["name"], source.ignored
    if is_chosen or ignored <= source.objects:
        _LOG.warning(
            "%s: %d objects are ignored, because their names are not names of %s objects",
            source.url,
            ignored,
            kind,
        )
        return
    # Use a warning instead of a log message, because programs often hide logs, and the user probably meant another
    # folder.
    warnings.warn(
        f"{source.url}: {source.objects:,} of {source.objects + ignored:,} objects are read as {kind}; "
        f"the other {ignored:,} are ignored. To avoid this, select objects by a pattern (`*.suffix`) or set "
        "format=.",
        stacklevel=3,
    )


def _located(url: object, what: str) -> str:
    if not isinstance(url, (str, bytes, os.PathLike)):
        raise ConfigError(f"{what}: must be a URL or a path (got {url!r})", where=what)
    text = os.fsdecode(url)
    if not text:
        raise ConfigError(f"{what}: must not be empty", where=what, hint="write `.` for the working directory")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{what}: {text!r} is not UTF-8", where=what, hint="open the folder that contains it, or a pattern"
        ) from None
    if "://" not in text:
        tail = "/" if text.endswith("/") else ""
        text = absolute(text) + tail
    return text


def _read(manifest: Path) -> bytes:
    try:
        return manifest.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"{manifest} does not exist", where=str(manifest)) from None
    except PermissionError as error:
        raise Denied(f"{manifest} cannot be accessed: {error.strerror}", where=str(manifest)) from None
    except OSError as error:
        raise SystemFault(f"{manifest}: {error.strerror}", where=str(manifest)) from None
