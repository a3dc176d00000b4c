# SPDX-License-Identifier: Apache-2.0
"""`penstock.write`: encodes samples in the calling thread, and compresses and stores shards in worker threads.

Memory is limited, because one shard is filled while at most `workers` shards are compressed and sent.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, cast

from penstock.errors import ConfigError, NoSpace, PenstockError, PreconditionFailed
from penstock.extras import require
from penstock.feed.number_arguments import as_int
from penstock.writer.destination import OWN, Destination
from penstock.writer.journal import MANIFEST, Journal, ShardRecord
from penstock.writer.manifest import LEFT_OUT, write_manifest
from penstock.writer.settings import Settings, shard_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from penstock.feed.fields import FieldSpec
    from penstock.writer.encoders import Shard
    from penstock.writer.settings import Compress, Format
    from penstock.writer.values import Fields

    Samples = Iterable[Mapping[str, Any]] | Callable[[int], Iterable[Mapping[str, Any]]]

__all__ = ["IfExists", "Written", "existing", "run", "write"]

IfExists = Literal["resume", "error", "overwrite"]
_MAX_WORKERS = 4
_LOG = logging.getLogger("penstock.writer")


@dataclass(frozen=True)
class Written:
    """Result of `write`. Sizes are in bytes.

    Attributes:
        url: Folder of the dataset.
        samples: Number of samples in the dataset.
        shards: Number of shards.
        bytes_stored: Size of the shards.
        skipped: Number of samples that an earlier, interrupted write had stored already.
        fields: Fields with which `penstock.open(url)` reads the samples, by name.
        left_out: Fields that are stored but that a loader cannot read, such as arrays of different shapes in a tar.
    """

    url: str
    samples: int
    shards: int
    bytes_stored: int
    skipped: int
    fields: dict[str, FieldSpec]
    left_out: tuple[str, ...] = ()


def write(
    samples: Samples,
    url: str | os.PathLike[str],
    *,
    format: Format = "tfrecord",  # noqa: A002 - as in `open`
    shard_bytes: int = 128_000_000,
    compress: Compress | None = None,
    level: int | None = None,
    schema: Mapping[str, FieldSpec] | None = None,
    name: str = "shard",
    if_exists: IfExists = "resume",
    workers: int | None = None,
    timeout_s: float = 600.0,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Write samples as shards `NAME-000000.SUFFIX` into a folder or store, with a manifest that `penstock.open` reads.

    A sample is a dict of `bytes` (such as an encoded image), `str`, numbers, NumPy arrays, or lists of these. The first
    sample, or `schema`, determines the fields, which all samples must have. Equal samples and settings give equal
    bytes.

    A shard appears only when it is complete, and the manifest is written last. If a write is interrupted, repeat the
    same call to continue after the last complete shard. The call skips the samples that are already stored, and checks
    that the last skipped sample is the same as before.

    Args:
        samples: An iterable of dicts, or a function that returns such an iterable. `samples(n)` must start at sample n,
            so that a resumed write need not produce the earlier samples again.
        url: A folder: a path, `s3://`, `gs://` or `az://`. The folder must not contain other objects.
        format: `tfrecord` (tf.Example), `tar` (WebDataset) or `parquet` (needs the extra `parquet`).
        shard_bytes: Minimum size of a shard in bytes, before compression. A shard ends with the sample that reaches
            this size.
        compress: Compression of the shards or, in Parquet, of the columns: `gzip` or `zstd`.
        level: Level of the compression; by default 6 for gzip and 3 for zstd. The maximum is 12 for gzip (9 in Parquet)
            and 22 for zstd.
        schema: Fields by name: `tensor`, `ragged`, `raw`, `raw_list`, `text` and, in Parquet, `list`. A sample can lack
            a field that has a default, is ragged or is a list.
        name: Prefix of the shard names.
        if_exists: Action if the folder contains an unfinished write: `resume` continues it, `error` raises an error,
            and `overwrite` deletes it. If the folder contains a complete dataset, `resume` raises an error, too.
        workers: Number of shards that are compressed and sent at the same time; by default the number of cores, but at
            most 4. The write needs memory for at most workers + 2 shards and their compressed copies.
        timeout_s: Time limit of a request in seconds. For the upload of a shard, 1 second per MB is added.
        progress: Function that is called with (samples stored, bytes stored) after each shard, by one worker thread at
            a time.

    Raises:
        ConfigError: A setting is invalid, or differs from the unfinished write. Samples have different fields, differ
            from the samples of the unfinished write, or are missing. Or the folder contains other objects.
        Unsupported: A value has a type that the format cannot store.
        KeyRefused: A key or field name cannot be a name in a tar, or two samples of a shard have the same key.
        PreconditionFailed: The folder contains a complete dataset.
        NoSpace, Denied, SystemFault, ServerError, Throttled: A shard cannot be stored.
    """
    return run(
        samples,
        Destination(url, timeout_s=timeout_s),
        Settings(format, as_int("shard_bytes", shard_bytes), compress, level, name),
        schema=schema,
        if_exists=if_exists,
        workers=workers,
        progress=progress,
    )


