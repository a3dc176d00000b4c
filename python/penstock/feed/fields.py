# SPDX-License-Identifier: Apache-2.0
"""Kinds of fields that a batch can contain, and how they are made from a record's parts. Plain data; reads nothing."""

from __future__ import annotations

import json
import operator
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex

from penstock.errors import ConfigError
from penstock.feed.number_arguments import as_int

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.feed.audio_fields import AudioDecoding

__all__ = [
    "SOURCE",
    "FieldSpec",
    "NestedSpec",
    "PaddedSpec",
    "PresentSpec",
    "RaggedSpec",
    "RawListSpec",
    "RawSpec",
    "TensorSpec",
    "TextSpec",
    "dtype_name",
    "from_json",
    "ragged",
    "raw",
    "raw_list",
    "tensor",
    "text",
    "to_json",
    "with_masks",
]

SOURCE = "source"
"""Name of the field with the number of a sample's source in a mixture."""

_FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}
"""`struct` format character of each dtype."""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Base class of all kinds of fields. `parts` are the names of the record parts from which the field can be read.
    `presence` (the argument `mask`) is the name of a boolean field of the batch, which is True for samples that have
    the value.
    """

    presence: str | None = field(default=None, kw_only=True)

    @property
    def unpadded(self) -> FieldSpec:
        """The field without padding."""
        return self

    def of(self, names: str) -> Self:
        """Return the field, to be read from the first of these parts that a record has: `.of("jpg;jpeg;png")`.

        Without this call, a field is read from the part that has the field's name.
        """
        parts = tuple(name for name in names.split(";") if name) if isinstance(names, str) else ()
        if not parts:
            raise ConfigError(f"of: must name at least one part (got {names!r})", where="fields")
        return replace(self, parts=parts)  # type: ignore[call-arg]

    def to_dict(self) -> dict[str, Any]:
        """Return the field in the form that the core reads."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TensorSpec(FieldSpec):
    """Field whose element type (a NumPy name) and shape are the same in every sample. Values are in C order."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[str, ...] = ()
    default: float | None = None
    audio: AudioDecoding | None = field(default=None, kw_only=True)

    @property
    def is_random(self) -> bool:
        """True for random clips of audio."""
        return self.audio is not None and self.audio.samples is not None and self.audio.start is None

    def to_dict(self) -> dict[str, Any]:
        spec_dict: dict[str, Any] = {
            "kind": "tensor",
            "dtype": self.dtype,
            "shape": list(self.shape),
            "of": list(self.parts),
        }
        if self.audio is not None:
            spec_dict["audio"] = self.audio.to_dict()
        return spec_dict if self.default is None else {**spec_dict, "default": packed(self.dtype, self.default).hex()}

    def __str__(self) -> str:
        return (
            f"{'audio ' if self.audio else ''}{self.dtype} {list(self.shape)}{or_default(self.default, self.presence)}"
        )


@dataclass(frozen=True, slots=True)
class RaggedSpec(FieldSpec):
    """Field of any number of items per sample. Each item has the given element type and shape."""

    dtype: str
    shape: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()
    follows: str = ""
    default: tuple[()] | None = None
    audio: AudioDecoding | None = field(default=None, kw_only=True)

    def like(self, name: str) -> Self:
        """Return the field with one item for each box of the field `name`. If a crop removes a box, the item of the box
        is removed, too. Example: `labels=ragged("int64").like("boxes")`.
        """
        return replace(self, follows=name)

    def to_dict(self) -> dict[str, Any]:
        spec_dict: dict[str, Any] = {
            "kind": "ragged",
            "dtype": self.dtype,
            "shape": list(self.shape),
            "of": list(self.parts),
        }
        if self.follows:
            spec_dict |= self.annotation()
        if self.audio is not None:
            spec_dict["audio"] = self.audio.to_dict()
        return spec_dict if self.default is None else {**spec_dict, "default": ""}

    def annotation(self) -> dict[str, Any]:
        """Return the settings that the core reads for a field that follows another field."""
        return {"follows": self.follows, "annotation": {"kind": "items"}}

    def padded(
        self,
        to: int | Literal["longest", "bucket"] = "longest",
        *,
        multiple_of: int = 1,
        value: float = 0,
        mask: str | None = None,
        truncate: bool = False,
    ) -> PaddedSpec:
        """Return the field as one array per batch, whose rows are padded to the same number of items:
        `ragged("int32").padded(multiple_of=8, mask="tokens_mask")`.

        The feed's threads add the padding, so no Python code runs per sample. Boxes, and fields that follow boxes, are
        padded after the crop: `boxes("xyxy").like("image").padded(100, mask="is_box", truncate=True)`.

        Args:
            to: Number of items per row, `longest` or `bucket`. `longest` is the length of the longest sample in this
                rank's batch. `bucket` is the largest length of the batch's bucket (`Loader(batch_by=)`), so that
                batches have few different shapes. In a bucket without an upper bound, `bucket` has the same effect as
                `longest`.
            multiple_of: With `longest` and `bucket`, the number of items is rounded up to a multiple of this.
            value: Value of the padding.
            mask: Name of a second array in the batch (bool, rows x items): True for items of the sample, False for
                padding. With None, there is no mask.
            truncate: Cut samples that are longer than a row to their first items. If False, such a sample is an error
                (see `on_error`).
        Raises:
            ConfigError: A number is invalid, or the value is not of the field's type.
        """
        to, multiple_of = padded_length(to, multiple_of, mask, ("longest", "bucket"), "fields")
        spec = PaddedSpec(self, to, multiple_of, value, mask, bool(truncate), presence=self.presence)
        spec.to_dict()
        return spec

    def __str__(self) -> str:
        return f"{'audio ' if self.audio else ''}ragged {self.dtype} {list(self.shape)}{or_default(self.default, self.presence)}"


@dataclass(frozen=True, slots=True)
class PaddedSpec(FieldSpec):
    """Field of any number of items per sample, which a batch contains as one padded array. Created by
    `RaggedSpec.padded`.
    """

    items: RaggedSpec
    to: int | str = "longest"
    multiple_of: int = 1
    value: float = 0
    mask: str | None = None
    truncate: bool = False

    @property
    def dtype(self) -> str:
        """Type of the elements."""
        return self.items.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an item."""
        return self.items.shape

    @property
    def unpadded(self) -> RaggedSpec:
        """The field without padding."""
        return self.items

    def of(self, names: str) -> Self:
        """Return the field, to be read from the first of these parts that a record has."""
        return replace(self, items=self.items.of(names))

    def like(self, name: str) -> Self:
        """Return the field with one item for each item of the field `name`, as `RaggedSpec.like` does."""
        return replace(self, items=self.items.like(name))

    def to_dict(self) -> dict[str, Any]:
        padding = {
            "to": {self.to: self.multiple_of} if isinstance(self.to, str) else {"length": self.to},
            "value": packed(self.dtype, self.value, "value").hex(),
            "mask": self.mask,
            "truncates": self.truncate,
        }
        return {**self.items.to_dict(), "padding": padding}

    @property
    def width(self) -> int | None:
        """Number of items per row, if it is the same in every batch."""
        return self.to if isinstance(self.to, int) else None

    def __str__(self) -> str:
        multiple = f", a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"{self.items} padded to {self.to}{multiple}"


