# SPDX-License-Identifier: Apache-2.0
"""Names what a program waits for, from its divided time and the collectors' figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.explain.result import CLASS_TEXTS, Kind, Verdict
from penstock.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.explain.attribution import Attributed
    from penstock.explain.result import Endpoint, FileSystem

__all__ = ["HEALTHY_SHARE", "OWN", "STORAGE", "Figures", "judge", "mean_shares", "sampling_noise"]

HEALTHY_SHARE = 0.05
"""A program is healthy if its share of waiting is below this value plus the sampling noise. The report of a loader uses
the same value.
"""
OWN = ("model", "other", "idle")
STORAGE = ("first_byte", "transfer", "throttle", "metadata", "file_read")
# Minimum utilisation of the loaders in a healthy program. Below this value, the model is the limit by a factor of two.
_USED_SHARE = 0.5
# Below this share, waiting for the handover of batches counts as time of the model, unless the loaders are busy.
_HANDOVER_SHARE = 0.25
_SATURATED_SHARE = 0.8
_THROTTLED_SHARE = 0.3
_SMALL_READ_BYTES = 32 * 1024
_SMALL_READS_PER_S = 100
_LARGE_READ_BYTES = 512 * 1024
# Minimum numbers of samples of the training loops for three cases: any verdict, a verdict on a program that has ended
# (its start is not typical), and a verdict with confidence.
_MIN_SAMPLES, _MIN_ENDED_SAMPLES, _SURE_SAMPLES = 5, 20, 40
# Other ranks are the limit if the ranks' own waits for them differ by this share of the time.
_IMBALANCE = 0.10
_STEADY = 0.7
# Share of a thread's wait for a core that delays the consumer. The value is half, because the other half overlaps with
# other work.
_CONTENTION, _MAX_CONTENTION = 0.5, 0.15
_BUSY_NODE_SHARE = 0.2
_IN_FLIGHT = 2.0


@dataclass(slots=True)
class Figures:
    """Figures that the verdict needs in addition to the shares."""

    endpoints: Sequence[Endpoint] = ()
    file_systems: Sequence[FileSystem] = ()
    mean_read_bytes: float = 0.0
    reads_per_s: float = 0.0
    rate_bytes_per_s: float = 0.0
    steady_share: float = 0.0
    other_cores_share: float = 0.0
    ready_share: float = 0.0
    ended_early: bool = False
    has_stacks: bool = True

    @property
    def contention(self) -> float:
        """Share of the waiting that other programs on the node cause, by taking cores from the loaders and the loop."""
        is_busy = self.other_cores_share >= _BUSY_NODE_SHARE
        return min(_MAX_CONTENTION, _CONTENTION * self.ready_share) if is_busy else 0.0


def mean_shares(consumers: Sequence[Attributed]) -> dict[str, float]:
    """Mean of the critical shares over the consumers."""
    found: dict[str, float] = {}
    for one in consumers:
        for name, value in one.critical.items():
            found[name] = found.get(name, 0.0) + value / len(consumers)
    return found


def judge(consumers: Sequence[Attributed], figures: Figures) -> Verdict:
    """Draw the verdict."""
    samples = _samples(consumers)
    if samples < (_MIN_ENDED_SAMPLES if figures.ended_early else _MIN_SAMPLES):
        return _unknown(_too_few(figures))
    shares = mean_shares(consumers)
    wait = max(0.0, 1.0 - sum(shares.get(name, 0.0) for name in OWN))
    ranks = _ranks(consumers)
    # Loaders that never wait for the loop are the limit, whatever else the node does.
    is_saturated = _busy_share(consumers) >= _SATURATED_SHARE
    tolerated = HEALTHY_SHARE + sampling_noise(samples) + (0.0 if is_saturated else figures.contention)
    is_handover = (
        not is_saturated
        and wait < _HANDOVER_SHARE
        and wait - shares.get("python_workers", 0.0) < tolerated  # the loop hardly waits for any other cause
    )
    if ranks is None and (wait < tolerated or is_handover):
        return _fine(consumers, wait, tolerated)
    candidates = _candidates(consumers, shares, figures)
    if ranks is not None and ranks[1] >= max((value for _, value in candidates), default=0.0) * 0.5:
        return _of_ranks(consumers, ranks, candidates, figures)
    if not candidates:
        return _unknown(
            f"the training loop waits {_percent(wait)} of its time for threads or processes that were not observed"
        )
    kind, value = candidates[0]
    second = next((name for name, share in candidates[1:] if share >= HEALTHY_SHARE and name != kind), None)
    subject = _subject(kind, figures)
    return Verdict(
        kind=kind,
        sentence=_sentence(kind, wait, value, subject, figures, consumers),
        reason=_reason(kind, shares, consumers),
        wait_share=wait,
        confidence=_confidence(candidates, samples, figures),
        second=second,
        subject=subject,
    )


def sampling_noise(samples: float) -> float:
    """Two standard deviations of a share of `HEALTHY_SHARE` in this number of samples (binomial distribution)."""
    return 2.0 * math.sqrt(HEALTHY_SHARE * (1.0 - HEALTHY_SHARE) / samples)


def _samples(consumers: Sequence[Attributed]) -> float:
    return sum(one.consumer.total for one in consumers)


def _busy_share(consumers: Sequence[Attributed]) -> float:
    """Busy share of the busiest loaders; 0 without loaders."""
    return max((one.loaders.busy_share for one in consumers), default=0.0)


def _candidates(
    consumers: Sequence[Attributed], shares: Mapping[str, float], figures: Figures
) -> list[tuple[Kind, float]]:
    """Kinds, each with the share of the time that its removal would save, largest first."""
    storage = sum(shares.get(name, 0.0) for name in STORAGE)
    found: list[tuple[Kind, float]] = [
        ("decompression", shares.get("decompression", 0.0)),
        ("decoding", shares.get("decoding", 0.0)),
        ("python-workers", shares.get("python_workers", 0.0)),
        ("host-to-device", shares.get("host_to_device", 0.0)),
        ("other-ranks", shares.get("other_ranks", 0.0)),
    ]
    if storage > 0:
        found.append((_storage_kind(shares, storage, figures, consumers), storage))
    found.sort(key=lambda one: -one[1])
    inline = _inline_share(consumers)
    throttled = shares.get("throttle", 0.0) >= _THROTTLED_SHARE * max(storage, 1e-9) and storage > 0
    if inline >= HEALTHY_SHARE and inline >= 0.5 * (found[0][1] if found else 0.0) and not throttled:
        found.insert(0, ("no-workers", inline))
    return [one for one in found if one[1] > 0.01]


def _inline_share(consumers: Sequence[Attributed]) -> float:
    """Share of the consumers' time in a DataLoader that has no workers."""
    found = 0.0
    for one in consumers:
        inline = sum(n for name, n in one.consumer.inline.items() if name != "startup")
        found += inline / one.consumer.total / len(consumers) if one.consumer.total else 0.0
    return found