def run(
    samples: Samples,
    at: Destination,
    settings: Settings,
    *,
    schema: Mapping[str, FieldSpec] | None,
    if_exists: IfExists,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
    elements: Mapping[str, Any] | None = None,
) -> Written:
    """Run a write; see `write`.

    Args:
        elements: Only for conversions: Arrow types of the elements of some fields in Parquet. A sample can then lack
            any field.
    """
    require("penstock.write", "numpy")
    from penstock.writer.encoders import encoder_of
    from penstock.writer.values import Fields

    if if_exists not in ("resume", "error", "overwrite"):
        raise ConfigError(f"if_exists: `{if_exists}` is not one of resume, error, overwrite", where="if_exists")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers: must be at least 1 (got {workers})", where="workers")
    frees, narrows = settings.format == "tar", settings.format == "tfrecord"
    fields = None
    if schema is not None:
        fields = Fields.of_schema(schema, frees=frees, may_be_absent=elements is not None, elements=elements)
    mine = {**settings.to_dict(), "schema": None if fields is None else fields.to_dict()}
    journal, earlier = _opened(at, mine, if_exists)
    if earlier is not None:
        fields = fields or Fields.of_state(earlier["fields"], frees=frees)
    whole = journal.whole() if earlier is not None else []
    writer = _Writer(at, journal, settings, whole, workers or min(_MAX_WORKERS, os.cpu_count() or 1), progress)
    if fields is not None and whole:
        fields.restore(whole[-1].fields)
    source = _resumed(samples, settings, fields, whole)
    first = next(source, None)
    if first is None and not whole:
        raise ConfigError("write: there are no samples (a dataset needs at least one)", where="samples")
    if fields is None:
        fields = Fields.of_sample(first, frees=frees, narrows=narrows)
    if earlier is None:
        encoder_of(settings, fields)  # raises an error if the format cannot store a field
        journal.begin({**mine, "fields": fields.to_dict()})
    writer.write(source, first, fields)
    return writer.complete(fields)


def existing(at: Destination, journal: Journal, listed: dict[str, int]) -> dict[str, Any] | None:
    """Return the settings of the complete dataset or the unfinished write in the destination; None if the destination
    is empty.

    Raises:
        ConfigError: The destination contains other objects.
    """
    is_complete = MANIFEST in listed
    if is_complete and "written" not in journal.manifest():
        raise ConfigError(
            f"{at.url} contains a staged dataset", where="url", hint="choose an empty folder, or remove the copy first"
        )
    found = journal.manifest()["written"]["settings"] if is_complete else journal.settings() if journal.exists else None
    pattern = None if found is None else shard_names(str(found.get("name")))
    others = [each for each in listed if not each.startswith(OWN) and not (pattern and pattern.fullmatch(each))]
    if others:
        raise ConfigError(
            f"{at.url} contains {len(others):,} other objects ({others[0]}, ...)",
            where="url",
            hint="choose an empty folder, because a dataset's folder must not contain other objects",
        )
    return found


def _opened(at: Destination, mine: dict[str, Any], if_exists: IfExists) -> tuple[Journal, dict[str, Any] | None]:
    """Check the destination. Return its journal, and the settings of the unfinished write if the write continues it."""
    listed = at.listed()
    journal = Journal(at, listed)
    found = existing(at, journal, listed)
    at.remove_parts()
    if found is not None and if_exists == "overwrite":
        journal.end(found)
        return Journal(at, {}), None
    if MANIFEST in listed:
        raise PreconditionFailed(
            f"{at.url} contains a complete dataset",
            where=at.url,
            hint='write to another folder, or use if_exists="overwrite" to replace it',
        )
    if journal.exists and if_exists == "error":
        raise PreconditionFailed(
            f"{at.url} contains an unfinished write",
            where=at.url,
            hint='use if_exists="resume" to continue it, or "overwrite" to start again',
        )
    return journal, journal.check(mine) if journal.exists else None


def _resumed(
    samples: Samples, settings: Settings, fields: Fields | None, whole: list[ShardRecord]
) -> Iterator[Mapping[str, Any]]:
    """Return the samples after the samples in complete shards. Compares the last skipped sample with the stored
    sample.
    """
    skip = whole[-1].first + whole[-1].samples if whole else 0
    if not skip:
        return iter(samples(0) if callable(samples) else samples)
    if callable(samples):
        source = iter(samples(skip - 1))
    else:
        source = iter(samples)
        skipped = sum(1 for _ in islice(source, skip - 1))
        if skipped < skip - 1:
            raise _other(skip, f"there are only {skipped:,} samples now")
    last = next(source, None)
    if last is None:
        raise _other(skip, f"there are only {skip - 1:,} samples now")
    if fields is not None:
        from penstock.writer.encoders import encoder_of

        encoder = encoder_of(settings, fields)
        shard = encoder.begin()
        encoder.add(shard, fields.values(last, skip - 1), skip - 1)
        if shard.last_crc32c() != whole[-1].last_crc32c:
            raise _other(skip, f"sample {skip - 1:,} differs from the one that was written")
    return source