@dataclass(frozen=True, slots=True)
class RawSpec(FieldSpec):
    """Field of the unchanged stored bytes of a part or, with `record`, of the whole record."""

    parts: tuple[str, ...] = ()
    default: bytes | None = None
    record: bool = False

    def __post_init__(self) -> None:
        if self.record and (self.parts or self.default is not None):
            raise ConfigError("fields: raw(record=True) takes neither .of(...) nor a default", where="fields")

    def to_dict(self) -> dict[str, Any]:
        if self.record:
            return {"kind": "record", "of": []}
        spec_dict: dict[str, Any] = {"kind": "bytes", "of": list(self.parts)}
        return spec_dict if self.default is None else {**spec_dict, "default": self.default.hex()}

    def __str__(self) -> str:
        return f"bytes{or_default(self.default, self.presence)}"


@dataclass(frozen=True, slots=True)
class RawListSpec(FieldSpec):
    """Field of any number of unchanged byte strings per sample or, if `errors` is set, of any number of texts."""

    parts: tuple[str, ...] = ()
    default: tuple[()] | None = None
    errors: str | None = None

    def to_dict(self) -> dict[str, Any]:
        spec_dict: dict[str, Any] = {"kind": "bytes_list", "of": list(self.parts)}
        if self.errors is not None:
            spec_dict["errors"] = self.errors
        return spec_dict if self.default is None else {**spec_dict, "default": ""}

    def __str__(self) -> str:
        return f"list of {'bytes' if self.errors is None else 'text'}{or_default(self.default, self.presence)}"


