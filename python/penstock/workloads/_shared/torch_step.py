# SPDX-License-Identifier: Apache-2.0
"""Helpers for a training step in torch, shared by several workloads: determinism, AMP, `torch.compile`, CUDA graphs,
DDP, sums over ranks, and the error for a batch that does not fit into memory.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import torch

from penstock.errors import BudgetExceeded, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from penstock.protocols import WorkloadSpec
    from penstock.workloads._shared.recipe import BaseRecipe

__all__ = [
    "autocast",
    "check_share",
    "configure",
    "memory_advice",
    "optimised",
    "sum_over_ranks",
]


def check_share(spec: WorkloadSpec) -> None:
    """Raise ConfigError unless the ranks can share the global batch evenly."""
    if spec.global_batch % spec.world:
        raise ConfigError(
            f"a global batch of {spec.global_batch} cannot be shared evenly by {spec.world} ranks",
            hint="choose a multiple: DDP averages gradients over ranks, so slices must be equal",
        )


def configure(recipe: BaseRecipe, device: torch.device) -> None:
    """Set torch's global switches for a training: deterministic kernels, or the fastest ones.

    Raises:
        ConfigError: CUDA graphs are requested without a GPU.
    """
    if recipe.cuda_graphs and device.type != "cuda":
        raise ConfigError(
            f"cuda_graphs requires a GPU, but the device is {device}", hint="omit cuda_graphs, or use --device cuda"
        )
    # Some CUDA kernels have no deterministic version (the backward pass of max pooling), so on CUDA torch only warns.
    torch.use_deterministic_algorithms(recipe.deterministic, warn_only=device.type == "cuda")
    # All tensors are initialised anyway, and filling them takes an extra pass.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = not recipe.deterministic


def autocast(recipe: BaseRecipe, device: torch.device) -> Any:
    """Context in which the model computes in bfloat16 if the recipe has `amp`.

    Weights that are cast are not cached with CUDA graphs, because a graph must cast them again in each replay.
    """
    return torch.autocast(
        device.type, torch.bfloat16, enabled=recipe.amp, cache_enabled=recipe.amp and not recipe.cuda_graphs
    )


def optimised(
    net: nn.Module,
    recipe: BaseRecipe,
    spec: WorkloadSpec,
    device: torch.device,
    example: Callable[[], Sequence[Tensor]],
) -> nn.Module:
    """Return the module that training steps call: `net`, compiled or captured as the recipe states, and wrapped in DDP
    for more than one rank. The returned module shares the parameters of `net`.

    Args:
        example: Creates the input of one training step on this rank, for CUDA graphs. The values of this input do not
            matter.
    """
    model = net
    if recipe.cuda_graphs:
        model = _captured(net, recipe, device, example())
    if spec.world > 1:
        from torch.nn.parallel import DistributedDataParallel

        # Running statistics are not sent with each step: the workload sends them before it evaluates or saves them.
        # torch 2.13 renamed the argument, and warns about the old name.
        known = inspect.signature(DistributedDataParallel).parameters
        sync_buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        model = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **{sync_buffers: False},
        )
    return torch.compile(model) if recipe.compile else model


def _captured(net: nn.Module, recipe: BaseRecipe, device: torch.device, example: Sequence[Tensor]) -> nn.Module:
    """Capture the forward and backward pass of a training step as CUDA graphs.

    torch runs some steps first, which would change the running statistics of batch normalisation. This function
    restores the statistics.
    """
    net.train()
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with autocast(recipe, device):
        captured: nn.Module = torch.cuda.make_graphed_callables(net, tuple(example))
    with torch.no_grad():
        for name, buffer in net.named_buffers():
            buffer.copy_(buffers[name])
    return captured


def sum_over_ranks(values: Tensor, spec: WorkloadSpec, device: torch.device) -> Tensor:
    """Sum values over all ranks. All ranks must call this function. Returns a tensor on the CPU."""
    if spec.world > 1:
        from torch import distributed

        values = values.to(device)
        distributed.all_reduce(values)
    return values.cpu()


@contextlib.contextmanager
def memory_advice(samples: int, sample: str, device: torch.device) -> Iterator[None]:
    """Convert torch's out-of-memory error, on a GPU or the CPU, to an error with the batch's size and a hint.

    Args:
        samples: Samples of this rank in the step.
        sample: Text that describes one sample, such as `image of 224 x 224 pixels`.
    Raises:
        BudgetExceeded: Memory was exhausted.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one, too
        first = str(error).splitlines()[0] if str(error) else ""
        if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in first):
            raise
        hint = f"use --batch-size {max(1, samples // 2)}" if samples > 1 else "use a smaller model or smaller samples"
        hint += ", or --set amp=true"
        facts: dict[str, Any] = {}
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            facts["budget"] = total
            first = f"{free / 1e9:.1f} GB of {total / 1e9:.1f} GB are free"
        raise BudgetExceeded(
            f"out of memory on {device}: a step of {samples:,} samples ({sample}) does not fit: {first}",
            hint=hint,
            **facts,
        ) from None
