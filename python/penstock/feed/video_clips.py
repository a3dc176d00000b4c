# SPDX-License-Identifier: Apache-2.0
"""Clips of videos: finds the times of their frames, and decodes them with PyAV. Does not depend on datasets.

The frame at a time t is the frame that a player shows at t: the last frame that begins at or before t.
"""

from __future__ import annotations

import io
import random
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import av
import numpy as np

from penstock.errors import ConfigError, Corrupt, Mismatch
from penstock.feed.number_arguments import as_float, as_int

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ClipSpec", "Decoder", "Facts", "check_whole", "decoded", "facts_of", "is_mpeg", "opened"]

MAX_PIXELS = 100_000_000
"""Maximum number of pixels in a frame; the same limit as for images."""

_MAX_SCALED = 2**24
"""Maximum number of pixels of a scaled frame before the crop. A crop of at least a quarter of the scaled frame is
always allowed.
"""

_MAX_BOXES = 10_000
"""Maximum number of boxes of an MP4 that are checked. Fragmented files have two or more boxes per fragment."""

_BOXES = frozenset(
    b"ftyp styp moov mdat moof mfra free skip wide uuid udta meta sidx ssix emsg prft pdin pnot junk".split()
)
"""Types of MP4 boxes. Data after the last box of one of these types counts as padding, and its length field is
ignored.
"""

_OPTIONS = {"probesize": "32768", "analyzeduration": "1000"}
"""Limits on the data that FFmpeg reads to detect stream properties (5 MB by default). Small limits are sufficient,
because the headers contain the properties.
"""

_BUFFER = 8 << 10
"""Number of bytes that FFmpeg requests at a time. When FFmpeg opens a fragmented MP4, it requests this number of bytes
at each box.
"""

_SLACK_S = 1e-3
"""Tolerance for times, because containers round times (for example, Matroska to milliseconds). A frame that begins at
most this much later than a time counts as the frame at this time.
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """Frames per second, duration, and the time of the first frame that is shown. All other times are relative to this
    time.
    """

    rate: float
    duration_s: float
    origin_s: float = 0.0

    @property
    def frames(self) -> int:
        """Number of frames at the average rate."""
        return max(1, round(self.duration_s * self.rate))


@dataclass(frozen=True, slots=True)
class ClipSpec:
    """Number, size and distance of a clip's frames, and the start of the clip (None means random)."""

    frames: int
    height: int
    width: int
    stride: int
    fps: float | None
    start: float | None
    crop: str

    @classmethod
    def of(
        cls,
        frames: int,
        size: int | tuple[int, int],
        stride: int,
        fps: float | None,
        start: float | str,
        crop: str,
    ) -> ClipSpec:
        """Check the settings.

        Raises:
            ConfigError: A setting is not valid.
        """
        sides: tuple[Any, ...] = (size, size)
        if not isinstance(size, (int, str)) and hasattr(size, "__len__"):
            sides = tuple(size)
        if len(sides) != 2:
            raise ConfigError(f"size: must be one number, or (height, width) (got {size!r})", where="video")
        height, width = sides
        frames, stride = as_int("frames", frames), as_int("stride", stride)
        height, width = as_int("size", height), as_int("size", width)
        if not (1 <= frames <= 2**16 and 1 <= stride <= 2**16):
            raise ConfigError(f"video: {frames} frames with stride {stride} are out of range", where="video")
        if not (0 < height < 2**15 and 0 < width < 2**15):
            raise ConfigError(f"size: {height} x {width} is not a valid size", where="video")
        if fps is not None and (stride != 1 or not 0 < as_float("fps", fps) <= 1000):
            raise ConfigError(
                f"fps: must be above 0 and at most 1000, and cannot be combined with stride (got fps {fps} and stride "
                f"{stride})",
                where="video",
            )
        if crop not in ("center", "none"):
            raise ConfigError(f"crop: {crop!r} is neither center nor none", where="video")
        if start != "random" and not (isinstance(start, (int, float)) and 0 <= start < 1e9):
            raise ConfigError(f'start: must be a time in seconds or "random" (got {start!r})', where="video")
        begin = None if isinstance(start, str) else float(start)
        return cls(frames, height, width, stride, None if fps is None else float(fps), begin, crop)

    def step_s(self, facts: Facts) -> float:
        """Seconds from one frame to the next."""
        return self.stride / facts.rate if self.fps is None else 1 / self.fps

    def times(self, facts: Facts, seed: int, name: str) -> list[float]:
        """Return the times of the frames, in seconds.

        Raises:
            Mismatch: The clip begins after the end of the video.
        """
        step = self.step_s(facts)
        if self.start is not None:
            if self.start >= facts.duration_s:
                raise Mismatch(f"{name} has {facts.duration_s:.3f} s of video, but its clip starts at {self.start:g} s")
            first = self.start
        elif self.fps is None:
            # Begin at the start of a frame, so that rounding does not change the chosen frame.
            first = random.Random(seed).randrange(max(1, facts.frames - (self.frames - 1) * self.stride)) / facts.rate
        else:
            # The last frame must begin one frame before the end.
            room = facts.duration_s - 1 / facts.rate - (self.frames - 1) * step
            first = random.Random(seed).random() * max(0.0, room)
        middle = 0.5 / facts.rate if self.fps is None and self.start is None else 0.0
        return [first + middle + number * step for number in range(self.frames)]


