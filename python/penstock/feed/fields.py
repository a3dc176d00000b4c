# SPDX-License-Identifier: Apache-2.0
"""Kinds of fields that a batch can contain, and how they are made from a record's parts. Plain data; reads nothing."""

from __future__ import annotations

import json
import operator
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex

from penstock.deprecation import renamed_parameters
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "FieldSpec",
    "ImageSpec",
    "PaddedSpec",
    "RaggedSpec",
    "RawListSpec",
    "RawSpec",
    "TensorSpec",
    "from_json",
    "image",
    "ragged",
    "raw",
    "raw_list",
    "tensor",
    "to_json",
]

MAX_PIXELS = 100_000_000
"""Default maximum number of pixels in an image. Slightly above Pillow's warning limit."""

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
    """Base class of all field kinds. `parts` are the names of the record parts that a field can be read from."""

    def of(self, names: str) -> Self:
        """Return the field, read from the first of these parts that a record has: `.of("jpg;jpeg;png")`.

        Without this call, a field is read from the part that has the field's name.
        """
        parts = tuple(name for name in names.split(";") if name)
        if not parts:
            raise ConfigError(f"of: must name at least one part (got {names!r})", where="fields")
        return replace(self, parts=parts)  # type: ignore[call-arg]

    def to_dict(self) -> dict[str, Any]:
        """Return the field in the form that the core reads."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TensorSpec(FieldSpec):
    """Field of fixed element type (NumPy's name) and shape, which are the same in every sample. C order."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[str, ...] = ()
    default: float | None = None

    def to_dict(self) -> dict[str, Any]:
        spec_dict = {"kind": "tensor", "dtype": self.dtype, "shape": list(self.shape), "of": list(self.parts)}
        return spec_dict if self.default is None else {**spec_dict, "default": _packed(self.dtype, self.default).hex()}

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}{_or(self.default)}"


@dataclass(frozen=True, slots=True)
class RaggedSpec(FieldSpec):
    """Field with any number of items per sample. Each item has this element type and shape."""

    dtype: str
    shape: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "ragged", "dtype": self.dtype, "shape": list(self.shape), "of": list(self.parts)}

    def padded(
        self,
        to: int | Literal["longest", "bucket"] = "longest",
        *,
        multiple_of: int = 1,
        value: float = 0,
        mask: str | None = None,
        truncate: bool = False,
    ) -> PaddedSpec:
        """Return the field as one array per batch, with rows padded to a common number of items:
        `ragged("int32").padded(multiple_of=8, mask="tokens_mask")`.

        The feed's threads pad, so no Python code runs per sample.

        Args:
            to: Number of items per row; or `longest`, the longest sample of the batch on this rank; or `bucket`, the
                largest length of the batch's bucket (`Loader(batch_by=)`), so that there are few shapes. In a bucket
                without an upper bound, `bucket` is `longest`.
            multiple_of: With `longest`, the number of items is rounded up to a multiple of this.
            value: Value of the padding.
            mask: Name of a second array in the batch (bool, rows x items): True for items of the sample, False for
                padding. Without a name, there is no mask.
            truncate: Cut samples that are longer than their row to its first items. Otherwise, such a sample is an
                error that names it (see `on_error`).
        Raises:
            ConfigError: A number is invalid, or the value is not of the field's type.
        """
        to = to if isinstance(to, str) else operator.index(to)
        multiple_of = operator.index(multiple_of)
        if to not in ("longest", "bucket") if isinstance(to, str) else not 1 <= to < 2**31:
            raise ConfigError(
                f"to: must be longest, bucket or a number of items of at least 1 (got {to!r})", where="fields"
            )
        if not 1 <= multiple_of < 2**31 or (multiple_of > 1 and not isinstance(to, str)):
            raise ConfigError(
                f"multiple_of: must be at least 1, and 1 for rows of a given length (got {multiple_of})", where="fields"
            )
        if mask is not None and (not isinstance(mask, str) or not mask):
            raise ConfigError(f"mask: must be the name of a column (got {mask!r})", where="fields")
        spec = PaddedSpec(self.dtype, self.shape, self.parts, to, multiple_of, value, mask, bool(truncate))
        spec.to_dict()
        return spec

    def __str__(self) -> str:
        return f"ragged {self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class PaddedSpec(FieldSpec):
    """Field of any number of items per sample, padded to one array per batch. Created by `RaggedSpec.padded`."""

    dtype: str
    shape: tuple[int, ...] = ()
    parts: tuple[str, ...] = ()
    to: int | str = "longest"
    multiple_of: int = 1
    value: float = 0
    mask: str | None = None
    truncate: bool = False

    def to_dict(self) -> dict[str, Any]:
        padding = {
            "to": {self.to: self.multiple_of} if isinstance(self.to, str) else {"length": self.to},
            "value": _packed(self.dtype, self.value, "value").hex(),
            "mask": self.mask,
            "truncates": self.truncate,
        }
        return {**self.ragged().to_dict(), "padding": padding}

    def ragged(self) -> RaggedSpec:
        """Return the field without padding."""
        return RaggedSpec(self.dtype, self.shape, self.parts)

    @property
    def width(self) -> int | None:
        """Number of items per row, if it is the same in every batch."""
        return self.to if isinstance(self.to, int) else None

    def __str__(self) -> str:
        multiple = f", a multiple of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"{self.ragged()} padded to {self.to}{multiple}"


