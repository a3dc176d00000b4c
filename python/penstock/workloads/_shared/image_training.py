# SPDX-License-Identifier: Apache-2.0
"""Training of an image classifier, with DDP for more than one rank. The losses are the same on every storage path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from penstock.errors import Bug, ConfigError
from penstock.protocols import Batch, Demand, StepCost, WorkloadSpec
from penstock.workloads._shared import torch_step
from penstock.workloads._shared.image_input import ImageRecipe, fields, label_error, sample_bytes, zero_based_labels
from penstock.workloads._shared.recipe import learning_rate
from penstock.workloads._shared.step_timer import StepTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["MEAN", "STD", "ImageTraining", "as_input"]

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's channels, in [0, 1]. Source: torchvision's reference training."""


def as_input(images: Tensor, *, channels_last: bool) -> Tensor:
    """images: uint8 [n, H, W, 3] -> float32 [n, 3, H, W] with ImageNet's mean and deviation, on the images' device.

    Batches cross to the device as uint8, a quarter of the size. The result is a channels-last view unless
    `channels_last` is False.
    """
    mean = torch.tensor(MEAN, device=images.device) * 255
    scale = 1 / (torch.tensor(STD, device=images.device) * 255)
    x = images.to(torch.float32).sub_(mean).mul_(scale).permute(0, 3, 1, 2)
    return x if channels_last else x.contiguous()


