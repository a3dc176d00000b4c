# SPDX-License-Identifier: Apache-2.0
"""Writer of checkpoints for torch's Distributed Checkpoint: one file per rank, then a commit by rank 0."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import StorageWriter
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from penstock import _native
from penstock.errors import ConfigError, PenstockError, Unsupported
from penstock.feed.checkpoint import metadata as documents
from penstock.feed.checkpoint.folder import Checkpoint, CheckpointFolder, data_name
from penstock.feed.checkpoint.metadata import BLOCK_BYTES, Stored, item_bytes
from penstock.feed.checkpoint.plain_values import check_loadable

if TYPE_CHECKING:
    import os

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

    from penstock.feed.checkpoint.folder import FileWriter

__all__ = ["CheckpointWriter", "step_of"]


@dataclass(frozen=True)
class _Assignment:
    """Assignment that rank 0 sends to each rank: the step, the name of the attempt, and the number of the rank."""

    step: int
    attempt: str
    rank: int


def step_of(checkpoint_id: Any) -> int:
    """Convert a `checkpoint_id` to a step.

    Raises:
        ConfigError: The value is not a whole number of at most 12 digits.
    """
    text = str(checkpoint_id)
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise ConfigError(
            f"checkpoint_id: must be a step, such as 1200 (got {text!r})",
            hint="pass the URL to CheckpointWriter or CheckpointReader, and the step as checkpoint_id",
        )
    return int(text)


class CheckpointWriter(StorageWriter):  # type: ignore[misc]  # torch has no types here
    """Storage writer of `torch.distributed.checkpoint.save` and `async_save` for any store.

        dcp.save(state, checkpoint_id=step, storage_writer=CheckpointWriter("s3://bucket/run7", keep=3))

    Readers find a checkpoint only after rank 0 has committed it. Tensors are stored as raw bytes. Other values must be
    numbers, text, bytes, or containers of these, because a reader does not unpickle other types.

    Args:
        url: Folder of the checkpoints: `s3://`, `gs://`, `az://`, `file://` or a path. All ranks must see it.
        keep: Number of complete checkpoints to keep. Older checkpoints are deleted after each commit. None keeps all
            checkpoints.
        timeout_s: Time limit of a request in seconds. The limit for the upload of a file is at least 1 second per MB.

    Raises (inside torch's CheckpointException):
        PreconditionFailed: The step has a checkpoint already.
        NoSpace, Denied, SystemFault, ServerError: The store rejects the write. Earlier checkpoints remain complete.
        Unsupported: A value is not a tensor or a plain value, or `use_collectives=False` was given.
    """

    def __init__(self, url: str | os.PathLike[str], *, keep: int | None = None, timeout_s: float = 600.0) -> None:
        super().__init__()
        if keep is not None and keep < 1:
            raise ConfigError(f"keep: must be at least 1 (got {keep})", where="keep")
        self.folder = CheckpointFolder(url, timeout_s=timeout_s)
        self.committed: Checkpoint | None = None
        self._keep = keep
        self._step: int | None = None
        self._assignment: _Assignment | None = None
        self._world = 1
        self._written: tuple[int, str] | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Set the step of the next checkpoint. If `checkpoint_id` is None, the step is the latest step plus 1."""
        self._step = None if checkpoint_id is None else step_of(checkpoint_id)

    # torch passes its options only if a parameter has the name `kwargs`.
    def set_up_storage_writer(self, _is_coordinator: bool, *_: Any, **kwargs: Any) -> None:  # noqa: FBT001 - torch's
        if not kwargs.get("use_collectives", True):
            raise Unsupported(
                "checkpoint: use_collectives=False is not supported, because one rank must commit the checkpoint"
            )
        self.committed = self._written = None

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        step = self._step
        if step is None:
            latest = self.folder.latest()
            step = 0 if latest is None else latest.step + 1
        attempt = self.folder.new_attempt(step)
        self._assignment, self._world = _Assignment(step, attempt, 0), len(plans)
        return [replace(plan, storage_data=_Assignment(step, attempt, rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._write(plan, planner) if plan.items else [])
        return done

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        at: _Assignment = plan.storage_data
        tensors = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        # The size of the file must be known before the first byte is written, so pickle all plain values first.
        plain = [(item, _plain(planner, item)) for item in plan.items if item.type == WriteItemType.BYTE_IO]
        size = sum(len(data) for _, data in plain) + sum(_planned_bytes(item) for item in tensors)
        name = data_name(at.attempt, at.rank)
        if size == 0:  # only empty tensors: they need no file
            return [WriteResult(item.index, 0, Stored(name, 0, 0, ())) for item in tensors]
        out = self.folder.create(at.step, name, size)
        self._written = (at.step, name)
        offset, results = 0, []
        try:
            for item, data in plain:
                results.append(_written(out, item, memoryview(data), name, offset))
                offset += len(data)
            for item in tensors:
                data = _bytes_of(planner.resolve_data(item), item)
                results.append(_written(out, item, data, name, offset))
                offset += len(data)
            out.finish()
        except BaseException:
            out.abort()
            raise
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        assert self._assignment is not None
        stored: dict[Any, Stored] = {one.index: one.storage_data for ranks in results for one in ranks}
        sizes: dict[str, int] = {}
        for one in stored.values():
            if one.length:
                sizes[one.file] = max(sizes.get(one.file, 0), one.offset + one.length)
        at = self._assignment
        self.committed = self.folder.commit(
            at.step, at.attempt, world=self._world, sizes=sizes, metadata=documents.encode(metadata, stored)
        )
        self._step = None
        if self._keep is not None:
            self.folder.prune(self._keep)

    def discard(self) -> None:
        """Remove the files that this rank wrote for a checkpoint that was not committed."""
        if self._written is not None and self.committed is None:
            with suppress(PenstockError):  # a remaining file is harmless, and a later checkpoint removes it
                self.folder.remove(*self._written)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether `checkpoint_id` is a step."""
        try:
            step_of(checkpoint_id)
        except ConfigError:
            return False
        return True


def _planned_bytes(item: WriteItem) -> int:
    assert item.tensor_data is not None
    return item_bytes(item.tensor_data.chunk.sizes, item.tensor_data.properties.dtype)


def _plain(planner: SavePlanner, item: WriteItem) -> memoryview:
    data = planner.resolve_data(item)
    assert isinstance(data, io.BytesIO)
    check_loadable(data.getvalue(), item.index.fqn)
    return data.getbuffer()


def _bytes_of(tensor: torch.Tensor, item: WriteItem) -> memoryview:
    """Return the bytes of a tensor in C order. They are copied only if the tensor is on a device or is a view with
    gaps.
    """
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = memoryview(dense.flatten().view(torch.uint8).numpy())
    if len(data) != _planned_bytes(item):
        raise Unsupported(
            f"checkpoint: `{item.index.fqn}` has {len(data):,} bytes, but {_planned_bytes(item):,} bytes were planned"
        )
    return data


def _written(out: FileWriter, item: WriteItem, data: memoryview, name: str, offset: int) -> WriteResult:
    sums = []
    for start in range(0, len(data), BLOCK_BYTES):
        # After the copy, the block is in the CPU cache. Without the copy, the checksum and the write would both read
        # the block from memory, which takes longer.
        block = bytes(data[start : start + BLOCK_BYTES])
        sums.append(_native.crc32c(block))
        out.write(block)
    return WriteResult(item.index, len(data), Stored(name, offset, len(data), tuple(sums)))