def _storage_kind(
    shares: Mapping[str, float], storage: float, figures: Figures, consumers: Sequence[Attributed]
) -> Kind:
    if shares.get("throttle", 0.0) >= _THROTTLED_SHARE * storage:
        return "storage-throttled"
    if shares.get("metadata", 0.0) >= 0.5 * storage:
        return "storage-metadata"
    first, transfer = shares.get("first_byte", 0.0), shares.get("transfer", 0.0)
    if shares.get("file_read", 0.0) >= first + transfer:
        return _file_kind(figures)
    # A store at its rate limit also delays the first bytes, if several requests share it.
    in_flight = max((one.loaders.in_flight for one in consumers), default=0.0)
    if transfer >= first or (
        in_flight >= _IN_FLIGHT and figures.steady_share >= _STEADY and transfer >= 0.25 * (first + transfer)
    ):
        return "storage-bandwidth"
    return "storage-latency"


def _file_kind(figures: Figures) -> Kind:
    system = figures.file_systems[0] if figures.file_systems else None
    small = 0 < figures.mean_read_bytes < _SMALL_READ_BYTES and figures.reads_per_s >= _SMALL_READS_PER_S
    if small:
        return "small-reads"
    if system is None or system.place in ("local", "memory"):
        return "disk"
    return "storage-bandwidth" if figures.mean_read_bytes >= _LARGE_READ_BYTES else "storage-latency"


def _ranks(consumers: Sequence[Attributed]) -> tuple[Attributed, float] | None:
    """Return the rank that all other ranks wait for, because it waits least itself. Also return the difference between
    the largest and the smallest share of waiting. None if the difference is small.
    """
    if len(consumers) < 2:
        return None
    waits = [one.critical.get("other_ranks", 0.0) for one in consumers]
    if max(waits) - min(waits) < _IMBALANCE:
        return None
    return consumers[waits.index(min(waits))], max(waits) - min(waits)


def _of_ranks(
    consumers: Sequence[Attributed],
    found: tuple[Attributed, float],
    candidates: Sequence[tuple[Kind, float]],
    figures: Figures,
) -> Verdict:
    slow, gap = found
    name = f"rank {slow.rank}" if slow.rank is not None else f"process {slow.pid}"
    top, share = max(slow.critical.items(), key=lambda one: one[1])
    waits = max(one.critical.get("other_ranks", 0.0) for one in consumers)
    return Verdict(
        kind="other-ranks",
        sentence=f"The other ranks wait {_percent(waits)} of their time for {name}.",
        reason=(
            f"{name} itself waits {_percent(slow.critical.get('other_ranks', 0.0))} for others; it spends"
            f" {_percent(share)} of its time on {CLASS_TEXTS.get(top, top)}"
        ),
        wait_share=gap,
        confidence=_confidence(
            [("other-ranks", gap), *[c for c in candidates if c[0] != "other-ranks"]], _samples(consumers), figures
        ),
        second=next((kind for kind, value in candidates if kind != "other-ranks" and value >= HEALTHY_SHARE), None),
        subject=name,
    )


