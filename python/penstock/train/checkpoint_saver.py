# SPDX-License-Identifier: Apache-2.0
"""Saves checkpoints during training: copies the state to CPU memory, then writes the copy in a thread.

At most one copy is in flight. The next save waits until this copy is written; the wait is part of the stall.

Parameters and optimiser state change only in an optimiser's step. Therefore, if they are in CPU memory, the thread also
copies them, during the next forward and backward pass. The next optimiser step waits for the copy (the pipelined
snapshot of CheckFreq, Mohan et al., FAST 2021). All other tensors, such as the statistics of batch normalisation, are
copied immediately.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, Unsupported, from_wire, to_wire
from penstock.train import checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from penstock.feed.checkpoint.folder import CheckpointFolder

__all__ = ["CheckpointSaver", "SaveTimes", "save_summary"]

_END_S = 5.0
"""Time that a failed training waits for the checkpoint in flight. If a write is killed, the earlier checkpoint stays
intact.
"""


@dataclass
class SaveTimes:
    """Totals of a rank over all saves, in seconds and bytes.

    Attributes:
        saves: Number of committed checkpoints.
        bytes: Bytes of the checkpoints' data files over all ranks; only on rank 0.
        stall_s: Time in which the training waited: in a save (for the previous write, and for the copy), and before an
            optimiser step (for the rest of the copy).
        write_s: Time from the start of each copy to the commit.
        last_save_s: Duration of the last save, from the start of the copy to the commit.
        end_wait_s: Time after the last step until the last commit.
        last_step: Step of the last committed checkpoint, or -1.
        url: Folder of the checkpoints.
        damaged: Descriptions of damaged checkpoints that a resume has skipped.
        changed: Settings that a resume has changed, as `name: old -> new`.
        pause_s: Part of `stall_s` that lies between two steps.
        training_s, samples: Training time of the rank with `pause_s`, and its samples.
    """

    saves: int = 0
    bytes: int = 0
    stall_s: float = 0.0
    write_s: float = 0.0
    last_save_s: float = 0.0
    end_wait_s: float = 0.0
    last_step: int = -1
    url: str = ""
    damaged: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    pause_s: float = 0.0
    training_s: float = 0.0
    samples: int = 0


@dataclass(frozen=True)
class _Deferred:
    """A tensor that the thread copies, with its version counter at the save."""

    name: str
    source: Tensor
    copy: Tensor
    version: int


class CheckpointSaver:
    """Saver of one rank. All ranks call `save` and `finish` at the same steps.

    Args:
        keep: Number of complete checkpoints to keep. The checkpoint before the newest is deleted only after `confirm`,
            because the newest may contain a training that has diverged.
        group: Process group that only the thread uses, because collective calls of two threads must not mix; None for
            one rank.
    """

    def __init__(self, folder: CheckpointFolder, *, keep: int, rank: int, group: Any = None) -> None:
        self.folder, self.times = folder, SaveTimes(url=folder.url)
        self._keep, self._rank, self._group = keep, rank, group
        self._copies: dict[str, Tensor] = {}
        self._copied = threading.Event()  # cleared while the thread copies tensors that the next step changes
        self._copied.set()
        self._optimisers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._hook: Any = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._confirmed, self._is_ending = threading.Event(), False
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._hook = register_optimizer_step_pre_hook(self._before_step)
        if group is None:
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Copy the state, and start to write it as the checkpoint of a step.

        Raises:
            PenstockError: The previous checkpoint could not be written. Earlier ones are intact.
        """
        began = time.perf_counter()
        self.confirm()
        self._join()
        self._confirmed.clear()
        started = time.perf_counter()
        structure, tensors = checkpoint.split(state)
        copies, deferred = self._copy(tensors)
        values: dict[str, Any] = dict(copies)
        if self._rank == 0:
            values["structure"] = structure
        self._copied.clear()
        self._thread = threading.Thread(
            target=self._run, args=(step, values, deferred, started), name="penstock-checkpoint", daemon=True
        )
        self._thread.start()
        waited_s = time.perf_counter() - began
        self.times.stall_s += waited_s
        self.times.pause_s += waited_s

    def confirm(self) -> None:
        """Record that the loss after the latest save is finite."""
        self._confirmed.set()

    def _before_step(self, optimiser: Any, *_: Any) -> None:
        """Wait until the optimiser's current state is copied. torch calls this before each optimiser step.

        Raises:
            PenstockError: The checkpoint could not be written. With several ranks, each rank would detect the error at
                a different step, so all ranks raise it at the next `save`.
        """
        self._optimisers.add(optimiser)
        if self._error is not None and self._group is None:
            self._join()
        if not self._copied.is_set():
            began = time.perf_counter()
            self._copied.wait()
            self.times.stall_s += time.perf_counter() - began

    def finish(self) -> SaveTimes:
        """Wait for the last checkpoint; return the times.

        Raises:
            PenstockError: The last checkpoint could not be written.
        """
        began = time.perf_counter()
        self._end_retention()
        self._join()
        self.times.end_wait_s = time.perf_counter() - began
        self.times.damaged += self.folder.damaged
        return self.times

    def close(self) -> None:
        """Wait a few seconds for a checkpoint in flight, after a failure of the training."""
        self._end_retention()
        if self._thread is not None:
            self._thread.join(_END_S)
        self._copies.clear()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def advice_on_divergence(self, step: int) -> str:
        """End of a hint that names the checkpoint to resume from, after the loss of a step was not finite. This loss
        shows that the state before the step is bad. Ends the saver, which completes the checkpoint in flight.
        """
        self.close()
        try:
            kept = [one.step for one in self.folder.whole()]
        except PenstockError:  # the divergence is the more important error
            return f", and --resume from an earlier checkpoint in {self.folder.url}"
        good = max((one for one in kept if one < step - 1), default=None)
        if step - 1 not in kept:
            return "" if good is None else f", and --resume from the checkpoint of step {good:,}"
        diverged = f"{self.folder.place(step - 1)}, whose state gave this loss"
        if good is None:
            return f", and start again in another folder: the only checkpoint is {diverged}"
        return f", delete {diverged}, and --resume from the checkpoint of step {good:,}"

    def _end_retention(self) -> None:
        """Release the thread if it waits for `confirm`. It then keeps the previous checkpoint."""
        if not self._confirmed.is_set():
            self._is_ending = True
            self._confirmed.set()

    def _join(self) -> None:
        if self._thread is not None:
            # Wait in short intervals, so that Ctrl-C is handled.
            while self._thread.is_alive():
                self._thread.join(0.1)
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _copy(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[_Deferred]]:
        """Copy the tensors to CPU memory; return all copies, and the copies that the thread has to fill. The memory of
        the previous copy is reused, because touching new pages takes four times as long as the copy.
        """
        import torch

        copies: dict[str, Tensor] = {}
        deferred: list[_Deferred] = []
        owned = self._owned_memory()
        on_device = False
        for name, tensor in tensors.items():
            if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
                copies[name] = tensor.clone()  # a distributed or sparse tensor
                continue
            former = self._copies.get(name)
            if former is None or (former.shape, former.stride(), former.dtype) != (
                tensor.shape,
                tensor.stride(),
                tensor.dtype,
            ):
                former = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            copies[name] = former
            if tensor.untyped_storage().data_ptr() in owned:
                deferred.append(_Deferred(name, tensor, former, tensor._version))  # noqa: SLF001 - torch's public name
                continue
            former.copy_(tensor, non_blocking=tensor.is_cuda)
            on_device = on_device or tensor.is_cuda
        if on_device:
            torch.cuda.synchronize()
        self._copies = copies
        return copies, deferred

    def _owned_memory(self) -> set[int]:
        """Addresses of the memory on the CPU that only an optimiser's step changes."""
        import torch

        found: set[int] = set()
        for optimiser in self._optimisers:
            states = (one for state in optimiser.state.values() if isinstance(state, dict) for one in state.values())
            parameters = (one for group in optimiser.param_groups for one in group["params"])
            for one in (*states, *parameters):
                if isinstance(one, torch.Tensor) and one.device.type == "cpu" and one.layout == torch.strided:
                    found.add(one.untyped_storage().data_ptr())
        return found

    def _run(self, step: int, values: dict[str, Any], deferred: list[_Deferred], started: float) -> None:
        try:
            for one in deferred:
                one.copy.copy_(one.source)
            changed = next((one.name for one in deferred if one.source._version != one.version), None)  # noqa: SLF001
        except BaseException as error:
            self._error = error
            return
        finally:
            self._copied.set()
        if changed is not None:
            # Every rank runs the same workload, so every rank ends here.
            self._error = Unsupported(
                f"checkpoint of step {step:,}: `{changed}` changed before the optimiser's step, while it was copied",
                hint="change parameters only in, or directly after, the optimiser's step",
            )
            return
        self._write(step, values, started)
        if self._keep == 1 and self._rank == 0 and self._error is None:
            self._confirmed.wait()
            try:
                if not self._is_ending:
                    self.folder.prune(1)
            except BaseException as error:
                self._error = error

    def _write(self, step: int, values: dict[str, Any], started: float) -> None:
        from torch.distributed import checkpoint as dcp
        from torch.distributed.checkpoint.api import CheckpointException

        from penstock.feed.checkpoint.writer import CheckpointWriter

        writer = CheckpointWriter(self.folder.url, keep=max(self._keep, 2))
        try:
            dcp.save(
                values,
                checkpoint_id=str(step),
                storage_writer=writer,
                # The values are flat already; torch's flattening would turn the structure's keys into text.
                planner=dcp.DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=self._group,
                no_dist=self._group is None,
            )
        except CheckpointException as error:
            self._error = _cause(error, is_alone=self._group is None)
        except BaseException as error:
            self._error = error
        else:
            self.times.last_step = step
            self.times.last_save_s = time.perf_counter() - started
            self.times.write_s += self.times.last_save_s
            if writer.committed is not None:
                self.times.bytes += writer.committed.bytes
            self.times.saves += 1
            return
        writer.discard()


