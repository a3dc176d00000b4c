# SPDX-License-Identifier: Apache-2.0
"""Reader of checkpoints for torch's Distributed Checkpoint. Checks every byte that it reads against its checksum."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import StorageReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

from penstock import _native
from penstock.errors import Corrupt, NotFound, PenstockError
from penstock.feed.checkpoint import metadata as documents
from penstock.feed.checkpoint.folder import CheckpointFolder
from penstock.feed.checkpoint.metadata import BLOCK_BYTES, Stored
from penstock.feed.checkpoint.plain_values import load_plain
from penstock.feed.checkpoint.writer import step_of

if TYPE_CHECKING:
    import os

    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem

__all__ = ["CheckpointReader", "read_values"]

_BLOCKS_PER_READ = 4
"""Number of blocks in one read, which gives 16 MiB in flight per rank."""


class CheckpointReader(StorageReader):  # type: ignore[misc]  # torch has no types here
    """Storage reader of `torch.distributed.checkpoint.load`, for any store and any number of ranks.

        dcp.load(state, storage_reader=CheckpointReader("s3://bucket/run7"))                     # the latest one
        dcp.load(state, checkpoint_id=1200, storage_reader=CheckpointReader("s3://bucket/run7"))

    Args:
        url: Folder of the checkpoints: `s3://`, `gs://`, `az://`, `file://` or a path.
        timeout_s: Time limit of a request.

    Raises (inside torch's CheckpointException):
        NotFound: There is no complete checkpoint, or none of this step.
        Corrupt: The checkpoint is damaged, or Penstock did not write it.
    """

    def __init__(self, url: str | os.PathLike[str], *, timeout_s: float = 600.0) -> None:
        super().__init__()
        self.folder = CheckpointFolder(url, timeout_s=timeout_s)
        self.step: int | None = None
        self._wanted: int | None = None
        self._stored: dict[MetadataIndex, Stored] = {}
        self._tensors: dict[str, TensorStorageMetadata] = {}
        self._refused: PenstockError | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Set the step to load. If `checkpoint_id` is None, the latest complete checkpoint is loaded."""
        self._wanted = None if checkpoint_id is None else step_of(checkpoint_id)

    def read_metadata(self) -> Metadata:
        """Return torch's metadata of the checkpoint."""
        # torch only logs an error of this function, and continues without metadata. Therefore, `set_up_storage_reader`,
        # which torch calls next, raises the error.
        self._refused, self._stored = None, {}
        try:
            found, self._stored = self._metadata()
        except PenstockError as error:
            self._refused = error
            return Metadata({}, planner_data={})
        self._tensors = {
            name: one for name, one in found.state_dict_metadata.items() if isinstance(one, TensorStorageMetadata)
        }
        return found

    def _metadata(self) -> tuple[Metadata, dict[MetadataIndex, Stored]]:
        self.step = self._wanted
        if self.step is None:
            latest = self.folder.latest()
            if latest is None:
                damaged = "".join(f"; {one}" for one in self.folder.damaged)
                raise NotFound(
                    f"{self.folder.url} contains no complete checkpoint{damaged}",
                    where=self.folder.url,
                    hint="check the URL; a checkpoint without commit.json was not completed",
                )
            self.step = latest.step
        place = self.folder.place(self.step)
        found, stored = documents.decode(self.folder.read_metadata(self.step), place)
        # Without this check, wrong metadata could make the reader allocate more memory than the files contain.
        have, want = sum(one.length for one in stored.values()), self.folder.find(self.step).bytes
        if have != want:
            raise Corrupt(
                f"{place}: the metadata describes {have:,} bytes, but the commit states {want:,} bytes", where=place
            )
        return found, stored

    def set_up_storage_reader(self, _metadata: Metadata, _is_coordinator: bool, *_: Any, **__: Any) -> None:  # noqa: FBT001 - torch's interface
        if self._refused is not None:
            raise self._refused

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        # Read in the order of files and offsets, so that the storage can read ahead.
        for item in sorted(plan.items, key=self._order):
            self._read_item(item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _order(self, item: ReadItem) -> tuple[str, int]:
        at = self._at(item.storage_index)
        return at.file, at.offset

    def _at(self, index: MetadataIndex) -> Stored:
        if index not in self._stored:
            assert self.step is not None
            place = self.folder.place(self.step)
            raise Corrupt(f"{place}: the metadata does not contain the location of `{index.fqn}`", where=place)
        return self._stored[index]

    def _read_item(self, item: ReadItem, planner: LoadPlanner) -> None:
        at = self._at(item.storage_index)
        name = item.storage_index.fqn
        if item.type == LoadItemType.BYTE_IO:
            # The planner unpickles without restrictions. Therefore, read the value with restrictions and pickle it
            # again.
            safe = io.BytesIO()
            torch.save(self.plain_value(at, name), safe)
            safe.seek(0)
            planner.load_bytes(item, safe)
            return
        target = planner.resolve_tensor(item).detach()
        if target.size() != item.lengths:
            raise Corrupt(f"checkpoint: `{name}` has the shape {tuple(target.size())}, not {tuple(item.lengths)}")
        sizes, dtype = self._chunk(item.storage_index)
        is_whole = not any(item.storage_offsets) and item.lengths == sizes
        if is_whole and target.is_contiguous() and target.device.type == "cpu" and target.dtype == dtype:
            self.fill(at, name, target)
        else:
            source = torch.empty(sizes, dtype=dtype)
            self.fill(at, name, source)
            for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                source = source.narrow(dim, start, length)
            target.copy_(source)
        planner.commit_tensor(item, target)

    def _chunk(self, index: MetadataIndex) -> tuple[torch.Size, torch.dtype]:
        """Return the sizes and the type of a stored chunk."""
        tensor = self._tensors[index.fqn]
        sizes = next(chunk.sizes for chunk in tensor.chunks if index.offset is None or chunk.offsets == index.offset)
        return sizes, tensor.properties.dtype

    def plain_value(self, at: Stored, name: str) -> Any:
        """Read a value that is not a tensor."""
        assert self.step is not None
        return load_plain(b"".join(self._blocks(at, name)), name, self.folder.place(self.step))

    def fill(self, at: Stored, name: str, target: torch.Tensor) -> None:
        """Read a stored tensor into a contiguous tensor on the CPU."""
        out = memoryview(target.flatten().view(torch.uint8).numpy())
        start = 0
        for block in self._blocks(at, name):
            out[start : start + len(block)] = block
            start += len(block)

    def all_values(self) -> dict[str, Any]:
        """Read every value, after `read_metadata`."""
        values: dict[str, Any] = {name: _empty(one) for name, one in self._tensors.items()}
        for index, at in sorted(self._stored.items(), key=lambda one: (one[1].file, one[1].offset)):
            if index.fqn not in self._tensors:
                values[index.fqn] = self.plain_value(at, index.fqn)
                continue
            target = values[index.fqn]
            sizes, dtype = self._chunk(index)
            for dim, (start, length) in enumerate(zip(index.offset or (0,) * len(sizes), sizes, strict=True)):
                target = target.narrow(dim, start, length)
            if target.is_contiguous():
                self.fill(at, index.fqn, target)
            else:
                part = torch.empty(sizes, dtype=dtype)
                self.fill(at, index.fqn, part)
                target.copy_(part)
        return values

    def _blocks(self, at: Stored, name: str) -> Any:
        """Read the blocks of a value, and check them."""
        assert self.step is not None
        for first in range(0, len(at.crc32c), _BLOCKS_PER_READ):
            sums = at.crc32c[first : first + _BLOCKS_PER_READ]
            starts = [(first + number) * BLOCK_BYTES for number in range(len(sums))]
            ranges = [(at.offset + start, min(BLOCK_BYTES, at.length - start)) for start in starts]
            for (offset, length), want, block in zip(
                ranges, sums, self.folder.read(self.step, at.file, ranges), strict=True
            ):
                have = _native.crc32c(block)
                if (len(block), have) != (length, want):
                    place = f"{self.folder.place(self.step)}/{at.file}"
                    raise Corrupt(
                        f"{place}: `{name}` is damaged: the block at {offset:,} has CRC-32C {have:08x} (want {want:08x}) "
                        f"and {len(block):,} bytes (want {length:,})",
                        where=place,
                        hint="delete this checkpoint, and resume from the previous checkpoint",
                    )
                yield block

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether `checkpoint_id` is a step."""
        return str(checkpoint_id).isdecimal()


def _empty(tensor: TensorStorageMetadata) -> torch.Tensor:
    """Return an uninitialised CPU tensor. If the saved tensor had no gaps, the new tensor has the same memory order
    (for example, channels last).
    """
    strides = getattr(tensor.properties, "strides", None)
    # A tensor on the device `meta` allocates no memory, even if the strides are large.
    if strides is not None and len(strides) == len(tensor.size) and min(strides, default=0) >= 0:
        shape = torch.empty_strided(tensor.size, strides, device="meta")
        return torch.empty_like(shape, dtype=tensor.properties.dtype, device="cpu")
    return torch.empty(tensor.size, dtype=tensor.properties.dtype)


def read_values(url: str | os.PathLike[str], step: int | None = None) -> dict[str, Any]:
    """Read all values of a checkpoint in this process, by their flat names. Values are tensors on the CPU or plain
    values.

    Raises:
        NotFound, Corrupt: As for `CheckpointReader`.
    """
    reader = CheckpointReader(url)
    reader.reset(None if step is None else str(step))
    reader.read_metadata()
    reader.set_up_storage_reader(Metadata({}), True)
    return reader.all_values()
