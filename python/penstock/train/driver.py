# SPDX-License-Identifier: Apache-2.0
"""Driver of one rank: passes batches from the feed to the workload in each epoch, and measures where the time is spent.

All ranks must make a collective call (gathering losses, checkpoints, validation) at the same step. Therefore, these
calls depend only on step counts.
"""

from __future__ import annotations

import math
import platform
import resource
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import BudgetExceeded, ConfigError, Corrupt, Mismatch, PenstockError
from penstock.protocols import WorkloadSpec
from penstock.train import checkpoint
from penstock.train.checkpoint_saver import CheckpointSaver, SaveTimes
from penstock.train.data_path_cost import Turn, compare_turns, unit_of
from penstock.train.group import ProcessGroup
from penstock.train.mllog import MlLog
from penstock.train.progress import Progress
from penstock.train.source import (
    DUMMY,
    FeedRequest,
    class_folders,
    close_quietly,
    facts,
    naming_records,
    open_feed,
    size_of,
)
from penstock.train.spec import flat_settings
from penstock.train.step_rows import StepRows
from penstock.train.trace import check_trace
from penstock.train.workloads import load_workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.protocols import Batch, Demand, Workload
    from penstock.ranks import Rank
    from penstock.train.peers import OnLost
    from penstock.train.progress import Report
    from penstock.train.source import Feed, FeedFactory
    from penstock.train.spec import TrainSpec
    from penstock.train.step_rows import PackedRows

__all__ = ["Driver", "EpochTime", "Share", "cpu_s"]

_REPORT_S = 0.25
_SYNTHETIC_BATCHES = 4  # `DummyFeed` generates at most four batches, and repeats them


@dataclass
class EpochTime:
    """Times of one epoch on one rank, in seconds. The accelerator utilisation is computed from these times.

    Attributes:
        wall_s: Time from the creation of the iterator to the end of the last step. Includes barriers between ranks, but
            not checkpoints.
        compute_s: Compute time of all steps.
        first_s, first_compute_s: First step: time of waiting and computation; time of computation alone.
        warm_up_s, warm_up_samples: Wall time and samples of the first `TrainSpec.warm_up_steps` steps.
    """

    epoch: int
    steps: int = 0
    samples: int = 0
    wall_s: float = 0.0
    compute_s: float = 0.0
    first_s: float = 0.0
    first_compute_s: float = 0.0
    warm_up_s: float = 0.0
    warm_up_samples: int = 0


class StepSums(NamedTuple):
    """Sums over steps of one rank, named as in `Share`."""

    steps: int = 0
    samples: int = 0
    train_s: float = 0.0
    wait_s: float = 0.0
    compute_s: float = 0.0
    sync_s: float = 0.0
    comm_s: float = 0.0
    h2d_s: float = 0.0

    def plus(self, other: StepSums) -> StepSums:
        return StepSums._make(mine + its for mine, its in zip(self, other, strict=True))

    def minus(self, other: StepSums) -> StepSums:
        return StepSums._make(mine - its for mine, its in zip(self, other, strict=True))


@dataclass
class Share:
    """Measurements of one rank. Times in seconds.

    Attributes:
        wait_s: Time in `next` of the training feed.
        compute_s, sync_s, comm_s, h2d_s: `StepCost` times, summed over all steps.
        train_s: Time from the first `next` of an epoch to the end of its last step, summed over the epochs.
        first_batch_s: Time from opening the dataset (including its listing) to the first batch.
        steady: Sums over the steps after the warm-up: without the first step of the run, or the `warm_up_steps` of each
            epoch.
        epochs: Times of each epoch.
        passes, validation_passes: Reports of the training and the validation feed, one per epoch.
        rows: Single steps; None before the run ends.
        checkpoints: Times of the checkpoints, if the run writes them.
        host: Name of the rank's node.
    """

    steps: int = 0
    wait_s: float = 0.0
    compute_s: float = 0.0
    sync_s: float = 0.0
    comm_s: float = 0.0
    h2d_s: float = 0.0
    train_s: float = 0.0
    validation_s: float = 0.0
    first_batch_s: float = 0.0
    samples: int = 0
    steady: StepSums = field(default_factory=StepSums)
    cpu_s: float = 0.0
    epochs: list[EpochTime] = field(default_factory=list)
    passes: list[dict[str, Any]] = field(default_factory=list)
    validation_passes: list[dict[str, Any]] = field(default_factory=list)
    rows: PackedRows | None = None
    checkpoints: SaveTimes | None = None
    host: str = field(default_factory=platform.node)

    def sums(self) -> StepSums:
        """Sums over all steps."""
        return StepSums._make(getattr(self, name) for name in StepSums._fields)


