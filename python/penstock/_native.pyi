# SPDX-License-Identifier: Apache-2.0
# Type stubs of the compiled core. mypy.stubtest checks them.

import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from typing_extensions import Buffer

# A contiguous buffer, such as a NumPy array. The type is Any, because NumPy's stubs lack the buffer protocol before
# Python 3.12.
_Memory: TypeAlias = Any

__all__ = [
    "ORDER_VERSION",
    "BatchBy",
    "BytePairs",
    "ChunkedArray",
    "Counted",
    "CudaDevice",
    "Emulator",
    "Feed",
    "Files",
    "ObjectPhase",
    "ObjectWriter",
    "PartialCounts",
    "RaggedTensor",
    "Run",
    "Sampler",
    "SegyFile",
    "ShardBuffer",
    "ShardBytes",
    "ShardMemory",
    "Source",
    "StageJob",
    "StageRequest",
    "StoragePhase",
    "Tensor",
    "UnindexedFeed",
    "ZarrWriter",
    "__profile__",
    "__version__",
    "clear_objects",
    "crc32c",
    "decode_tfrecord",
    "diff",
    "encode_tfrecord",
    "encode_traces",
    "index",
    "merge_latencies",
    "object_keys",
    "record_offsets",
    "tar_member",
    "verify",
    "write_traces",
]

__profile__: str
__version__: str

def encode_tfrecord(
    features: Mapping[str, bytes | list[bytes] | list[float] | list[int] | Buffer],
    *,
    codec: Literal["none", "gzip", "zstd", "lz4"] = "none",
    level: int | None = None,
) -> bytes:
    """Encode `features`, in the given order, as one tf.Example in one compressed TFRecord frame. Equal arguments give
    equal bytes.

    Args:
        features: `bytes` and `list[bytes]` become a bytes_list, `list[float]` and buffers of float32 a float_list, and
            `list[int]` an int64_list.
        level: Compression level: 0 to 12 for gzip (default 6), or any level of zstd (default 3).
    Raises:
        ConfigError: A value, codec or level is invalid.
    """

def decode_tfrecord(
    data: bytes, *, codec: Literal["none", "gzip", "zstd", "lz4"] | None = None
) -> list[dict[str, bytes | list[bytes] | list[float] | list[int]]]:
    """Decode all examples of a TFRecord object, for inspection. Verifies every checksum and decompresses at most 1 GiB.

    Args:
        codec: Compression; None detects it from the first bytes.
    Raises:
        Corrupt: The data is not a TFRecord of tf.Examples, or is damaged or truncated.
    """

def crc32c(data: _Memory) -> int:
    """Return the CRC-32C (Castagnoli) of a buffer of bytes."""

# Statistics of a field: count, number of NaN, minimum, maximum and sum.
_Statistics: TypeAlias = tuple[int, int, float, float, float]

@final
class ShardBuffer:
    """A shard in memory, with statistics of `fields` fields. The kind of a value is `bytes`, `bytes_list`, `int`,
    `float`, `ints` (a buffer of int64), `floats` (a buffer of float32), or a dtype (elements as a buffer of bytes).
    """

    def __new__(cls, fields: int, is_tar: bool, memory: ShardMemory) -> ShardBuffer: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def records(self) -> int: ...
    def add_example(self, features: list[tuple[int, str, str, Any]]) -> None:
        """Append a TFRecord with a tf.Example of these features: (field, name, kind, value)."""
    def add_members(self, members: list[tuple[int, str, bytes, str, Any]]) -> None:
        """Append tar members: (field, name, head, kind, value). The content of a member is the head, then the value."""
    def note(self, field: int, value: float) -> None:
        """Add a number to the statistics of a field whose numbers are stored as text."""
    def last_crc32c(self) -> int: ...
    def statistics(self) -> list[tuple[_Statistics, _Statistics]]:
        """Return the statistics of each field: first of its sizes in bytes, then of its values."""
    def finish(self, codec: Literal["none", "gzip", "zstd"], level: int | None) -> ShardBytes:
        """End the shard, compress it and empty this buffer."""

@final
class ShardMemory:
    """Memory of shards that are already stored. Later shards use this memory again."""

    def __new__(cls) -> ShardMemory: ...

@final
class ShardBytes:
    """Compressed bytes of a shard, readable through the buffer protocol."""

    @property
    def crc32c(self) -> int: ...
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

def tar_member(name: str, data: bytes) -> bytes:
    """Encode one tar member without time and owner."""

