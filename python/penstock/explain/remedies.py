# SPDX-License-Identifier: Apache-2.0
"""Ranked remedies for a verdict, each with the gain that the step model predicts.

Model: the loop's own work and the loaders' work overlap, so a step takes the longer of the two times. Without loaders,
a step takes the sum of both. A remedy divides the share of one class by a factor. The next term limits the gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.explain.result import CLASS_TEXTS, Kind, Remedy
from penstock.explain.verdict import OWN, STORAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["StepModel", "remedies"]

_WORTH_NAMING = 1.02
# Rates on one core: zlib of Python 0.3 GB/s, libdeflate 2 to 2.6 GB/s (DESIGN, §4; results/ has the measurements).
_LIBDEFLATE_FACTOR = 6.0
# Requests in flight relative to one reader. Assumes that sockets and the store allow this number.
_IN_FLIGHT_FACTOR = 16.0
# Rate of a local disk or the page cache relative to a slow store. An assumption (`penstock bench storage` measures it).
_LOCAL_FACTOR = 20.0
# Native decoding of images at reduced size relative to Python's decoding at full size, on one thread. An assumption.
_DECODE_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class StepModel:
    """A mean step, in shares of its present length.

    Attributes:
        own: The loop's own work.
        classes: The other classes of the critical time; with `own`, they add up to 1.
        is_overlapped: Whether loaders work while the loop does.
        loaders: Threads that do the loaders' work.
        cores_free: Cores of the node that the program does not use.
    """

    own: float
    classes: Mapping[str, float]
    is_overlapped: bool
    loaders: int
    cores_free: float

    def gain(self, factors: Mapping[str, float], *, overlapped: bool | None = None) -> tuple[float, str]:
        """Return the gain (predicted speed divided by present speed) if each class takes `1 / factor` of its time. Also
        return the next limit.
        """
        overlap = self.is_overlapped if overlapped is None else overlapped
        waits = sum(self.classes.values())
        if waits <= 0:
            return 1.0, "the model"
        if overlap:
            # If overlapped loaders are the limit, they are busy for the whole step, not only while the loop waits.
            scale = 1.0 / waits if self.is_overlapped else 1.0
            left = {name: share * scale / factors.get(name, 1.0) for name, share in self.classes.items()}
            step = max(self.own, sum(left.values()))
        else:
            left = {name: share / factors.get(name, 1.0) for name, share in self.classes.items()}
            step = self.own + sum(left.values())
        largest = max(left, key=lambda name: left[name])
        is_own = self.own >= (sum(left.values()) if overlap else left[largest])
        following = "the model" if is_own else CLASS_TEXTS.get(largest, largest)
        return (1.0 / step if step > 0 else 1.0), following


def remedies(kind: Kind, step: StepModel) -> tuple[Remedy, ...]:
    """Remedies for a verdict, largest gain first. Remedies without a gain are left out, unless no remedy has a gain."""
    proposed = [_priced(step, one) for one in _proposals(kind, step)]
    useful = [one for one in proposed if one.gain >= _WORTH_NAMING] or proposed[:1]
    return tuple(sorted(useful, key=lambda one: -one.gain))


def _priced(step: StepModel, proposal: _Proposal) -> Remedy:
    text, factors, command, overlapped = proposal
    gain, following = step.gain(factors, overlapped=overlapped)
    classes = ", ".join(
        f"{CLASS_TEXTS.get(name, name)} / {factor:g}"
        for name, factor in factors.items()
        if step.classes.get(name, 0.0) >= 0.01
    )
    source = f"step = max(own work, loaders) with {classes}" if classes else "step = max(own work, loaders)"
    return Remedy(text=text, gain=gain, gain_source=f"{source}; then {following} limits", command=command)


_Proposal = tuple[str, "dict[str, float]", "str | None", "bool | None"]
_STREAM = "for batch in penstock.torch.Loader(penstock.open('URL').shuffle(seed=1), batch_size=B): ..."
_STAGE = "penstock stage URL /local/folder"


def _proposals(kind: Kind, step: StepModel) -> Sequence[_Proposal]:
    storage = dict.fromkeys(STORAGE, _IN_FLIGHT_FACTOR)
    workers = max(1, min(round(step.cores_free), 16))
    more = float(step.loaders + workers) / max(1, step.loaders)
    count = step.loaders + workers
    more_loaders = f"use {count} loader{'s' if count != 1 else ''} instead of {step.loaders or 'none'}"
    cpu = ("decompression", "decoding", "python_workers")
    table: dict[Kind, list[_Proposal]] = {
        "storage-latency": [
            ("keep more requests in flight: 32 or more for each process", storage, _STREAM, True),
            ("stage the data once to a local disk", dict.fromkeys(STORAGE, _LOCAL_FACTOR), _STAGE, None),
        ],
        "storage-bandwidth": [
            ("stage the data once to a local disk, or keep it in the node cache", dict.fromkeys(STORAGE, _LOCAL_FACTOR), _STAGE, None),
            ("store the data compressed, such as zstd or gzip (factor 3 assumed)", {"transfer": 3.0, "file_read": 3.0}, _STREAM, None),
        ],
        "storage-throttled": [
            ("send fewer and larger requests at the rate that the store permits", {"throttle": 1e3}, _STREAM, None),
            ("stage the data once, and read it locally in each epoch", dict.fromkeys(STORAGE, _LOCAL_FACTOR), _STAGE, None),
        ],
        "storage-metadata": [
            ("list the data once, and pack small files into shards", {"metadata": 100.0}, "penstock index URL --output manifest", None),
            ("stage the data once to a local disk", {"metadata": 20.0, "file_read": 20.0}, _STAGE, None),
        ],
        "small-reads": [
            ("read whole objects or parts of 8 MiB, and cut the records in memory", {"file_read": _IN_FLIGHT_FACTOR}, _STREAM, None),
        ],
        "disk": [
            ("read from the object store with many requests in flight, or use a faster disk (factor 4 assumed)", {"file_read": 4.0, "metadata": 4.0}, _STREAM, None),
            ("store the data compressed, such as zstd or gzip (factor 3 assumed)", {"file_read": 3.0}, _STREAM, None),
        ],
        "decompression": [
            ("decompress with libdeflate in several threads", {"decompression": _LIBDEFLATE_FACTOR * more}, _STREAM, True),
            (more_loaders, dict.fromkeys(cpu, more), None, True),
        ],
        "decoding": [
            (more_loaders, dict.fromkeys(cpu, more), None, True),
            ("decode in native threads, images at reduced size", {"decoding": _DECODE_FACTOR * more, "python_workers": 20.0}, _STREAM, True),
        ],
        "python-workers": [
            ("pass tensors or NumPy arrays instead of Python objects, or use threads instead of processes", {"python_workers": 20.0}, _STREAM, True),
        ],
        "no-workers": [
            (f"DataLoader(..., num_workers={workers}, persistent_workers=True)", dict.fromkeys((*cpu, *STORAGE), float(workers)), None, True),
            ("read and decode in native threads, without worker processes", dict.fromkeys((*cpu, *STORAGE), 2.0 * workers), _STREAM, True),
        ],
        "host-to-device": [
            ("pinned memory and non_blocking=True, so that copies overlap with the step", {"host_to_device": 1e3}, "penstock.torch.Loader(..., device='cuda')", None),
        ],
        "other-ranks": [
            ("give each rank the same work, and look at the node of the slow rank", {"other_ranks": 1e3}, "penstock bench net --pairs", None),
        ],
    }  # fmt: skip
    return table.get(kind, [])


def step_model(shares: Mapping[str, float], *, is_overlapped: bool, loaders: int, cores_free: float) -> StepModel:
    """Build the model from the critical shares."""
    return StepModel(
        own=sum(shares.get(name, 0.0) for name in OWN),
        classes={name: value for name, value in shares.items() if name not in OWN and value > 0},
        is_overlapped=is_overlapped,
        loaders=loaders,
        cores_free=cores_free,
    )