@dataclass(frozen=True, slots=True)
class NestedSpec(FieldSpec):
    """Field of nested lists with `depth` levels (at least 2). The items have the given element type and shape. Without
    an element type, the items are byte strings or, if `errors` is set, texts. Created by `penstock.list`.
    """

    dtype: str | None
    shape: tuple[int, ...]
    depth: int
    parts: tuple[str, ...] = ()
    default: tuple[()] | None = None
    errors: str | None = None

    def to_dict(self) -> dict[str, Any]:
        spec_dict: dict[str, Any] = {"kind": "nested", "depth": self.depth, "of": list(self.parts)}
        if self.dtype is not None:
            spec_dict |= {"dtype": self.dtype, "shape": list(self.shape)}
        elif self.errors is not None:
            spec_dict["errors"] = self.errors
        return spec_dict if self.default is None else {**spec_dict, "default": ""}

    def __str__(self) -> str:
        item = (
            ("bytes" if self.errors is None else "text") if self.dtype is None else f"{self.dtype} {list(self.shape)}"
        )
        return f"{'list of ' * self.depth}{item}{or_default(self.default, self.presence)}"


@dataclass(frozen=True, slots=True)
class PresentSpec(FieldSpec):
    """Field of one boolean: True if the sample has a value for the field whose `mask=` names this field."""

    parts: tuple[str, ...] = ()
    dtype = "bool"
    shape = ()

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "present", "of": list(self.parts), "default": "00"}

    def __str__(self) -> str:
        return "mask"


@dataclass(frozen=True, slots=True)
class TextSpec(FieldSpec):
    """Field of text: one `str` per sample."""

    errors: str = "strict"
    parts: tuple[str, ...] = ()
    default: str | None = None

    def to_dict(self) -> dict[str, Any]:
        spec_dict: dict[str, Any] = {"kind": "text", "errors": self.errors, "of": list(self.parts)}
        return spec_dict if self.default is None else {**spec_dict, "default": self.default.encode().hex()}

    def __str__(self) -> str:
        return f"text{or_default(self.default, self.presence)}"


def dtype_name(dtype: object) -> str:
    """Return the name of a NumPy or torch dtype. Names are returned unchanged."""
    # `numpy.int16` is a class with the name of the dtype, and `str(torch.int16)` ends with that name. Therefore,
    # neither library must be imported here.
    return dtype.__name__ if isinstance(dtype, type) else str(dtype).removeprefix("torch.")


def _shape(shape: Sequence[SupportsIndex]) -> tuple[int, ...]:
    try:
        sides = tuple(operator.index(side) for side in shape)
    except TypeError:
        sides = (-1,)
    if any(side < 0 for side in sides):
        raise ConfigError(
            f"shape: {shape!r} is not a tuple of integers of at least 0 (for one dimension write `(4,)`)", where="shape"
        )
    return sides


def or_default(default: object, mask: str | None) -> str:
    """Return the text about default and mask at the end of a field's description."""
    return ("" if default is None else f", default {default!r}") + ("" if mask is None else f", mask {mask}")


def _empty(default: object, mask: str | None) -> tuple[()] | None:
    """Return the default of a list: `()` if a default is given or the field has a mask, otherwise None."""
    if default is not None and default != ():
        raise ConfigError(f"default: must be `()`, which means an empty list (got {default!r})", where="fields")
    return () if default is not None or mask is not None else None


def packed(dtype: str, value: float, name: str = "default") -> bytes:
    """Convert a value to the little-endian bytes of one element."""
    try:
        if dtype != "bool" or value in (0, 1):
            return struct.pack(f"<{_FORMATS[dtype]}", value)
    except (KeyError, struct.error, OverflowError, TypeError):
        pass
    raise ConfigError(f"{name}: {value!r} is not a value of type {dtype}", where="fields")