def check_whole(file: Any, name: str) -> None:
    """Check that the boxes (MP4) or the segment (Matroska) of a video end inside the file, because FFmpeg reads a
    truncated file without an error.

    Raises:
        Corrupt: The file is truncated.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(64)
    end = 0
    if head[4:8] == b"ftyp":
        for _ in range(_MAX_BOXES):
            file.seek(end)
            box = file.read(16)
            length = int.from_bytes(box[:4], "big")
            length = int.from_bytes(box[8:], "big") if length == 1 else (size - end if length == 0 else length)
            if length < 8 or len(box) < 8 or (end + length > size and box[4:8] not in _BOXES):
                break
            end += length
    elif head[:4] == b"RIFF":
        length = int.from_bytes(head[4:8], "little")
        end = 8 + length if length != 2**32 - 1 else 0  # 2^32 - 1 means that the size is unknown
    elif head[:4] == b"\x1aE\xdf\xa3":
        at = 4
        for _ in range(2):  # lengths of the EBML header and, after a 4-byte identifier, of the segment
            file.seek(at)
            number = file.read(8).ljust(8, b"\0")
            width = 9 - number[0].bit_length()
            length = int.from_bytes(number[:width], "big") & ((1 << 7 * width) - 1)
            at += width + length + 4
        is_known = length != (1 << 7 * width) - 1
        end = at - 4 if is_known else 0
    file.seek(0)
    if end > size:
        raise Corrupt(f"{name} is a truncated video (want {end:,} bytes, have {size:,})")


@contextmanager
def opened(file: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Open a video. Yields the container and its first video stream, which is decoded in this thread.

    Raises:
        Corrupt: The file is not a video, or is damaged. FFmpeg's errors inside the `with` block are also raised as
            Corrupt.
    """
    try:
        with av.open(file, "r", options=_OPTIONS, metadata_errors="replace", buffer_size=_BUFFER) as container:
            if not container.streams.video:
                raise Corrupt(f"{name} has no video stream")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise Corrupt(f"{name} has a video stream of a codec that PyAV cannot decode")
            stream.codec_context.thread_count = 1
            pixels = stream.codec_context.width * stream.codec_context.height
            if not 0 < pixels <= MAX_PIXELS:
                raise Corrupt(f"{name} has frames of {pixels:,} pixels (at most {MAX_PIXELS:,} are supported)")
            yield container, stream
    except av.error.FFmpegError as error:
        raise Corrupt(f"{name} is a damaged video: {error.strerror or error}") from None


def is_mpeg(container: Any) -> bool:
    """Return whether this is an MPEG transport or program stream. Such streams have no index, so a seek does not always
    find a keyframe.
    """
    return str(container.format.name).startswith("mpeg")


def facts_of(container: Any, stream: Any, name: str) -> Facts:
    """Return the properties of a video, from its header and its first frame. If the header lacks the duration of the
    stream, the last packets are read. If the container has no duration either, all packets are read.

    Raises:
        Corrupt: The video has no frames.
    """
    rate = float(stream.average_rate or stream.guessed_rate or 0)
    first = next(container.decode(stream), None)
    if first is None or not 0 < rate < 1e6:
        raise Corrupt(f"{name} has no frames ({stream.frames} at {rate:g} frames/s)")
    origin = _time(first, name)
    if stream.duration and "mp4" in container.format.name:
        return Facts(rate, float(stream.duration * stream.time_base), origin)
    # Other containers state only the duration of their longest stream, so read the last packets.
    container.seek((container.start_time or 0) + (container.duration or 0))
    times = [_time(packet, name) for packet in container.demux(stream) if packet.size]
    return Facts(rate, max([origin, *times]) - origin + 1 / rate, origin)


