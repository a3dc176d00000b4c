# SPDX-License-Identifier: Apache-2.0
"""Measures how fast this machine's CPUs decompress and decode a dataset's own objects, read from memory."""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from penstock import _native, env
from penstock.cluster import inventory
from penstock.errors import NotFound, PenstockError, Unsupported
from penstock.local_paths import is_local
from penstock.probe.card import CpuRates

if TYPE_CHECKING:
    from penstock.probe.run import Probe

__all__ = ["measure"]

_MAX_OBJECTS = 16
_MAX_BYTES = 48_000_000
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder in memory; the files get a private folder below it
# Share of the probe's time for passes over the objects.
_SHARE = 0.08
_MIN_S = 2.0  # with less time left in the probe, no more objects are copied


def measure(probe: Probe) -> None:
    """Copy a few objects into memory, read them with the loader, and set `probe.cpu`.

    Sets `probe.missing["cpu"]` if the objects have no format that the loader reads without fields.

    Raises:
        Spent: Less than 2 s of the probe's time are left.
    """
    probe.meter.seconds(_MIN_S, at_least_s=_MIN_S)
    memory = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="penstock-probe-", dir=memory) as name:
        folder = Path(name)
        try:
            count, stored = _copy(probe, folder)
            if not count:
                probe.missing["cpu"] = f"no object has at most {_MAX_BYTES:,} bytes"
                return
            probe.cpu = _passes(probe, folder, count, stored)
        except Unsupported as error:
            text = re.sub(
                rf"(file://)?{re.escape(name)}/\d+-", "", str(error)
            )  # the copies have the names of the objects
            probe.unseen.append(f"inflating and decoding: {text}")
        except PenstockError as error:
            probe.missing["cpu"] = f"the loader cannot read the objects: {error}"
        except OSError as error:
            probe.missing["cpu"] = f"the objects cannot be copied to {folder.parent}: {error.strerror or error}"


def _copy(probe: Probe, folder: Path) -> tuple[int, int]:
    """Copy objects up to the limits; return their number and bytes. Names keep the suffix, which shows the format."""
    url = str(Path(probe.url).absolute()) if is_local(probe.url) else probe.url
    files = _native.Files(url, dict(env.read()), timeout_s=60.0)
    try:
        found = files.described(b"", most=_MAX_OBJECTS * 4)
    except NotFound:
        return 0, 0
    taken = total = 0
    for key, size, _version, _modified in found:
        if taken >= _MAX_OBJECTS or probe.meter.left_s < _MIN_S:
            break
        if not 0 < size <= _MAX_BYTES - total:
            continue
        probe.meter.allow("read", 1, size)
        (body,) = files.read(key, [(0, size)])
        probe.meter.count("read", 1, size)
        base = PurePosixPath(key.decode(errors="replace")).name
        # The last part of a key can be longer than 255 bytes, the limit of a file name. 60 characters have at most 240
        # bytes.
        (folder / f"{taken:03d}-{base[-60:]}").write_bytes(body)
        taken, total = taken + 1, total + size
    return taken, total


def _passes(probe: Probe, folder: Path, count: int, stored: int) -> CpuRates:
    from penstock.feed.loader import Loader
    from penstock.feed.open_dataset import open as open_dataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about ignored objects, because this is only a sample of the dataset
        dataset = open_dataset(folder).cache(False)
    threads = inventory.cores()
    loader: Any = Loader(dataset, batch_size=8, rank=0, world=1, threads=threads, prefetch_next_epoch=False)
    until = time.monotonic() + min(_SHARE * probe.meter.time_s, max(1.0, probe.meter.left_s - 1))
    samples, wall_s, sums = 0, 0.0, dict.fromkeys(("busy_inflate_s", "busy_decode_s", "bytes_in", "bytes_out"), 0.0)
    for epoch in range(1_000):
        loader.set_epoch(epoch)
        for _batch in loader:
            if time.monotonic() > until + 10:
                break
        facts = loader.report()
        if epoch > 0:  # the first pass counts records and fills the processor's caches
            samples, wall_s = samples + facts["samples"], wall_s + facts["wall_s"]
            sums = {name: value + facts[name] for name, value in sums.items()}
        if epoch > 0 and time.monotonic() > until:
            break
        probe.hooks.on_progress("cpu", threads, (samples, int(sums["bytes_in"]), 0))

    def rate(what: str, busy: str) -> float | None:
        return sums[what] / sums[busy] if sums[busy] > 0 else None

    return CpuRates(
        objects=count,
        stored_bytes=stored,
        decoded_bytes=int(sums["bytes_out"]),
        format=dataset.format,
        threads=threads,
        samples_per_s=samples / wall_s if wall_s > 0 else None,
        inflate_bytes_per_s=rate("bytes_out", "busy_inflate_s"),
        decode_bytes_per_s=rate("bytes_out", "busy_decode_s"),
    )
