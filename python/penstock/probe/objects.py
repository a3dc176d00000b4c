# SPDX-License-Identifier: Apache-2.0
"""Probes an object store: reads existing objects below a URL, and finds the limits that their rates run into.

Reads only. If the settings allow writes, the probe also writes to a new folder below the URL, which it removes at the
end.
"""

from __future__ import annotations

import secrets
import time
from pathlib import PurePosixPath
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import _native, env
from penstock.bench.objects import ObjectBench, ObjectPoint, below, clear, measure
from penstock.bench.phases import Hooks
from penstock.errors import NotFound, Unsupported, redact
from penstock.probe.card import Burst, FoundLimit
from penstock.probe.estimates import knee, latency_fit, refused_share, stream_rate, sustained
from penstock.probe.run import MAX_CLIENT_CPU, MIN_GAIN, Probe
from penstock.probe.spending import Silent, Spent

if TYPE_CHECKING:
    from penstock.bench.rows import Row
    from penstock.probe.estimates import Rate
    from penstock.probe.spending import Kind

__all__ = ["ObjectProbe"]

_MAX_KEYS = 2000
_PART_BYTES = 8 << 20
_SMALL_BYTES = 4096
_GRAIN_BYTES = 64 << 10
_WRITE_SMALL_BYTES = 16 << 10
_WRITE_LARGE_BYTES = 4 << 20
_STREAMS = (4, 16, 64, 256)
_REQUESTS = (8, 32, 128, 512)
# Share of refused attempts from which a phase counts as throttled.
_REFUSED = 0.01
# The request limit explains a byte rate that reaches this share of the limit times the size of a read.
_EXPLAINED = 0.8


