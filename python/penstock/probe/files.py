# SPDX-License-Identifier: Apache-2.0
"""Probes a disk or a mounted file system: reads one large file (or block device), bypassing the page cache.

By default, the probe only reads. If the settings allow writes, it also writes, measures and removes a scratch file.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench import storage
from penstock.bench.page_cache import file_system_of
from penstock.bench.phases import Hooks
from penstock.bench.storage.spec import Point, StorageBench
from penstock.errors import ConfigError, NotFound, PenstockError, Unsupported
from penstock.ownership import identity_of, remove_made
from penstock.probe.card import Burst, FoundLimit
from penstock.probe.estimates import knee, latency_fit, sustained
from penstock.probe.run import MAX_CLIENT_CPU, MIN_GAIN, Probe
from penstock.units import format_bytes

if TYPE_CHECKING:
    from penstock.bench.rows import Row
    from penstock.probe.estimates import Rate
    from penstock.probe.spending import Kind

__all__ = ["DiskProbe"]

_MIN_FILE_BYTES = 16 << 20
_SCRATCH_BYTES = 256 << 20
_SMALL_BYTES = 4096
_LARGE_BYTES = 1 << 20
_LATENCY_PER_S = 100.0
_THREADS = (4, 16, 64)
_MAX_FILES_SEEN = 100_000


class DiskProbe(Probe):
    """Runs the parts on a path; see `Probe`. A folder is probed by its largest file."""

    kind = "disk"
    _scratch: Path | None = None
    _identity: tuple[int, int] | None = None

    def prepare(self) -> None:
        """Choose the file to read, and find out whether the page cache can be bypassed.

        Raises:
            NotFound: The path does not exist, or contains no file that is large enough.
        """
        path = Path(self.url)
        if not path.exists():
            raise NotFound(f"{path} does not exist", where=str(path))
        self.file = self._chosen(path)
        size = _size(self.file)
        self.facts["objects"] = {"file_bytes": size, "file_system": file_system_of(self.file)}
        self.direct = _takes_direct(self.file)
        if not self.direct:
            self.unseen.append(f"the disk itself: {file_system_of(self.file) or 'the file system'} refuses O_DIRECT")
        if size < 1 << 30:
            self.unseen.append(
                f"the effect of a larger working set: the file has {format_bytes(size)}, and a cache of the disk may hold it"
            )

    def _chosen(self, path: Path) -> Path:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISBLK(mode):
            size = _size(path) if stat.S_ISBLK(mode) else _allocated(path)
            if size < _MIN_FILE_BYTES:
                raise NotFound(
                    f"{path} occupies {size:,} bytes on the disk, but a probe needs at least {_MIN_FILE_BYTES:,}",
                    where=str(path),
                    hint="give a larger file, or its folder and --write",
                )
            return path
        if not stat.S_ISDIR(mode):
            raise ConfigError(f"{path} is neither a folder, a file nor a block device", where=str(path))
        if self.settings.writes:
            return self._written(path)
        best, most = None, 0
        for number, found in enumerate(path.rglob("*")):
            if number >= _MAX_FILES_SEEN:
                break
            if found.is_file() and not found.is_symlink() and (size := _allocated(found)) > most:
                best, most = found, size
        if best is None or most < _MIN_FILE_BYTES:
            raise NotFound(
                f"{path} contains no file of at least {_MIN_FILE_BYTES:,} bytes (the largest has {most:,})",
                where=str(path),
                hint="pass --write to measure with a scratch file that is removed at the end",
            )
        return best

    def _written(self, path: Path) -> Path:
        """Create the scratch file in a separate folder, which `run` removes."""
        folder = tempfile.mkdtemp(prefix=".penstock-probe-", dir=path)
        self._scratch, self._identity = Path(folder) / "scratch", identity_of(folder)
        with self._scratch.open("xb") as out:
            os.posix_fallocate(out.fileno(), 0, _SCRATCH_BYTES)
            block = os.urandom(1 << 20)
            for _ in range(_SCRATCH_BYTES >> 20):
                out.write(block)
                self.hooks.on_progress("scratch", 1, (0, out.tell(), 0))
            out.flush()
            os.fsync(out.fileno())
        self.meter.count("write", 1, _SCRATCH_BYTES)
        return self._scratch

    def run(self) -> None:
        """See `Probe.run`. Removes the scratch file at the end, also after an error."""
        try:
            super().run()
        finally:
            if self._scratch is not None and self._identity is not None:
                remove_made(self._scratch.parent, self._identity)

    def parts(self) -> dict[str, Any]:
        parts = {"latency": self.read_latency, "bandwidth": self.read_bandwidth, "requests": self.read_requests}
        if self._scratch is not None:
            parts["writes"] = self.writes
        elif self.settings.writes:
            self.unseen.append("writes: a file or device that is not the probe's own is never written; give its folder")
        return parts

    def read_latency(self) -> None:
        # Measure at a low rate, because a disk delays reads above its limit.
        row = self._phase("latency", 1, _SMALL_BYTES, 0.12, rate_per_s=_LATENCY_PER_S)
        if fit := latency_fit(row.service_latency or row.io_latency):
            self.latency["read"] = fit
        else:
            self.missing["latency"] = "fewer than 20 reads were done"

    def read_bandwidth(self) -> None:
        self._sweep("bandwidth", "read-bytes", "bytes", _LARGE_BYTES, hold=0.2)

    def read_requests(self) -> None:
        self._sweep("requests", "read-requests", "ios", _SMALL_BYTES, hold=0.15)

    def writes(self) -> None:
        row = self._phase("writes", 1, _SMALL_BYTES, 0.03, phase="write")
        if fit := latency_fit(row.io_latency):
            self.latency["write"] = fit
        few = self._phase("writes", 4, _LARGE_BYTES, 0.03, phase="write")
        row = self._phase("writes", 16, _LARGE_BYTES, 0.1, phase="write")
        if found := sustained(row, "bytes"):
            is_flat = (row.last.bytes_per_s or 0.0) < MIN_GAIN * (few.last.bytes_per_s or 0.0)
            self._add("write-bytes", found, row, is_reached=is_flat)
        else:
            self.missing["writes"] = "the phase was too short for a rate"

    def _sweep(self, part: str, what: str, unit: Any, block: int, *, hold: float) -> None:
        """Raise the number of threads until the rate stops rising. Then keep this number, to see whether the rate
        lasts.
        """
        points: list[tuple[int, float]] = []
        rows: list[Row] = []
        is_flat = False
        for threads in (1, *_THREADS):
            row = self._phase(part, threads, block, 0.04)
            rows.append(row)
            rate = (row.last.bytes_per_s if unit == "bytes" else row.last.ios_per_s) or 0.0
            is_flat = bool(points) and rate < MIN_GAIN * points[-1][1]
            points.append((threads, rate))
            if is_flat:
                break
        if (at := knee(points)) is not None:
            self.knee["bytes" if unit == "bytes" else "requests"] = at
        # Use the largest number of threads that reaches about the best rate, so that a delay of one thread does not
        # lower the rate.
        threads = max(count for count, rate in points if rate >= 0.9 * max(rate for _, rate in points))
        held = self._phase(part, threads, block, hold)
        found = sustained(held, unit)
        if found is not None and not found.burst:
            # Other programs on this machine can only lower a rate, so the highest rate is nearest to the disk's limit.
            flat = [row for row, (_, rate) in zip(rows, points, strict=True) if rate >= 0.9 * max(r for _, r in points)]
            rates = [one for row in flat if (one := sustained(row, unit)) is not None and not one.burst]
            found = max([found, *rates], key=lambda one: one.per_s * (1 - one.error))
        if found is None:
            self.missing[part] = "too few reads were done"
            return
        self._add(what, found, held, is_reached=is_flat)
        if found.burst > 0:
            self.bursts.append(Burst(what=what, units=found.burst, error=found.burst_error))
        else:
            self.unseen.append(f"burst credits of {what}: the rate did not fall within {held.last.time_s:.0f} s")

    def _phase(
        self,
        part: str,
        threads: int,
        block: int,
        seconds: float,
        *,
        phase: str = "read",
        rate_per_s: float | None = None,
    ) -> Row:
        meter = self.meter
        limit_s = meter.seconds(seconds * meter.time_s)
        # The core has no limit on bytes, so the probe's limit is converted to a number of reads per thread.
        reads = meter.allow("read", 10**9, block)
        bench = StorageBench(
            phases=(phase,),
            pattern="random",
            direct=self.direct,
            drop_caches=not self.direct,
            fsync=True,
            time_limit_s=limit_s,
            io_limit=max(1, reads // threads),
            arrivals="constant" if rate_per_s else "closed",
            rate_per_s=rate_per_s,
            repeat_io=True,
            seed=self.settings.seed,
            overwrite_device=phase == "write",
        )
        point = Point(threads=threads, file_size_bytes=0, block_size_bytes=block)
        kind: Kind = "read" if phase == "read" else "write"
        done = (0, 0, 0)

        def on_progress(name: str, workers: int, seen: tuple[int, int, int]) -> None:
            nonlocal done
            done = seen
            _files, reads, moved = seen
            self.hooks.on_progress(name, workers, (reads, moved, 0))

        try:
            row = storage.run(self.file, bench, (point,), Hooks(on_progress=on_progress))[0]
        except KeyboardInterrupt:
            meter.count(kind, done[1], done[2])
            raise
        except PenstockError as error:
            if isinstance(error, ConfigError | Unsupported) and self.direct:
                raise Unsupported(f"{self.file} cannot be read past the page cache: {error}") from error
            raise
        moved = int(row.last.bytes or 0)
        meter.count(kind, int(row.last.ios or 0), moved)
        self.cache = f"{row.cache.state}: {row.cache.how}"
        if row.cache.state in ("warm", "unknown"):
            self.unseen.append(
                f"cold reads: caches {row.cache.state} ({row.cache.how}), so these may be rates of memory"
            )
        row = msgspec.structs.replace(row, label=part)
        self.add_row(row)
        return row

    def _add(self, what: str, found: Rate, row: Row, *, is_reached: bool) -> None:
        cpu = row.own_cpu or 0.0
        is_limit = is_reached and cpu <= MAX_CLIENT_CPU
        if cpu > MAX_CLIENT_CPU:
            note = f"this machine's processors were the limit ({cpu:.0%} busy with the probe)"
        else:
            note = "more threads gave no more" if is_reached else "not reached: more threads still gave more"
        self.limits.append(
            FoundLimit(
                what=what, scope="account", value=found.per_s, uncertainty=found.error, is_limit=is_limit, note=note
            )
        )
        if not is_limit:
            self.unseen.append(f"the limit of {what}: {note}")


def _size(path: Path) -> int:
    with path.open("rb") as opened:
        return opened.seek(0, os.SEEK_END)


def _allocated(path: Path) -> int:
    """Bytes of a file that are stored on the disk. The holes of a sparse file are read without the disk."""
    found = path.stat()
    return min(found.st_size, found.st_blocks * 512)


def _takes_direct(path: Path) -> bool:
    """Whether the file system reads the file past the page cache. tmpfs and some FUSE file systems cannot do this."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return file_system_of(path) not in ("tmpfs", "ramfs")
