# SPDX-License-Identifier: Apache-2.0
"""Test disk with the limits of a cloud disk: a loop device with a file system, throttled through cgroups.

The limits apply to all programs. Needs root. Creates the image, the loop device and the mount, simulates burst credits,
and removes everything at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec

from penstock.bench.block_limits import BlockLimits, set_limits
from penstock.bench.diskstats import read_counters
from penstock.errors import ConfigError, Denied, PreconditionFailed, SystemFault, Unsupported
from penstock.ownership import detach_loop, identity_of, remove_made, unmount_device

__all__ = ["Burst", "LoopDisk", "Rate"]

_TICK_S = 1.0


class Burst(msgspec.Struct, frozen=True):
    """Burst above the base rate while there are credits. `credits` is the maximum number of credits, `held` the initial
    number.
    """

    per_s: float
    credits: float
    held: float


class Rate(msgspec.Struct, frozen=True):
    """A limit that reads and writes share: the base rate in units per second, and an optional burst."""

    base_per_s: float
    burst: Burst | None = None


class _Bucket:
    """Burst credits of one limit. Credits are earned at the base rate and spent by the completed work."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self.held = rate.burst.held if rate.burst else 0.0

    def spend(self, done: float, seconds: float) -> None:
        if self._rate.burst:
            earned = self._rate.base_per_s * seconds
            self.held = min(self._rate.burst.credits, max(0.0, self.held + earned - done))

    @property
    def limit_per_s(self) -> float:
        burst = self._rate.burst
        # Allow the burst only if the credits cover one tick of the burst. Otherwise, the credits would be overdrawn
        # before the next check.
        if burst and self.held >= (burst.per_s - self._rate.base_per_s) * _TICK_S:
            return max(burst.per_s, self._rate.base_per_s)
        return self._rate.base_per_s


class LoopDisk:
    """Context manager that provides the disk. Its file system is mounted at `mount`.

    Args:
        mount: An empty folder.
        size_bytes: Size of the device; the image is sparse.
        ios, moved: Limits of I/Os and bytes per second; None means unlimited.
        io_bytes: Size of the largest I/O that counts as one I/O. A larger I/O counts once for each part of this size.
        images: Folder for the image file; a temporary folder by default.
    Raises:
        Denied: Not root.
        PreconditionFailed: The folder is not empty.
        SystemFault: losetup, mkfs or mount failed.
    """

    def __init__(
        self,
        mount: Path,
        *,
        size_bytes: int,
        ios: Rate | None,
        moved: Rate | None,
        io_bytes: int = 262_144,
        images: Path | None = None,
    ) -> None:
        if size_bytes < 16 << 20:
            raise ConfigError(f"size: {size_bytes:,} bytes is too small for a file system", where="--size")
        self._mount, self._size, self._io_bytes, self._images = mount, size_bytes, io_bytes, images
        self._buckets = [_Bucket(rate) if rate else None for rate in (ios, moved)]
        self._stack = ExitStack()
        self._stop = threading.Event()
        self.device = ""
        self.number = ""

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise Denied(
                "a disk with limits requires root, to create its loop device and its mount",
                hint="run the command as root",
            )
        if not self._mount.is_dir() or any(self._mount.iterdir()):
            raise PreconditionFailed(f"{self._mount} is not an empty folder", where=str(self._mount))
        for program in ("losetup", "mkfs.ext4", "mount", "umount"):
            if shutil.which(program) is None:
                raise Unsupported(f"a disk with limits requires {program}, which is not installed")
        try:
            self._make()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _make(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="penstock-disk-", dir=self._images))
        self._stack.callback(remove_made, folder, identity_of(folder))
        image = folder / "image"
        with image.open("wb") as out:
            out.truncate(self._size)
        self.device = _output("losetup", "--find", "--show", "--direct-io=on", str(image))
        self._stack.callback(detach_loop, self.device, str(image.resolve()))
        facts = Path(self.device).stat()
        self.number = f"{os.major(facts.st_rdev)}:{os.minor(facts.st_rdev)}"
        _output("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.device)
        queue = Path("/sys/block") / Path(self.device).name / "queue/max_sectors_kb"
        before = queue.read_text()
        queue.write_text(str(self._io_bytes // 1024))
        self._stack.callback(queue.write_text, before)
        _output("mount", self.device, str(self._mount))
        self._stack.callback(unmount_device, str(self._mount), self.number)
        # The limits are set only after mkfs and mount. This callback removes them at the end.
        self._stack.callback(set_limits, self.number, BlockLimits())
        self._apply(self._buckets)
        watch = threading.Thread(target=self._keep, name="penstock-disk", daemon=True)
        watch.start()
        self._stack.callback(watch.join)
        self._stack.callback(self._stop.set)

    def _apply(self, buckets: list[_Bucket | None]) -> None:
        ios, moved = (bucket.limit_per_s if bucket else None for bucket in buckets)
        set_limits(self.number, BlockLimits.shared(ios_per_s=ios, bytes_per_s=moved))

    def limit(self, *, ios: Rate | None, moved: Rate | None, io_bytes: int | None = None) -> None:
        """Replace both limits; None removes a limit.

        Args:
            io_bytes: New size of the largest I/O that counts as one; None keeps it.
        """
        if io_bytes is not None:
            queue = Path("/sys/block") / Path(self.device).name / "queue/max_sectors_kb"
            queue.write_text(str(io_bytes // 1024))
        self._buckets = [_Bucket(rate) if rate else None for rate in (ios, moved)]
        self._apply(self._buckets)

    def _keep(self) -> None:
        """Apply the limits to control groups that are created later, and update the burst credits."""
        name = Path(self.device).name
        before = read_counters()[name]
        while not self._stop.wait(_TICK_S):
            now = read_counters()[name]
            done = (now.ios - before.ios, now.bytes - before.bytes)
            buckets = self._buckets
            for bucket, count in zip(buckets, done, strict=True):
                if bucket:
                    bucket.spend(count, now.at_s - before.at_s)
            before = now
            self._apply(buckets)

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise SystemFault(f"{argv[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}", where=argv[-1])
    return done.stdout.strip()