class ObjectProbe(Probe):
    """Runs the parts on an object store; see `Probe`."""

    kind = "objects"
    held_bytes = 0  # size of the reads that the byte rate was measured with

    def prepare(self) -> None:
        """List the objects, and choose the sizes of the reads.

        Raises:
            NotFound: There is nothing to read below the URL.
        """
        self.keys, self.sizes = self._listed()
        if not self.keys:
            raise NotFound(f"{self.url} contains no objects to read", where=self.url, hint="probe the URL of a dataset")
        middle = median(self.sizes[key] for key in self.keys)
        self.part_bytes = int(min(_PART_BYTES, max(middle, 1)))
        self.large = [key for key in self.keys if self.sizes[key] >= self.part_bytes]
        self.small_bytes = min(_SMALL_BYTES, *(self.sizes[key] for key in self.keys), self.part_bytes)
        self.facts["objects"] = {
            "listed": len(self.keys),
            "median_bytes": int(middle),
            "prefixes": len({_folder(key) for key in self.keys}),
            "part_bytes": self.part_bytes,
            "small_bytes": self.small_bytes,
        }
        if self.part_bytes < 1 << 20:
            self.unseen.append(
                f"the objects have a median of {int(middle):,} bytes: the byte rate is that of reads of this size"
            )

    def _listed(self) -> tuple[list[str], dict[str, int]]:
        files = _native.Files(self.url, dict(env.read()), timeout_s=30.0)
        try:
            found = files.described(b"", most=_MAX_KEYS)
            self.meter.count("write", -(-len(found) // 1000) or 1, 0)
        except Unsupported:
            self.unseen.append("the store cannot list: only the object of the URL was read")
            size = files.head(b"")[1]
            return ([""], {"": size}) if size > 0 else ([], {})
        sizes: dict[str, int] = {}
        for name, size, _version, _modified in found:
            try:
                text = name.decode()
            except UnicodeDecodeError:
                continue
            if size > 0:
                sizes[text] = size
        return list(sizes), sizes

    def parts(self) -> dict[str, Any]:
        parts = {"latency": self.read_latency, "bandwidth": self.read_bandwidth, "requests": self.read_requests}
        parts["metadata"] = self.metadata
        if self.settings.writes:
            parts["writes"] = self.writes
        return parts

    # --- parts ---

    def read_latency(self) -> None:
        row = self._phase("latency", "range", 4, self.small_bytes, seconds=0.12, want=2000)
        if refused_share(row) > _REFUSED:
            # The requests of this process wait after refusals, so measure again below the limit.
            row = self._phase("latency", "range", 1, self.small_bytes, seconds=0.06, want=1000)
        if fit := latency_fit(row.first_byte_latency):
            self.latency["read"] = fit
            if fit.count < 300:
                self.unseen.append(f"only {fit.count} small reads: the 99th percentile is rough")
        else:
            self.missing["latency"] = "fewer than 20 reads were answered"

    def read_bandwidth(self) -> None:
        seconds, keys = 0.035, self.large
        first = self._phase(
            "bandwidth", "range", 1, min(self.part_bytes, 1 << 20), 0.02, want=400, keys=keys, share=0.1
        )
        speed = stream_rate(first, first.file_size_bytes or 0) or first.last.bytes_per_s or 0.0
        size = self._fitting(speed, 1, seconds)
        try:
            one = self._phase("bandwidth", "range", 1, size, seconds, want=400, keys=keys, share=0.1)
        except Silent:
            one = first
        best, points = one, [(1, one.last.bytes_per_s or 0.0)]
        rows = {1: one}
        is_flat = False
        for count in _STREAMS:
            size = self._fitting(points[-1][1], count, seconds)
            try:
                row = self._phase("bandwidth", "range", count, size, seconds, want=10**6, keys=keys, share=0.2)
            except Silent:
                is_flat = True  # no read ended, because too many reads share the rate
                break
            rows[count] = row
            rate = row.last.bytes_per_s or 0.0
            is_flat = rate < MIN_GAIN * points[-1][1] or refused_share(row) > _REFUSED
            points.append((count, rate))
            best = row if rate >= (best.last.bytes_per_s or 0.0) else best
            if is_flat:
                break
        self.knees("bytes", points)
        size = self.held_bytes = best.file_size_bytes or self.part_bytes
        hold = self._phase("bandwidth", "range", best.threads, size, 0.1, want=10**6, keys=keys, share=0.6)
        found = sustained(hold, "bytes") or sustained(best, "bytes")
        if found is None:
            self.missing["bandwidth"] = "too few reads were answered"
            return
        self._connection(one, rows.get(4))
        self._add_rate("read-bytes", "account", found, hold, is_reached=is_flat)
        if found.burst > 0 and self.limits[-1].is_limit and refused_share(hold) <= _REFUSED:
            self.bursts.append(Burst(what="read-bytes", units=found.burst, error=found.burst_error))

    def _reconcile(self) -> None:
        """Mark a byte rate as not a limit if the request limit explains it, as it does for reads of small objects."""
        prefixes = len({_folder(key) for key in self.large})
        # The byte rate was measured over all prefixes, so a limit per prefix allows a multiple of the limit's value.
        requests = [
            one.value * (prefixes if one.scope == "prefix" else 1)
            for one in self.limits
            if one.what == "read-requests" and one.is_limit
        ]
        for at, one in enumerate(self.limits):
            if (one.what, one.scope, one.is_limit) != ("read-bytes", "account", True) or not requests:
                continue
            if one.value >= _EXPLAINED * min(requests) * self.held_bytes:
                note = f"not reached: the request limit allows no more in reads of {self.held_bytes:,} bytes"
                self.limits[at] = msgspec.structs.replace(one, is_limit=False, note=note)
                self.unseen.append(f"the limit of read-bytes (account): {note}")

    def _fitting(self, bytes_per_s: float, concurrency: int, seconds: float) -> int:
        """Size of a read, chosen so that each of `concurrency` workers completes about two reads within the phase. A
        phase counts only completed reads.
        """
        fits = int(bytes_per_s * seconds * self.meter.time_s / (2 * concurrency)) & ~(_GRAIN_BYTES - 1)
        return min(self.part_bytes, max(_GRAIN_BYTES, fits))

    def _connection(self, one: Row, four: Row | None) -> None:
        """Find a limit per connection: if four streams are each as fast as a single stream, they do not share a
        limit.
        """
        alone = stream_rate(one, one.file_size_bytes or 0)
        among = stream_rate(four, four.file_size_bytes or 0) if four else None
        if alone is None or among is None or self.part_bytes < 1 << 20:
            self.unseen.append("a limit per connection: the objects are too small to see it")
            return
        cpu = max(one.own_cpu or 0.0, (four.own_cpu or 0.0) if four else 0.0)
        if among >= 0.85 * alone and cpu < MAX_CLIENT_CPU:
            found = sustained(one, "bytes")
            self.limits.append(
                FoundLimit(
                    what="read-bytes",
                    scope="connection",
                    value=alone,
                    uncertainty=found.error if found else 0.1,
                    is_limit=True,
                    note="four connections were each as fast as one",
                )
            )

    def read_requests(self) -> None:
        self._measure_requests()
        self._reconcile()

    def _measure_requests(self) -> None:
        points: list[tuple[int, float]] = []
        best: Row | None = None
        is_flat = False
        for count in _REQUESTS:
            row = self._phase("requests", "range", count, self.small_bytes, seconds=0.03, want=10**6, share=0.2)
            rate = row.last.entries_per_s or 0.0
            is_flat = bool(points) and rate < MIN_GAIN * points[-1][1]
            points.append((count, rate))
            best = row if best is None or rate >= (best.last.entries_per_s or 0.0) else best
            if refused_share(row) > _REFUSED:
                self._refused_requests(row)
                self.knees("requests", points)
                return
            if is_flat:
                break
        self.knees("requests", points)
        if best is None:
            return
        found = sustained(best, "requests")
        if found is None:
            self.missing["requests"] = "too few reads were answered"
        elif not self._prefix_limit(best.threads, found):
            self._add_rate("read-requests", "account", found, best, is_reached=is_flat)

    def _refused_requests(self, first: Row) -> None:
        """Measure a request limit whose refusals were seen: its rate, its burst, and the allowance that a pause
        restores.
        """
        seen = sustained(first, "requests", delay_s=self.delay_s)
        if seen is None:
            self.missing["requests"] = "too few reads were answered between the refusals"
            return
        # Choose a concurrency well above the limit, but not so high that the back-off of refused requests wastes the
        # allowance.
        count = int(min(512, max(8, 2.5 * seen.per_s * self.delay_s + 1)))
        pause_s: float | None = self.pause(self.pause_s)
        hold = self._phase("requests", "range", count, self.small_bytes, seconds=0.12, want=10**6, share=0.8)
        again = sustained(hold, "requests", delay_s=self.delay_s)
        if again is None or refused_share(hold) <= _REFUSED / 2:
            again, hold, pause_s = seen, first, None
        if self._prefix_limit(count, again):
            return
        self._add_rate("read-requests", "account", again, hold, is_reached=True)
        full = max((one for one in (seen, again) if one.burst > 0), key=lambda one: one.burst, default=None)
        if full is None:
            self.unseen.append("a burst above the request limit: none was seen, or the store's allowance was used up")
        else:
            regained = again.burst if pause_s is not None and again.burst > 0 else None
            self.bursts.append(
                Burst(
                    what="read-requests",
                    units=full.burst,
                    error=full.burst_error,
                    pause_s=pause_s if regained is not None else None,
                    regained=regained,
                )
            )

    @property
    def pause_s(self) -> float:
        """Pause after which a burst allowance of about a second is full again."""
        return min(3.0, 0.08 * self.meter.time_s)

    @property
    def delay_s(self) -> float:
        """Latency of a small read without load. Under load, requests also wait in this process after refusals."""
        return self.latency["read"].p50_ms / 1000 if "read" in self.latency else 0.05

    def _prefix_limit(self, count: int, over_all: Rate) -> bool:
        """Find out whether the limit applies per prefix. In that case, the keys of a single prefix are refused at a
        lower rate.
        """
        folders: dict[str, list[str]] = {}
        for key in self.keys:
            folders.setdefault(_folder(key), []).append(key)
        if len(folders) < 2:
            self.unseen.append("whether the request limit is one per prefix: the objects have one prefix")
            return False
        keys = max(folders.values(), key=len)
        self.pause(self.pause_s)
        count = max(8, count // len(folders))
        try:
            # The phase is long enough to use up the allowance that the pause has restored, and then to run at the
            # limit.
            row = self._phase(
                "requests", "range", count, self.small_bytes, seconds=0.15, want=10**6, keys=keys, share=0.5
            )
        except Spent as why:  # the limit over all prefixes is measured already, and stays in the card
            self.unseen.append(f"whether the request limit is one per prefix: {why}")
            return False
        found = sustained(row, "requests", delay_s=self.delay_s)
        if found is None or refused_share(row) <= _REFUSED or found.per_s > 0.75 * over_all.per_s:
            return False
        self._add_rate("read-requests", "prefix", found, row, is_reached=True)
        if found.burst > 0:
            self.bursts.append(Burst(what="read-requests", units=found.burst, error=found.burst_error))
        return True

    def metadata(self) -> None:
        row = self._phase("metadata", "head", 16, None, seconds=0.025, want=20_000, share=0.3)
        self.rates["head-requests"] = row.last.entries_per_s or 0.0
        if fit := latency_fit(row.service_latency):
            self.latency["head"] = fit
        if self.keys == [""]:
            return
        row = self._phase("metadata", "list", 4, None, seconds=0.025, want=2000, kind="write", share=0.3)
        self.rates["list-requests"] = row.last.entries_per_s or 0.0
        self.rates["list-keys"] = self.rates["list-requests"] * min(1000, len(self.keys))
        if fit := latency_fit(row.service_latency):
            self.latency["list"] = fit

    def writes(self) -> None:
        folder = below(self.url, f"penstock-probe-{secrets.token_hex(4)}")
        self.say(f"writing below {redact(folder)}, which is removed at the end")
        try:
            row = self._phase("writes", "put", 4, _WRITE_SMALL_BYTES, 0.05, want=500, kind="write", place=folder)
            if fit := latency_fit(row.service_latency):
                self.latency["write"] = fit
            row = self._phase(
                "writes", "put", 64, _WRITE_SMALL_BYTES, 0.05, 10**6, kind="write", place=folder, share=0.3
            )
            if found := sustained(row, "requests"):
                self._add_rate("write-requests", "account", found, row, is_reached=None)
            else:
                self.missing["writes"] = "too few small objects were written"
            row = self._phase(
                "writes", "put", 16, _WRITE_LARGE_BYTES, 0.06, 10**6, kind="write", place=folder, share=0.3
            )
            if found := sustained(row, "bytes"):
                self._add_rate("write-bytes", "account", found, row, is_reached=None)
            else:
                self.missing["writes"] = "too few large objects were written"
        finally:
            clear(folder)

    # --- one phase ---

    def _phase(
        self,
        part: str,
        operation: str,
        concurrency: int,
        size_bytes: int | None,
        seconds: float,
        want: int,
        *,
        kind: Kind = "read",
        share: float = 1.0,
        keys: list[str] | None = None,
        place: str | None = None,
    ) -> Row:
        """Run one phase for `seconds` x the time of the probe, within the limits of the meter."""
        meter, size = self.meter, size_bytes or 0
        limit_s = meter.seconds(seconds * meter.time_s)
        limit = meter.allow(kind, want, size, share=share)
        existing = [] if place else (keys or self.keys)
        bench = ObjectBench(
            operations=(operation,),
            range_size_bytes=size or 1,
            objects=max(1, len(existing)),
            time_limit_s=limit_s,
            request_limit=limit,
            sample_s=max(0.05, limit_s / 80),
            attempt_limit_s=10.0,
            # A phase ends at its own time limit, not because a store refuses requests for long.
            give_up_after_s=limit_s + 30.0,
            existing=not place,
            seed=self.settings.seed,
        )
        point = ObjectPoint(object_size_bytes=max(1, size), concurrency=min(concurrency, limit))
        done = (0, 0, 0)

        def on_progress(name: str, workers: int, seen: tuple[int, int, int]) -> None:
            nonlocal done
            done = seen
            requests, moved, refused = seen
            meter.check(kind, requests + refused, moved)
            self.hooks.on_progress(f"{part}: {name}", workers, seen)

        began_s = time.monotonic()
        try:
            rows = measure(
                place or self.url, bench, point, {operation: 1.0}, existing, Hooks(on_progress=on_progress), once=False
            )
        except BaseException:
            meter.count(kind, done[0] + done[2] + point.concurrency, done[1])
            raise
        self.busy_s += time.monotonic() - began_s
        if not rows:
            meter.count(kind, point.concurrency, 0)
            raise Silent(f"no {operation} request was answered within {limit_s:.1f} s")
        row = msgspec.structs.replace(rows[0], file_size_bytes=size_bytes, label=part)
        attempts = int(row.last.entries or 0) + row.retries + point.concurrency
        meter.count(kind, attempts, int(row.last.bytes or 0) + row.bytes_refetched)
        self.add_row(row)
        return row

    def _add_rate(self, what: str, scope: str, found: Rate, row: Row, *, is_reached: bool | None) -> None:
        """Add a limit, or the highest rate that was reached, to the card.

        Args:
            is_reached: Whether the limit was reached: more concurrency did not raise the rate; None if no other
                concurrency was measured.
        """
        note, is_limit = "", is_reached is True
        cpu = row.own_cpu or 0.0
        if found.throttled > _REFUSED:
            is_limit, note = True, f"the store refused {found.throttled:.0%} of the attempts"
        elif cpu > MAX_CLIENT_CPU or (self.is_loopback and (row.last.cpu or 0) > 0.85 and cpu > 0.35):
            is_limit, note = False, f"this machine's processors were the limit ({cpu:.0%} busy with the probe)"
        elif what.endswith("bytes") and self.nic_bytes_per_s and found.per_s > 0.85 * self.nic_bytes_per_s:
            is_limit, note = False, "this machine's network interface was the limit"
        elif is_reached is None:
            note = f"not refused; measured only with {row.workers} in flight"
        elif not is_reached:
            note = "not reached: more concurrency still gave more"
        else:
            note = "not refused: more concurrency gave no more"
        self.limits.append(
            FoundLimit(
                what=what,
                scope=scope,
                value=found.per_s,
                uncertainty=found.error,
                is_limit=is_limit,
                throttled=found.throttled,
                note=note,
            )
        )
        if not is_limit:
            self.unseen.append(f"the limit of {what} ({scope}): {note}")

    def knees(self, what: str, points: list[tuple[int, float]]) -> None:
        if (found := knee(points)) is not None:
            self.knee[what] = found


def _folder(key: str) -> str:
    return str(PurePosixPath(key).parent)
