# SPDX-License-Identifier: Apache-2.0
"""Timer of a real training step: host-to-device copy, exposed communication of DDP, and computation.

Exposed communication is the time from the last gradient of the local backward pass until the backward pass returns. In
this time, no computation is left, and DDP waits until all its allreduces are done. The timer adds no barrier and no
communication hook, so it changes neither the step's order nor its numbers. On CUDA, the host returns before the device
has finished. The timer therefore uses CUDA events on the compute stream, because that stream waits for the allreduces.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from penstock.protocols import StepCost

if TYPE_CHECKING:
    from torch import nn

__all__ = ["StepTimer"]


class StepTimer:
    """Measures the steps of one rank. The order of calls is `start`, `copied`, `backward_done`, `cost`.

    Args:
        device: Device of the computation.
        module: The trained module if DDP reduces its gradients; None for a single rank.
    """

    def __init__(self, device: torch.device, module: nn.Module | None = None) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._started_s = self._h2d_s = self._comm_s = 0.0
        self._last_gradient_s: float | None = None
        self._events: dict[str, Any] = {}
        if self._cuda:
            names = ("start", "copied", "gradient", "backward")
            self._events = {name: torch.cuda.Event(enable_timing=True) for name in names}
        # In the first step, every parameter has a hook, to find the parameter whose gradient comes last. After the
        # first step, only that parameter keeps its hook, because the hooks of a model with 500 parameters would take
        # 0.5 ms per step.
        self._hooks: dict[int, Any] = {}
        self._last = -1
        self._is_settled = module is None
        parameters = [] if module is None else [p for p in module.parameters() if p.requires_grad]
        for number, parameter in enumerate(parameters):
            self._hooks[number] = parameter.register_post_accumulate_grad_hook(self._hook(number))

    def _hook(self, number: int) -> Any:
        def mark(_parameter: torch.Tensor) -> None:
            self._last = number
            if self._cuda:
                self._record("gradient")
            self._last_gradient_s = time.perf_counter()

        return mark

    def _record(self, event: str) -> None:
        self._events[event].record(torch.cuda.current_stream(self._device))

    def start(self) -> None:
        """Call before the batch is copied to the device. Waits for copies that the feed has started."""
        self._started_s = time.perf_counter()
        self._h2d_s = self._comm_s = 0.0
        self._last_gradient_s = None
        if self._cuda:
            # The device is idle, but the stream may wait for copies that the feed began.
            torch.cuda.current_stream(self._device).synchronize()
            self._h2d_s = time.perf_counter() - self._started_s
            self._record("start")

    def copied(self) -> None:
        """Call after the batch's copies to the device are queued."""
        if self._cuda:
            self._record("copied")

    def backward_done(self) -> None:
        """Call after the backward pass."""
        if self._last_gradient_s is None:
            return
        if self._cuda:
            self._record("backward")
        else:
            self._comm_s = time.perf_counter() - self._last_gradient_s
        if not self._is_settled:
            self._is_settled = True
            for number, hook in self._hooks.items():
                if number != self._last:
                    hook.remove()
            self._hooks = {self._last: self._hooks[self._last]}

    def cost(self, samples: int, loss: float) -> StepCost:
        """Return the step's cost. Call when the device has finished, such as after `loss.item()`."""
        total_s = time.perf_counter() - self._started_s
        if self._cuda:
            at = self._events
            self._h2d_s += at["start"].elapsed_time(at["copied"]) / 1e3
            if self._last_gradient_s is not None:
                # `item()` waits for the stream only up to the loss. The optimiser may be queued behind the loss.
                at["backward"].synchronize()
                self._comm_s = at["gradient"].elapsed_time(at["backward"]) / 1e3
        compute_s = max(0.0, total_s - self._h2d_s - self._comm_s)
        return StepCost(samples, compute_s, 0.0, loss, self._comm_s, self._h2d_s)

    def close(self) -> None:
        """Remove the hooks, which would otherwise keep the module alive."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks = {}
