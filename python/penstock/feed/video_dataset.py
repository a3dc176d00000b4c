# SPDX-License-Identifier: Apache-2.0
"""`penstock.video.open`: a dataset of clips. Each sample is a row of a table of clips, which a function decodes."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock import _native, env
from penstock.atomic_file import atomic_file
from penstock.errors import ConfigError, NotFound
from penstock.feed import fields, formats, open_dataset
from penstock.feed.map_step import MapStep
from penstock.feed.record_index_dir import record_index_dir
from penstock.feed.video_clips import ClipSpec, decoded, opened
from penstock.feed.video_index import Video, VideoIndex, read_index
from penstock.ownership import identity_of, remove_made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.feed.dataset import Dataset

__all__ = ["open"]

_LOG = logging.getLogger("penstock.feed")

_MAX_TILES = 2**24
"""Maximum number of clips that a file is cut into."""

_SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts")


def open(  # noqa: A001 - the verb is the API
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    frames: int,
    *,
    size: int | tuple[int, int],
    stride: int = 1,
    fps: float | None = None,
    start: float | Literal["random", "tile"] = "random",
    crop: Literal["center", "none"] = "center",
    mask: str | None = None,
    threads: int = 4,
    on_error: Literal["raise", "skip"] = "raise",
) -> Dataset:
    """Open a dataset of clips of video files (MP4, M4V, MOV, MKV, WebM, AVI, MPEG, TS), which PyAV decodes in threads.

    A sample has the parts `video` (uint8 [frames, height, width, 3], RGB), `time` (float64, the time of the first frame
    in seconds) and `key` (the name of the file). If every file is in a class folder, a sample also has the part `label`
    (int64). The headers of all files are read once and stored in the cache of record indexes. After that, only the byte
    ranges of each clip are read.

    Args:
        url: As in `penstock.open`. Files with other suffixes are ignored.
        frames: Number of frames in a clip.
        size: Side of the square frames in pixels, or (height, width).
        stride: Distance between consecutive frames of a clip, in frames of the file.
        fps: Frames per second of the clip, as an alternative to `stride`. Each frame of the clip is the frame that a
            player shows at the same time.
        start: Start of the clip in seconds, `random` or `tile`. `random` gives one clip of each file, whose start is a
            pure function of seed, epoch and position. `tile` cuts each file into consecutive clips, and leaves out an
            incomplete last clip. A file that is shorter than a clip gives one clip, which repeats the last frame.
        crop: `center` (scale to cover the size, then cut the middle) or `none` (scale to the size).
        mask: Name of a second field in the batch: bool [frames], False for frames after the end of the video. These
            frames repeat the last frame of the video.
        threads: Number of decoding threads per rank.
        on_error: `skip` leaves out files whose headers cannot be read. If decoding finds damage, the loader's
            `on_error` applies.
    Raises:
        NotFound: No video was found.
        Corrupt: The header of a file cannot be read, or a file has no frames or more than 16,777,216 tiles.
        ConfigError: An argument is not valid.
    """
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error: {on_error!r} is neither raise nor skip", where="video")
    is_tiled = start == "tile"
    spec = ClipSpec.of(frames, size, stride, fps, 0.0 if is_tiled else start, crop)
    source = open_dataset.open(url, format="files").source
    objects = json.loads(source.manifest())["objects"]
    videos = [each for each in objects if each["key"].lower().endswith(_SUFFIXES)]
    if not videos:
        raise NotFound(
            f"{source.url} has no video files among {len(objects):,} objects ({', '.join(_SUFFIXES)})", where=source.url
        )
    if len(videos) < len(objects):
        _LOG.warning("%s: %d objects are ignored, because they are not videos", source.url, len(objects) - len(videos))

    def problem(name: str, video: Video) -> str | None:
        count = _tiles(video, spec) if is_tiled else 1
        if count <= _MAX_TILES:
            return None
        return (
            f"{name} has {video.facts.duration_s:,.3f} s of video, which are {count:,} clips (at most {_MAX_TILES:,})"
        )

    index = read_index(source.url, videos, problem, skips=on_error == "skip")
    if not index.videos:
        raise NotFound(f"{source.url}: none of {len(videos):,} videos can be read", where=source.url)
    table = _table(index, spec, is_tiled=is_tiled)
    columns: dict[str, Any] = {"video": fields.tensor("int64", ()), "start": fields.tensor("float64", ())}
    dataset = open_dataset.open(_kept(index, table), format=formats.fixed(**columns))
    step = MapStep.of(_ClipReader(index, spec, mask), 0, threads=threads, decodes=True, is_source=True)
    return replace(dataset.fields(**columns), map_steps=(step,))


def _table(index: VideoIndex, spec: ClipSpec, *, is_tiled: bool) -> bytes:
    """Return the clips as rows of (number of the video, start in seconds or NaN)."""
    counts = [_tiles(video, spec) if is_tiled else 1 for video in index.videos]
    rows = np.empty(sum(counts), "<i8, <f8")
    rows["f0"] = np.repeat(np.arange(len(counts)), counts)
    if is_tiled:
        steps = [spec.step_s(video.facts) * spec.frames for video in index.videos]
        rows["f1"] = np.concatenate([np.arange(count) * step for count, step in zip(counts, steps, strict=True)])
    else:
        rows["f1"] = np.nan if spec.start is None else spec.start
    return rows.tobytes()


def _tiles(video: Video, spec: ClipSpec) -> int:
    """Return the number of complete clips of a video, but at least 1."""
    # Durations are rounded, so a part of the last frame can be missing.
    seconds = video.facts.duration_s + 0.5 / video.facts.rate
    return max(1, int(seconds / (spec.step_s(video.facts) * spec.frames)))


@functools.cache
def _temporary_folder() -> Path:
    """Return a folder for tables that are not cached. Only this process removes the folder at exit, not its forked
    children.
    """
    place, owner = tempfile.mkdtemp(prefix="penstock-clips-"), os.getpid()
    identity = identity_of(place)
    atexit.register(lambda: os.getpid() == owner and remove_made(place, identity))
    return Path(place)


def _kept(index: VideoIndex, table: bytes) -> str:
    """Write a table under a name that depends only on the videos and its content, and return its path."""
    folder = record_index_dir(dict(env.read()))
    place = _temporary_folder() if folder is None else Path(folder)
    path = place / f"{index.digest[:16]}-{_native.crc32c(table):08x}.clips"
    if not path.exists():
        with atomic_file(path, durable=False) as out:
            out.write(table)
    return str(path)


class _ClipReader:
    """Reads and decodes the clip of a row of the table."""

    def __init__(self, index: VideoIndex, spec: ClipSpec, mask: str | None) -> None:
        self._index, self._spec, self._mask = index, spec, mask
        folders = [video.key.partition("/") for video in index.videos]
        numbers = {name: at for at, name in enumerate(sorted({folder for folder, _, _ in folders}))}
        is_labelled = all(slash for _, slash, _ in folders)
        self._labels = [numbers[folder] for folder, _, _ in folders] if is_labelled else None
        self._files: _native.Files | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None}

    def __call__(self, sample: dict[str, Any], seed: int) -> dict[str, Any]:
        if self._files is None:
            self._files = _native.Files(self._index.url, dict(env.read()))
        number, start = int(sample["video"]), float(sample["start"])
        video, spec = self._index.videos[number], self._spec
        name = f"{self._index.url}{video.key}"
        if not np.isnan(start):
            spec = ClipSpec(spec.frames, spec.height, spec.width, spec.stride, spec.fps, start, spec.crop)
        times = spec.times(video.facts, seed, name)
        file = self._index.file(number, self._files)
        file.prefetch([*video.header, *video.span(times[0], times[-1])])
        with opened(file, name) as (container, stream):
            frames, count = decoded(container, stream, video.facts, spec, times, name)
        made = {"video": frames, "time": np.float64(times[0]), "key": video.key}
        if self._labels is not None:
            made["label"] = np.int64(self._labels[number])
        if self._mask is not None:
            made[self._mask] = np.arange(spec.frames) < count
        return made
