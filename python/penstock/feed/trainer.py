# SPDX-License-Identifier: Apache-2.0
"""Lets a `transformers.Trainer` train on a loader. The only module of the feed that imports transformers.

To resume, Trainer skips batches of a `DataLoader`, and counts the skipped steps. A Penstock loader already continues at
its saved position, so Trainer receives placeholders to skip instead of batches.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.feed.torch import Loader

__all__ = ["feed_trainer"]


def feed_trainer(trainer: Any, loader: Loader) -> None:
    """Make a `transformers.Trainer` (or a subclass) train on a loader, and keep its position in checkpoints:
    `feed_trainer(trainer, loader)`, before `trainer.train()`.

    The fields of a batch are the arguments of the model. Trainer's own settings for batches
    (`per_device_train_batch_size`, `dataloader_num_workers`, `train_sampling_strategy`, …) are not used. With
    `resume_from_checkpoint`, the training continues after the last batch of the checkpoint, on any number of ranks.
    Earlier batches are not read again.

    Raises:
        ConfigError: Ranks have different states (`pack`, `indexed=False`, `decode(rebatch=True)`). Trainer would store
            only the state of the first rank.
    """
    if loader.world > 1 and not loader.has_fixed_positions:
        raise ConfigError(
            f"feed_trainer: the {loader.world} ranks have different positions in {loader.dataset!r}, but Trainer saves "
            "only the position of the first rank",
            where="feed_trainer",
            hint="write the packed or decoded samples once with penstock.write(), and train on the written dataset",
        )
    batches = _Batches(loader, trainer)
    trainer.remove_callback(_Position)  # callback of an earlier call
    trainer.add_callback(_Position(batches))
    trainer.get_train_dataloader = lambda: batches


class _Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch's types are not read
    """The batches of an epoch. Batches that were used before a checkpoint are replaced by placeholders."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self.skipped = loader, 0

    def __iter__(self) -> Iterator[Any]:
        count, self.skipped = self.skipped, 0
        yield from repeat(None, count)
        yield from self.loader

    def __len__(self) -> int:
        """Number of samples, which Trainer reports."""
        return int(self.loader.dataset.samples)


class _Batches:
    """A loader with the attributes of a `DataLoader` that Trainer and Accelerate's `skip_first_batches` read."""

    batch_size = prefetch_factor = None
    drop_last = False

    def __init__(self, loader: Loader, trainer: Any) -> None:
        self.dataset, self.trainer = _Stream(loader), trainer

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def __len__(self) -> int:
        return len(self.dataset.loader)

    def set_epoch(self, epoch: int) -> None:
        loader = self.dataset.loader
        if loader.has_fixed_positions:  # otherwise, the epochs of Trainer and of the loader would differ
            loader.set_epoch(epoch)


class _Position(TrainerCallback, ExportableState):  # type: ignore[misc]  # transformers' types are not read
    """Stores the position of a loader in `trainer_state.json`, and restores it."""

    def __init__(self, batches: _Batches | None = None) -> None:
        # None if Trainer creates the callback again (restore_callback_states_from_checkpoint).
        self._batches = batches

    def state(self) -> dict[str, Any]:
        position = None if self._batches is None else self._batches.dataset.loader.state_dict()
        return {"args": {}, "attributes": {"position": position}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002 - Trainer's call
        self._batches = batches = given["train_dataloader"]
        if state.global_step == 0:
            return
        kept = state.stateful_callbacks.get(type(self).__name__)
        if kept is None:
            raise ConfigError(
                f"resume_from_checkpoint: the checkpoint of step {state.global_step:,} does not contain the "
                "loader's position",
                where="resume_from_checkpoint",
                hint="call feed_trainer() also in the run that saves the checkpoint",
            )
        # Do this before the state is loaded, because Trainer needs the number of steps of the first epoch, and the
        # number of another epoch can differ.
        steps = batches.trainer.set_initial_training_values(args, batches)[1]
        batches.dataset.loader.load_state_dict(kept["attributes"]["position"])
        if not args.ignore_data_skip:
            batches.dataset.skipped = state.global_step % steps * args.gradient_accumulation_steps