def record_offsets(path: str | PathLike[str], name: str) -> bytes:
    """Return the file's entry in the log of record offsets (`.penstock/records-*.bin`). The entry is empty if the
    records of the file have no offsets.
    """

@final
class Emulator:
    """S3 endpoint that serves a folder on its own threads until `stop` is called or the last reference is dropped."""

    def __new__(
        cls,
        folder: str | Path,
        tier: str,
        bind: str,
        scale: float,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> Emulator: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def tier(self) -> str: ...
    @property
    def scale(self) -> float: ...
    def stats(self) -> dict[str, int]: ...
    def stop(self) -> None: ...

# --- feed ---

# Version of the sample order. Every state contains it.
ORDER_VERSION: int

# A field of fixed shape in a delivered batch. Shares its memory through the buffer protocol and DLPack.
@final
class Tensor:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...
        def __release_buffer__(self, buffer: memoryview, /) -> None: ...

    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

# CUDA device with which the memory of batches is registered. Each block of memory is registered once. `hold` returns
# False for a block of unusual size, because it would be used for only one batch.
@final
class CudaDevice:
    def __new__(cls, number: int) -> CudaDevice: ...
    def hold(self, tensor: Tensor) -> bool: ...

# A field of a delivered batch whose samples vary in length: row i is values[offsets[0][i]:offsets[0][i + 1]]. Each
# additional level of lists has its own offsets, and so have the strings in a list. Row i then consists of the lists (or
# strings) j of the next level, for j in range(offsets[0][i], offsets[0][i + 1]).
@final
class RaggedTensor:
    @property
    def values(self) -> Tensor: ...
    @property
    def offsets(self) -> list[Tensor]: ...
    @property
    def is_bytes(self) -> bool: ...
    @property
    def is_text(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def texts(self) -> list[str]: ...

@final
class BytePairs:
    """A byte-level BPE tokenizer in the core."""

    @staticmethod
    def of_json(json: str) -> BytePairs | None:
        """Read a tokenizer from its JSON. Return None if the core does not support all steps of the tokenizer."""
    def encode(
        self, values: _Memory, offsets: _Memory, before: Sequence[int], after: Sequence[int], threads: int
    ) -> tuple[bytes, bytes, list[int]]:
        """Encode texts, and add the tokens `before` and `after` to each. Text i is the UTF-8 between `offsets[i]` and
        `offsets[i + 1]` (int64) of `values`.

        Returns the tokens of all texts, the number of tokens of each text (both uint32), and the numbers of the texts
        that the core cannot encode. These texts get no tokens.

        Raises:
            ValueError: The offsets are not ascending, or are beyond the values.
        """

# Listing of a dataset: names, sizes and versions of the objects, and the format. It has no connection to the store, and
# can be pickled.
@final
class Source:
    @staticmethod
    def open(
        url: str,
        manifest: bytes | None,
        env: Mapping[str, str],
        format: str | None = None,  # noqa: A002
        indexes: str | None = None,
        *,
        accepts_incomplete: bool = False,
    ) -> Source: ...
    @staticmethod
    def restore(
        manifest: bytes,
        ignored: int,
        format: str,  # noqa: A002
        indexes: bytes | None = None,
        routes: str | None = None,
        fields: str | None = None,
    ) -> Source: ...
    @property
    def fields(self) -> str | None: ...
    def routed(self, routes: str) -> Source: ...
    @property
    def routes(self) -> str | None: ...
    def schema(self, env: Mapping[str, str]) -> tuple[str, list[str], list[tuple[str, str]]]: ...
    # Indexes of the entries of `wanted` that no object has. An entry lists alternative names of one value. The list is
    # empty for formats whose objects do not contain names.
    def unknown_columns(self, wanted: Sequence[Sequence[str]], env: Mapping[str, str]) -> list[int]: ...
    @property
    def format(self) -> str: ...
    def manifest(self) -> bytes: ...
    @property
    def max_window(self) -> int | None: ...
    @property
    def needed_bytes(self) -> int | None: ...
    def cache_name(self, env: Mapping[str, str]) -> str: ...
    def kept_count(self, env: Mapping[str, str], cache: str | PathLike[str] | None = None) -> Counted | None: ...
    def count(
        self,
        declared: int | None,
        *,
        scans: bool,
        env: Mapping[str, str],
        cache: str | PathLike[str] | None = None,
        reads_objects: bool = True,
    ) -> tuple[Counted | None, list[str]]: ...
    # Numbers of the objects, in the order in which an epoch reads them.
    def object_order(self, seed: int | None, epoch: int = 0) -> list[int]: ...
    def object_bytes(self, number: int) -> int: ...
    def subset(self, objects: Sequence[int]) -> Source: ...
    def counted(self, records: Sequence[int], rung: str) -> Counted: ...
    def oldest_first(self) -> list[int]: ...
    @property
    def url(self) -> str: ...
    @property
    def objects(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def ignored(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def key(self, number: int) -> str: ...
    def logical_name(self, number: int) -> str: ...

# Record counts, their source, and the fingerprint of the logical dataset.
@final
class Counted:
    @staticmethod
    def restore(
        runs: Sequence[tuple[int, int]], rung: str, fingerprint: str, index: str | PathLike[str] | None = None
    ) -> Counted: ...
    @property
    def is_indexed(self) -> bool: ...
    @property
    def samples(self) -> int: ...
    @property
    def empty_objects(self) -> tuple[int, int]: ...
    @property
    def rung(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    def window(self, seed: int) -> int: ...
    def records(self) -> list[int]: ...

# Record counts that grow while objects are scanned. In the counts of `so_far`, all but the given objects are empty.
@final
class PartialCounts:
    def __new__(
        cls,
        source: Source,
        env: Mapping[str, str],
        cache: str | PathLike[str] | None = None,
        node_cache: tuple[str | PathLike[str], int, str] | None = None,
    ) -> PartialCounts: ...
    def scan(self, objects: Sequence[int]) -> None: ...
    def stop(self) -> None: ...
    def scan_start(self, number: int, records: int) -> int: ...
    def learn(self, counted: Sequence[tuple[int, int]]) -> None: ...
    def count(self, number: int) -> int | None: ...
    # Whether ranged reads can fetch single records of all these objects.
    def reads_ranges(self, objects: Sequence[int]) -> bool: ...
    @property
    def complete(self) -> int: ...
    def so_far(self, objects: Sequence[int], first_indexed: int = 0) -> Counted: ...
    def finish(self) -> Counted: ...

# Maps the positions of an epoch to records of one or several datasets, without I/O. `places` returns (dataset, object,
# record) triples.
@final
class Sampler:
    @staticmethod
    def leaf(
        source: Source, counted: Counted, *, seed: int | None, window: int, select: tuple[int, int] | None = None
    ) -> Sampler: ...
    @staticmethod
    def subset(source: Source, counted: Counted, bits: Buffer, *, seed: int | None, window: int) -> Sampler: ...
    @staticmethod
    def weighted(
        source: Source,
        counted: Counted,
        schedule: Sequence[tuple[int, Buffer]],
        *,
        samples: int,
        passes: int,
        seed: int,
        window: int,
    ) -> Sampler: ...
    @staticmethod
    def mix(courses: Sequence[Sampler], schedule: Sequence[tuple[int, Sequence[int]]], samples: int) -> Sampler: ...
    # Return, for each position, the uint32 value of the sample. `values` has one array per dataset, in stored order.
    def values(self, epoch: int, values: Sequence[Buffer]) -> bytes: ...
    def listed(self, positions: Buffer) -> Sampler: ...
    def range(self, start: int, stop: int) -> Sampler: ...
    def repeat(self, times: int) -> Sampler: ...
    @property
    def samples(self) -> int: ...
    @property
    def views(self) -> list[tuple[int, float]]: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def sources(self) -> list[Source]: ...
    def places(self, epoch: int, positions: Sequence[int]) -> list[tuple[int, int, int]]: ...

# Rule for the batches of a sampler. `rule` is JSON. `lengths` has one uint32 array per dataset, in stored order.
@final
class BatchBy:
    def __new__(
        cls, course: Sampler, rule: str, lengths: Sequence[_Memory], *, window: int | None = None
    ) -> BatchBy: ...
    @property
    def window(self) -> int: ...
    @property
    def mean_rows(self) -> int: ...
    def count(self, epoch: int, tail: str) -> int: ...

# Reads the batches of one rank. It has threads and requests only during a run.
@final
class Feed:
    def __new__(
        cls,
        course: Sampler,
        fields: str,
        settings: str,
        env: Mapping[str, str],
        *,
        global_batch: int,
        rank: int,
        world: int,
        tail: str,
        caches: Sequence[tuple[str, int, str] | None] | None = None,
        node: tuple[int, int] | None = None,
        batch_by: BatchBy | None = None,
    ) -> Feed: ...
    @property
    def threads(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def start(self, epoch: int, cursor: int) -> Run: ...
    def gather(
        self, wanted: Sequence[tuple[int, int, int]], epoch: int, positions: Sequence[int]
    ) -> dict[str, Tensor]: ...
    def transcoding(self) -> list[str | None]: ...
    def metrics(self) -> dict[str, float]: ...

# Reads the batches of one rank from an unindexed dataset. A cursor is object x 2^40 + record.
@final
class UnindexedFeed:
    def __new__(
        cls,
        source: Source,
        fields: str,
        settings: str,
        env: Mapping[str, str],
        *,
        seed: int | None,
        batch: int,
        rank: int,
        world: int,
        drops_tail: bool,
    ) -> UnindexedFeed: ...
    @property
    def threads(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def objects(self) -> int: ...
    def start(self, epoch: int, cursor: int) -> Run: ...
    def metrics(self) -> dict[str, float]: ...

# One pass over an epoch: yields (fields, rows, cursor) per batch.
@final
class Run:
    def next(self) -> tuple[dict[str, Tensor | RaggedTensor], int, int] | None: ...
    def positions(self) -> list[int] | None: ...
    def is_ready(self) -> bool: ...
    def timing(self) -> dict[str, float]: ...
    def error_counts(self) -> tuple[int, int, list[str]]: ...
    def close(self) -> None: ...

# Objects below a store URL, treated as files. Names are bytes. A description is (name, size, version, modified).
@final
class Files:
    def __new__(cls, url: str, env: Mapping[str, str], *, timeout_s: float = 600.0) -> Files: ...
    def described(
        self, prefix: bytes, *, most: int | None = None
    ) -> list[tuple[bytes, int, str | None, float | None]]: ...
    def head(self, name: bytes) -> tuple[bytes, int, str | None, float | None]: ...
    def read(self, name: bytes, ranges: Sequence[tuple[int, int]], *, version: str | None = None) -> list[bytes]: ...
    def put(self, name: bytes, data: bytes, *, create_only: bool = False, version: str | None = None) -> str | None: ...
    def delete(self, names: Sequence[bytes]) -> None: ...

@final
class SegyFile:
    """The current version of the SEG-Y file `name` in a folder. `overrides` is JSON with format, byte_order, samples
    and allow_trailing.

    Raises:
        NotFound: The object does not exist.
        Corrupt: The object is not SEG-Y, or ends inside a trace.
    """

    def __new__(
        cls, folder: str, name: bytes, env: Mapping[str, str], *, overrides: str = "{}", timeout_s: float = 600.0
    ) -> SegyFile: ...
    @property
    def version(self) -> str | None: ...
    def layout(self) -> str: ...
    def read_bytes(self, start: int, count: int) -> bytes: ...
    def read(
        self,
        traces: _Memory,
        *,
        headers: _Memory | None = None,
        samples: _Memory | None = None,
        first: int = 0,
        end: int = 0,
        threads: int = 1,
    ) -> bytes:
        """Read `traces` (uint64, indexes in file order). `headers` gets 240 bytes per trace, and `samples` gets the
        samples `first` to `end` - 1 of each trace.

        Returns:
            IBM words that float32 cannot represent, with 20 bytes per word: trace (uint64), sample (uint64), word
            (uint32).
        """
    def stats(self) -> dict[str, int]: ...

@final
class ChunkedArray:
    """A chunked array. A read fetches each chunk once. Neighbouring chunks in an object share a request."""

    @staticmethod
    def zarr(url: str, metadata: bytes, env: Mapping[str, str], *, timeout_s: float = 600.0) -> ChunkedArray: ...
    @staticmethod
    def hdf5(
        folder: str,
        name: bytes,
        size: int,
        version: str | None,
        dataset: str,
        env: Mapping[str, str],
        *,
        timeout_s: float = 600.0,
    ) -> ChunkedArray: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def chunk_shape(self) -> list[int]: ...
    def read_many(self, boxes: Sequence[Sequence[tuple[int, int]]], out: _Memory, *, threads: int = 1) -> None:
        """Read boxes into `out`, one after another in C order. A box has one (start, end) pair per axis."""
    def stats(self) -> dict[str, int]: ...

@final
class ZarrWriter:
    """Writes the objects (chunks or shards) of the Zarr array at `url`. `metadata` is JSON."""

    def __new__(cls, url: str, metadata: str, env: Mapping[str, str], *, timeout_s: float = 600.0) -> ZarrWriter: ...
    def key(self, cell: Sequence[int]) -> str: ...
    def write(self, cell: Sequence[int], data: _Memory, *, threads: int = 1) -> int:
        """Encode a chunk or shard and write it as one object.

        Args:
            data: Elements of the object. The last axis is contiguous. At the edge of the array, `data` can be smaller
                than an object.
        Returns:
            The stored size in bytes. If all elements are the fill value, no object is stored and the result is 0.
        """

@final
class ObjectWriter:
    """Writes an object of `size` bytes sequentially. The object becomes visible only after `finish`."""

    def __new__(
        cls,
        folder: str,
        name: bytes,
        size: int,
        env: Mapping[str, str],
        *,
        create_only: bool = False,
        timeout_s: float = 600.0,
    ) -> ObjectWriter: ...
    def write(self, data: _Memory) -> None: ...
    def finish(self) -> None: ...
    def abort(self) -> None: ...

def encode_traces(
    code: int,
    byte_order: Literal["big", "little"],
    headers: _Memory,
    samples: _Memory,
    out: _Memory,
    *,
    header_bytes: int = 240,
) -> None:
    """Encode traces into `out`, in the form of a SEG-Y file with the sample format `code`.

    Raises:
        ConfigError: A sample does not fit into three bytes (formats 7 and 15).
    """

def write_traces(
    fd: int,
    place: str,
    code: int,
    byte_order: Literal["big", "little"],
    headers: _Memory,
    samples: _Memory,
    numbers: _Memory,
    *,
    first_trace: int,
    header_bytes: int = 240,
) -> None:
    """Write traces into the open file `fd`, in the form of a SEG-Y file with the sample format `code`.

    Args:
        place: Path of the file, for error messages.
        numbers: Number of each trace in the file, int64 [traces].
        first_trace: Offset of trace 0 in the file, in bytes.
    Raises:
        ConfigError: A sample does not fit into three bytes (formats 7 and 15).
        NoSpace, SystemFault: The file cannot be written.
    """

@final
class StageRequest:
    def __new__(
        cls,
        settings: str,
        destination: str | PathLike[str],
        env: dict[str, str],
        *,
        manifest: str | PathLike[str] | None = None,
    ) -> StageRequest: ...
    def start(self) -> StageJob: ...
    def wait_for_leader(self, *, start_s: float = 600.0, silence_s: float = 120.0) -> str: ...
    def leader_ends(self, *, start_s: float = 600.0, silence_s: float = 120.0) -> str: ...

@final
class StageJob:
    def progress(self) -> dict[str, int]: ...
    def wait(self, timeout_s: float) -> str | None: ...
    def cancel(self) -> None: ...

@final
class StoragePhase:
    """One phase of `penstock bench storage`. It starts when it is constructed. `spec` and the report are JSON."""

    def __new__(cls, spec: str, phase: str) -> StoragePhase: ...
    def progress(self) -> tuple[int, int, int]: ...
    def wait(self, timeout_s: float) -> str | None: ...
    def cancel(self) -> None: ...

@final
class ObjectPhase:
    """One request phase of `penstock bench object`. It starts when it is constructed. `spec` and the report are
    JSON.
    """

    def __new__(cls, spec: str, env: dict[str, str]) -> ObjectPhase: ...
    def progress(self) -> tuple[int, int, int]: ...
    def wait(self, timeout_s: float) -> str | None: ...
    def cancel(self) -> None: ...

def clear_objects(url: str, env: dict[str, str]) -> int: ...
def object_keys(url: str, env: dict[str, str], most: int) -> list[str]: ...
def merge_latencies(latencies: list[str]) -> str: ...
def index(
    url: str,
    env: dict[str, str],
    *,
    output: str | PathLike[str] | None = None,
    timeout_s: float | None = None,
    retry_timeout_s: float | None = None,
    select: list[str] = ...,
    exclude: list[str] = ...,
    written_as: str | None = ...,
) -> str: ...
def verify(settings: str, destination: str | PathLike[str], env: dict[str, str]) -> StageJob: ...
def diff(
    a: str,
    b: str,
    env: dict[str, str],
    *,
    timeout_s: float | None = None,
    retry_timeout_s: float | None = None,
    select: list[str] = ...,
    exclude: list[str] = ...,
) -> str: ...