@dataclass(frozen=True, slots=True)
class RawSpec(FieldSpec):
    """Field of stored bytes, unchanged."""

    parts: tuple[str, ...] = ()
    default: bytes | None = None

    def to_dict(self) -> dict[str, Any]:
        spec_dict: dict[str, Any] = {"kind": "bytes", "of": list(self.parts)}
        return spec_dict if self.default is None else {**spec_dict, "default": self.default.hex()}

    def __str__(self) -> str:
        return f"bytes{_or(self.default)}"


@dataclass(frozen=True, slots=True)
class RawListSpec(FieldSpec):
    """Field with any number of byte strings per sample, each unchanged."""

    parts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "bytes_list", "of": list(self.parts)}

    def __str__(self) -> str:
        return "list of bytes"


@dataclass(frozen=True, slots=True)
class ImageSpec(FieldSpec):
    """Image field: decoded, cropped, resized, flipped and normalised. Created by `penstock.image`."""

    height: int
    width: int
    crop: str = "center"
    resize: int = 0
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    dtype: str = "uint8"
    layout: str = "HWC"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    orient: bool = False
    max_pixels: int = MAX_PIXELS
    exact: bool = False
    parts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        names = (
            *("height", "width", "crop", "resize", "area", "ratio", "flip"),
            *("layout", "mean", "std", "orient", "max_pixels", "exact"),
        )
        spec_dict = {name: getattr(self, name) for name in names}
        return {"kind": "image", "dtype": self.dtype, "of": list(self.parts), "image": spec_dict}

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a decoded sample."""
        sides = (self.height, self.width)
        return (3, *sides) if self.layout == "CHW" else (*sides, 3)

    @property
    def is_random(self) -> bool:
        """True if the crop or the flip differs from epoch to epoch."""
        return self.crop == "random" or 0 < self.flip < 1

    def __str__(self) -> str:
        return f"image {self.dtype} {self.height}x{self.width} {self.layout}"


def _dtype(dtype: object) -> str:
    # `numpy.int16` is a class with that name, and `torch.int16` prints as its name. Neither library needs to be
    # imported here.
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


def _or(default: object) -> str:
    return "" if default is None else f", default {default!r}"


def _packed(dtype: str, value: float, name: str = "default") -> bytes:
    """Convert a value to the little-endian bytes of one element."""
    try:
        if dtype != "bool" or value in (0, 1):
            return struct.pack(f"<{_FORMATS[dtype]}", value)
    except (KeyError, struct.error, OverflowError, TypeError):
        pass
    raise ConfigError(f"{name}: {value!r} is not a value of type {dtype}", where="fields")


def tensor(dtype: object, shape: Sequence[SupportsIndex], *, default: float | None = None) -> TensorSpec:
    """Create a field of fixed type and shape: `tensor("int16", (128, 128, 128, 4))`. Also accepts NumPy and torch
    dtypes.

    Args:
        default: Value of every element if the sample has no value: a feature that is missing or empty in a tf.Example
            (as with `FixedLenFeature(default_value=)`), a member that is missing in a tar, or a null.
    Raises:
        ConfigError: A dimension is not an integer of at least 0, or the default is not a value of dtype. The loader,
            not this function, rejects an unknown dtype.
    """
    spec = TensorSpec(_dtype(dtype), _shape(shape), default=default)
    spec.to_dict()
    return spec


def ragged(dtype: object, shape: Sequence[SupportsIndex] = ()) -> RaggedSpec:
    """Create a field of any number of items per sample, each of this type and shape. Batches contain a `Ragged`.

    A sample without a value (a missing feature of a tf.Example, a missing member of a tar, a null) has no items.

    Raises:
        ConfigError: A dimension is not an integer of at least 1.
    """
    sides = _shape(shape)
    if 0 in sides:
        raise ConfigError(f"shape: no side may be 0 (got {shape!r})", where="shape")
    return RaggedSpec(_dtype(dtype), sides)


def raw(*, default: bytes | None = None) -> RawSpec:
    """Create a field of stored bytes: one `bytes` object per sample, and a list of these in batches.

    Args:
        default: Value if the sample has none, as in `tensor`.
    Raises:
        ConfigError: The default is not `bytes`.
    """
    if not isinstance(default, bytes | None):
        raise ConfigError(f"default: must be bytes (got {default!r})", where="fields")
    return RawSpec(default=default)


def raw_list() -> RawListSpec:
    """Create a field of any number of byte strings: a list of `bytes` per sample, and a list of such lists in batches.

    It reads Parquet's lists of strings or binaries, the `bytes_list` of a tf.Example, and a feature list of a
    tf.SequenceExample whose steps contain one byte string each.
    """
    return RawListSpec()


@renamed_parameters({"most_pixels": "max_pixels"})
def image(
    height: int,
    width: int | None = None,
    *,
    crop: str = "center",
    resize: int | None = None,
    area: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: bool | float = False,
    dtype: object = "uint8",
    layout: str = "HWC",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    orient: bool = False,
    max_pixels: int = MAX_PIXELS,
    exact: bool = False,
) -> ImageSpec:
    """Create a field of images (JPEG, PNG), which the feed's threads decode directly into the batch.

    Random crops and flips are a pure function of the seed, the epoch and the sample's position. They are the same on
    any number of ranks.

    Args:
        height, width: Size of the sample in pixels; `width` defaults to `height`.
        crop: `random` (RandomResizedCrop of `area` and `ratio`), `center` (Resize so that the shorter side is `resize`,
            by default 256/224 of the sample's larger side, then CenterCrop) or `none` (the whole image, resized).
        flip: Probability that a sample is mirrored left to right; True means 0.5.
        dtype: `uint8`, or `float32` with (value / 255 - mean) / std.
        layout: `HWC` or `CHW`.
        mean, std: One value for each of the three channels; for float32.
        orient: Rotate images according to their EXIF orientation (torchvision and Pillow do not, by default).
        max_pixels: Maximum number of pixels in an image; a larger image is `Corrupt`.
        exact: Decode JPEGs at full size, then resize: within 2 levels of Pillow and torchvision, at more CPU.
            Otherwise, a JPEG that is at least twice the sample's size is first decoded at 1/2, 1/4 or 1/8 scale, which
            differs more.
    Raises:
        ConfigError: A size is missing, or mean or std does not have three values. The loader rejects other invalid
            values.
    """
    height, width = operator.index(height), operator.index(height if width is None else width)
    if not (0 < height < 2**31 and 0 < width < 2**31):
        raise ConfigError(f"image: {height} x {width} is not a valid size", where="image")
    channels = {"mean": (0.0, 0.0, 0.0) if mean is None else mean, "std": (1.0, 1.0, 1.0) if std is None else std}
    found: dict[str, tuple[float, ...]] = {}
    for name, values in channels.items():
        found[name] = tuple(float(value) for value in values)
        if len(found[name]) != 3:
            raise ConfigError(
                f"image: {name} must have 3 values, one per channel (got {len(found[name])})", where="image"
            )
    shorter = -(-max(height, width) * 256 // 224) if resize is None else resize
    return ImageSpec(
        height=height,
        width=width,
        crop=crop,
        resize=shorter if crop == "center" else 0,
        area=(float(area[0]), float(area[1])),
        ratio=(float(ratio[0]), float(ratio[1])),
        flip=(0.5 if flip else 0.0) if isinstance(flip, bool) else float(flip),
        dtype=_dtype(dtype),
        layout=layout,
        mean=found["mean"],
        std=found["std"],
        orient=orient,
        max_pixels=max_pixels,
        exact=bool(exact),
    )


def to_json(specs: Iterable[tuple[str, FieldSpec]]) -> str:
    """Convert fields to JSON for the core."""
    return json.dumps([{"name": name, **spec.to_dict()} for name, spec in specs])


def from_json(text: str) -> tuple[tuple[str, FieldSpec], ...]:
    """Convert the core's JSON to fields."""

    def spec(spec_dict: dict[str, Any]) -> FieldSpec:
        parts = tuple(spec_dict["of"])
        match spec_dict["kind"]:
            case "tensor":
                return TensorSpec(spec_dict["dtype"], tuple(spec_dict["shape"]), parts)
            case "ragged":
                return RaggedSpec(spec_dict["dtype"], tuple(spec_dict["shape"]), parts)
            case "bytes_list":
                return RawListSpec(parts)
            case _:
                default = spec_dict.get("default")
                return RawSpec(parts, None if default is None else bytes.fromhex(default))

    return tuple((spec_dict["name"], spec(spec_dict)) for spec_dict in json.loads(text))