def cpu_s() -> float:
    """CPU seconds that all threads of this process have used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Driver:
    """Runs a training spec as one rank. `losses` and `metrics` are reduced over all ranks, and equal on every rank."""

    def __init__(
        self,
        spec: TrainSpec,
        rank: Rank,
        *,
        source: FeedFactory | None = None,
        report: Report | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        self.spec, self.rank = spec, rank
        self.group = ProcessGroup(rank, on_lost=on_lost)
        self._source: FeedFactory = source or open_feed
        self._report = report
        self._reported_s = -math.inf
        self.share = Share()
        self._rows = StepRows()
        self._zero_s = 0.0  # common start of the times of all ranks' steps
        self.losses: list[float] = []
        self.metrics: list[dict[str, Any]] = []
        self._saver: CheckpointSaver | None = None
        self._saved_step = -1
        self._unshared: list[float] = []  # this rank's losses since the last exchange with the other ranks
        self.steps = 0
        self.epoch = 0
        self.steps_before = 0
        self._epoch_steps = 0
        self._turn_steps = 0
        self.demand: Demand | None = None
        self._log = MlLog(None)
        self.stage_s = spec.stage_s
        self.time_to_train_s = 0.0  # from the end of the initialisation: staging, training, validation
        self.data_path: dict[str, Any] | None = None  # comparison with synthetic data
        self._data: dict[str, Any] = {}
        self.device = self._device()

    def _device(self) -> str:
        if self.spec.accelerator is not None:
            return "cpu"
        wanted = self.spec.device
        if wanted != "cpu":
            try:
                import torch
            except ModuleNotFoundError:
                return "cpu"  # a workload that needs torch raises its own error, with a hint
            if torch.cuda.is_available():
                count = torch.cuda.device_count()
                if self.rank.local_rank >= count:
                    raise ConfigError(
                        f"local rank {self.rank.local_rank} has no GPU: this node has {count}",
                        hint="use fewer --ranks (at most one per GPU), or --device cpu",
                    )
                return f"cuda:{self.rank.local_rank}" if wanted in {"auto", "cuda"} else wanted
            if wanted != "auto":
                raise ConfigError(f"device {wanted}: torch finds no GPU", hint="use --device cpu")
        return "cpu"

    # ------------------------------------------------------------ process group

    def _join(self) -> None:
        if self.spec.threads is not None:
            import torch

            torch.set_num_threads(self.spec.threads)
        self.group.join(self.device, self.spec.join_timeout_s)

    def _share_losses(self) -> None:
        """Replace this rank's losses with the mean over all ranks. The mean is the batch's loss, because the slices
        have equal sizes.
        """
        everyone = self.group.gather(self._unshared)
        if self.rank.world == 1:
            self.losses += self._unshared
        else:
            self.losses += [sum(step) / len(step) for step in zip(*everyone, strict=True)]
        self._unshared = []

    # ------------------------------------------------------------ training and validation

    def run(self) -> None:
        """Train until a limit of the spec is reached."""
        started_cpu_s, is_complete = cpu_s(), False
        spec = self.spec
        if spec.trace is not None and self.rank.rank == 0:
            check_trace(spec.trace)
        log = self._log = MlLog(spec.mllog if self.rank.rank == 0 else None)
        log.begin(spec)
        self._join()
        self._agree_on_settings()
        workload = load_workload(spec.workload)
        feed: Feed | None = None
        validation: Feed | None = None
        try:
            workload_spec = WorkloadSpec(
                seed=spec.seed,
                global_batch=spec.global_batch,
                rank=self.rank.rank,
                world=self.rank.world,
                device=self.device,
                accelerator=spec.accelerator,
                settings=spec.settings,
            )
            self.demand = workload.demand(workload_spec)
            workload.prepare(workload_spec)
            kept = self._open_checkpoints()
            if spec.resume:
                self.group.agree(
                    f"the checkpoint found in {spec.checkpoint}",
                    {"latest": checkpoint.described(kept)},
                    hint="give --checkpoint a folder that all nodes share, or a store",
                )
            log.run_begins(spec, self.rank, self.demand.facts, has_gpus=self.device != "cpu")
            opened_s = run_s = time.perf_counter()
            data = spec.data
            if spec.stage is not None:
                data = self._stage(spec.stage)
                opened_s = time.perf_counter()
            feed = self._source(self._request(data, tail="drop", shuffled=True))
            if len(feed) == 0:
                raise ConfigError(
                    f"{spec.data} has fewer samples than one global batch of {spec.global_batch}, so there is nothing to train on",
                    hint="use a smaller --global-batch",
                )
            self._epoch_steps = len(feed)
            self._data = facts(feed, self.rank)
            self._report_progress("open", force=True)
            if kept is not None:
                self._resume(kept, workload, feed)
            if spec.validation is not None:
                asked = self._request(spec.validation, tail="ragged", shuffled=False)
                validation = self._source(replace(asked, classes=class_folders(feed)))
            self._agree_on_data(feed, validation)
            log.event(
                "train_samples", getattr(getattr(feed, "dataset", None), "samples", len(feed) * spec.global_batch)
            )
            self._zero_s = time.perf_counter()  # the exchange above ends on all ranks at about the same time
            if spec.compare_synthetic:
                self._compare_synthetic(workload, feed, opened_s)
            while self.data_path is None and self.epoch < spec.epochs and not self._done():
                number = self.epoch + 1
                log.start("epoch", epoch_num=number)
                with naming_records(feed):
                    self._train_epoch(workload, feed, opened_s)
                log.stop("epoch", epoch_num=number)
                if validation is not None:
                    self._validate(workload, validation, number)
                self._save(workload, feed, self.epoch)  # after the validation, so that a resumed run has its metrics
                self._report_progress("done" if self.epoch == spec.epochs else "train", force=True)
            self._share_losses()
            is_complete = True
            self.time_to_train_s = time.perf_counter() - run_s
            if self._saver is not None:
                times = self.share.checkpoints = self._saver.finish()
                times.training_s, times.samples = self.share.train_s + times.pause_s, self.share.samples
        except RuntimeError as error:
            # A step converts torch's error itself, with facts about the model. This one is of the feed's copies.
            if type(error).__name__ != "OutOfMemoryError":
                raise
            raise BudgetExceeded(
                f"out of memory on {self.device}, which also holds the next batches",
                hint=f"use --batch-size {max(1, spec.global_batch // self.rank.world // 2)}",
            ) from None
        finally:
            if self._saver is not None:
                self._saver.close()
            try:
                log.close(is_complete=is_complete)
            finally:
                self.share.cpu_s = cpu_s() - started_cpu_s
                self.share.rows = self._rows.pack(self._zero_s)
                for one in (feed, validation):
                    close_quietly(one)
                workload.cleanup()

    def _stage(self, folder: str) -> str:
        """Stage the training data; return its folder. One rank of each node stages, and all other ranks of the node
        wait for it.
        """
        from penstock import stage

        spec, began_s = self.spec, time.perf_counter()
        self._report_progress("stage", force=True)
        self._log.start("staging")
        staged = stage.everywhere(spec.data, folder, decompress=spec.stage_decompress, manifest=spec.manifest)
        self._log.stop("staging", staging_num=staged.objects)
        self.stage_s = max(self.group.gather(time.perf_counter() - began_s))
        return str(staged.folder)

    def _compare_synthetic(self, workload: Workload, feed: Feed, opened_s: float) -> None:
        """Alternate turns on real and synthetic data. `share` then contains only the real turns, and no losses."""
        assert self.demand is not None
        spec, real = self.spec, self.share
        url = f"{DUMMY}://{_SYNTHETIC_BATCHES * spec.global_batch}"
        synthetic = open_feed(self._request(url, tail="drop", shuffled=True))

        def turn(turn: Turn, is_synthetic: bool) -> EpochTime:  # noqa: FBT001 - `compare_turns` calls it
            kept, self._turn_steps = self._rows, len(turn)
            self.share, self._rows = (Share(), StepRows()) if is_synthetic else (real, kept)
            try:
                self._train_epoch(workload, turn, opened_s)
                return self.share.epochs[-1]
            finally:
                self.epoch, self.share, self._rows = 0, real, kept
                self._unshared = []

        self.data_path = compare_turns(
            turn,
            self.group.gather,
            feed,
            synthetic,
            turn_steps=spec.turn_steps,
            warm_up_steps=spec.warm_up_steps,
            global_batch=spec.global_batch,
            max_turns=spec.max_turns,
            seed=spec.seed,
            unit=unit_of(self.demand),
        )
        self._report_progress("done", force=True)

    def _agree_on_settings(self) -> None:
        """Raise an error if the ranks' settings differ. Otherwise, the ranks could deadlock."""
        spec = self.spec
        limits = {
            "epochs": spec.epochs,
            "steps": spec.steps,
            "checkpoint-steps": spec.checkpoint_steps,
            "resume": spec.resume,
            "writes checkpoints": spec.checkpoint is not None,
        }
        self.group.agree(
            "their settings",
            limits | flat_settings(spec.what_is_learnt()),
            hint="start all ranks with the same command line",
        )

    def _agree_on_data(self, feed: Feed, validation: Feed | None) -> None:
        """Raise an error if the ranks' step counts or data differ. Otherwise, the ranks could deadlock."""
        hint = (
            "start all ranks over the same data. Each node of a `local` pool stores other objects: there, use the "
            "engine hdfs or moosefs, or the path `staged`"
        )
        held = {"number of steps": len(feed), **size_of(self._data), **feed.state_dict()}
        self.group.agree("the training data", held, hint=hint)
        steps = "none" if validation is None else len(validation)
        self.group.agree("the validation data", {"number of steps": steps}, hint=hint)

    def _done(self) -> bool:
        return self.spec.steps is not None and self.steps >= self.spec.steps

    def _until_stop(self) -> float:
        """Number of steps until the step limit or the next checkpoint, whichever comes first."""
        left = math.inf if self.spec.steps is None else self.spec.steps - self.steps
        every = self.spec.checkpoint_steps
        return min(left, every - self.steps % every) if every else left

    def _request(self, url: str, *, tail: str, shuffled: bool) -> FeedRequest:
        assert self.demand is not None
        return FeedRequest(
            url=url,
            demand=self.demand,
            seed=self.spec.seed,
            global_batch=self.spec.global_batch,
            rank=self.rank.rank,
            world=self.rank.world,
            tail=tail,
            shuffled=shuffled,
            device=self.device,
            manifest=self.spec.manifest if url == self.spec.data else None,
            memory_bytes=self.spec.memory_bytes,
            max_in_flight=self.spec.max_in_flight,
            read_ahead=self.spec.read_ahead,
            on_error=self.spec.on_error or "raise",
            reader=self.spec.reader,
        )

    def _train_epoch(self, workload: Workload, feed: Feed, opened_s: float) -> None:
        """Train for one epoch, or for the rest of an epoch after a resume.

        A step of an emulated accelerator may take only a third of a millisecond. All work between two steps would count
        as slow storage. Therefore, the loop counts in local variables, and calls `settle` to store them only when
        needed.
        """
        share, clock, step, losses = self.share, time.perf_counter, workload.step, self._unshared
        record, warm_up = self._rows.add, self.spec.warm_up_steps
        excluded = warm_up if warm_up > 1 else int(share.samples == 0)
        workload.begin_epoch(self.epoch)
        this, opened = EpochTime(self.epoch), clock()
        batches: Iterator[Batch] = iter(feed)
        began = before = clock()
        steps_before, held = self.steps, replace(share)
        warm: StepSums | None = None if excluded else share.sums()
        steps = samples = 0
        wait_s = compute_s = sync_s = comm_s = h2d_s = 0.0
        due = self._until_stop()
        report_at_s = self._next_report_s()
        at_epoch_end = True
        first_since_save = 1

        def settle() -> None:
            self.steps = steps_before + steps
            share.steps, share.comm_s, share.h2d_s = held.steps + steps, held.comm_s + comm_s, held.h2d_s + h2d_s
            share.samples, share.train_s = held.samples + samples, held.train_s + before - began
            share.wait_s, share.compute_s = held.wait_s + wait_s, held.compute_s + compute_s
            share.sync_s = held.sync_s + sync_s

        while True:
            try:
                batch = next(batches, None)
            except Corrupt as error:
                # A mismatch in the first batch is rather a wrong field than a single damaged sample.
                if self.spec.reader == "penstock" and (steps or not isinstance(error, Mismatch)):
                    advice = "pass --on-error substitute, which uses the next sample instead"
                    error.__notes__ = [f"{error.hint}, or {advice}" if error.hint else advice]
                raise
            now = clock()
            wait_s += now - before
            if batch is None:
                before = now
                break
            cost = step(batch)
            samples += cost.samples
            compute_s += cost.compute_s
            sync_s += cost.sync_s
            comm_s += cost.comm_s
            h2d_s += cost.h2d_s
            steps += 1
            if cost.loss is not None:
                if not math.isfinite(cost.loss):
                    number, advice = steps_before + steps, "use a smaller learning rate"
                    if self._saver is not None:
                        advice += self._saver.advice_on_divergence(number)
                    raise PenstockError(
                        f"step {number}: the loss is {cost.loss}: the training has diverged", hint=advice
                    )
                losses.append(cost.loss)
            if steps == first_since_save and self._saver is not None:
                self._saver.confirm()
            asked, before = before, clock()
            record(steps_before + steps, asked, now, before, cost)
            if steps == warm_up:
                this.warm_up_s, this.warm_up_samples = before - opened, samples
            if steps == 1:
                this.first_s, this.first_compute_s = before - began - cost.sync_s, cost.compute_s
                if held.samples == 0:
                    share.first_batch_s = now - opened_s
            if steps == excluded:
                settle()
                warm = share.sums()
            if steps == due:
                settle()
                if self._done():
                    # The step limit stops the loop before the iterator ends, so the epoch does not count as complete.
                    at_epoch_end = False
                    break
                self._save(workload, feed, self.epoch)
                losses = self._unshared
                # Exclude the checkpoint from all times: it is neither training nor waiting for data.
                paused = clock() - before
                began, opened, before = began + paused, opened + paused, before + paused
                due, first_since_save = steps + self._until_stop(), steps + 1
            if before > report_at_s:
                settle()
                span = max(before - began, 1e-9)
                self._report_progress("train", rate=steps * self.spec.global_batch / span, wait=wait_s / span)
                report_at_s = self._next_report_s()
        settle()
        if warm is not None:
            share.steady = held.steady.plus(share.sums().minus(warm))
        this.steps, this.samples, this.compute_s, this.wall_s = steps, samples, compute_s, before - opened
        share.epochs.append(this)
        share.passes.append(dict(feed.report()))
        if at_epoch_end:
            self.epoch += 1

    def _validate(self, workload: Workload, feed: Feed, number: int) -> None:
        """Validate during or after epoch `number`, counted from 1."""
        began = time.perf_counter()
        self._report_progress("validate", force=True)
        self._log.start("eval", epoch_num=number)
        with naming_records(feed):
            found = dict(workload.evaluate(iter(feed)))
        self._log.evaluated(found, number)
        self._log.stop("eval", epoch_num=number)
        self.share.validation_s += time.perf_counter() - began
        self.share.validation_passes.append(dict(feed.report()))
        if found:
            self.metrics.append({"epoch": self.epoch, "step": self.steps, **found})

    def _next_report_s(self) -> float:
        return self._reported_s + _REPORT_S if self._report is not None and self.rank.rank == 0 else math.inf

    def _report_progress(self, phase: str, *, rate: float = 0.0, wait: float = 0.0, force: bool = False) -> None:
        if self._report is None or self.rank.rank != 0:
            return
        self._reported_s = time.perf_counter()
        if force and not rate:
            span = max(self.share.train_s, 1e-9)
            rate, wait = self.share.samples * self.rank.world / span, self.share.wait_s / span
        last = self.metrics[-1] if self.metrics else {}
        curve = self._unshared or self.losses
        limit = self.spec.steps or self._epoch_steps * self.spec.epochs
        if self.spec.compare_synthetic:
            limit = self._turn_steps * (self.spec.max_turns + 6)  # with those of the warm-up, at most
        epoch = (
            self.epoch if phase in {"stage", "open", "train"} else self.epoch - 1
        )  # `self.epoch` is incremented before the validation
        metrics = {k: v for k, v in last.items() if k not in {"epoch", "step"}}
        self._report(
            Progress(
                phase,
                epoch,
                self.spec.epochs,
                self.steps,
                limit,
                rate,
                wait,
                curve[-1] if curve else None,
                metrics,
                self._data,
                "samples/s" if self.demand is None else unit_of(self.demand),
            )
        )

    # ------------------------------------------------------------ checkpoints

    def _open_checkpoints(self) -> dict[str, Any] | None:
        """Open the folder of the checkpoints; return the state to resume from, or None."""
        if self.spec.checkpoint is None:
            return None
        from penstock.feed.checkpoint.folder import CheckpointFolder

        folder = CheckpointFolder(self.spec.checkpoint)
        group = self.group.new_group()
        self._saver = CheckpointSaver(folder, keep=self.spec.checkpoint_keep, rank=self.rank.rank, group=group)
        if self.spec.resume:
            return checkpoint.read(folder, self.spec.what_is_learnt(), self.group.gather)
        checkpoint.check_unused(folder)
        return None

    def _save(self, workload: Workload, feed: Feed, epoch: int) -> None:
        if self._saver is None or self.steps == self._saved_step:
            return
        self._share_losses()
        state = {
            "learnt": self.spec.what_is_learnt(),
            "epoch": epoch,
            "steps": self.steps,
            "losses": list(self.losses),
            "metrics": list(self.metrics),
            "loader": dict(feed.state_dict()),
            "data": size_of(self._data),
            "workload": workload.state_dict(),
        }
        self._saver.save(self.steps, state)
        self._saved_step = self.steps

    def _resume(self, kept: dict[str, Any], workload: Workload, feed: Feed) -> None:
        assert self._saver is not None
        self._saver.times.damaged, self._saver.times.changed = list(kept["damaged"].values()), kept["changed"]
        if self.rank.rank == 0:
            for step in kept["damaged"]:
                # Without its commit, the damaged checkpoint is replaced, and does not count as one of those to keep.
                self._saver.folder.remove(step, "commit.json")
        # The loader's state identifies names and record counts, so that it is valid for a decompressed copy, too.
        if (was := kept.get("data")) and was != (now := size_of(self._data)):
            sizes = f"{was['bytes']} bytes in {was['objects']} objects -> {now.get('bytes')} in {now.get('objects')}"
            self._saver.times.changed.append(f"data: {sizes}, so it is another form or other content")
        workload.load_state_dict(kept["workload"])
        feed.load_state_dict(kept["loader"])
        self.epoch, self.steps, self.steps_before = int(kept["epoch"]), int(kept["steps"]), int(kept["steps"])
        self.losses, self.metrics = list(kept["losses"]), list(kept["metrics"])
        self._saved_step = self.steps