def _other(skip: int, problem: str) -> ConfigError:
    return ConfigError(
        f"write: cannot continue after {skip:,} samples: {problem}",
        where="samples",
        hint='give the same samples in the same order, or use if_exists="overwrite" to start again',
    )


class _Writer:
    """Fills shards with samples, and passes the shards to the workers."""

    def __init__(
        self,
        at: Destination,
        journal: Journal,
        settings: Settings,
        whole: list[ShardRecord],
        workers: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._at, self._journal, self._settings = at, journal, settings
        self._shards: dict[int, ShardRecord] = dict(enumerate(whole))
        self._workers, self._progress = workers, progress
        self.skipped = self._samples = sum(shard.samples for shard in whole)
        self._bytes = sum(shard.bytes for shard in whole)
        self._lock = threading.Lock()

    def write(self, source: Iterator[Mapping[str, Any]], first: Mapping[str, Any] | None, fields: Fields) -> None:
        """Write all samples: `first`, then the samples of `source`."""
        from penstock.writer.encoders import encoder_of

        encoder = encoder_of(self._settings, fields)
        sample, number, at_shard = first, self.skipped, len(self._shards)
        shard, start = encoder.begin(), number
        pending: deque[Future[None]] = deque()
        with ThreadPoolExecutor(self._workers, thread_name_prefix="penstock-write") as pool:
            try:
                while sample is not None:
                    encoder.add(shard, fields.values(sample, number), number)
                    number += 1
                    if shard.nbytes >= self._settings.shard_bytes:
                        self._wait(pending, self._workers - 1)
                        pending.append(pool.submit(self._store, at_shard, shard, start, fields.to_dict()))
                        shard, start, at_shard = encoder.begin(), number, at_shard + 1
                    sample = next(source, None)
                if shard.records:
                    self._wait(pending, self._workers - 1)
                    pending.append(pool.submit(self._store, at_shard, shard, start, fields.to_dict()))
                self._wait(pending, 0)
            except BaseException as error:
                # Wait for the shards in progress, so that the next run need not write them again. After an
                # interruption, wait for a shorter time.
                if not isinstance(error, Exception):
                    self._at.stop.set()
                for future in pending:
                    future.cancel()
                pool.shutdown(wait=True)
                if not isinstance(error, PenstockError):
                    error.add_note(
                        f"penstock.write: stopped at sample {number:,}; {len(self._shards):,} shards of {self._at.url} are "
                        "complete; repeat the same call to continue after them"
                    )
                if isinstance(error, NoSpace):
                    raise NoSpace(
                        f"{error} ({self._samples:,} samples in {len(self._shards):,} complete shards are stored)",
                        hint="free some space, and repeat the same call to continue after the complete shards",
                        where=error.where,
                    ) from error
                raise

    def _wait(self, pending: deque[Future[None]], most: int) -> None:
        while pending and (len(pending) > most or pending[0].done()):
            pending[0].result()
            pending.popleft()
        for future in pending:
            if future.done():
                future.result()

    def _store(self, number: int, shard: Shard, first: int, fields: dict[str, dict[str, Any]]) -> None:
        samples, last = shard.records, shard.last_crc32c()
        data, crc32c = shard.finish(self._settings.compress or "none", self._settings.level)
        name, size = self._settings.shard_name(number), len(memoryview(data))
        self._at.put_shard(name, data)
        statistics = [tuple([*map(_finite, values)] for values in pair) for pair in shard.statistics()]
        record = ShardRecord(name, first, samples, size, f"{crc32c:08x}", last, fields, cast("Any", statistics))
        self._journal.note(number, record)
        with self._lock:
            self._shards[number] = record
            self._samples, self._bytes = self._samples + samples, self._bytes + size
            if self._progress is not None:
                self._progress(self._samples, self._bytes)

    def complete(self, fields: Fields) -> Written:
        """Write the manifest, and remove the journal."""
        from penstock.feed.fields import with_masks
        from penstock.writer.encoders import encoder_of

        shards = [self._shards[number] for number in range(len(self._shards))]
        known = with_masks(dict(encoder_of(self._settings, fields).specs()))
        left_out = tuple(field.name for field in fields.fields if field.name not in known)
        write_manifest(self._at, self._settings.to_dict(), shards, known, fields.fields)
        for name in left_out:
            _LOG.warning("%s: no field reads `%s`: %s", self._at.url, name, LEFT_OUT)
        self._journal.remove()
        return Written(
            url=self._at.url,
            samples=sum(shard.samples for shard in shards),
            shards=len(shards),
            bytes_stored=sum(shard.bytes for shard in shards),
            skipped=self.skipped,
            fields=known,
            left_out=left_out,
        )


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") else None