def decoded(
    container: Any, stream: Any, facts: Facts, spec: ClipSpec, times: Sequence[float], name: str
) -> tuple[Any, int]:
    """Return the frames at the given times (ascending) as uint8 [frames, height, width, 3]. Also return the number of
    times before the end of the video; after the end, the last frame is repeated.

    Raises:
        Corrupt: The video is damaged, or ends before the first time.
    """
    out = np.empty((spec.frames, spec.height, spec.width, 3), np.uint8)
    at, before, shown, end = 0, None, None, 0.0
    for frame in _from(container, stream, facts.origin_s, times[0], name):
        begin = _time(frame, name) - facts.origin_s
        while at < len(times) and begin > times[at] + _SLACK_S:
            current = frame if before is None else before
            _put(out, at, current, shown, spec, name)
            at, shown = at + 1, current
        if at == len(times):
            return out, at
        if frame.is_corrupt:
            raise Corrupt(f"{name} is a damaged video: its frame at {begin:.3f} s is damaged")
        before, end = frame, begin + 1 / facts.rate
    if before is None:
        raise Corrupt(f"{name} is a damaged video: it has no frame at {times[0]:.3f} s")
    while at < len(times):
        _put(out, at, before, shown, spec, name)
        at, shown = at + 1, before
    return out, sum(time < end for time in times)


def _time(frame: Any, name: str) -> float:
    """Return the time of a frame or packet in seconds."""
    pts = frame.dts if frame.pts is None else frame.pts
    if pts is None:
        raise Corrupt(f"{name} has frames without times")
    return float(pts * frame.time_base)


def _from(container: Any, stream: Any, origin: float, time: float, name: str) -> Iterator[Any]:
    """Yield all frames, beginning with the last frame at or before a time. A few earlier frames can precede this
    frame.
    """
    back, lowest = 0.0, min(0.0, -origin) if is_mpeg(container) else 0.0
    while True:
        target = max(lowest, time - back)
        container.seek(int((origin + target) / stream.time_base), stream=stream)
        frames = container.decode(stream)
        first = next(frames, None)
        # A seek finds keyframes by decoding time, which can be earlier than the time at which the frame is shown. In an
        # MPEG stream, a seek finds any position, and decoding begins at the next keyframe, if one exists.
        is_late = is_mpeg(container) if first is None else _time(first, name) - origin > time + _SLACK_S
        if not is_late or target == lowest:
            break
        back = max(0.5, back * 2)
    if first is not None:
        yield first
        yield from frames


def _put(out: Any, at: int, frame: Any, shown: Any, spec: ClipSpec, name: str) -> None:
    """Write a frame at a position. `shown` is the frame at the previous position, which can be the same frame.

    Raises:
        Corrupt: The frame is so narrow that it would have too many pixels after scaling to cover the requested size.
    """
    if frame is shown:
        out[at] = out[at - 1]
        return
    height, width = spec.height, spec.width
    if spec.crop == "center":
        scale = max(height / frame.height, width / frame.width)
        height, width = max(height, round(frame.height * scale)), max(width, round(frame.width * scale))
        if height * width > max(_MAX_SCALED, 4 * spec.height * spec.width):
            raise Corrupt(
                f"{name} has a frame of {frame.height:,} x {frame.width:,} pixels, which would have {height:,} x "
                f"{width:,} pixels after scaling to cover {spec.height:,} x {spec.width:,}; leave out the file, or set "
                "crop='none'"
            )
    pixels = frame.to_ndarray(format="rgb24", width=width, height=height, interpolation="BICUBIC")
    top, left = (height - spec.height) // 2, (width - spec.width) // 2
    out[at] = pixels[top : top + spec.height, left : left + spec.width]


class Decoder:
    """Decodes a clip from the video in one part of each sample: `dataset.decode(Decoder(16, size=112), threads=4)`.

    For datasets whose records contain whole videos, such as tar archives. The part must be a `penstock.raw()` field. A
    uint8 array [frames, height, width, 3] replaces this field.
    """

    def __init__(
        self,
        frames: int,
        *,
        size: int | tuple[int, int],
        stride: int = 1,
        fps: float | None = None,
        start: float | Literal["random"] = "random",
        crop: Literal["center", "none"] = "center",
        field: str = "video",
        mask: str | None = None,
    ) -> None:
        """Arguments are as in `penstock.video.open`; `field` is the name of the part.

        Raises:
            ConfigError: An argument is not valid.
        """
        self.spec = ClipSpec.of(frames, size, stride, fps, start, crop)
        self.field, self.mask = field, mask

    def __call__(self, sample: Any, seed: int) -> dict[str, Any]:
        """Return the sample with its clip, which depends on the bytes and the seed."""
        made: dict[str, Any] = dict(sample) if isinstance(sample, dict) else {self.field: sample}
        if not isinstance(data := made.get(self.field), (bytes, bytearray, memoryview)):
            raise Mismatch(f"{self.field}: is {type(data).__name__}, but must be the bytes of a video")
        name = f"field `{self.field}` ({len(data):,} bytes)"
        file = io.BytesIO(data)
        check_whole(file, name)
        with opened(file, name) as (container, stream):
            facts = facts_of(container, stream, name)
            frames, count = decoded(container, stream, facts, self.spec, self.spec.times(facts, seed, name), name)
        made[self.field] = frames
        if self.mask is not None:
            made[self.mask] = np.arange(self.spec.frames) < count
        return made
