# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of a probe within its limits, and builds the card from what was measured, also after an interruption."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from penstock import _native
from penstock.bench import machine_card
from penstock.bench.phases import Hooks
from penstock.cluster import inventory
from penstock.errors import ConfigError, PenstockError, redact
from penstock.probe.card import Card, CpuRates, PhaseLine, tier_name
from penstock.probe.estimates import quantile_us, refused_share
from penstock.probe.spending import Meter, Spent

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.rows import Latency, Row
    from penstock.probe.card import Burst, FoundLimit
    from penstock.probe.estimates import LatencyFit

__all__ = ["MAX_CLIENT_CPU", "MAX_TIME_S", "MIN_GAIN", "MIN_TIME_S", "Probe", "Settings"]

MAX_TIME_S = 300.0
MIN_TIME_S = 5.0
# If a further step of concurrency raises the rate by less than this factor, the limit is reached.
MIN_GAIN = 1.1
# If the probe keeps a larger share of its processors busy than this, the probe itself is the limit.
MAX_CLIENT_CPU = 0.75


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a probe.

    Attributes:
        time_s: Maximum time, 5 to 300 seconds. The phases take shares of this time.
        budget_usd: Maximum cost of requests and egress.
        max_bytes: Maximum number of bytes to read and write.
        writes: Measure writes, to a new folder that is removed at the end.
        cpu: Measure inflating and decoding on this machine.
        workload: Measure the step time of a workload: `NAME` or `NAME:ACCELERATOR` (`cosmoflow:v100`).
        name: Name of the tier in the card; by default, derived from the URL.
        seed: Seed of the order of the reads.
    """

    time_s: float = 120.0
    budget_usd: float = 0.5
    max_bytes: int = 20_000_000_000
    writes: bool = False
    cpu: bool = True
    workload: str | None = None
    name: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not MIN_TIME_S <= self.time_s <= MAX_TIME_S:
            raise ConfigError(
                f"time: must be {MIN_TIME_S:g} s to {MAX_TIME_S / 60:g} min (got {self.time_s:g} s)", where="--time"
            )
        if not 0 < self.budget_usd < float("inf"):
            raise ConfigError(f"budget: must be above 0 USD (got {self.budget_usd:g})", where="--budget")
        if self.max_bytes < 1:
            raise ConfigError(f"max-bytes: must be at least 1 (got {self.max_bytes})", where="--max-bytes")


class Probe(ABC):
    """Base of the probes of stores and disks. `run` measures the parts in turn; `card` is valid at any time.

    Args:
        url: URL or path as the user gave it.
        hooks: `on_progress` gets the numbers of requests (reads and writes of a disk), of bytes, and of refused attempts.
        is_loopback: The store is on this machine, and shares its processors.
        say: Called with messages for the user.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        url: str,
        settings: Settings,
        meter: Meter,
        *,
        hooks: Hooks | None = None,
        is_loopback: bool = False,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.url, self.settings, self.meter = url, settings, meter
        self.hooks, self.is_loopback, self.say = hooks or Hooks(), is_loopback, say
        speeds = [] if is_loopback else [speed for speed in inventory.nics().values() if speed]
        self.nic_bytes_per_s = sum(speeds) * 1e6 / 8
        self.rows: list[Row] = []
        self.limits: list[FoundLimit] = []
        self.bursts: list[Burst] = []
        self.latency: dict[str, LatencyFit] = {}
        self.knee: dict[str, int] = {}
        self.rates: dict[str, float] = {}
        self.cpu: CpuRates | None = None
        self.step: dict[str, Any] = {}
        self.unseen: list[str] = []
        self.missing: dict[str, str] = {}
        self.facts: dict[str, Any] = {}
        self.cache = ""
        self.busy_s = 0.0
        self._is_interrupted = False
        self._created_s = time.time()

    @abstractmethod
    def prepare(self) -> None:
        """Inspect the target before the first measurement."""

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """The parts, by name, in the order of their importance."""

    def extra(self) -> dict[str, Any]:
        """Parts that read at most a few objects from the store."""
        found: dict[str, Any] = {}
        if self.settings.cpu:
            from penstock.probe.codec_rates import measure as measure_cpu

            found["cpu"] = lambda: measure_cpu(self)
        if self.settings.workload is not None:
            from penstock.probe.step_time import measure as measure_step

            found["step"] = lambda: measure_step(self)
        return found

    def run(self) -> None:
        """Measure all parts. If a part fails or does not fit into the limits, the card names it, and the other parts
        are still measured.

        Raises:
            PenstockError: The target cannot be probed at all.
            KeyboardInterrupt: Ctrl-C. After that, `card` returns the partial card.
        """
        parts: dict[str, Any] = {}
        load, cores = os.getloadavg()[0], inventory.cores()
        if load > cores:
            busy = f"this machine was busy (load {load:.1f} on {cores} cores): latencies include its own delays"
            self.say(busy)
            self.unseen.append(busy)
        try:
            self.prepare()
            parts = {**self.parts(), **self.extra()}
            names = list(parts)
            for number, name in enumerate(names, start=1):
                self.say(f"{number}/{len(names)} {name}")
                self._part(name, parts.pop(name))
        except KeyboardInterrupt:
            self._is_interrupted = True
            for name in parts:
                self.missing.setdefault(name, "interrupted")
            raise

    def _part(self, name: str, measure: Callable[[], None]) -> None:
        try:
            measure()
        except Spent as why:
            self.missing[name] = str(why)
        except KeyboardInterrupt:
            self.missing[name] = "interrupted"
            raise
        except PenstockError as error:
            if not self.rows and not self.missing:
                raise  # the first request was refused, so there is no data for a card
            self.missing[name] = f"error[{error.code}]: {error}"
        if name in self.missing:
            self.say(f"{name}: {self.missing[name]}")

    def pause(self, seconds: float) -> float:
        """Send no requests for some time, so that burst credits recover. Return the actual time in seconds."""
        until = time.monotonic() + min(seconds, max(0.0, self.meter.left_s))
        began_s = time.monotonic()
        while (left_s := until - time.monotonic()) > 0:
            self.hooks.on_progress("pause", 0, (0, 0, 0))
            time.sleep(min(0.1, left_s))
        return time.monotonic() - began_s

    def add_row(self, row: Row) -> None:
        self.rows.append(row)
        self.hooks.on_row(row)

    def card(self) -> Card:
        """The card of what was measured so far."""
        meter = self.meter
        return Card(
            name=self.settings.name or tier_name(self.url),
            kind=self.kind,
            url=redact(self.url),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._created_s)),
            machine=machine_card.read(),
            version=_native.__version__,
            cache=self.cache,
            spent={
                "seconds": round(meter.elapsed_s, 1),
                "time_limit_s": meter.time_s,
                "read_requests": meter.requests["read"],
                "write_requests": meter.requests["write"],
                "bytes_read": meter.bytes_read,
                "bytes_written": meter.bytes_written,
                "usd": round(meter.spent_usd, 6),
                "budget_usd": meter.budget_usd,
                "unknown_prices": list(meter.prices.unknown),
            },
            prices=meter.prices.used,
            objects=self.facts.get("objects", {}),
            limits=tuple(self.limits),
            bursts=tuple(self.bursts),
            latency=dict(self.latency),
            knee=dict(self.knee),
            rates={name: value for name, value in self.rates.items() if value > 0},
            cpu=self.cpu,
            step=dict(self.step),
            phases=tuple(map(_line, self.rows)),
            unseen=tuple(dict.fromkeys([*self.unseen, *self._always_unseen()])),
            missing=dict(self.missing),
            interrupted=self._is_interrupted,
        )

    def _always_unseen(self) -> list[str]:
        found = [
            f"a limit or burst allowance that shows only after more than {self.meter.elapsed_s:.0f} s, and changes by time of day",
        ]
        if self.kind == "objects":
            found.append("how long the store queues bytes above its limit before it refuses a request")
            found.append("what more machines at once would reach")
        if not self.settings.writes:
            found.append("writes: not measured without --write")
        return found


def _ms(latency: Latency | None, share: float) -> float | None:
    return quantile_us(latency, share) / 1000 if latency is not None and latency.buckets else None


def _line(row: Row) -> PhaseLine:
    whole = row.service_latency or row.io_latency or row.entry_latency
    return PhaseLine(
        part=row.label,
        operation=row.raw.get("request", row.operation.lower()),
        concurrency=row.workers,
        size_bytes=row.file_size_bytes if row.path_type == "object" else row.block_size_bytes,
        seconds=row.last.time_s,
        requests_per_s=row.last.entries_per_s if row.path_type == "object" else row.last.ios_per_s,
        bytes_per_s=row.last.bytes_per_s,
        first_byte_p50_ms=_ms(row.first_byte_latency, 0.5),
        first_byte_p99_ms=_ms(row.first_byte_latency, 0.99),
        latency_p50_ms=_ms(whole, 0.5),
        latency_p99_ms=_ms(whole, 0.99),
        throttled=refused_share(row),
        cpu=row.own_cpu,
    )
