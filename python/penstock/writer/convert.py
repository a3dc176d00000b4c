# SPDX-License-Identifier: Apache-2.0
"""Conversion of a dataset to TFRecord, tar or Parquet: reads the default fields in stored order, and writes the
samples.

Values do not change: encoded images, text and other bytes are copied, and arrays keep their type and shape.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, count
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from penstock import _native, env
from penstock.errors import Changed, ConfigError, KeyRefused, Mismatch, PreconditionFailed, Unsupported
from penstock.extras import require
from penstock.feed import Loader, states
from penstock.feed import open as open_dataset
from penstock.feed.batch_columns import rows
from penstock.feed.fields import NestedSpec, PresentSpec, RaggedSpec, RawListSpec, RawSpec, TensorSpec, TextSpec
from penstock.feed.number_arguments import as_int
from penstock.feed.urls_to_glob import joined
from penstock.local_paths import absolute, is_local, local_path
from penstock.writer.destination import Destination
from penstock.writer.journal import MANIFEST, Journal, difference
from penstock.writer.run import Written, existing, run
from penstock.writer.settings import KEY, Settings
from penstock.writer.source_types import columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.feed import Dataset, FieldSpec
    from penstock.writer.run import IfExists
    from penstock.writer.settings import Compress, Format
    from penstock.writer.source_types import ColumnType

__all__ = ["Conversion", "convert", "plan_conversion"]

_LOG = logging.getLogger("penstock.writer")

NOT_SELECTED = "not selected"
"""Reason in `left_out` for a part that `fields` does not name."""

_NULLABLE = ("parquet", "arrow", "jsonl", "csv", "tar", "tfrecord")
"""Formats in which a record can lack a value."""

_NUMBER = re.compile(r"(?:\w+\[[^\]]*\], )?(?:\w+, a Hive|(\w+ \[\]|the text `|[-\d]|true|false).*; a value in)")
"""Pattern of a schema's description of a single number that some records lack."""

_COMPRESSED = (
    "a compressed file, whose column types are not read: times are stored as integers, booleans as uint8, and texts in "
    "lists as bytes"
)

_BATCH_BYTES = 8 << 20
_MAX_BATCH = 256