def _fine(consumers: Sequence[Attributed], wait: float, tolerated: float) -> Verdict:
    busy, samples = _busy_share(consumers), _samples(consumers)
    confidence: Literal["high", "medium", "low"] = (
        "low" if samples < _SURE_SAMPLES else "medium" if samples < 4 * _SURE_SAMPLES else "high"
    )
    if busy >= _USED_SHARE and wait < tolerated:
        return Verdict(
            kind="healthy",
            sentence=f"Nothing is wrong: the training loop waits {_percent(wait)} of its time, and its loaders keep up.",
            reason=f"the loaders are busy {_percent(busy)} of the time, hidden behind the step",
            wait_share=wait,
            confidence=confidence,
        )
    return Verdict(
        kind="model",
        sentence=f"The model is the limit: {_percent(1 - wait)} of the time goes to the step itself; faster storage changes nothing.",
        reason=(
            f"the loaders wait for the loop {_percent(1 - busy)} of the time"
            if busy > 0
            else "no loader was seen at work"
        ),
        wait_share=wait,
        confidence=confidence,
    )


def _too_few(figures: Figures) -> str:
    if figures.ended_early:
        return "the program ended before enough was seen; observe a longer run"
    if not figures.has_stacks:
        return "no Python stacks could be read, and the blocked calls do not decide"
    return "too few samples of a running program"


def _unknown(reason: str) -> Verdict:
    return Verdict(kind="unknown", sentence=f"No verdict: {reason}.", reason=reason)


def _confidence(
    candidates: Sequence[tuple[Kind, float]], samples: float, figures: Figures
) -> Literal["high", "medium", "low"]:
    if samples < _SURE_SAMPLES or not figures.has_stacks:
        return "low"
    # If the DataLoader has no workers, the other candidates are parts of the same time, and do not compete with this
    # verdict.
    has_rival = len(candidates) > 1 and candidates[0][0] != "no-workers"
    distance = candidates[0][1] - (candidates[1][1] if has_rival else 0.0)
    return "high" if distance > 0.15 else "medium"


def _subject(kind: Kind, figures: Figures) -> str | None:
    if kind in ("disk", "small-reads", "storage-metadata", "storage-latency", "storage-bandwidth"):
        store = next((one for one in figures.endpoints if one.role == "store" and one.received_bytes), None)
        system = figures.file_systems[0] if figures.file_systems else None
        if kind in ("disk", "small-reads") or store is None:
            return f"{system.mount_point} ({system.kind})" if system else None
    if kind.startswith("storage"):
        store = next((one for one in figures.endpoints if one.role == "store"), None)
        return f"{store.address}:{store.port}" if store else None
    return None


def _sentence(
    kind: Kind,
    wait: float,
    value: float,
    subject: str | None,
    figures: Figures,
    consumers: Sequence[Attributed],
) -> str:
    start = f"The training loop waits {_percent(wait)} of its time"
    where = f" of {subject}" if subject else ""
    many = max((one.loaders.threads for one in consumers), default=0)
    loaders = f"{many} loader{'s' if many != 1 else ''}" if many else "the training loop itself"
    rate = f" ({format_rate(figures.rate_bytes_per_s)})" if figures.rate_bytes_per_s > 0 else ""
    texts: dict[Kind, str] = {
        "storage-bandwidth": f"{start}, mostly for bytes in transit: the rate{where} is the limit{rate}.",
        "storage-latency": f"{start}, mostly for the first byte of requests: the latency{where} is the limit, with too few requests in flight.",
        "storage-throttled": f"{start}, mostly in back-off: the store{where} refuses requests.",
        "storage-metadata": f"{start}, mostly for open, stat and list calls{where}.",
        "small-reads": f"{start}, mostly for small reads{where}: {format_bytes(figures.mean_read_bytes)} each, {figures.reads_per_s:,.0f} a second.",
        "disk": f"{start}, mostly for reads{where}: the local disk is the limit.",
        "decompression": f"{start}, mostly for decompression by {loaders}.",
        "decoding": f"{start}, mostly for decoding and transforms of samples by {loaders}.",
        "python-workers": f"{start}, mostly for pickling and queues between Python processes.",
        "no-workers": f"The training loop reads and prepares its samples itself for {_percent(value)} of its time: its DataLoader has no workers.",
        "host-to-device": f"{start}, mostly for copies to the device.",
        "other-ranks": f"{start}, mostly in collective operations with other ranks.",
    }
    return texts.get(kind, f"{start}.")


def _reason(kind: Kind, shares: Mapping[str, float], consumers: Sequence[Attributed]) -> str:
    ordered = sorted(((n, v) for n, v in shares.items() if n not in OWN and v >= 0.01), key=lambda one: -one[1])
    parts = ", ".join(f"{CLASS_TEXTS.get(name, name)} {_percent(share)}" for name, share in ordered[:3])
    busy = _busy_share(consumers)
    text = f"of the loop's time: {parts}"
    if kind != "no-workers" and busy > 0:
        text += f"; the busiest loaders work {_percent(busy)} of the time"
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
