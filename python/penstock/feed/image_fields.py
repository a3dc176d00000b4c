# SPDX-License-Identifier: Apache-2.0
"""Fields of images, and of annotations (masks, boxes and keypoints) to which the crop, resize and flip of their image
are applied. Only describes the fields; does no I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from penstock.deprecation import renamed_parameters
from penstock.errors import ConfigError
from penstock.feed.fields import FieldSpec, RaggedSpec, TensorSpec, dtype_name, or_default, packed
from penstock.feed.number_arguments import as_float, as_floats, as_int, as_int_or_none, as_ints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BoxesSpec", "ImageSpec", "KeypointsSpec", "MaskSpec", "boxes", "follow", "image", "keypoints", "mask"]

MAX_PIXELS = 100_000_000
"""Default maximum number of pixels in an image, slightly above the limit at which Pillow warns."""

_WITH_VALUE = {
    *("brightness", "contrast", "saturation", "sharpness", "hue", "posterize", "solarize"),
    *("rotate", "shear_x", "shear_y", "translate_x", "translate_y"),
}
"""Operations of `augment` that need a value."""


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
    channels: int = 3
    orient: bool = False
    max_pixels: int = MAX_PIXELS
    exact: bool = False
    parts: tuple[str, ...] = ()
    steps: tuple[tuple[str, tuple[float, ...], float, int], ...] = ()
    default: float | None = None
    fill: int = 0

    def jitter(
        self,
        brightness: float | tuple[float, float] = 0,
        contrast: float | tuple[float, float] = 0,
        saturation: float | tuple[float, float] = 0,
        hue: float | tuple[float, float] = 0,
        *,
        p: float = 1.0,
    ) -> Self:
        """Return the field with random changes of colour, as by torchvision's `ColorJitter` with the same arguments.

        `p` is the probability that a sample is changed.
        """
        values: list[float] = []
        given = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
        for name, change in given.items():
            if isinstance(change, tuple):
                values += _pair(name, change)
            else:
                by = as_float(name, change)
                values += (-by, by) if name == "hue" else (max(0.0, 1 - by), 1 + by)
        return self._then("jitter", values, p, 0)

    def randaugment(self, num_ops: int = 2, magnitude: int = 9, *, num_magnitude_bins: int = 31, fill: int = 0) -> Self:
        """Return the field with random operations, as by torchvision's `RandAugment`.

        Geometric operations also change masks, boxes and keypoints. `fill` is the value of pixels outside of the image.
        """
        if as_int("num_ops", num_ops) < 0:
            raise ConfigError(f"image: num_ops must be at least 0 (got {num_ops})", where="image")
        values = (num_ops, as_int("magnitude", magnitude), as_int("num_magnitude_bins", num_magnitude_bins))
        return self._then("randaugment", values, 1.0, fill)

    def trivialaugment(self, *, num_magnitude_bins: int = 31, fill: int = 0) -> Self:
        """Return the field with one random operation per sample, as by torchvision's `TrivialAugmentWide`."""
        return self._then("trivialaugment", (as_int("num_magnitude_bins", num_magnitude_bins),), 1.0, fill)

    def augment(
        self, operation: str, value: float | tuple[float, float] | None = None, *, p: float = 1.0, fill: int = 0
    ) -> Self:
        """Return the field with one more operation: `augment("rotate", (-10, 10), p=0.5)`.

        Operations come after crop, resize and flip, in the order of the calls.

        Args:
            operation: Name of the operation. `value` has the meaning of the argument of torchvision's function. The
                operations are `brightness`, `contrast`, `saturation`, `sharpness` (factors), `hue` (-0.5 to 0.5),
                `posterize` (bits), `solarize` (threshold of 255), `autocontrast`, `equalize`, `invert`, `grayscale`,
                `rotate` (degrees, counter-clockwise), `shear_x`, `shear_y` (pixels per row or column), `translate_x`,
                `translate_y` (fractions of the side).
            value: The value of the operation, or the range from which it is drawn. `autocontrast`, `equalize`, `invert`
                and `grayscale` do not have a value.
            p: Probability that a sample gets the operation.
            fill: Value of pixels outside of the image.
        Raises:
            ConfigError: The operation needs a value, or a number is invalid.
        """
        if value is None:
            if operation in _WITH_VALUE:
                raise ConfigError(
                    f"image: {operation} needs a value",
                    where="image",
                    hint=f'give a value or a range: augment("{operation}", (low, high))',
                )
            value = 0
        return self._then(operation, value if isinstance(value, tuple) else (value, value), p, fill)

    def _then(self, operation: str, values: Sequence[float], p: float, fill: int) -> Self:
        fill = _fill(fill)
        values, p = [as_float(operation, value) for value in values], as_float("p", p)
        if not all(math.isfinite(value) for value in (*values, p)):
            raise ConfigError(f"image: {operation} must have finite values (got {tuple(values)}, p={p})", where="image")
        return replace(self, steps=(*self.steps, (operation, tuple(values), p, fill)))

    def to_dict(self) -> dict[str, Any]:
        names = (
            *("height", "width", "crop", "resize", "area", "ratio", "flip"),
            *("layout", "mean", "std", "channels", "orient", "max_pixels", "exact"),
        )
        spec_dict = {name: getattr(self, name) for name in names}
        steps = [{"op": op, "values": list(values), "p": p, "fill": fill} for op, values, p, fill in self.steps]
        spec_dict["augment"] = steps
        if self.crop == "pad":
            spec_dict["fill"] = self.fill
        made = {"kind": "image", "dtype": self.dtype, "of": list(self.parts), "image": spec_dict}
        return made if self.default is None else {**made, "default": packed(self.dtype, self.default).hex()}

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a decoded image in a batch."""
        sides = (self.height, self.width)
        return (self.channels, *sides) if self.layout == "CHW" else (*sides, self.channels)

    @property
    def is_random(self) -> bool:
        """True if the crop, the flip or the augmentation differs from epoch to epoch."""
        return self.crop == "random" or 0 < self.flip < 1 or bool(self.steps)

    def __str__(self) -> str:
        colours = {1: ", grey", 4: ", RGBA"}.get(self.channels, "")
        return f"image {self.dtype} {self.height}x{self.width} {self.layout}{colours}{or_default(self.default, self.presence)}"


def _fill(value: int) -> int:
    value = as_int("fill", value)
    if not 0 <= value <= 255:
        raise ConfigError(f"image: fill must be 0 to 255 (got {value})", where="image")
    return value


def _pair(name: str, values: Sequence[float]) -> tuple[float, float]:
    """Convert the two ends of a range to floats.

    Raises:
        ConfigError: The range does not consist of two numbers.
    """
    numbers = as_floats(name, values)
    if len(numbers) != 2:
        raise ConfigError(f"{name}: must be two numbers, minimum and maximum (got {values!r})", where=name)
    return numbers[0], numbers[1]


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
    channels: int = 3,
    orient: bool = False,
    max_pixels: int = MAX_PIXELS,
    exact: bool = False,
    fill: int = 0,
    default: float | None = None,
    mask: str | None = None,
) -> ImageSpec:
    """Create a field of images (JPEG, PNG, WebP, TIFF), which the feed's threads decode directly into the batch.

    Random crops and flips are a pure function of the seed, the epoch and the sample's position. They do not depend on
    the number of ranks.

    Args:
        height, width: Size of the sample in pixels; `width` defaults to `height`.
        crop: `random` crops as torchvision's RandomResizedCrop does with `area` and `ratio`. `center` resizes the
            shorter side to `resize` (by default 256/224 of the sample's larger side), then crops the centre. `pad`
            resizes the whole image to fit into the sample without changing the aspect ratio, centres it, and fills the
            rest with the value `fill`. `none` resizes the whole image to the sample's size, without keeping the aspect
            ratio.
        flip: Probability that a sample is mirrored left to right; True means 0.5.
        dtype: `uint8`, `uint16`, or `float32` with (value / 255 - mean) / std. For `uint8` and `float32`, the upper 8
            bits of 16-bit images are used; for `uint16`, 8-bit values are multiplied by 257.
        layout: `HWC` or `CHW`.
        mean, std: Only for float32. One value for each colour channel (one for grey, otherwise three).
        channels: 3, 1 or 4. 3 is RGB without alpha. 1 is grey: the luma of a JPEG, otherwise ITU-R 601-2 as in Pillow.
            4 is RGBA, with opaque alpha if an image has no alpha; float32 alpha is value / 255.
        orient: Rotate images according to their EXIF orientation (torchvision does not do this by default, and Pillow
            does it only for TIFF).
        max_pixels: Maximum number of pixels in an image; a larger image is `Corrupt`.
        exact: If True, JPEGs are decoded at full size and then resized. Values then differ by at most 2 levels from the
            values of Pillow and torchvision. If False, a JPEG of at least twice the sample's size is decoded at 1/2,
            1/4 or 1/8 scale, which takes less CPU time but causes larger differences.
        fill: For `crop="pad"`: value of all colour channels of the pixels beside the image, 0 to 255. The alpha of
            these pixels is opaque.
        default, mask: As in `penstock.tensor`: the value of every element of a missing image, and the name of a boolean
            field. If a sample lacks the image, it must also lack all masks, boxes and keypoints that follow the image.
    Raises:
        ConfigError: A size is missing, the crop is unknown, or mean or std does not have one value per colour
            channel. The loader rejects other invalid values.
    """
    height = as_int("height", height)
    width = height if width is None else as_int("width", width)
    if not (0 < height < 2**31 and 0 < width < 2**31):
        raise ConfigError(f"image: {height} x {width} is not a valid size", where="image")
    if crop not in ("random", "center", "pad", "none"):
        raise ConfigError(f"image: crop {crop!r} is not one of random, center, pad, none", where="image")
    if fill and crop != "pad":
        raise ConfigError(f'fill: needs crop="pad" (got crop="{crop}")', where="fill")
    colours = 1 if channels == 1 else 3
    found: dict[str, tuple[float, ...]] = {}
    for name, given, usual in (("mean", mean, 0.0), ("std", std, 1.0)):
        values = (usual,) * colours if given is None else as_floats(name, given)
        if len(values) != colours:
            raise ConfigError(
                f"image: {name} must have {colours} values, one per channel (got {len(values)})", where="image"
            )
        found[name] = values * (3 // colours)
    shorter = -(-max(height, width) * 256 // 224) if resize is None else as_int("resize", resize)
    return ImageSpec(
        height=height,
        width=width,
        crop=crop,
        resize=shorter if crop == "center" else 0,
        area=_pair("area", area),
        ratio=_pair("ratio", ratio),
        flip=(0.5 if flip else 0.0) if isinstance(flip, bool) else as_float("flip", flip),
        dtype=dtype_name(dtype),
        layout=layout,
        mean=found["mean"],
        std=found["std"],
        channels=as_int("channels", channels),
        orient=orient,
        max_pixels=as_int("max_pixels", max_pixels),
        exact=bool(exact),
        fill=_fill(fill),
        default=0 if mask is not None and default is None else default,
        presence=mask,
    )


@dataclass(frozen=True, slots=True)
class MaskSpec(TensorSpec):
    """Mask field: the labels of an image's pixels. Created by `penstock.mask`; `Dataset.fields` sets the shape."""

    follows: str = ""
    fill: int = 0
    max_pixels: int = MAX_PIXELS

    def like(self, name: str) -> Self:
        """Return the mask, to which the crop, resize and flip of the image field `name` are applied."""
        return replace(self, follows=name)

    def to_dict(self) -> dict[str, Any]:
        annotation = {"kind": "mask", "fill": self.fill, "max_pixels": self.max_pixels}
        return {**TensorSpec.to_dict(self), "follows": self.follows, "annotation": annotation}

    def __str__(self) -> str:
        return f"mask {TensorSpec.__str__(self)} like {self.follows}"


@dataclass(frozen=True, slots=True)
class BoxesSpec(RaggedSpec):
    """Boxes field: an array float32 [n, 4] per sample. Created by `penstock.boxes`."""

    format: str = "xyxy"
    normalized: bool = False
    min_area: float = 1.0
    min_visibility: float = 0.0
    removes: bool = True
    is_split: bool = False

    def of(self, names: str) -> Self:
        """Return the boxes, to be read from the first of these parts that a record has. If the four numbers of a box
        are in separate parts, give four names separated by commas: `.of("xmin,ymin,xmax,ymax")`.
        """
        columns = tuple(names.split(",")) if isinstance(names, str) else ()
        if len(columns) == 4 and ";" not in names and all(columns):
            return replace(self, parts=columns, is_split=True)
        return replace(super(BoxesSpec, self).of(names), is_split=False)

    def like(self, name: str) -> Self:
        """Return the boxes, to which the crop, resize and flip of the image field `name` are applied."""
        return replace(self, follows=name)

    def annotation(self) -> dict[str, Any]:
        names = ("format", "normalized", "min_area", "min_visibility", "removes", "is_split")
        return {
            "follows": self.follows,
            "annotation": {"kind": "boxes", **{name: getattr(self, name) for name in names}},
        }

    def __str__(self) -> str:
        return f"boxes {self.format} like {self.follows}"


@dataclass(frozen=True, slots=True)
class KeypointsSpec(RaggedSpec):
    """Keypoints field: any number of items per sample, as float32. Created by `penstock.keypoints`."""

    count: int = 1
    has_visibility: bool = False
    normalized: bool = False
    flip_order: tuple[int, ...] = ()

    def like(self, name: str) -> Self:
        """Return the keypoints, to which the crop, resize and flip of the image field `name` are applied. If `name` is
        a boxes field, each item belongs to a box and is removed together with the box.
        """
        return replace(self, follows=name)

    def annotation(self) -> dict[str, Any]:
        names = ("count", "has_visibility", "normalized")
        annotation = {"kind": "keypoints", **{name: getattr(self, name) for name in names}}
        return {"follows": self.follows, "annotation": {**annotation, "flip_order": list(self.flip_order)}}

    def __str__(self) -> str:
        return f"keypoints {list(self.shape)} like {self.follows}"


def mask(
    *,
    dtype: object = "uint8",
    fill: int = 0,
    max_pixels: int = MAX_PIXELS,
    default: int | None = None,
    mask: str | None = None,
) -> MaskSpec:
    """Create a field of masks, to which the crop, resize and flip of an image are applied:
    `mask().of("png").like("image")`.

    A batch contains the labels as [batch, height, width]. A label is a palette index, a stored grey value of 1 to 16
    bits (not scaled), or an integer of an array (`.npy`). Each pixel gets the label that is nearest to its centre, as
    with Pillow's NEAREST and torchvision's NEAREST_EXACT. A mask whose size differs from its image is `Mismatch`.

    Args:
        dtype: Integer type of the labels. A label that is out of range of this type is `Mismatch`.
        fill: Label of pixels that are outside of the image; for example, the index that the loss ignores.
        max_pixels: As for `image`.
        default, mask: As in `penstock.tensor`: the label of every pixel if a sample lacks the mask, and the name of a
            boolean field.
    Raises:
        ConfigError: An argument is not an integer, or the default is not a label of `dtype`.
    """
    default = 0 if mask is not None and default is None else as_int_or_none("default", default)
    pixels = as_int("max_pixels", max_pixels)
    spec = MaskSpec(dtype_name(dtype), (), default=default, fill=as_int("fill", fill), max_pixels=pixels, presence=mask)
    spec.to_dict()
    return spec


def boxes(
    *,
    format: Literal["xyxy", "xywh", "cxcywh"] = "xyxy",  # noqa: A002 - torchvision's name
    normalized: bool = False,
    min_area: float = 1.0,
    min_visibility: float = 0.0,
    remove: bool = True,
) -> BoxesSpec:
    """Create a field of boxes, to which the crop, resize and flip of an image are applied:
    `boxes(format="xywh").like("image")`.

    A batch contains a `Ragged` of float32 [n, 4]. Format and unit are those of the stored boxes, but coordinates are
    relative to the sample. Boxes are clipped to the sample. A field with one item per box follows the boxes:
    `ragged("int64").like("boxes")`.

    Args:
        format: Meaning of the four numbers: `xyxy` (left, top, right, bottom), `xywh` (left, top, width, height; COCO)
            or `cxcywh` (centre, width, height; YOLO).
        normalized: True if coordinates are fractions of the width and the height; False for pixels.
        min_area: Minimum area inside the sample, in pixels of the sample.
        min_visibility: Minimum fraction of the box's area that is inside the sample.
        remove: If True, boxes without area or below a minimum are removed. If False, all boxes remain, so that shapes
            do not change; a box outside of the sample then has the area 0.
    Raises:
        ConfigError: An argument is not valid. `Mismatch` while reading: a box is not finite or has a negative width.
    """
    if format not in {"xyxy", "xywh", "cxcywh"}:
        raise ConfigError(f"boxes: format {format!r} is not one of xyxy, xywh, cxcywh", where="boxes")
    area, visibility = as_float("min_area", min_area), as_float("min_visibility", min_visibility)
    if not (0 <= area < float("inf") and 0 <= visibility <= 1):
        raise ConfigError(f"boxes: min_area {area} or min_visibility {visibility} is out of range", where="boxes")
    return BoxesSpec(
        "float32",
        (4,),
        format=format,
        normalized=bool(normalized),
        min_area=area,
        min_visibility=visibility,
        removes=bool(remove),
    )


def keypoints(
    count: int | None = None,
    *,
    visibility: bool = False,
    normalized: bool = False,
    flip_order: Sequence[int] = (),
) -> KeypointsSpec:
    """Create a field of keypoints, to which the crop, resize and flip of an image are applied:
    `keypoints(17, visibility=True)`.

    A batch contains a `Ragged` of float32. The shape of an item is [2] (x, y) or, with `count`, [count, 2]. Coordinates
    are continuous (the centre of the first pixel is at 0.5), and are not clipped.

    Args:
        count: Number of keypoints per item; for example, 17 for a person in COCO.
        visibility: If True, each keypoint has a third number, the visibility (0 not labelled, 1 hidden, 2 visible). The
            three numbers of a keypoint outside of the sample become 0.
        normalized: True if coordinates are fractions of the width and the height; False for pixels.
        flip_order: Order of an item's keypoints after a flip, which exchanges left and right keypoints. By default, the
            order does not change.
    Raises:
        ConfigError: `flip_order` is not a permutation of the keypoints.
    """
    each = 1 if count is None else as_int("count", count)
    order = as_ints("flip_order", flip_order)
    if each < 1 or (order and sorted(order) != list(range(each))):
        raise ConfigError(
            f"keypoints: flip_order must contain each number from 0 to {each - 1} exactly once (got {list(order)})",
            where="keypoints",
        )
    dims = 3 if visibility else 2
    shape = (dims,) if count is None else (each, dims)
    has = bool(visibility)
    return KeypointsSpec(
        "float32", shape, count=each, has_visibility=has, normalized=bool(normalized), flip_order=order
    )


def follow(specs: Mapping[str, FieldSpec]) -> tuple[tuple[str, FieldSpec], ...]:
    """Check which field each annotation follows, and return the fields with the shapes of masks set.

    Raises:
        ConfigError: An annotation follows no field, or a field of the wrong kind.
    """
    found: list[tuple[str, FieldSpec]] = []
    for name, spec in specs.items():
        bare = spec.unpadded
        followed = getattr(bare, "follows", "")
        leader = specs[followed].unpadded if followed in specs else None
        kinds: tuple[type[FieldSpec], ...] = (ImageSpec,)
        if isinstance(bare, KeypointsSpec):
            kinds = (ImageSpec, BoxesSpec)
        elif isinstance(bare, RaggedSpec) and not isinstance(bare, BoxesSpec):
            kinds = (BoxesSpec,)
        needs = isinstance(bare, MaskSpec | BoxesSpec | KeypointsSpec) or bool(followed)
        if needs and not isinstance(leader, kinds):
            wanted = " or ".join({ImageSpec: "an image", BoxesSpec: "boxes"}[kind] for kind in kinds)
            have = f"follows {followed!r}" if followed else "follows no field"
            raise ConfigError(
                f"fields: {name} {have}, but must follow {wanted}", where="fields", hint='write .like("image")'
            )
        if isinstance(spec, MaskSpec) and isinstance(leader, ImageSpec):
            spec = replace(spec, shape=(leader.height, leader.width))
        found.append((name, spec))
    return tuple(found)