@dataclass(frozen=True)
class Conversion:
    """A planned conversion.

    Attributes:
        dataset: The source.
        fields: Fields to read, by the names under which they are written.
        left_out: (name, reason) for each part of the source that is not converted. A part is not converted if no field
            reads it, the format cannot store it, or it is not selected.
        samples: Number of samples; None if it is known only after all samples are read.
        notes: (name, description of the loss) for each field that is stored with less information than in the source.
        elements: Arrow types of the elements of some fields in Parquet, by the names under which the fields are
            written.
        selection: Absolute URL, path or pattern of the source.
    """

    dataset: Dataset
    fields: dict[str, FieldSpec]
    left_out: tuple[tuple[str, str], ...]
    samples: int | None
    notes: tuple[tuple[str, str], ...] = ()
    elements: dict[str, Any] = field(default_factory=dict)
    selection: str = ""

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

    def check_destination(self, destination: Destination, settings: Settings) -> None:
        """Raise ConfigError if overwriting the destination would delete objects of the source, or if the source would
        contain the new shards when it is opened again.
        """
        source, target = self.dataset.url, destination.url
        if destination.path is not None and is_local(source):
            source, target = f"{os.path.realpath(local_path(source))}/", f"{os.path.realpath(destination.path)}/"
        if any((source + key).startswith(target) for key, _size, _version in self._objects):
            raise ConfigError(
                f"url: the destination {destination.url} contains objects of the source {self.dataset.url}",
                where="url",
                hint="choose another folder",
            )
        if not target.startswith(source):
            return
        below = target[len(source) :]
        if self._selects(below + settings.shard_name(0)):
            raise ConfigError(
                f"url: the destination {destination.url} is inside the source {self.selection}, so the source would "
                "contain the new shards, too",
                where="url",
                hint="choose a folder outside the source",
            )
        files = _native.Files(source, dict(env.read()))
        for folder in ["", *accumulate(f"{name}/" for name in below.split("/")[:-2])]:
            if files.described(os.fsencode(folder + MANIFEST)):
                raise ConfigError(
                    f"url: {destination.url} is inside {source}{folder}, which contains a dataset with a manifest",
                    where="url",
                    hint="choose a folder outside that dataset",
                )

    def _selects(self, key: str) -> bool:
        """Return whether the source would contain an object with this key below its folder."""
        listed = json.loads(self.dataset.source.manifest())
        listed["objects"].append({**listed["objects"][0], "key": key})
        variables, as_files = dict(env.read()), json.dumps({"name": "files"})
        found = _native.Source.open(self.selection, json.dumps(listed).encode(), variables, as_files)
        return any(entry.get("key") == key for entry in json.loads(found.manifest())["objects"])

    def image_keys(self) -> dict[str, str]:
        """Return the tar key of each image file, which is `_tar_key` of the path without the extension. If two files
        have the same key, a number is added. Empty for sources other than images.
        """
        keys: dict[str, str] = {}
        taken = set()
        for path, _size, _version in self._objects if self.dataset.format == "images" else ():
            key = stem = _tar_key(str(PurePosixPath(path).with_suffix("")))
            numbers = count(1)
            while key in taken:
                key = f"{stem}-{next(numbers)}"
            taken.add(key)
            keys[path] = key
        return keys

    def read(self, start: int) -> Iterator[dict[str, Any]]:
        """Yield the samples from number `start` on, in stored order. A value that a sample lacks is None.

        Raises:
            Mismatch: A list contains a null, or the type of a value differs from its type in the first records.
        """
        specs = {name: _with_default(spec) for name, spec in self.fields.items()}
        masks = {}
        if self.dataset.format in _NULLABLE:
            # Lists of a TFRecord need no mask, because an empty list and a missing list are the same.
            lists = () if self.dataset.format != "tfrecord" else (RaggedSpec, RawListSpec, NestedSpec)
            masks = {
                name: PresentSpec(getattr(spec, "parts", ()))
                for name, spec in self.fields.items()
                if not isinstance(spec, lists) and spec != RawSpec(record=True)
            }
        dataset = self.dataset.fields(**specs, **{f"\0{name}": mask for name, mask in masks.items()})
        dataset = dataset.cache(False)  # without a cache, because each object is read only once
        mean = dataset.source.size_bytes // (self.samples or 1024 * dataset.source.objects)
        batch = max(1, min(_MAX_BATCH, _BATCH_BYTES // max(1, mean)))
        loader = Loader(dataset, batch_size=batch, rank=0, world=1, prefetch_next_epoch=False)
        number = 0
        if start and dataset.indexed:
            loader.load_state_dict(states.make(dataset, 0, start))
            number = start
        try:
            for found in loader:
                lacking = [(name, found[f"\0{name}"]) for name in masks if not found[f"\0{name}"].all()]
                for at, row in enumerate(rows({name: found[name] for name in self.fields})):
                    number += 1
                    if number <= start:
                        continue
                    for name, is_there in lacking:
                        if not is_there[at]:
                            row[name] = None
                    yield row
        except Mismatch as error:
            only = "correct this record in the source, because no other part is converted"
            error.__notes__ = ["leave out the part: select the others with fields=" if len(self.fields) > 1 else only]
            raise


def _with_default(spec: FieldSpec) -> FieldSpec:
    """Return the field without a mask, and with a default, so that a missing value is not an error."""
    made = replace(spec, presence=None)
    if isinstance(made, TensorSpec) and made.default is None:
        return replace(made, default=0)
    if isinstance(made, RawSpec) and made.default is None and not made.record:
        return replace(made, default=b"")
    if isinstance(made, (RaggedSpec, RawListSpec, NestedSpec)):
        return replace(made, default=())
    return replace(made, default="") if isinstance(made, TextSpec) and made.default is None else made


def plan_conversion(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: Format,  # noqa: A002 - as in `open`
    *,
    fields: Sequence[str] | None = None,
) -> Conversion:
    """Open the source of a conversion, and determine its fields. Reads one object or its start, and the footers of
    tables.

    Args:
        fields: Names of the parts to convert, or `NEW=OLD` to rename a part. By default, all parts that a field can
            read and the format can store are converted.

    Raises:
        ConfigError: A name is not a part of the source, no part is selected, or the source is not of an allowed type.
        Unsupported: The format cannot store a selected part, or the times of a part have different units in two
            objects. Only Parquet stores lists of lists, and a tar cannot store lists of bytes or texts.
    """
    selection = _absolute(source)
    dataset = open_dataset(source)
    schema, columns = dataset.schema(), columns_of(dataset)
    types = columns.types
    written = _written(dataset)
    numbers = written.get("numbers", ())
    known = {
        name: TensorSpec(spec.dtype, (), spec.parts, presence=spec.presence)
        if isinstance(spec, RaggedSpec) and name in numbers
        else _typed(spec, held, types.get((getattr(spec, "parts", ()) or (name,))[0]), dataset.format, format)
        for (name, spec), held in zip(schema.specs, schema.holds, strict=True)
        if not isinstance(spec, PresentSpec)
    }
    left_out = dict(schema.left_out) | written.get("left_out", {})
    absent = columns.later() | {name: "" for name, why in left_out.items() if why.startswith("null or empty")}
    for name, key in absent.items():
        column = types.get(name)
        spec = None if column is None else column.spec
        if column is not None and spec is not None:
            known[name] = _typed(spec, "", column, dataset.format, format)
            left_out.pop(name, None)
        elif column is not None and key:
            left_out[name] = f"{column.element} in {key}, which no field reads"
    refused = {name: reason for name, spec in known.items() if (reason := _refused(spec, format))}
    chosen: dict[str, FieldSpec] = {}
    used = set()
    for text in known if fields is None else fields:
        new, equals, old = (text, "", text) if text in known else text.partition("=")
        old = old if equals or text in known else new
        used.add(old)
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
        if old in refused:
            if fields is None:
                continue
            only = '"parquet"' if isinstance(known[old], NestedSpec) else '"tfrecord" or "parquet"'
            raise Unsupported(
                f"fields: `{old}` is {refused[old]}", where="fields", hint=f"leave it out, or use format={only}"
            )
        spec = known[old]
        has_parts = getattr(spec, "parts", ()) or (isinstance(spec, RawSpec) and spec.record)
        chosen[new] = spec if has_parts else replace(spec, parts=(old,))  # type: ignore[call-arg]
    if not chosen:
        why = "".join(f"; `{name}` is {reason}" for name, reason in refused.items()) if fields is None else ""
        raise ConfigError(f"fields: no part of {dataset.url} is selected{why}", where="fields")
    left_out |= refused if fields is None else {name: NOT_SELECTED for name in known if name not in used}
    columns_read = {
        new: parts[0] for new, spec in chosen.items() if (parts := getattr(spec, "parts", ())) and parts[0] in types
    }
    columns.check_equal(columns_read.values())
    elements = {}
    notes = [(key, _COMPRESSED) for key, found in columns.objects if not found][:1]
    for new, column_name in columns_read.items():
        kept = types[column_name].kept if format == "parquet" else None
        if kept is not None:
            elements[new] = kept
        elif types[column_name].is_time:
            notes.append((new, f"{types[column_name].element} is stored as integers, without its unit"))
    if dataset.indexed and dataset.format in ("tfrecord", "tar") and dataset.counted_without_scan() is None:
        # Counting would read the dataset a second time.
        dataset = replace(dataset, indexed=False)
    samples = dataset.samples if dataset.indexed else None
    return Conversion(dataset, chosen, tuple(left_out.items()), samples, tuple(notes), elements, selection)


def _written(dataset: Dataset) -> dict[str, Any]:
    """Return the description of the fields in the manifest of a written dataset; empty for any other dataset."""
    if dataset.source.fields is None:
        return {}
    files = _native.Files(dataset.url, dict(env.read()))
    found = files.described(MANIFEST.encode())
    if not found:  # there is no manifest in this folder
        return {}
    name, size, _version, _modified = found[0]
    return dict(json.loads(files.read(name, [(0, size)])[0]).get("written", {}))


def _typed(spec: FieldSpec, held: str, column: ColumnType | None, source: str, format: Format) -> FieldSpec:  # noqa: A002
    """Return the field with the type in the source's schema, for texts, booleans and single numbers."""
    if column is not None and str(column.element) == "bool" and isinstance(spec, (TensorSpec, RaggedSpec, NestedSpec)):
        spec = replace(spec, dtype="bool")
    if format == "parquet" and isinstance(spec, RawSpec) and not spec.record:
        is_text = held.startswith(("a text of", "text, a Hive")) or (source == "mds" and held.startswith("the text `"))
        if is_text if column is None else column.is_text:
            default = None if spec.default is None else spec.default.decode()
            return TextSpec(parts=spec.parts, default=default, presence=spec.presence)
    if format == "parquet" and source == "jsonl" and isinstance(spec, (RawListSpec, NestedSpec)):
        return replace(spec, errors="strict") if getattr(spec, "dtype", None) is None else spec
    # If some records lack a number, its default field is ragged, although the column is not a list.
    is_number = bool(_NUMBER.match(held)) if column is None else not column.depth
    if isinstance(spec, RaggedSpec) and spec.shape == () and is_number:
        return TensorSpec(spec.dtype, (), spec.parts, presence=spec.presence)
    return spec


def _refused(spec: FieldSpec, format: Format) -> str:  # noqa: A002 - as in `open`
    """Return the reason why a format cannot store a field; empty if it can."""
    if isinstance(spec, NestedSpec) and format != "parquet":
        return "a list of lists, which only Parquet can store"
    if isinstance(spec, RawListSpec) and format == "tar":
        return "a list of bytes or texts, which a tar member cannot store"
    return ""


def _absolute(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> str:
    if isinstance(source, (list, tuple)):
        return joined([_absolute(each) for each in source])
    if not isinstance(source, (str, bytes, os.PathLike)):
        raise ConfigError(
            f"source: must be a URL, a path, a list of these or a Conversion (got {type(source).__name__})",
            where="source",
        )
    return absolute(os.fsdecode(source))


def _tar_name(name: str, source: str) -> str:
    """Return the extension of a tar member for a part."""
    if source == "images" and name in ("image", "label"):
        return {"image": "jpg", "label": "cls"}[name]
    return name if name == KEY else name.replace("/", ".").strip(".")


def convert(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Conversion,
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
    """Convert a dataset that `penstock.open` reads to shards of another format. Arguments and errors are those of
    `write`.

    Repeat the same call to continue an interrupted conversion. If the conversion is complete, the call does nothing.
    The source can also be a list of URLs, as for `open`.

    Raises:
        Changed: An earlier call completed the conversion, but a shard is missing or has another size now.
    """
    require("penstock.convert", "numpy")
    at = Destination(url, timeout_s=timeout_s)
    if isinstance(source, Conversion):
        plan = source
    else:
        plan = plan_conversion(source, format, fields=fields)
        for part, what in (*plan.left_out, *plan.notes):
            _LOG.warning("%s: `%s`: %s", plan.dataset.url, part, what)
    settings = Settings(format, as_int("shard_bytes", shard_bytes), compress, level, name, plan.identity)
    plan.check_destination(at, settings)
    done = _complete(at, settings) if if_exists == "resume" else None
    if done is not None:
        return done

    def samples(start: int) -> Iterator[dict[str, Any]]:
        names = plan.image_keys() if format == "tar" else {}
        for row in plan.read(start):
            if format == "tar" and isinstance(key := row.get(KEY), (bytes, str)):
                text = key if isinstance(key, str) else key.decode(errors="surrogateescape")
                text = names.get(text) or _tar_key(text)
                row[KEY] = text if isinstance(key, str) else text.encode(errors="surrogateescape")
            yield row

    with _hints():
        return run(
            samples,
            at,
            settings,
            schema=_schema(plan),
            elements=plan.elements,
            if_exists=if_exists,
            workers=workers,
            progress=progress,
        )


@contextmanager
def _hints() -> Iterator[None]:
    """Replace hints of `write` about its samples by hints about the source of the conversion."""
    try:
        yield
    except KeyRefused as error:
        if error.hint is None and str(error).startswith("write:"):
            error.add_note("rename the part with NEW=OLD in fields=")
        elif error.hint is not None and f"`{KEY}`" in error.hint:
            error.__notes__[0] = f"leave out `{KEY}`: select the other parts with fields=, so that samples are numbered"
        raise


def _tar_key(key: str) -> str:
    """Return the key of a sample in a tar. `./` at the start is removed, and dots in the last part of the path become
    `_`.
    """
    parts = [part for part in key.split("/") if part not in ("", ".")]
    return "/".join([*parts[:-1], parts[-1].replace(".", "_")]) if parts else key


def _schema(plan: Conversion) -> dict[str, FieldSpec]:
    """Return the fields of the destination, without the names of parts in the source."""
    return {
        new: RawSpec() if isinstance(spec, RawSpec) and spec.record else replace(spec, parts=())  # type: ignore[call-arg]
        for new, spec in plan.fields.items()
    }


def stored_samples(
    plan: Conversion,
    at: Destination,
    settings: Settings,
    if_exists: Literal["resume", "overwrite"],
) -> tuple[Literal["empty", "complete", "unfinished", "replaced"], int]:
    """Return the state of a conversion's destination, and the number of samples that need not be written again. Writes
    nothing.

    Raises:
        PenstockError: Any error that `convert` would raise before it reads samples.
    """
    from penstock.writer.encoders import encoder_of
    from penstock.writer.values import Fields

    plan.check_destination(at, settings)
    listed = at.listed()
    journal = Journal(at, listed)
    found = existing(at, journal, listed)
    elements = plan.elements
    fields = Fields.of_schema(_schema(plan), frees=settings.format == "tar", may_be_absent=True, elements=elements)
    with _hints():
        encoder_of(settings, fields)
    if found is None:
        return "empty", 0
    if if_exists == "overwrite":
        return "replaced", 0
    done = _complete(at, settings)
    if done is not None:
        return "complete", done.samples
    if journal.check({**settings.to_dict(), "schema": fields.to_dict()}) is None:
        return "empty", 0
    shards, _names = journal.complete_shards()
    return "unfinished", sum(shard.samples for shard in shards)


def _complete(at: Destination, settings: Settings) -> Written | None:
    """Return the result of an earlier, complete conversion with the same settings.

    Raises:
        PreconditionFailed: A complete dataset was written with other settings.
        Changed: A shard of the dataset is missing or has another size.
    """
    listed = at.listed()
    if MANIFEST not in listed:
        return None
    found = Journal(at, listed).manifest()
    if "written" not in found:
        return None
    written = found["written"]
    if (differs := difference(written["settings"], settings.to_dict())) is not None:
        raise PreconditionFailed(
            f"{at.url} contains a complete dataset {differs}",
            where=at.url,
            hint='write to another folder, or use if_exists="overwrite" to replace it',
        )
    for entry in found["objects"]:
        name, size = entry["key"], listed.get(entry["key"])
        if size != entry["size"]:
            problem = "is missing" if size is None else f"has {size:,} bytes, instead of {entry['size']:,}"
            raise Changed(
                f"{at.url}{name}: {problem}, although the conversion was complete",
                where=at.url + name,
                hint='use if_exists="overwrite" to convert again',
            )
    from penstock.feed.fields import from_json

    return Written(
        url=at.url,
        samples=written["samples"],
        shards=len(found["objects"]),
        bytes_stored=sum(entry["size"] for entry in found["objects"]),
        skipped=written["samples"],
        fields=dict(from_json(json.dumps(found["fields"]))),
    )
