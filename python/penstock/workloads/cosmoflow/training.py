# SPDX-License-Identifier: Apache-2.0
"""Training of CosmoFlow, with DDP for more than one rank. The losses are the same on every storage path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from penstock.errors import ConfigError
from penstock.protocols import Batch, Demand, InputField, StepCost, WorkloadSpec
from penstock.workloads._shared import torch_step
from penstock.workloads._shared.step_timer import StepTimer
from penstock.workloads.cosmoflow.model import as_input, build
from penstock.workloads.cosmoflow.recipe import Recipe, learning_rate, parameter_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Training"]


class Training:
    """Training with SGD on the mean squared error. The metric is the mean absolute error of the four targets.

    All randomness is a function of (seed, step): weights depend on the seed, dropout masks of the global batch on seed
    and step. Therefore, a resumed run, or a run with another number of ranks, does not need the state of a generator.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._spec: WorkloadSpec | None = None
        self._steps = 0
        self._target_sum: Tensor = torch.zeros(4, dtype=torch.float64)
        self._target_count = 0
        self._timer = StepTimer(torch.device("cpu"))

    def demand(self, spec: WorkloadSpec) -> Demand:
        v = self.recipe.voxels
        torch_step.check_share(spec)
        facts: dict[str, Any] = {
            "parameters": parameter_count(self.recipe),
            "model": self.recipe.model,
            "mlperf_model": self.recipe.is_mlperf_model,
            "amp": self.recipe.amp,
            "compile": self.recipe.compile,
            "cuda_graphs": self.recipe.cuda_graphs,
            "deterministic": self.recipe.deterministic and torch.device(spec.device).type == "cpu",
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "hyperparameters": self.recipe.hyperparameters(spec.global_batch),
        }
        if not self.recipe.is_mlperf_model:
            facts["deviation"] = (
                f"{self.recipe.voxels} voxels and {self.recipe.first_filters} filters instead of MLPerf HPC's 128 and 32: "
                "a rehearsal, not a result"
                if self.recipe.model == "mlperf"
                else "the seven convolutions of SC 2018"
            )
        return Demand(
            fields={"x": InputField("int16", (v, v, v, 4)), "y": InputField("float32", (4,))},
            arrays="torch",
            sample_bytes=v**3 * 8 + 16,
            facts=facts,
        )

    def prepare(self, spec: WorkloadSpec) -> None:
        self._spec = spec
        self._device = torch.device(spec.device)
        torch_step.configure(self.recipe, self._device)
        each = spec.global_batch // spec.world
        with torch.random.fork_rng(devices=[]), torch_step.memory_advice(each, self._sample(), self._device):
            torch.manual_seed(spec.seed)
            self._net = build(self.recipe).to(self._device)
        hidden = [self._net.dense1.weight, self._net.dense2.weight]
        rest = [p for p in self._net.parameters() if all(p is not h for h in hidden)]
        self._optimiser = torch.optim.SGD(
            [{"params": hidden, "weight_decay": self.recipe.weight_decay}, {"params": rest}],
            lr=self.recipe.base_learning_rate,
            momentum=self.recipe.momentum,
        )
        self._model = torch_step.optimised(self._net, self.recipe, spec, self._device, lambda: self._example(each))
        self._timer = StepTimer(self._device, self._net if spec.world > 1 else None)

    def begin_epoch(self, epoch: int) -> None:
        rate = learning_rate(self.recipe, self._of().global_batch, epoch)
        for group in self._optimiser.param_groups:
            group["lr"] = rate

    def _of(self) -> WorkloadSpec:
        assert self._spec is not None, "prepare() must come first"
        return self._spec

    def _sample(self) -> str:
        return f"volumes of {self.recipe.voxels} voxels per side, cosmoflow"

    def _input(self, counts: Tensor) -> Tensor:
        x = as_input(counts, self._device)
        return x if self.recipe.channels_last else x.contiguous()

    def _example(self, samples: int) -> list[Tensor]:
        v = self.recipe.voxels
        counts = torch.zeros((samples, v, v, v, 4), dtype=torch.int16, device=self._device)
        return [self._input(counts), *self._masks(samples)]

    def _masks(self, samples: int) -> list[Tensor]:
        """Draw the dropout masks of the global batch; return the masks of this rank's slice.

        The masks are drawn on the CPU, so they are the same on every device and for any number of ranks.
        """
        share = self.recipe.dropout
        if share == 0:
            return []
        spec = self._of()
        generator = torch.Generator().manual_seed(((spec.seed & 0xFFFFFFFF) << 31) ^ self._steps)
        drawn = torch.rand((spec.global_batch, sum(self._net.dropout_widths)), generator=generator)
        start = spec.rank * (spec.global_batch // spec.world)
        mine = ((drawn[start : start + samples] >= share).to(torch.float32) / (1 - share)).to(self._device)
        return list(mine.split(self._net.dropout_widths, dim=1))

    def _checked(self, batch: Batch, where: str) -> Tensor:
        """Return the volumes of a batch. Raises ConfigError if they do not match the model."""
        counts, v = batch["x"], self.recipe.voxels
        if counts.dtype != torch.int16 or tuple(counts.shape[1:]) != (v, v, v, 4):
            raise ConfigError(
                f"{where}: volumes are {counts.dtype} {list(counts.shape[1:])}, but the model expects int16 "
                f"{[v, v, v, 4]}",
                hint="set --voxels to the side of the volumes",
            )
        return counts

    def step(self, batch: Batch) -> StepCost:
        self._timer.start()
        counts = self._checked(batch, f"step {self._steps + 1:,} on rank {self._of().rank}")
        samples = len(counts)
        with torch_step.memory_advice(samples, self._sample(), self._device):
            counts = counts.to(self._device, non_blocking=True)
            y = batch["y"].to(self._device, non_blocking=True)
            self._timer.copied()
            self._model.train()
            with torch_step.autocast(self.recipe, self._device):
                predicted = self._model(self._input(counts), *self._masks(samples))
            loss = nn.functional.mse_loss(predicted.float(), y)
            self._optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self._timer.backward_done()
            self._optimiser.step()
            self._steps += 1
            self._target_sum += y.to("cpu", torch.float64).sum(0)
            self._target_count += samples
            # item() waits for the device. Without item(), the step would end early, and the device's work could hide a
            # wait for data.
            value = float(loss.item())
        return self._timer.cost(samples, value)

    def _reduced(self, values: Tensor) -> Tensor:
        return torch_step.sum_over_ranks(values, self._of(), self._device)

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        """Return `mae` of the model, and `mae_constant` of the best constant prediction.

        The constant is the mean of the targets trained on so far; before the first step, the constant is 0, the middle
        of the range. Sums are divided only once, so the metrics are exact also for slices of different sizes.
        """
        seen = self._reduced(
            torch.cat([self._target_sum, torch.tensor([float(self._target_count)], dtype=torch.float64)])
        )
        constant = (seen[:4] / seen[4]).to(torch.float32) if seen[4] else torch.zeros(4)
        totals = torch.zeros(3, dtype=torch.float64)
        self._net.eval()
        with torch.no_grad():
            for batch in batches:
                y = batch["y"]
                if len(y) == 0:
                    continue
                counts = self._checked(batch, f"validation on rank {self._of().rank}")
                with (
                    torch_step.memory_advice(len(y), self._sample(), self._device),
                    torch_step.autocast(self.recipe, self._device),
                ):
                    predicted = self._net(self._input(counts)).to("cpu", torch.float64)
                y = y.to("cpu", torch.float64)
                totals += torch.stack(
                    [
                        (predicted - y).abs().sum(),
                        (constant.to(torch.float64) - y).abs().sum(),
                        torch.tensor(float(len(y)), dtype=torch.float64),
                    ]
                )
        model, flat, samples = (float(v) for v in self._reduced(totals))
        if samples == 0:
            return {}
        return {"mae": model / (4 * samples), "mae_constant": flat / (4 * samples), "validation_samples": samples}

    def state_dict(self) -> dict[str, Any]:
        seen = self._reduced(
            torch.cat([self._target_sum, torch.tensor([float(self._target_count)], dtype=torch.float64)])
        )
        return {
            "model": self._net.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "steps": self._steps,
            "target_sum": seen[:4],
            "target_count": int(seen[4]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._net.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._steps = int(state["steps"])
        # The saved sums are over all ranks, and will be summed again. Therefore, rank 0 restores them, and all other
        # ranks start from 0.
        leads = self._of().rank == 0
        self._target_sum = state["target_sum"].clone() if leads else torch.zeros(4, dtype=torch.float64)
        self._target_count = int(state["target_count"]) if leads else 0

    def cleanup(self) -> None:
        self._timer.close()
        self._model = self._net = self._optimiser = None
        self._spec = None
