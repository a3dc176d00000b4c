# SPDX-License-Identifier: Apache-2.0
"""Encoders of TFRecord and tar: convert the values of a sample to features or tar members. The core builds the bytes of
a shard. An encoder also describes the fields with which a loader reads the shards.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock import _native
from penstock.errors import ConfigError, KeyRefused, Unsupported
from penstock.feed.fields import FieldSpec, RawSpec, TensorSpec
from penstock.writer.settings import KEY, Settings

if TYPE_CHECKING:
    from typing import Literal

    from penstock.writer.settings import Statistics
    from penstock.writer.values import Field, Fields

__all__ = ["Encoder", "Shard", "TarEncoder", "TfRecordEncoder", "encoder_of"]

_MAX_FLOAT32 = float(np.finfo(np.float32).max)

_NUMBERS = ("cls", "cls2", "class", "count", "index", "id")
"""Extensions of members that contain a number as text, as in WebDataset's decoders."""

_TEXTS = ("txt", "text", "transcript", "json", "jsonl", "csv", "xml", "html", "md")
"""Extensions of members that contain text unchanged. If the name of a text field has another extension, `.txt` is
added.
"""


class Shard(Protocol):
    """A shard in memory."""

    @property
    def nbytes(self) -> int: ...
    @property
    def records(self) -> int: ...
    def last_crc32c(self) -> int: ...
    def statistics(self) -> Statistics: ...
    def finish(self, codec: Literal["none", "gzip", "zstd"], level: int | None) -> tuple[Any, int]: ...


class Encoder(Protocol):
    """Encoder of one format. `suffix` is the suffix of an uncompressed shard."""

    suffix: str

    def begin(self) -> Shard: ...
    def add(self, shard: Any, values: list[Any], sample: int) -> None: ...
    def specs(self) -> list[tuple[str, FieldSpec]]: ...


def encoder_of(settings: Settings, fields: Fields) -> Encoder:
    """Create the encoder of a format.

    Raises:
        ConfigError, KeyRefused, Unsupported: The format cannot store a field.
        MissingPackage: pyarrow is not installed.
    """
    if settings.format == "parquet":
        from penstock.writer.parquet import ParquetEncoder

        return ParquetEncoder(fields)
    for field in fields.fields:
        if field.kind == "nested":
            raise Unsupported(
                f"write: `{field.name}` is a list of lists, which only Parquet can store",
                where="samples",
                hint='use format="parquet"',
            )
    return TarEncoder(fields) if settings.format == "tar" else TfRecordEncoder(fields)


class _Buffer:
    """A shard that the core builds."""

    def __init__(self, fields: int, memory: _native.ShardMemory, *, is_tar: bool) -> None:
        self.core = _native.ShardBuffer(fields, is_tar, memory)
        self.keys: set[str] = set()

    @property
    def nbytes(self) -> int:
        return self.core.nbytes

    @property
    def records(self) -> int:
        return self.core.records

    def last_crc32c(self) -> int:
        return self.core.last_crc32c()

    def statistics(self) -> Statistics:
        return self.core.statistics()

    def finish(self, codec: Literal["none", "gzip", "zstd"], level: int | None) -> tuple[Any, int]:
        stored = self.core.finish(codec, level)
        return stored, stored.crc32c


class TfRecordEncoder:
    """Encoder of tf.Example in TFRecords, with TensorFlow's kinds of features.

    `bool`, `int32`, `int64` and single integers become an int64_list, `float32` and Python's floats a float_list, and
    bytes and text a bytes_list. An array of another type becomes one byte string of its elements (for
    `tf.io.decode_raw`), because an int64_list would be larger, and a float_list would round float64.
    """

    suffix = ".tfrecord"

    def __init__(self, fields: Fields) -> None:
        self._fields, self._memory = fields.fields, _native.ShardMemory()

    def begin(self) -> _Buffer:
        return _Buffer(len(self._fields), self._memory, is_tar=False)

    def add(self, shard: _Buffer, values: list[Any], sample: int) -> None:
        """Append a sample.

        Raises:
            ConfigError: A number does not fit into the feature's type.
        """
        features = [
            (at, field.name, *self._feature(field, value, sample))
            for at, (field, value) in enumerate(zip(self._fields, values, strict=True))
            if value is not None
        ]
        shard.core.add_example(features)

    def _feature(self, field: Field, value: Any, sample: int) -> tuple[str, Any]:
        match field.kind:
            case "bytes":
                return "bytes", value
            case "str" | "json":
                return "bytes", value.encode()
            case "bytes_list":
                return "bytes_list", value
            case "str_list":
                return "bytes_list", [one.encode() for one in value]
            case "int":
                if value >= 2**63:
                    raise ConfigError(
                        f"write: sample {sample:,}: `{field.name}` is {value}, which does not fit into an int64_list",
                        where="samples",
                    )
                return "int", value
            case "float":
                if abs(value) > _MAX_FLOAT32 and np.isfinite(value):
                    raise ConfigError(
                        f"write: sample {sample:,}: `{field.name}` is {value:g}, which does not fit into a float_list",
                        where="samples",
                        hint="pass an array, such as numpy.array(value): its float64 elements are stored as bytes",
                    )
                return "float", value
        flat = value.reshape(-1)
        if field.dtype == "float32":
            return "floats", flat
        if field.dtype in ("bool", "int32", "int64"):
            return "ints", flat.astype("<i8", copy=False)
        return field.dtype, flat.view("u1")

    def specs(self) -> list[tuple[str, FieldSpec]]:
        """Fields with which a loader reads the samples."""
        found = []
        for field in self._fields:
            spec = TensorSpec("float32", ()) if field.kind == "float" else field.loader_spec()
            if spec is not None:
                found.append((field.name, spec))
        return found


