# SPDX-License-Identifier: Apache-2.0
"""Opens the feed that delivers a run's batches: Penstock's loader, a torch DataLoader, or dummy data in memory."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.protocols import Batch, Demand, InputField
    from penstock.ranks import Rank

__all__ = [
    "DUMMY",
    "DummyFeed",
    "Feed",
    "FeedFactory",
    "FeedRequest",
    "class_folders",
    "facts",
    "naming_records",
    "open_feed",
    "size_of",
]

DUMMY = "dummy"
_DUMMY_BYTES = 1 << 20  # size of a dummy `bytes` field: small, because its content is never used


class Feed(Protocol):
    """Interface of a loader that the driver can use. `penstock.Loader` and `penstock.torch.Loader` implement it."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __len__(self) -> int: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any], /) -> None: ...
    def report(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class FeedRequest:
    """Specification of a feed.

    Attributes:
        tail: Handling of an incomplete last batch: `drop` for training, `ragged` for validation.
        shuffled: Whether the samples of each epoch are shuffled with the seed.
        reader: `penstock` or `torch`.
        classes: Names of the training data's class folders, which number the labels of the validation data.
    """

    url: str
    demand: Demand
    seed: int
    global_batch: int
    rank: int
    world: int
    tail: str
    shuffled: bool
    device: str
    manifest: str | None = None
    memory_bytes: int | None = None
    max_in_flight: int | None = None
    read_ahead: int | None = None
    on_error: str = "raise"
    reader: str = "penstock"
    classes: tuple[str, ...] | None = None


class FeedFactory(Protocol):
    """Function that creates a feed for a request. Callers of `run` can pass their own function to use another
    reader.
    """

    def __call__(self, request: FeedRequest, /) -> Feed: ...


def open_feed(request: FeedRequest) -> Feed:
    """Open the feed for a request: dummy data, a torch DataLoader or Penstock's loader."""
    if request.url.startswith(f"{DUMMY}:"):
        return DummyFeed(request)
    if request.reader == "torch":
        from penstock.train.torch_baseline import TorchBaseline

        return TorchBaseline(request)
    import penstock
    from penstock.feed.classes import has_folder_labels

    counted = request.demand.facts.get("records_per_object") if request.manifest is None else None
    dataset = penstock.open(request.url, manifest=request.manifest, records_per_object=counted)
    if request.classes is not None and has_folder_labels(dataset.source):
        # Without the classes, the labels of a folder that lacks a class would be shifted.
        named = penstock.formats.images(classes=request.classes)
        dataset = penstock.open(request.url, manifest=request.manifest, format=named)
    dataset = dataset.fields(**{name: _spec(field, request) for name, field in request.demand.fields.items()})
    if request.shuffled:
        dataset = dataset.shuffle(seed=request.seed)
    bounds = {
        name: getattr(request, name)
        for name in ("memory_bytes", "max_in_flight", "read_ahead")
        if getattr(request, name) is not None
    }
    common: dict[str, Any] = {
        "global_batch": request.global_batch,
        "rank": request.rank,
        "world": request.world,
        "tail": request.tail,
        "on_error": request.on_error,
        **bounds,
    }
    if request.demand.arrays == "torch":
        from penstock.feed import torch as torch_feed

        # On a GPU, the copies of the next batch then overlap with the step.
        device = request.device if request.device.startswith("cuda") else None
        return torch_feed.Loader(dataset, device=device, **common)
    return penstock.Loader(dataset, **common)


def class_folders(feed: Feed) -> tuple[str, ...] | None:
    """Names of the class folders of a feed's dataset, in the order of their labels; None if the dataset has no class
    folders.
    """
    from penstock.feed import Dataset
    from penstock.feed.classes import has_folder_labels, has_folders

    dataset = getattr(feed, "dataset", None)
    if isinstance(dataset, Dataset) and has_folder_labels(dataset.source) and has_folders(dataset.source):
        return dataset.classes
    return None


def facts(feed: Feed, rank: Rank) -> dict[str, Any]:
    """Return facts about the feed's dataset for `Progress.data`; empty for a feed without a dataset."""
    from penstock.feed import Dataset
    from penstock.feed.loader import BaseLoader

    dataset = getattr(feed, "dataset", None)
    if not isinstance(feed, BaseLoader) or not isinstance(dataset, Dataset):
        return {}
    return {
        "url": dataset.url,
        "objects": dataset.source.objects,
        "size_bytes": dataset.source.size_bytes,
        "requests": dataset.expected_gets(feed.global_batch, feed.world) * len(feed),
        "nodes": rank.nodes,
    }


def size_of(data: Mapping[str, Any]) -> dict[str, int]:
    """Number and size in bytes of a dataset's objects, from its `facts`; empty if they are unknown."""
    return {"objects": data["objects"], "bytes": data["size_bytes"]} if data else {}


@contextlib.contextmanager
def naming_records(feed: Feed) -> Iterator[None]:
    """Context manager that adds the object and record to an error with the attribute `row`, the number of a row in the
    feed's latest batch.
    """
    try:
        yield
    except ConfigError as error:
        row, record = getattr(error, "row", None), None
        if row is not None:
            record = _record(feed, row)
        if record is not None:
            error.message += f" ({record})"
        raise


def _record(feed: Feed, row: int) -> str | None:
    """Object and record of a row of the latest batch, or None if the feed has no index."""
    from penstock.feed import Dataset
    from penstock.feed.loader import BaseLoader

    dataset, state = getattr(feed, "dataset", None), feed.state_dict()
    if not isinstance(feed, BaseLoader) or not isinstance(dataset, Dataset) or "cursor" not in state:
        return None
    # The cursor is the end of the latest batch, of which each rank has a contiguous slice.
    end = state["cursor"]
    start = (end - 1) // feed.global_batch * feed.global_batch
    position = start + (end - start) * feed.rank // feed.world + row
    ((_, number, record),) = dataset.course().places(state["epoch"], [position])
    return f"record {record + 1:,} of {dataset.source.logical_name(number)}"


def _spec(field: InputField, request: FeedRequest) -> Any:
    """Convert one input field of a workload to a field specification of `penstock.open`."""
    import penstock

    spec: Any
    if field.dtype == "bytes":
        spec = penstock.raw()
    elif field.dtype == "image":
        is_random = field.augment and request.shuffled
        crop = "random" if is_random else "center"
        spec = penstock.image(field.shape[0], field.shape[1], crop=crop, flip=is_random)
    else:
        spec = penstock.tensor(field.dtype, field.shape, default=field.default)
    return spec.of(";".join(field.parts)) if field.parts else spec


class DummyFeed:
    """Feed of samples in the device's memory, like the `dummy` data of the reference code. A run with this feed measures
    the computation alone.

    `dummy://N` means N samples. Up to four global batches of random values are generated and reused. The values are the
    same for any number of ranks.
    """

    _BATCHES = 4

    def __init__(self, request: FeedRequest) -> None:
        import numpy as np

        name = urlsplit(request.url).netloc
        if not name.isdecimal() or int(name) < 1:
            raise ConfigError(
                f"`{request.url}` does not state the number of samples",
                hint="use a number, such as dummy://1024 for 1,024 samples without reads",
            )
        self._samples, self._request = int(name), request
        self._epoch = self._delivered = 0
        rest = self._samples % request.global_batch
        full = self._samples // request.global_batch
        self._length = full + (1 if rest and request.tail == "ragged" else 0)
        self._rest = rest
        rng = np.random.default_rng([request.seed, 0x64756D])
        self._batches: list[dict[str, Any]] = []
        self._full: list[dict[str, Any]] = []
        for _ in range(min(self._BATCHES, self._length)):
            whole: dict[str, Any] = {}
            for field, spec in request.demand.fields.items():
                shape = (request.global_batch, *spec.shape)
                if spec.dtype == "bytes":
                    one = rng.bytes(min(request.demand.sample_bytes, _DUMMY_BYTES))
                    whole[field] = [one] * request.global_batch
                elif spec.dtype == "image":
                    whole[field] = rng.integers(0, 256, shape, np.uint8)
                elif spec.values is not None:
                    whole[field] = rng.integers(0, spec.values, shape).astype(spec.dtype)
                elif np.issubdtype(np.dtype(spec.dtype), np.integer):
                    whole[field] = rng.poisson(1.0, shape).astype(spec.dtype)
                else:
                    whole[field] = rng.uniform(-1, 1, shape).astype(spec.dtype)
            self._full.append(whole)
        self._batches = [self._slice(whole, request.global_batch) for whole in self._full]

    def _slice(self, whole: Mapping[str, Any], count: int) -> dict[str, Any]:
        rank, world = self._request.rank, self._request.world
        each, more = divmod(count, world)
        start = rank * each + min(rank, more)
        stop = start + each + (1 if rank < more else 0)
        mine = {name: array[start:stop] for name, array in whole.items()}
        if self._request.demand.arrays == "torch":
            import torch

            mine = {name: torch.from_numpy(array).to(self._request.device) for name, array in mine.items()}
        return mine

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        for k in range(self._delivered, self._length):
            self._delivered = k + 1
            at = (k + self._epoch) % len(self._batches)
            is_rest = self._rest and k == self._length - 1 and self._request.tail == "ragged"
            yield self._slice(self._full[at], self._rest) if is_rest else self._batches[at]
        self._epoch, self._delivered = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"dummy": self._samples, "epoch": self._epoch, "batches": self._delivered}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        if state.get("dummy") != self._samples:
            raise ConfigError(
                f"the checkpoint is that of a run on other data than {self._request.url}",
                hint="resume with the same data; with --synthetic, also with the same --steps and batch size",
            )
        self._epoch, self._delivered = int(state["epoch"]), int(state["batches"])

    def report(self) -> Mapping[str, Any]:
        return {"source": DUMMY, "bytes": 0, "throttles": 0}


def close_quietly(feed: Feed | None) -> None:
    """Close a feed if it has a method `close`. Errors are ignored, so that they do not hide the error of the run."""
    close = getattr(feed, "close", None)
    if close is not None:
        with contextlib.suppress(Exception):
            close()
