# SPDX-License-Identifier: Apache-2.0
"""Audio fields: recordings and clips, decoded in the feed's threads.

This module only describes the fields; it does no I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from penstock.errors import ConfigError
from penstock.feed.fields import RaggedSpec, TensorSpec, dtype_name
from penstock.feed.number_arguments import as_float, as_int, as_int_or_none

if TYPE_CHECKING:
    from penstock.feed.fields import FieldSpec

__all__ = ["AudioDecoding", "audio"]


@dataclass(frozen=True, slots=True)
class AudioDecoding:
    """Settings with which the bytes of an audio field are decoded. `mask` and `rate` are names of other fields."""

    sample_rate: int | None
    channels: int
    samples: int | None
    start: float | None
    max_seconds: float
    mask: str | None = None
    rate: str | None = None
    measures: bool = False
    """Whether the field contains the number of samples of each file instead of the samples. Only headers are then
    read.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the settings in the form that the core reads."""
        names = ("sample_rate", "channels", "samples", "start", "max_seconds", "measures")
        return {name: getattr(self, name) for name in names}

    def companions(self, name: str, parts: tuple[str, ...]) -> dict[str, FieldSpec]:
        """Return the mask and rate fields of the audio field `name`, which is read from `parts`."""
        found: dict[str, FieldSpec] = {}
        if self.mask is not None:
            found[self.mask] = _FactSpec("bool", (self.samples or 0,), parts, of_field=name, fact="mask")
        if self.rate is not None:
            found[self.rate] = _FactSpec("int32", (), parts, of_field=name, fact="rate")
        return found


@dataclass(frozen=True, slots=True)
class _FactSpec(TensorSpec):
    """Field with a property of a recording: a mask of the clip's samples that the recording has, or the sample rate."""

    of_field: str = ""
    fact: str = ""

    def to_dict(self) -> dict[str, Any]:
        annotation = {"kind": "audio", "fact": self.fact}
        # Do not use `super()`: it refers to the original class, which `slots=True` replaces.
        return {**TensorSpec.to_dict(self), "follows": self.of_field, "annotation": annotation}

    def __str__(self) -> str:
        return f"{self.fact} of {self.of_field}"


@dataclass(frozen=True, slots=True)
class _ClipSpec(TensorSpec):
    """Field of clips of fixed length."""

    def padded(self, *_: object, **__: object) -> NoReturn:
        """Not supported, because all clips have the same length already."""
        raise ConfigError(
            "padded: clips of fixed length are padded already",
            where="audio",
            hint="leave out .padded(), or leave out seconds=; penstock.audio(mask=...) marks the samples of the "
            "recording",
        )


@overload
def audio(
    sample_rate: int,
    *,
    seconds: float,
    start: float | Literal["random"] = ...,
    channels: int = ...,
    dtype: object = ...,
    mask: str | None = ...,
    rate: str | None = ...,
    default: float | None = ...,
) -> TensorSpec: ...


@overload
def audio(
    sample_rate: int | None = ...,
    *,
    channels: int = ...,
    dtype: object = ...,
    rate: str | None = ...,
    max_seconds: float = ...,
    default: tuple[()] | None = ...,
) -> RaggedSpec: ...


