# SPDX-License-Identifier: Apache-2.0
"""Conversion of a dataset to TFRecord, tar or Parquet: reads it with its default fields in stored order, and writes it.

Values pass unchanged: encoded images, text and other bytes as they are, arrays with their type and shape.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, Unsupported
from penstock.extras import require
from penstock.feed import Loader, states
from penstock.feed import open as open_dataset
from penstock.feed.columns import rows
from penstock.feed.fields import NestedSpec, PresentSpec, RawListSpec, RawSpec, TextSpec
from penstock.stage import is_local, local_path
from penstock.writer.destination import Destination
from penstock.writer.journal import MANIFEST, Journal
from penstock.writer.run import Written, run
from penstock.writer.settings import KEY, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.feed import Dataset, FieldSpec
    from penstock.writer.run import IfExists
    from penstock.writer.settings import Compress, Format

__all__ = ["Conversion", "convert", "plan_conversion"]

_BATCH_BYTES = 8 << 20
_MAX_BATCH = 256


@dataclass(frozen=True)
class Conversion:
    """A planned conversion.

    Attributes:
        dataset: The source.
        fields: Fields to read, by the name under which they are written.
        left_out: Parts of the source that no field reads or that the writer does not store (name, reason), and those
            that were not selected.
        samples: Number of samples; None if it is known only after reading.
    """

    dataset: Dataset
    fields: dict[str, FieldSpec]
    left_out: tuple[tuple[str, str], ...]
    samples: int | None

    @cached_property
    def _objects(self) -> list[tuple[str, int, str | None]]:
        """Key, size in bytes and version of each object of the source."""
        listed = json.loads(self.dataset.source.manifest())["objects"]
        return [(entry.get("key") or entry.get("key_hex"), entry["size"], entry.get("version")) for entry in listed]

    @property
    def identity(self) -> str:
        """Hash of the source's objects and of the fields."""
        specs = {name: spec.to_dict() for name, spec in self.fields.items()}
        return hashlib.blake2b(json.dumps([self._objects, specs]).encode(), digest_size=16).hexdigest()

    def reads_from(self, destination: Destination) -> bool:
        """Return whether an object of the source is below the destination, where an overwrite would delete it."""
        source, target = self.dataset.url, destination.url
        if destination.path is not None and is_local(source):
            source, target = f"{os.path.realpath(local_path(source))}/", f"{os.path.realpath(destination.path)}/"
        return any((source + key).startswith(target) for key, _size, _version in self._objects)

    def read(self, start: int) -> Iterator[dict[str, Any]]:
        """Read the samples from number `start` on, in stored order."""
        dataset = self.dataset.fields(**self.fields).cache(False)  # each object is read once
        mean = dataset.source.size_bytes // (self.samples or 1024 * dataset.source.objects)
        batch = max(1, min(_MAX_BATCH, _BATCH_BYTES // max(1, mean)))
        loader = Loader(dataset, batch_size=batch, rank=0, world=1, prefetch_next_epoch=False)
        skip = start
        if start and dataset.indexed:
            loader.load_state_dict(states.make(dataset, 0, start))
            skip = 0
        optional = [
            (name, spec.presence or name)
            for name, spec in self.fields.items()
            if spec.presence or (isinstance(spec, (RawSpec, TextSpec)) and spec.default in (b"", ""))
        ]
        masks = {spec.presence for spec in self.fields.values() if spec.presence}
        for found in loader:
            columns = {name: found[name] for name in (*self.fields, *masks)}
            for row in rows(columns):
                if skip:
                    skip -= 1
                    continue
                for name, mask in optional:
                    if not row[mask]:
                        row[name] = None
                for mask in masks:
                    del row[mask]
                yield row


def plan_conversion(
    source: str | os.PathLike[str],
    format: Format,  # noqa: A002 - as in `open`
    *,
    fields: Sequence[str] | None = None,
) -> Conversion:
    """Open the source of a conversion, and determine its fields. Reads one object, or its start.

    Args:
        fields: Names of the parts to convert, or `NEW=OLD` to rename one; by default all that a field can read.

    Raises:
        ConfigError: A name is not a part of the source, or nothing is selected.
        Unsupported: The format cannot store a selected part: only Parquet stores lists of lists, and a tar stores no
            lists of bytes or texts.
    """
    dataset = open_dataset(source)
    schema = dataset.schema()
    known = {name: spec for name, spec in schema.specs if not isinstance(spec, PresentSpec)}
    for (name, spec), held in zip(schema.specs, schema.holds, strict=True):
        # The default field of Parquet's text is raw. As text, it remains text.
        if format == "parquet" and isinstance(spec, RawSpec) and held.startswith("a text of"):
            default = None if spec.default is None else spec.default.decode()
            known[name] = TextSpec(parts=spec.parts, default=default, presence=spec.presence)
    nested = [name for name, spec in known.items() if isinstance(spec, NestedSpec) and format != "parquet"]
    chosen: dict[str, FieldSpec] = {}
    for text in known if fields is None else fields:
        new, _, old = (text, "", text) if fields is None else text.partition("=")
        old = old or new
        if old not in known:
            raise ConfigError(
                f"fields: `{old}` is not a part of {dataset.url}; it has {', '.join(f'`{name}`' for name in known)}",
                where="fields",
            )
        if fields is None and format == "tar":
            new = _tar_name(new, dataset.format)
        if new in chosen:
            raise ConfigError(
                f"fields: two parts would be written as `{new}`", where="fields", hint="rename one: NEW=OLD"
            )
        if old in nested:
            if fields is None:
                continue
            raise Unsupported(
                f"fields: `{old}` is a list of lists, which only Parquet can store",
                where="fields",
                hint="use --format parquet",
            )
        spec = known[old]
        chosen[new] = spec if getattr(spec, "parts", ()) else spec.of(old)
    if format == "tar" and (lists := [name for name, spec in chosen.items() if isinstance(spec, RawListSpec)]):
        parts = {text: known[text.partition("=")[2] or text] for text in fields or known if text not in nested}
        rest = [text for text, spec in parts.items() if not isinstance(spec, RawListSpec)]
        leave = f"leave it out by --fields {','.join(rest)}, or " if rest else ""
        raise Unsupported(
            f"fields: `{lists[0]}` is a list of bytes or texts, which a tar member cannot store",
            where="fields",
            hint=f"{leave}use --format tfrecord or parquet",
        )
    if not chosen:
        raise ConfigError(f"fields: no part of {dataset.url} is selected", where="fields")
    left_out = list(schema.left_out)
    if fields is None:
        left_out += [(name, "a list of lists, which only Parquet can store") for name in nested]
    else:
        used = {text.rpartition("=")[2] for text in fields}
        left_out += [(name, "not selected") for name in known if name not in used]
    if dataset.indexed and dataset.format in ("tfrecord", "tar") and dataset.counted_without_scan() is None:
        # Counting would read the dataset a second time.
        dataset = replace(dataset, indexed=False)
    samples = dataset.samples if dataset.indexed else None
    return Conversion(dataset, chosen, tuple(left_out), samples)


def _tar_name(name: str, source: str) -> str:
    """Name of a part as the extension of a tar member."""
    if source == "images" and name in ("image", "label"):
        return {"image": "jpg", "label": "cls"}[name]
    return name if name == KEY else name.replace("/", ".").strip(".")


def convert(
    source: str | os.PathLike[str] | Conversion,
    url: str | os.PathLike[str],
    *,
    format: Format,  # noqa: A002 - as in `open`
    fields: Sequence[str] | None = None,
    shard_bytes: int = 128_000_000,
    compress: Compress | None = None,
    level: int | None = None,
    name: str = "shard",
    if_exists: IfExists = "resume",
    workers: int | None = None,
    timeout_s: float = 600.0,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Convert a dataset that `penstock.open` reads to shards of another format. Arguments and errors as for `write`.

    The same call continues an interrupted conversion, and does nothing after a complete one.
    """
    require("penstock.convert", "numpy")
    plan = source if isinstance(source, Conversion) else plan_conversion(source, format, fields=fields)
    at = Destination(url, timeout_s=timeout_s)
    if plan.reads_from(at):
        raise ConfigError(
            f"url: {at.url} contains objects of the source {plan.dataset.url}",
            where="url",
            hint="choose another folder",
        )
    settings = Settings(format, shard_bytes, compress, level, name, plan.identity)
    done = _complete(at, settings) if if_exists == "resume" else None
    if done is not None:
        return done
    # The parts of the source are not names of the destination.
    schema = {new: replace(spec, parts=()) for new, spec in plan.fields.items()}  # type: ignore[call-arg]

    def samples(start: int) -> Iterator[dict[str, Any]]:
        for row in plan.read(start):
            if format == "tar" and KEY in row:
                folder, slash, base = row[KEY].rpartition(b"/")
                row[KEY] = folder + slash + base.partition(b".")[0]
            yield row

    return run(samples, at, settings, schema=schema, if_exists=if_exists, workers=workers, progress=progress)


def _complete(at: Destination, settings: Settings) -> Written | None:
    """Return the result of an earlier, complete conversion with the same settings."""
    listed = at.listed()
    if MANIFEST not in listed:
        return None
    found = Journal(at, listed).manifest()
    written = found.get("written", {})
    if written.get("settings") != settings.to_dict():
        return None
    from penstock.feed.fields import from_json

    return Written(
        url=at.url,
        samples=written["samples"],
        shards=len(found["objects"]),
        bytes_stored=sum(entry["size"] for entry in found["objects"]),
        skipped=written["samples"],
        fields=dict(from_json(json.dumps(found["fields"]))),
    )