class TarEncoder:
    """Encoder of tar members as in WebDataset: `KEY.EXTENSION`, one member for each field.

    If the name of a field ends with an extension that suits its type (such as `jpg`, `seg.png` or `cls`), the name is
    the extension of the member. Otherwise, an extension is added to the name. It is `.npy` for arrays and floats,
    `.cls` for integers, `.txt` for text, and `.json` for dicts and lists of text.
    """

    suffix = ".tar"

    def __init__(self, fields: Fields) -> None:
        self._fields, self._memory = fields.fields, _native.ShardMemory()
        self._parts: list[str] = []
        seen: dict[str, str] = {}
        for field in self._fields:
            if field.name == KEY and field.kind not in ("bytes", "str"):
                raise ConfigError(
                    f"write: `{KEY}` is {field.dtype or field.kind.replace('_', ' of ')}, instead of bytes or text",
                    where="samples",
                    hint=f"convert `{KEY}` to text, or leave it out, so that samples are numbered",
                )
            part = "" if field.name == KEY else self._part(field)
            if part in seen:
                raise ConfigError(
                    f"write: the fields `{seen[part]}` and `{field.name}` would have the same tar member, `.{part}`",
                    where="samples",
                    hint="rename one of them",
                )
            seen[part] = field.name
            self._parts.append(part)
        self._heads: dict[tuple[int, tuple[int, ...]], bytes] = {}

    def _part(self, field: Field) -> str:
        """Return the extension of a field's members. It is in lower case, because readers convert extensions to lower
        case.
        """
        name = field.name.lower()
        if not name or "/" in name or name.startswith(".") or name.endswith(".") or "\0" in name:
            raise KeyRefused(
                f"write: the field name {field.name!r} cannot be an extension in a tar", where="samples", key=field.name
            )
        last = name.rpartition(".")[2]
        match field.kind:
            case "bytes_list":
                raise Unsupported(
                    f"write: `{field.name}` is a list of bytes, which a tar member cannot store",
                    where="samples",
                    hint='use format="tfrecord" or "parquet", or a field for each item',
                )
            case "bytes":
                return name
            case "str":
                return name if last in _TEXTS else f"{name}.txt"
            case "str_list" | "json":
                return name if last == "json" else f"{name}.json"
            case "int":
                return name if last in _NUMBERS else f"{name}.cls"
        return name if last == "npy" else f"{name}.npy"

    def begin(self) -> _Buffer:
        return _Buffer(len(self._fields), self._memory, is_tar=True)

    def add(self, shard: _Buffer, values: list[Any], sample: int) -> None:
        """Append a sample.

        Raises:
            KeyRefused: The sample's key is unsafe, or another sample of the shard has the same key.
        """
        key, members = f"{sample:09d}", []
        for at, (field, part, value) in enumerate(zip(self._fields, self._parts, values, strict=True)):
            if value is None:
                continue
            if field.name == KEY:
                key = value if isinstance(value, str) else value.decode(errors="surrogateescape")
            else:
                members.append((at, part, *self._content(shard, at, field, value)))
        if not members:
            raise KeyRefused(
                f"write: sample {sample:,} has no values, but a tar cannot store a sample without members",
                where="samples",
                hint='leave such samples out, or use format="tfrecord" or "parquet"',
                key=key,
            )
        if key in shard.keys or (problem := _unsafe(key)):
            problem = "is the key of two samples" if key in shard.keys else problem
            raise KeyRefused(
                f"write: sample {sample:,}: the key {key!r} {problem}",
                where="samples",
                hint="give every sample a unique `__key__` without dots, or leave out `__key__`, so that samples are "
                "numbered",
                key=key,
            )
        shard.keys.add(key)
        shard.core.add_members([(at, f"{key}.{part}", head, kind, value) for at, part, head, kind, value in members])

    def _content(self, shard: _Buffer, at: int, field: Field, value: Any) -> tuple[bytes, str, Any]:
        """Return the first bytes of a member's content, and the kind and value of the remaining content."""
        match field.kind:
            case "bytes":
                return b"", "bytes", value
            case "str" | "json":
                return b"", "bytes", value.encode()
            case "str_list":
                return b"", "bytes", field._json(value, 0).encode()  # noqa: SLF001 - text is always JSON
            case "int":
                shard.core.note(at, value)
                return b"", "bytes", b"%d" % value
            case "float":
                value = np.asarray(value, dtype=field.dtype)
        shape = value.shape
        head = self._heads.get((at, shape))
        if head is None:
            head = _npy_header(value)
            if len(self._heads) < 4096:
                self._heads[at, shape] = head
        return head, field.dtype, value.reshape(-1).view("u1")

    def specs(self) -> list[tuple[str, FieldSpec]]:
        """Fields with which a loader reads the samples."""
        found = []
        for field, part in zip(self._fields, self._parts, strict=True):
            # In a tar, a list of texts is stored as a JSON document.
            spec = RawSpec((part,)) if field.kind == "str_list" else field.loader_spec(part or KEY)
            if spec is not None:
                found.append((field.name, spec))
        return found


def _npy_header(array: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, np.lib.format.header_data_from_array_1_0(array))
    return out.getvalue()


def _unsafe(key: str) -> str:
    """Return the reason why a key cannot be the name of a sample; empty if it can."""
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") for part in parts):
        return "has an empty folder or name, or leaves the archive"
    if "." in parts[-1]:
        return "contains a dot, where readers end a key"
    if any(ord(c) < 32 or ord(c) == 127 for c in key) or "\\" in key:
        return "contains a control character or a backslash"
    try:
        key.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return "is too long" if len(key.encode()) > 1024 else ""