def tensor(
    dtype: object, shape: Sequence[SupportsIndex], *, default: float | None = None, mask: str | None = None
) -> TensorSpec:
    """Create a field of fixed type and shape: `tensor("int16", (128, 128, 128, 4))`. Also accepts NumPy and torch
    dtypes.

    Args:
        default: Value of every element if the sample has no value. A sample has no value if a feature of a tf.Example
            is missing or empty (as with `FixedLenFeature(default_value=)`), a member of a tar or a column of the file
            is missing, or the value is null.
        mask: Name of a boolean field that is added to the batch, which is True for samples that have the value. Without
            an explicit `default`, the default is then 0.
    Raises:
        ConfigError: A dimension is not an integer of at least 0, or the default is not a value of dtype. An unknown
            dtype is rejected later, by the loader.
    """
    default = 0 if mask is not None and default is None else default
    spec = TensorSpec(dtype_name(dtype), _shape(shape), default=default, presence=mask)
    spec.to_dict()
    return spec


def ragged(
    dtype: object, shape: Sequence[SupportsIndex] = (), *, default: tuple[()] | None = None, mask: str | None = None
) -> RaggedSpec:
    """Create a field of any number of items per sample, each of the given type and shape. Batches contain a `Ragged`.

    A sample without a value (a missing feature of a tf.Example, a missing member of a tar, a null) has no items.

    Args:
        default: `()` means that samples of files without the column have no items.
        mask: As in `tensor`. The default is then `()`.
    Raises:
        ConfigError: A dimension is not an integer of at least 1, or the default is not `()`.
    """
    sides = _shape(shape)
    if 0 in sides:
        raise ConfigError(f"shape: no dimension can be 0 (got {shape!r})", where="shape")
    return RaggedSpec(dtype_name(dtype), sides, default=_empty(default, mask), presence=mask)


def raw(*, default: bytes | None = None, mask: str | None = None, record: bool = False) -> RawSpec:
    """Create a field of stored bytes. A batch contains a list of one `bytes` object per sample.

    A field that is named `record` contains the whole record, unless the dataset has a part with that name.

    Args:
        default: Value if the sample has no value, as in `tensor`.
        mask: As in `tensor`. The default is then `b""`.
        record: Deliver the whole record, such as the payload of a TFRecord, a file or an MDS sample; the field can have
            any name. Not available for tar, Parquet, Zarr and HDF5, because their samples consist of separate parts.
    Raises:
        ConfigError: The default is not `bytes`, or is combined with `record`.
    """
    if not isinstance(default, bytes | None):
        raise ConfigError(f"default: must be bytes (got {default!r})", where="fields")
    default = b"" if mask is not None and default is None else default
    return RawSpec(default=default, record=bool(record), presence=mask)


def text(*, errors: str = "strict", default: str | None = None, mask: str | None = None) -> TextSpec:
    """Create a field of UTF-8 text. A batch contains a list of one `str` per sample.

    The field reads strings of JSON lines, Parquet and Arrow, cells of CSV, members of a tar, and byte features of a
    tf.Example. Lists of numbers, nested lists and objects in JSON lines are read as JSON text. `list(text())` reads
    lists of strings.

    Args:
        errors: Treatment of bytes that are not UTF-8, as in `bytes.decode`: `strict` (the sample is `Corrupt`, which
            `on_error` handles), `replace` or `ignore`. A JSON line that is not UTF-8 is always `Corrupt`, and so is a
            JSON string with an unpaired surrogate. Lists and objects that are read as JSON text keep such a surrogate
            as an escape sequence.
        default: Value if the sample has no value, as in `tensor`.
        mask: As in `tensor`. The default is then `""`.
    Raises:
        ConfigError: `errors` has another value, or the default is not a `str` that UTF-8 can represent.
    """
    if errors not in ("strict", "replace", "ignore"):
        raise ConfigError(f"errors: `{errors}` is not one of strict, replace, ignore", where="fields")
    if default is not None and not (isinstance(default, str) and default.encode(errors="ignore").decode() == default):
        raise ConfigError(f"default: must be a str that can be encoded as UTF-8 (got {default!r})", where="fields")
    return TextSpec(errors, default="" if mask is not None and default is None else default, presence=mask)


def raw_list(*, default: tuple[()] | None = None, mask: str | None = None) -> RawListSpec:
    """Create a field of any number of byte strings per sample. A batch contains one list of `bytes` per sample.

    The field reads Parquet's lists of strings or binaries, the `bytes_list` of a tf.Example, and a feature list of a
    tf.SequenceExample whose steps contain one byte string each. `default` and `mask` are as in `ragged`.
    """
    return RawListSpec(default=_empty(default, mask), presence=mask)


