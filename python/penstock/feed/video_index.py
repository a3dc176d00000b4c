# SPDX-License-Identifier: Apache-2.0
"""Index of videos: the content of their headers, the byte ranges of the headers, and the positions of the keyframes.

The index is computed once for each set of videos and stored beside the record indexes. With the index, a clip needs one
round trip of ranged reads: the header, and the frames from the keyframe before the clip to the end of the clip. The
index can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import _native, env
from penstock.atomic_file import atomic_file
from penstock.errors import Corrupt
from penstock.feed import scan_lock
from penstock.feed.ranged_file import RangedFile
from penstock.feed.record_index_dir import record_index_dir
from penstock.feed.video_clips import Facts, check_whole, facts_of, is_mpeg, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Video", "VideoIndex", "read_index"]

_LOG = logging.getLogger("penstock.feed")

_THREADS = 16
"""Number of headers that are read concurrently. The time of such a read is mostly latency."""

_MAX_SPAN = 16 << 20
"""Maximum number of bytes of a clip that are read before its decoding starts."""

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Video:
    """A video: its object, the properties in its header, the byte ranges of the header, and the keyframes (seconds,
    offset).
    """

    key: str
    size: int
    version: str | None
    facts: Facts
    header: tuple[tuple[int, int], ...] = ()
    keyframes: tuple[tuple[float, int], ...] = ()

    def span(self, first_s: float, last_s: float) -> list[tuple[int, int]]:
        """Return the byte range from the keyframe before `first_s` to the keyframe after `last_s`. The range is empty
        if the video has no keyframes.
        """
        if not self.keyframes:
            return []
        # Keyframes are listed with their decoding times, which are at most a few frames earlier than the times at which
        # they are shown.
        times = [time for time, _ in self.keyframes]
        start = max(bisect_right(times, first_s) - 1, 0)
        after = bisect_right(times, last_s + 4 / self.facts.rate)
        offset = self.keyframes[start][1]
        # In Matroska, all keyframes of a cluster have the offset of the cluster.
        end = next((each for _, each in self.keyframes[after:] if each > offset), self.size)
        return [(offset, min(end, offset + _MAX_SPAN))]


@dataclass(frozen=True, slots=True)
class VideoIndex:
    """The videos of a dataset, and a digest of their keys and sizes. A copy of the folder has the same digest."""

    url: str
    videos: tuple[Video, ...]
    digest: str

    def file(self, number: int, files: _native.Files) -> RangedFile:
        """Return a file object for a video."""
        video = self.videos[number]
        return RangedFile(files, video.key.encode(errors="surrogateescape"), video.size, video.version)


def read_index(
    url: str, objects: Sequence[dict[str, Any]], problem: Callable[[str, Video], str | None], *, skips: bool
) -> VideoIndex:
    """Return the index of the videos in `objects`. One process of each node computes the index, and the other processes
    read it.

    Args:
        url: URL of the folder of the objects.
        objects: Entries of the videos in a manifest.
        problem: Function of the URL and the entry of a video. It returns the text of an error if the video cannot be
            used.
        skips: Leave out videos that cannot be read. If False, such a video raises its error.
    """
    videos = [
        Video(each["key"], each["size"], each.get("version"), Facts(0, 0))
        for each in sorted(objects, key=lambda each: each["key"])
    ]
    digest = hashlib.blake2b(json.dumps([_VERSION, [astuple(video) for video in videos]]).encode(), digest_size=16)
    folder, name = record_index_dir(dict(env.read())), f"{digest.hexdigest()}.videos"
    path = None if folder is None else Path(folder) / name
    with scan_lock.held(folder, name, url, "reading the headers of all videos") as is_shared:
        found = None if path is None else _kept(path, len(videos))
        if found is None:
            _LOG.warning("%s: the headers of %s videos are read once", url, f"{len(videos):,}")
            files = _native.Files(url, dict(env.read()))
            with ThreadPoolExecutor(_THREADS) as pool:
                found = list(pool.map(lambda video: _examined(files, url, video), videos))
            if path is not None and is_shared:
                _keep(path, found)
    found = [each if isinstance(each, str) else problem(f"{url}{each.key}", each) or each for each in found]
    bad = [each for each in found if isinstance(each, str)]
    if bad and not skips:
        raise Corrupt(bad[0], where=url)
    if bad:
        _LOG.warning("%s: %d of %d videos cannot be read and are left out: %s", url, len(bad), len(found), bad[0])
    kept = tuple(each for each in found if isinstance(each, Video))
    identity = json.dumps([(each.key, each.size) for each in kept])
    return VideoIndex(url, kept, hashlib.blake2b(identity.encode(), digest_size=16).hexdigest())


def _examined(files: _native.Files, url: str, video: Video) -> Video | str:
    """Read the header of a video. If the file is damaged, return the text of the error."""
    name = f"{url}{video.key}"
    if video.size == 0:
        return f"{name} is empty (0 bytes), but should be a video"
    # The check reads through a separate `RangedFile`, because all ranges that are read through `file` count as header.
    whole, file = (
        RangedFile(files, video.key.encode(errors="surrogateescape"), video.size, video.version) for _ in range(2)
    )
    try:
        check_whole(whole, name)
        with opened(file, name) as (container, stream):
            header = tuple(file.ranges())
            facts = facts_of(container, stream, name)
            container.seek(0, stream=stream)  # Matroska's index is read at the first seek
            # For an MPEG stream, FFmpeg lists only the keyframes in the part that it has read so far.
            entries = [entry for entry in stream.index_entries if entry.is_keyframe and not is_mpeg(container)]
            keyframes = [(float(entry.timestamp * stream.time_base) - facts.origin_s, entry.pos) for entry in entries]
    except Corrupt as error:
        return str(error)
    return replace(video, facts=facts, header=header, keyframes=tuple(keyframes))


def _kept(path: Path, count: int) -> list[Video | str] | None:
    """Return a stored index; None if it is missing or damaged."""
    try:
        stored = json.loads(zlib.decompress(path.read_bytes()))
        found = [
            each
            if isinstance(each, str)
            else Video(
                *(each[0], each[1], each[2], Facts(*each[3])),
                *(tuple(tuple(pair) for pair in pairs) for pairs in each[4:6]),
            )
            for each in stored
        ]
    except (OSError, ValueError, TypeError, IndexError, zlib.error):
        return None
    return found if len(found) == count else None


def _keep(path: Path, videos: Sequence[Video | str]) -> None:
    text = json.dumps([each if isinstance(each, str) else astuple(each) for each in videos])
    try:
        with atomic_file(path, durable=False) as out:
            out.write(zlib.compress(text.encode(), 1))
    except OSError as error:
        _LOG.warning("%s: the index cannot be stored: %s", path, error.strerror)