class ImageTraining:
    """Training with SGD on the cross entropy. The metrics are the top-1 and the top-5 accuracy.

    Batch normalisation uses the statistics of a rank's slice, so losses depend on the number of ranks. As in DDP, the
    model has the running statistics of rank 0, which are sent to all ranks before an evaluation.

    Args:
        build: Builds the model for a recipe. Called after torch's generator is seeded.
        parameters: Number of weights and biases of the model, to check what was built.
        is_published: Whether image size and classes are the same as in the published model.
        normalises: Whether images are normalised before the model. Otherwise the model takes values from 0 to 255.
    """

    def __init__(
        self,
        name: str,
        recipe: ImageRecipe,
        build: Callable[[], nn.Module],
        parameters: int,
        *,
        is_published: bool,
        normalises: bool = True,
    ) -> None:
        self._name, self.recipe, self._build, self._parameters = name, recipe, build, parameters
        self._is_published, self._normalises = is_published, normalises
        self._spec: WorkloadSpec | None = None
        self._steps = 0
        self._values: Tensor | None = None
        self._timer = StepTimer(torch.device("cpu"))

    def demand(self, spec: WorkloadSpec) -> Demand:
        torch_step.check_share(spec)
        recipe = self.recipe
        return Demand(
            fields=fields(recipe),
            arrays="torch",
            sample_bytes=sample_bytes(recipe),
            facts={
                "model": self._name,
                "parameters": self._parameters,
                "published_model": self._is_published,
                "image_size": recipe.image_size,
                "classes": recipe.classes,
                "amp": recipe.amp,
                "compile": recipe.compile,
                "cuda_graphs": recipe.cuda_graphs,
                "deterministic": recipe.deterministic and torch.device(spec.device).type == "cpu",
                "torch": str(torch.__version__),
                "threads": torch.get_num_threads(),
            },
        )

    def prepare(self, spec: WorkloadSpec) -> None:
        self._spec, recipe = spec, self.recipe
        self._device = device = torch.device(spec.device)
        torch_step.configure(recipe, device)
        each = spec.global_batch // spec.world
        with torch.random.fork_rng(devices=[]), torch_step.memory_advice(each, self._sample(), device):
            torch.manual_seed(spec.seed)
            self._net = self._build().to(device)
            if recipe.channels_last:
                self._net.to(memory_format=torch.channels_last)
        count = sum(p.numel() for p in self._net.parameters())
        if count != self._parameters:
            raise Bug(f"the model {self._name} has {count:,} parameters, but {self._parameters:,} were expected")
        # Goyal et al. 2017: no weight decay on batch normalisation and biases, which are vectors.
        vectors = [p for p in self._net.parameters() if p.ndim <= 1]
        weights = [p for p in self._net.parameters() if p.ndim > 1]
        self._optimiser = torch.optim.SGD(
            [{"params": weights, "weight_decay": recipe.weight_decay}, {"params": vectors}],
            lr=recipe.base_learning_rate,
            momentum=recipe.momentum,
        )
        self._model = torch_step.optimised(self._net, recipe, spec, device, lambda: [self._example(each)])
        self._timer = StepTimer(device, self._net if spec.world > 1 else None)

    def _sample(self) -> str:
        return f"images of {self.recipe.image_size} x {self.recipe.image_size} pixels, {self._name}"

    def _input(self, images: Tensor) -> Tensor:
        if not self._normalises:
            # The memory is reused, because new pages cost as much as the conversion. This is safe: the backward pass
            # of the last step, which reads this memory, has ended.
            if self._values is None or self._values.shape != images.shape:
                # bfloat16 holds 0 to 255 exactly.
                dtype = torch.bfloat16 if self.recipe.amp else torch.float32
                self._values = torch.empty(images.shape, dtype=dtype, device=images.device)
            return self._values.copy_(images).permute(0, 3, 1, 2)
        return as_input(images, channels_last=self.recipe.channels_last)

    def _example(self, samples: int) -> Tensor:
        side = self.recipe.image_size
        return self._input(torch.zeros((samples, side, side, 3), dtype=torch.uint8, device=self._device))

    def _of(self) -> WorkloadSpec:
        assert self._spec is not None, "prepare() must come first"
        return self._spec

    def begin_epoch(self, epoch: int) -> None:
        rate = learning_rate(self.recipe, self._of().global_batch, epoch)
        for group in self._optimiser.param_groups:
            group["lr"] = rate

    def _checked(self, batch: Batch, where: str) -> Tensor:
        """Return the images of a batch. Raises ConfigError if they do not match the model."""
        images, side = batch["image"], self.recipe.image_size
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != (side, side, 3):
            raise ConfigError(
                f"{where}: images are {images.dtype} {list(images.shape[1:])}, but {self._name} expects uint8 "
                f"{[side, side, 3]}",
                hint="set image_size to the size of the images",
            )
        return images

    def step(self, batch: Batch) -> StepCost:
        spec, recipe = self._of(), self.recipe
        self._timer.start()
        where = f"step {self._steps + 1:,} on rank {spec.rank}"
        images, labels = self._checked(batch, where), zero_based_labels(batch)
        samples = len(labels)
        with torch_step.memory_advice(samples, self._sample(), self._device):
            images = images.to(self._device, non_blocking=True)
            labels = labels.to(self._device, non_blocking=True)
            self._timer.copied()
            # On a GPU, a check before the step would wait for the device. An invalid label, which would end CUDA's
            # context in the loss, is therefore replaced here and found at the end of the step.
            valid = labels.clamp(0, recipe.classes - 1)
            self._model.train()
            with torch_step.autocast(recipe, self._device):
                predicted = self._model(self._input(images))
            loss = nn.functional.cross_entropy(predicted.float(), valid, label_smoothing=recipe.label_smoothing)
            self._optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self._timer.backward_done()
            self._optimiser.step()
            self._steps += 1
            # tolist() waits for the device. Without it, the step would end early, and the device's work could hide a
            # wait for data.
            value, is_invalid = torch.stack([loss.detach(), (valid != labels).any().to(loss.dtype)]).tolist()
            if is_invalid:
                raise label_error(batch, labels, recipe.classes, where)
        return self._timer.cost(samples, value)

    def _send_statistics(self) -> None:
        """Replace the running statistics of all ranks with the statistics of rank 0."""
        if self._of().world > 1:
            from torch import distributed

            for buffer in self._net.buffers():
                distributed.broadcast(buffer, 0)

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Return `top1`, `top5` (the label is among the five best classes; 0 to 1) and `validation_loss`, without label
        smoothing. Sums are divided only once, so they are exact also for slices of different sizes.
        """
        spec = self._of()
        self._send_statistics()
        totals = torch.zeros(4, dtype=torch.float64)
        best = min(5, self.recipe.classes)
        self._net.eval()
        with torch.no_grad():
            for number, batch in enumerate(batches):
                if len(batch["label"]) == 0:
                    continue
                where = f"validation batch {number + 1:,} on rank {spec.rank}"
                images, labels = self._checked(batch, where), zero_based_labels(batch)
                if not 0 <= int(labels.min()) <= int(labels.max()) < self.recipe.classes:
                    raise label_error(batch, labels, self.recipe.classes, where)
                with torch_step.memory_advice(len(labels), self._sample(), self._device):
                    labels = labels.to(self._device, non_blocking=True)
                    x = self._input(images.to(self._device, non_blocking=True))
                    with torch_step.autocast(self.recipe, self._device):
                        predicted = self._net(x)
                    predicted = predicted.float()
                    hits = predicted.topk(best, dim=1).indices == labels[:, None]
                    loss = nn.functional.cross_entropy(predicted, labels, reduction="sum")
                    found = [float(hits[:, 0].sum()), float(hits.sum()), float(loss), float(len(labels))]
                totals += torch.tensor(found, dtype=torch.float64)
        first, five, loss_sum, samples = (float(v) for v in torch_step.sum_over_ranks(totals, spec, self._device))
        if samples == 0:
            return {}
        return {
            "top1": first / samples,
            "top5": five / samples,
            "validation_loss": loss_sum / samples,
            "validation_samples": samples,
        }

    def state_dict(self) -> dict[str, Any]:
        self._send_statistics()
        return {"model": self._net.state_dict(), "optimiser": self._optimiser.state_dict(), "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._net.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._steps = int(state["steps"])

    def cleanup(self) -> None:
        self._timer.close()
        self._model = self._net = self._optimiser = self._values = None
        self._spec = None
