# SPDX-License-Identifier: Apache-2.0
"""Dataset: its fields, shuffle, cache and record counts. Does not read samples itself."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from penstock import _native, env
from penstock.deprecation import renamed_parameters
from penstock.errors import ConfigError
from penstock.feed import classes as class_folders
from penstock.feed import (
    defaulted_columns,
    image_fields,
    node_cache,
    pool_locality,
    selection,
    whole_record_fields,
)
from penstock.feed import fields as kinds
from penstock.feed import patches as array_patches
from penstock.feed import resample as resampling
from penstock.feed.dataset_base import STORED_STEPS, DatasetBase, expected_reads, stored_steps
from penstock.feed.first_epoch import FirstEpochFeed
from penstock.feed.number_arguments import as_int, as_int_or_none
from penstock.feed.record_index_dir import record_index_dir
from penstock.feed.record_scan import RecordScan

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from penstock.feed.fields import FieldSpec

__all__ = ["Dataset", "Schema"]

_LOG = logging.getLogger("penstock.feed")

_NEVER_INDEXED = ("arrow", "parquet", "zarr", "hdf5")
"""Formats that contain their own index."""


@dataclass(frozen=True, slots=True, repr=False)
class Schema:
    """Content of the first records, and the fields derived from these records. Prints as a table.

    `left_out` lists the parts that no field reads, each with the reason.
    """

    specs: tuple[tuple[str, FieldSpec], ...]
    holds: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        rows = [(name, str(spec), held) for (name, spec), held in zip(self.specs, self.holds, strict=True)]
        rows += [(name, "left out", reason) for name, reason in self.left_out]
        first, second = (max((len(row[at]) for row in rows), default=0) for at in (0, 1))
        return "\n".join(f"{name:<{first}}  {spec:<{second}}  {held}" for name, spec, held in rows)

    __repr__ = __str__

    def __getitem__(self, name: str) -> FieldSpec:
        return dict(self.specs)[name]


@dataclass(slots=True)
class _Counts:
    """Record counts, computed once and shared by all datasets derived from one `open` call."""

    found: _native.Counted | None = None
    schema: Schema | None = None
    scan: RecordScan | None = None
    known_columns: set[tuple[str, ...]] = field(default_factory=set)
    """Parts of fields with a default that are a column of at least one file."""
    has_warned: bool = False
    """Whether a warning about the parts that the default fields leave out was logged."""

    def __reduce__(self) -> tuple[type[_Counts], tuple[_native.Counted | None, Schema | None]]:
        return (_Counts, (self.found, self.schema))  # without the scan, which cannot be moved to another process


@dataclass(frozen=True, slots=True, repr=False)
class Dataset(DatasetBase):
    """A listed dataset. Immutable: `fields` and `shuffle` return new datasets. Pickles without connections or
    credentials.
    """

    source: _native.Source
    specs: tuple[tuple[str, FieldSpec], ...] = ()
    seed: int | None = None
    requested_window: int | None = None
    records_per_object: int | None = None
    requested_cache: node_cache.CacheRequest = node_cache.AUTO
    indexed: bool = True
    locality: pool_locality.Locality | None = None
    is_local: bool = False
    given_classes: tuple[str, ...] | None = None
    _counts: _Counts = field(default_factory=_Counts, repr=False, compare=False)

    def fields(self, /, **specs: FieldSpec) -> Dataset:
        """Return the dataset with the given fields: `fields(x=tensor("int16", (128, 128, 128, 4)))`.

        A field is read from the part of a record that has the same name as the field, or from the part in
        `.of("part")`. Without this call, a batch has the fields of `schema()`.
        """
        for name, spec in specs.items():
            if not isinstance(spec, kinds.FieldSpec):
                raise ConfigError(
                    f"fields: {name} must be a penstock.tensor(dtype, shape) or another field", where="fields"
                )
        return replace(self, specs=image_fields.follow(kinds.with_masks(specs)))

    def patches(
        self,
        shape: Sequence[SupportsIndex],
        stride: SupportsIndex | Sequence[SupportsIndex] | None = None,
        *,
        edges: array_patches.Edges = "drop",
    ) -> Dataset:
        """Return the dataset with patches of its arrays as samples: `patches((128, 128, 128), stride=64)`.

        A sample has one part per array, which contains the patch, and the part `origin` (int64: index of the patch's
        first element along each axis). If the dataset has several HDF5 files, the part `file` is the number of the file
        in name order. All arrays of a file must have the same shape.

        A shuffle permutes blocks instead of objects. A block consists of the patches that start in one shard, or in one
        chunk if there are no shards. Blocks whose patches exceed 64 MiB are divided. A shuffle window has 16 blocks, or
        fewer if their patches would exceed 512 MiB. Each chunk is read at most once per window. If patches of different
        shards overlap, several windows read the same chunks. With a node cache (`cache()`), these chunks are fetched
        only once.

        Args:
            shape: Shape of a patch. For 2-D patches of a volume, set the size along the third axis to 1.
            stride: Distance between the starts of neighbouring patches, for each axis or for all; by default `shape`.
            edges: `drop` leaves out patches that extend beyond the array. `pad` fills the part beyond the array with
                zeros.

        Raises:
            ConfigError: An argument is not valid, a patch is larger than the arrays, or the arrays have unequal shapes.
            Unsupported: The dataset does not consist of Zarr or HDF5 arrays.
        """
        if self.steps or self.is_mapped or self.seed is not None:
            raise ConfigError(
                "patches: must come before shuffle, take, shard, repeat, map, decode, tokenize and pack",
                where="patches",
            )
        if not self.indexed:
            raise ConfigError("patches: cannot be combined with indexed=False", where="patches")
        source = array_patches.cut(self.source, shape, stride, edges)
        return replace(self, source=source, specs=(), _counts=_Counts())

    @renamed_parameters({"reach": "scope"})
    def shuffle(self, seed: int, window: int | None = None, *, scope: Literal["global", "node"] = "global") -> Dataset:
        """Return the dataset shuffled by `seed`. Each epoch has a different order.

        All objects of the dataset are permuted first. Then the samples of each `window` of consecutive objects in the
        new order are permuted. The sample at position p of epoch e is a pure function of seed, p and e, so there is no
        shuffle buffer and no random state.

        Args:
            seed: 0 to 2^64 - 1.
            window: Number of objects whose samples are mixed. The default is 16, or less (at least 2) if one of the
                first 16 objects of epoch 0 contains over 1,024 records.
            scope: Only in a pool. With `node`, each node reads and shuffles only the part of the dataset that it stores
                (`local()`). `global` mixes the samples of all nodes; the share of local reads is then copies / nodes.
        """
        # `local` is accepted because it was the value of this parameter under its old name, `reach`.
        if scope not in ("global", "node", "local"):
            raise ConfigError(f"scope: `{scope}` is neither global nor node", where="scope")
        if scope != "global" and not self.is_local:
            return self.local().shuffle(seed, window)
        # Convert NumPy integers to plain integers, because a state must be valid JSON.
        seed, window = as_int("seed", seed), as_int_or_none("window", window)
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed: {seed} is not within 0 to 2^64 - 1", where="seed")
        if window is not None and not 1 <= window < 2**63:
            raise ConfigError(f"window: {window} is not within 1 to 2^63 - 1", where="window")
        if self.takes_no_steps:
            raise ConfigError("shuffle: must come before map(), decode(), tokenize() and pack()", where="shuffle")
        if not self.indexed:
            if window is not None:
                raise ConfigError(
                    "window: not supported for an unindexed dataset, which shuffles records only within each object",
                    where="window",
                )
            return replace(self, seed=seed)
        steps = self.steps
        names = [name for name, _, _ in steps]
        # A shuffle can replace a shuffle directly before it. It cannot follow other steps that follow a shuffle.
        is_behind = names[-1:] != ["shuffle"] if "shuffle" in names else self.seed is not None and bool(steps)
        if is_behind or "repeat" in names:
            raise ConfigError(
                "shuffle: must come before repeat(), and another shuffle() must directly follow the first",
                where="shuffle",
                hint="use ds.shuffle(seed).repeat(n): each pass has its own order",
            )
        if steps and "shuffle" not in names:
            steps = (*steps, ("shuffle", 0, 0))
        return replace(self, seed=seed, requested_window=window, steps=steps)

    def select(self, index: Any) -> Dataset:
        """Return the dataset with only some samples: `select([5, 17, 300])`, `select(mask)` or `select(slice(0, 1000))`.

        Positions count the samples in stored order that earlier `take`, `shard`, `select` and `filter` have left, even
        if the dataset is already shuffled. Without `shuffle`, the samples have the order of `index`. With `shuffle`,
        each selected sample occurs once per epoch, and the number of objects in a window does not change.

        Args:
            index: A slice, or a one-dimensional array or list of integers (0 to samples - 1) or of booleans (one for
                each sample).
        Raises:
            ConfigError: The index is invalid, or the dataset is unindexed. A position beyond the last sample, or a
                repeated position of a shuffled dataset, is reported when the order is first used.
        """
        selection.check_indexed(self, "select")
        return selection.add(self, "select", selection.Select(index))

    def filter(
        self,
        fn: Callable[[dict[str, Any]], bool],
        workers: int = 0,
        *,
        key: str | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> Dataset:
        """Return the dataset with only the samples for which `fn(sample)` returns True.

        `fn` takes a dict of NumPy views of one sample, as in `map`. When the order is first used, one process per node
        logs a message and calls `fn` once for each sample; the other processes wait. The result, one bit per sample, is
        stored beside the record indexes, and is reused for the same objects, fields, earlier steps and function. The
        length of the dataset is therefore exact, and a state is valid on any number of ranks.

        `fn` receives the fields of this dataset, without padding and without the mask of the padding. To read fewer
        bytes, filter with few fields and set all fields afterwards:
        `ds.fields(label=...).filter(fn).fields(image=..., label=...)`.

        Args:
            workers: Number of processes that call `fn`; 0 calls `fn` in this process.
            key: Text that identifies `fn` and everything that `fn` depends on. By default, this is a digest of the code
                of `fn`, and of the values, functions and classes of the user's modules that `fn` uses. Of installed
                packages, the digest covers only the version.
            on_error: With `skip`, samples that cannot be read are left out, too. `skip` is not allowed with workers. A
                loader's `on_error` does not apply to `filter`.
        Raises:
            ConfigError: The dataset is unindexed; or, when the order is first used, `fn` keeps no sample.
            Corrupt, Mismatch: A sample cannot be read.
            MapFailed: `fn` raised an exception or did not return a boolean.
        """
        selection.check_indexed(self, "filter")
        if not callable(fn):
            raise ConfigError(f"filter: {fn!r} is not callable", where="filter")
        if on_error not in ("raise", "skip"):
            raise ConfigError(f"on_error: `{on_error}` is neither raise nor skip", where="filter")
        if on_error == "skip" and workers:
            raise ConfigError('filter: on_error="skip" cannot be combined with workers', where="filter")
        step = selection.Filter(selection.before(self), fn, as_int("workers", workers), key, on_error == "skip")
        return selection.add(self, "filter", step)

    def resample(
        self,
        weights: Any = None,
        *,
        labels: Any = None,
        samples: int | None = None,
        replacement: bool = True,
        passes: int | None = None,
        schedule: Sequence[tuple[int, Any]] | None = None,
        seed: int | None = None,
    ) -> Dataset:
        """Return the dataset with epochs that are drawn in proportion to weights, like torch's `WeightedRandomSampler`.

        A sample with n times the weight of another occurs n times as often. The number of draws of a sample in an epoch
        is proportional to its weight, and is rounded down or up at random. Epochs therefore vary less than with
        independent draws. The sample at a position is a pure function of seed, epoch and position. Samples are drawn
        window by window, so each object is read at most once per pass. The number of samples in an epoch is exact.

        Args:
            weights: One weight per sample, in stored order, after earlier steps; or a dict from each class to the
                weight of its samples; or `"balanced"`, which draws each class equally often. A weight is at least 0.
            labels: Classes of the samples; only with a dict or `"balanced"`. This is the name of a field, which is read
                once and cached, or an array of integers or texts. By default, the class folders of images are used.
            samples: Number of samples per epoch; by default the number of samples in the dataset.
            replacement: False draws each sample at most once per epoch; this requires `samples`.
            passes: Number of passes over the objects per epoch. Several passes spread the repetitions of a sample, but
                read objects several times. The default is the smallest number with which no pass contains a sample
                twice, but at most 16.
            schedule: Weights of later epochs: a list of (first epoch, weights).
            seed: Seed with which a dataset that is not shuffled yet is shuffled.
        Raises:
            ConfigError: An argument is invalid, or the dataset is unindexed. Invalid weights (NaN, negative, all 0, not
                one weight per sample) are reported when the order is first used.
        """
        selection.check_indexed(self, "resample")
        if seed is not None and self.seed is not None and as_int("seed", seed) != self.seed:
            raise ConfigError(f"seed: the dataset is already shuffled with seed {self.seed}", where="seed")
        shuffled = self if seed is None or self.seed is not None else self.shuffle(seed)
        step = resampling.of(
            selection.before(shuffled),
            weights,
            labels,
            samples,
            replacement=replacement,
            passes=passes,
            schedule=schedule,
        )
        return selection.add(shuffled, "resample", step)

    def local(self) -> Dataset:
        """Return the part of a pool's dataset that this node stores, as a separate dataset.

        Every object is in the part of exactly one node. If a loader of this part has no explicit rank, only the ranks
        of this node share the part. State, length and batches then refer to this part, and the number of batches can
        differ between nodes.

        Raises:
            ConfigError: This process has no pool context for the dataset, or this node stores none of its objects.
        """
        if self.locality is None:
            raise ConfigError(
                f"{self.url}: this process has no pool that contains this dataset, so the part of this node is unknown",
                where="scope",
                hint="start the ranks with penstock run, which sets PENSTOCK_JOB_POOL",
            )
        chosen = [name for name, _, _ in self.steps if name in STORED_STEPS]
        if chosen:
            raise ConfigError(f"{chosen[0]}: must come after local()", where=chosen[0])
        listed = json.loads(self.source.manifest())
        listed["objects"] = [entry for entry in listed["objects"] if entry.get("key") in self.locality.mine]
        if not listed["objects"]:
            raise ConfigError(
                f"{self.url}: node {self.locality.node} stores none of the dataset's objects", where="scope"
            )
        declared, given = self.source.format, self.given_classes
        if class_folders.has_folder_labels(self.source) and class_folders.has_folders(self.source):
            # Set the labels of the whole dataset, because the part of this node can lack some classes.
            given = self.classes
            declared = json.dumps({"name": "images", "labels": class_folders.labels(self.source, given)})
        source = _native.Source.restore(json.dumps(listed).encode(), self.source.ignored, declared)
        routed = source.routed(self.source.routes or "{}")
        return replace(self, source=routed, is_local=True, given_classes=given, _counts=_Counts())

    def cache(
        self,
        folder: str | os.PathLike[str] | bool | None = None,  # noqa: FBT001 - False is off
        *,
        limit_bytes: int | None = None,
        transcode: node_cache.Transcode = "never",
    ) -> Dataset:
        """Return the dataset with a node cache, which stores objects unchanged on the node's own disk. `cache(False)`
        disables the cache.

        All ranks of a node share one copy, and each object is fetched once. When the cache is full, it evicts the
        object whose next use is farthest in the future. Without this call, a remote dataset is cached if a scratch
        folder exists and the whole dataset fits into it.

        Args:
            folder: Parent of the cache's own folder; by default a scratch folder that is detected.
            limit_bytes: Maximum size of the cache in bytes; by default 9/10 of the free space.
            transcode: Whether to cache compressed objects as transposed copies (planes): "always", "never", or "auto"
                (only if planes are faster for the first objects). The first epoch takes longer, because it writes the
                planes. Later epochs are faster, because planes are read faster than the originals are decompressed.
                Planes pay off from about the twelfth epoch on. The samples do not change.
        """
        return replace(self, requested_cache=node_cache.cache_request(folder, limit_bytes, transcode))

    def caches(self) -> list[node_cache.NodeCache | None]:
        """Return the node cache of this dataset, as a list of one element."""
        if self.locality is not None and self.requested_cache == node_cache.AUTO:
            return [None]  # the pool stores the objects on nodes, so a node cache is not needed
        if not self.indexed:
            if self.requested_cache.is_on:
                raise ConfigError("cache: the node cache does not support unindexed datasets", where="cache")
            return [None]
        return [node_cache.resolve(self.requested_cache, self.url, self.source.size_bytes, env.read())]

    def __repr__(self) -> str:
        seen = self._counts.schema
        specs = self.specs or (seen.specs if seen is not None else ())
        fields = ", ".join(f"{name} {spec}" for name, spec in specs)
        parts = [self.url, f"{self.source.objects:,} objects of {self.format}"]
        parts += [f"fields {fields}"] if fields else ["fields as schema() finds them"]
        parts += [f"seed {self.seed}"] if self.seed is not None else []
        parts += [] if self.indexed else ["unindexed"]
        return f"Dataset({', '.join(parts)}{self._steps_repr()})"

    @property
    def url(self) -> str:
        """URL of the listed folder."""
        return self.source.url

    @property
    def format(self) -> str:
        """Name of the objects' format."""
        return str(json.loads(self.source.format)["name"])

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of an image dataset's class folders. Label i means `classes[i]`.

        Raises:
            ConfigError: The dataset has no class folders, some images are not in a class folder, or labels come from a
                file.
        """
        return class_folders.names(self.source) if self.given_classes is None else self.given_classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class folder, by the name of the folder. Raises the same errors as `classes`."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def known_columns(self) -> set[tuple[str, ...]]:
        """Parts of fields with a default that are a column of at least one file. Each check adds to this set."""
        return self._counts.known_columns

    def schema(self) -> Schema:
        """Return the content of the first records, and the default fields derived from these records. Reads one object,
        or its first bytes. If `penstock.write` wrote the dataset, the fields come from its manifest, and no object is
        read.

        Examines up to 100 records. Numeric parts become `ragged` fields if their length varies or if some records lack
        them. Byte parts that some records lack get the default `b""`. If later records differ, set the fields with
        `fields()`.
        """
        if self._counts.schema is None and self.source.fields is not None:
            specs = kinds.from_json(self.source.fields)
            self._counts.schema = Schema(specs, ("as written",) * len(specs))
        if self._counts.schema is None:
            text, holds, left_out = self.source.schema(dict(env.read()))
            specs = kinds.from_json(text)
            self._counts.schema = Schema(specs, tuple(holds), tuple(left_out))
        return self._counts.schema

    def batch_fields(self) -> dict[str, Any]:
        """Return the fields of a batch: the fields that `fields()` has set, otherwise the fields of `schema()`."""
        if self.specs:
            defaulted_columns.refuse_unknown([self])
            return whole_record_fields.resolve(self)
        schema = self.schema()
        if not self._counts.has_warned:
            self._counts.has_warned = True
            for name, reason in schema.left_out:
                _LOG.warning("%s: the default fields do not include `%s`: %s", self.url, name, reason)
        return dict(schema.specs)

    def counted(self) -> _native.Counted:
        """Return the record counts, which are computed once. They come from the first of these sources that has them:
        declared number, manifest, indexes, sizes, scan. A message is logged before a scan starts.
        """
        if not self.indexed:
            raise ConfigError(
                f"{self.url}: record counts are required, but the dataset was opened with indexed=False",
                where="indexed",
                hint="open it without indexed=False, or count the records beforehand: penstock index URL --records",
            )
        if self._counts.found is None:
            if self.format in _NEVER_INDEXED:
                return self._keep(self.counted_without_scan() or self._scan_tables())
            scan = self.scan()
            if scan is not None:
                self._keep(scan.wait())
        if self._counts.found is None:
            raise AssertionError("a scan always finds counts or raises")
        return self._counts.found

    @property
    def is_counted(self) -> bool:
        """False while the records are counted in the background."""
        return self._counts.found is not None or self._counts.scan is None or not self._counts.scan.is_running

    def scan(self) -> RecordScan | None:
        """Return the scan that counts the records. The scan has not necessarily started. None if the counts are known
        without reading objects, or if each object contains its record count.
        """
        if self._counts.found is not None or self.format in _NEVER_INDEXED:
            return None
        if self._counts.scan is None or not self._counts.scan.is_usable:
            found = self._count(self.records_per_object, scans=False, reads_objects=False)
            if found is not None:
                self._keep(found)
                return None
            self._counts.scan = RecordScan(self, self.counted_without_scan)
        return self._counts.scan

    def awaits_scan(self) -> bool:
        """Whether the number of samples is unknown until a scan is complete."""
        scan = self.scan() if self.indexed else None
        return scan is not None and not scan.is_complete()

    def first_epoch_feed(
        self, batch: int, make: Callable[[_native.Sampler | None], _native.Feed]
    ) -> FirstEpochFeed | None:
        """Return a feed that starts before all records are counted. None if all records are counted, or if an epoch
        cannot start without all counts. `batch` is the global batch size. `make` creates the feed of a sampler or, for
        None, of the whole dataset.
        """
        # `take` needs only the first samples; other steps need the total number of samples.
        can_start = self.indexed and all(name == "take" for name, _, _ in self.steps)
        scan = self.scan() if can_start else None
        return None if scan is None else FirstEpochFeed(self, scan, batch, make)

    def counted_without_scan(self) -> _native.Counted | None:
        """Return the record counts if they are known without reading all objects."""
        return self._count(self.records_per_object, scans=False)

    def _scan_tables(self) -> _native.Counted:
        """Count the rows of compressed tables. They must be decompressed, because the row count is at the end of a
        table.
        """
        _LOG.warning(
            "%s: the objects are compressed tables, so each process reads all of them once: %d objects, %s bytes. To "
            "avoid this, set records_per_object=N or give a manifest with counts.",
            self.url,
            self.source.objects,
            f"{self.source.size_bytes:,}",
        )
        found = self._count(None, scans=True)
        if found is None:
            raise AssertionError("a scan always finds counts or raises")
        return found

    def _keep(self, found: _native.Counted) -> _native.Counted:
        empty, first = found.empty_objects
        if empty:
            name, objects = self.source.key(first), self.source.objects
            _LOG.warning("%s: %d of %d objects contain no record; the first is %s", self.url, empty, objects, name)
        self._counts.found = found
        return found

    def _count(self, declared: int | None, *, scans: bool, reads_objects: bool = True) -> _native.Counted | None:
        variables = dict(env.read())
        found, notes = self.source.count(
            declared, scans=scans, env=variables, cache=record_index_dir(variables), reads_objects=reads_objects
        )
        for note in notes:
            _LOG.warning("%s: an index is ignored: %s", self.url, note)
        return found

    def _indexed(self) -> _native.Counted | None:
        """Return the counts if record positions are known without a scan."""
        found = self._count(None, scans=False)
        return found if found is not None and (found.is_indexed or self.format in _NEVER_INDEXED) else None

    def indexed_rung(self) -> str | None:
        """Return the source of the record positions; None if finding them requires reading the whole dataset once."""
        found = self._indexed()
        return None if found is None else found.rung

    def index(self) -> _native.Counted:
        """Read each object that has no index yet, and store the positions of its records in the cache.

        With an index, ranged reads can fetch single records of uncompressed objects. This call is unnecessary if
        indexes of other programs exist.
        """
        found = self._indexed()
        if found is None:
            found = self._scan_tables() if self.format in _NEVER_INDEXED else RecordScan(self, lambda: None).wait()
        return self._keep(found)

    @property
    def rung(self) -> str:
        """Source of the record counts."""
        return self.counted().rung

    @property
    def objects(self) -> int | None:
        """Number of objects."""
        return self.source.objects

    def part_with(self, state: Mapping[str, Any]) -> Dataset | None:
        """Return the part of this dataset that `state` was saved from, if all of its objects still exist.

        The old objects are either the first objects by name, or the oldest by time. The fingerprint in the state shows
        which rule applies.
        """
        old = state.get("objects")
        if any(name in STORED_STEPS for name, _, _ in self.steps):
            return None  # the positions of these steps count samples of the whole dataset
        if not isinstance(old, int) or not 0 < old < self.source.objects or self.source.max_window is not None:
            return None
        records = self.counted().records()
        for chosen in (range(old), sorted(self.source.oldest_first()[:old])):
            source = self.source.subset(list(chosen))
            found = source.counted([records[number] for number in chosen], self.rung)
            if found.fingerprint == state.get("fingerprint"):
                return replace(self, source=source, _counts=_Counts(found, self._counts.schema))
        return None

    def _base(self) -> _native.Sampler:
        return selection.sampler(self, self.steps[: stored_steps(self.steps)])

    def _gets(self, batch: float, world: int) -> float:
        ((samples, objects),) = self.course().views
        return expected_reads(samples, objects, self.window, batch, world)

    @property
    def fingerprint(self) -> str:
        """Hash of the object names (without codec suffix) and the record counts. A staged or decompressed copy of a
        dataset has the same hash as the original.
        """
        return self.counted().fingerprint

    @property
    def window(self) -> int:
        """Number of objects whose samples are mixed."""
        if self.seed is None:
            return 1
        if self.requested_window is not None:
            return self.requested_window
        window, most = self.counted().window(self.seed), self.source.max_window
        return window if most is None else min(window, most)

    @property
    def needed_bytes(self) -> int | None:
        """For a dataset of patches, the total stored size in bytes of the chunks that patches read, each chunk counted
        once. Otherwise None.
        """
        return self.source.needed_bytes