def save_summary(leader: SaveTimes | None, everyone: Sequence[SaveTimes | None]) -> dict[str, Any]:
    """Summarize the checkpoints of a run; empty if the run wrote no checkpoints.

    Args:
        leader: Times of rank 0, which commits.
        everyone: Times of all ranks. The training waits for the slowest rank.
    """
    if leader is None or not leader.saves:
        return {}
    times = [one for one in everyone if one is not None]
    stall_s, training_s = max(one.stall_s for one in times), max(one.training_s for one in times)
    return {
        "url": leader.url,
        "saves": leader.saves,
        "last_step": leader.last_step,
        "bytes": leader.bytes,
        "write_s": leader.write_s,
        "bytes_per_s": leader.bytes / leader.write_s,
        "stall_s": stall_s,
        "stall_share": stall_s / leader.write_s,
        "training_stall_share": stall_s / training_s if training_s else 0.0,
        "samples_per_s": sum(one.samples for one in times) / training_s if training_s else 0.0,
        "end_wait_s": max(one.end_wait_s for one in times),
        "damaged": leader.damaged,
        "changed_settings": leader.changed,
    }


def _cause(error: Any, *, is_alone: bool) -> BaseException:
    """The error of the first rank that failed, which is the same on all ranks."""
    rank, (cause, _) = min(error.failures.items())
    if is_alone:
        return cause  # type: ignore[no-any-return]
    if not isinstance(cause, PenstockError):
        return RuntimeError(f"rank {rank}: {type(cause).__name__}: {cause}")
    return from_wire(to_wire(cause), prefix=f"rank {rank}: ", rank=rank)