def padded_length(
    to: SupportsIndex | str, multiple_of: SupportsIndex, mask: object, names: tuple[str, ...], where: str
) -> tuple[Any, int]:
    """Check the length and `multiple_of` of `padded`, and return both. Instead of a number, the length can be one of
    `names`.

    Raises:
        ConfigError: An argument is invalid.
    """
    length = to if isinstance(to, str) else as_int("to", to)
    multiple = as_int("multiple_of", multiple_of)
    if length not in names if isinstance(length, str) else not 1 <= length < 2**31:
        raise ConfigError(f"to: must be {', '.join(names)} or a length of at least 1 (got {to!r})", where=where)
    if not 1 <= multiple < 2**31 or (multiple > 1 and not isinstance(length, str)):
        raise ConfigError(
            f"multiple_of: must be at least 1, or exactly 1 if `to` is a number (got {multiple})", where=where
        )
    if mask is not None and (not isinstance(mask, str) or not mask):
        raise ConfigError(f"mask: must be the name of a column (got {mask!r})", where=where)
    return length, multiple


def with_masks(specs: dict[str, FieldSpec]) -> dict[str, FieldSpec]:
    """Return the fields, each followed by its mask and, for audio, by the fields that `mask=` and `rate=` name.

    Raises:
        ConfigError: A mask or a property has the name of another field.
    """
    made: dict[str, FieldSpec] = {}
    for name, spec in specs.items():
        made.setdefault(name, spec)
        parts = getattr(spec.unpadded, "parts", ()) or (name,)
        followers: dict[str, FieldSpec] = {} if spec.presence is None else {spec.presence: PresentSpec(parts)}
        if (audio := getattr(spec.unpadded, "audio", None)) is not None:
            followers |= audio.companions(name, parts)
        for follower, made_spec in followers.items():
            if specs.get(follower, made_spec) != made_spec or made.get(follower, made_spec) != made_spec:
                raise ConfigError(
                    f"fields: two fields have the name {follower}; one of them is the mask or rate of {name}",
                    where="fields",
                )
            made[follower] = made_spec
    return made


def to_json(specs: Iterable[tuple[str, FieldSpec]]) -> str:
    """Convert fields to JSON for the core."""
    return json.dumps([{"name": name, **spec.to_dict()} for name, spec in specs])


def from_json(text: str) -> tuple[tuple[str, FieldSpec], ...]:
    """Convert JSON of the core to fields."""

    def spec(spec_dict: dict[str, Any]) -> FieldSpec:
        parts = tuple(spec_dict["of"])
        empty = None if spec_dict.get("default") is None else ()
        match spec_dict["kind"]:
            case "tensor":
                dtype, default = spec_dict["dtype"], spec_dict.get("default")
                value = None if default is None else struct.unpack(f"<{_FORMATS[dtype]}", bytes.fromhex(default))[0]
                return TensorSpec(dtype, tuple(spec_dict["shape"]), parts, value)
            case "ragged":
                return RaggedSpec(spec_dict["dtype"], tuple(spec_dict["shape"]), parts, default=empty)
            case "bytes_list":
                return RawListSpec(parts, empty, spec_dict.get("errors"))
            case "nested":
                shape = tuple(spec_dict.get("shape", ()))
                errors = spec_dict.get("errors")
                return NestedSpec(spec_dict.get("dtype"), shape, spec_dict["depth"], parts, empty, errors)
            case "record":
                return RawSpec(record=True)
            case "present":
                return PresentSpec(parts)
            case "text":
                default = spec_dict.get("default")
                return TextSpec(
                    spec_dict["errors"], parts, None if default is None else bytes.fromhex(default).decode()
                )
            case _:
                default = spec_dict.get("default")
                return RawSpec(parts, None if default is None else bytes.fromhex(default))

    made = {spec_dict["name"]: spec(spec_dict) for spec_dict in json.loads(text)}
    masks = {spec.parts: name for name, spec in made.items() if isinstance(spec, PresentSpec)}
    for name, made_spec in made.items():
        mask = masks.get(getattr(made_spec, "parts", ()) or (name,))
        if mask is not None and not isinstance(made_spec, PresentSpec):
            made[name] = replace(made_spec, presence=mask)
    return tuple(made.items())