def audio(
    sample_rate: int | None = None,
    *,
    seconds: float | None = None,
    start: float | Literal["random"] = 0.0,
    channels: int = 1,
    dtype: object = "float32",
    mask: str | None = None,
    rate: str | None = None,
    max_seconds: float = 3600.0,
    default: float | tuple[()] | None = None,
) -> TensorSpec | RaggedSpec:
    """Create a field of audio (WAV, FLAC, MP3, Ogg Vorbis), which the feed's threads decode: `audio(16_000)`.

    Without `seconds`, a batch contains a `Ragged` of whole recordings, which `.padded(...)` converts to an array. The
    shape of a recording is [time] for one channel, otherwise [time, channels]. With `seconds`, a batch contains an
    array of clips. The shape of the array is [batch, samples] for one channel, otherwise [batch, channels, samples].
    Only the part of a file that the clip needs is decoded.

    Args:
        sample_rate: Sample rate in Hz. Recordings are resampled to this rate as by `torchaudio.functional.resample`.
            None keeps the rate of each file.
        seconds: Length of a clip. Shorter recordings are padded with zeros at the end.
        start: Start of the clip in seconds, or `random`. A random clip is inside the recording, and its start is a pure
            function of seed, epoch and position.
        channels: 1 gives the mean of all channels. A larger number must be the number of channels of the files; the
            channel of a mono file is repeated.
        dtype: `float32` (-1 to 1), or `int16`, which is exact for 16-bit files that are neither mixed nor resampled.
        mask: Only with `seconds`. Name of a second field in the batch: bool [samples], True for samples of the
            recording, False for padding.
        rate: Name of a second field in the batch: the sample rate of the file in Hz, as int32.
        max_seconds: Maximum length of a whole recording; a longer recording is `Corrupt`.
        default: Value for samples without audio: the value of every element of a clip, or `()` for whole recordings.
    Raises:
        ConfigError: An argument is not valid, or `seconds` is given without `sample_rate`. While reading, damaged files
            are `Corrupt`, and files whose channels or length do not match are `Mismatch` (see `on_error`).
    """
    rate_hz = as_int_or_none("sample_rate", sample_rate)
    if rate_hz is not None and not 1 <= rate_hz <= 768_000:
        raise ConfigError(f"sample_rate: {rate_hz} is not between 1 and 768,000 Hz", where="audio")
    count = as_int("channels", channels)
    if not 1 <= count <= 255:
        raise ConfigError(f"channels: {count} is not between 1 and 255", where="audio")
    if dtype_name(dtype) not in ("float32", "int16"):
        raise ConfigError(f"dtype: {dtype_name(dtype)} is neither float32 nor int16", where="audio")
    inner = () if count == 1 else (count,)
    if seconds is None:
        if mask is not None or start != 0:
            raise ConfigError(
                "audio: mask and start are supported only for clips of fixed length",
                where="audio",
                hint="give seconds=, or pad whole recordings with .padded(mask=...)",
            )
        if default is not None and default != ():
            raise ConfigError(f"default: must be `()`, which means an empty recording (got {default!r})", where="audio")
        if not 0 < as_float("max_seconds", max_seconds) <= 1e9:
            raise ConfigError(f"max_seconds: {max_seconds} is not above 0 s", where="audio")
        recording = AudioDecoding(rate_hz, count, None, None, float(max_seconds), rate=rate)
        return RaggedSpec(dtype_name(dtype), inner, default=default, audio=recording)
    if rate_hz is None:
        raise ConfigError("audio: clips of fixed length need a sample_rate, such as 16_000", where="audio")
    samples = round(seconds * rate_hz) if math.isfinite(as_float("seconds", seconds)) else 0
    if not 0 < samples < 2**31:
        raise ConfigError(
            f"seconds: a clip must have 1 to 2^31 - 1 samples (got {seconds} s at {rate_hz} Hz)", where="audio"
        )
    if start != "random" and not (isinstance(start, (int, float)) and 0 <= start < 1e9):
        raise ConfigError(f'start: must be a time in seconds or "random" (got {start!r})', where="audio")
    if mask is not None and mask == rate:
        raise ConfigError(
            f"audio: mask and rate have the same name, {mask}", where="audio", hint="give them different names"
        )
    if isinstance(default, tuple):
        raise ConfigError(
            f"default: must be one number, the value of every sample of the clip (got {default!r})", where="audio"
        )
    begin = None if isinstance(start, str) else float(start)
    clip = AudioDecoding(rate_hz, count, samples, begin, float(max_seconds), mask, rate)
    spec = _ClipSpec(dtype_name(dtype), (*inner, samples), default=default, audio=clip)
    spec.to_dict()
    return spec
