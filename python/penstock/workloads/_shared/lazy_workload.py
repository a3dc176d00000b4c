# SPDX-License-Identifier: Apache-2.0
"""Base class of workloads that choose their implementation from the spec, so that an emulated accelerator needs no
torch.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.protocols import Batch, Demand, StepCost, Workload, WorkloadSpec

__all__ = ["LazyWorkload", "requires"]


@contextlib.contextmanager
def requires(workload: str, extra: str, *packages: str) -> Iterator[None]:
    """Turn a failed import of one of these packages into an error with the extra that installs it.

    Raises:
        ConfigError: A package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        raise ConfigError(
            f"training {workload} requires {error.name}, which is not installed",
            hint=f"pip install 'penstock[{extra}]'",
        ) from None


class LazyWorkload:
    """Workload that forwards all calls to the implementation that `make` returns. A subclass defines `make`."""

    def __init__(self) -> None:
        self._inner: Workload | None = None

    def make(self, spec: WorkloadSpec) -> Workload:
        """Create the implementation for a spec. Raises ConfigError for invalid settings."""
        raise NotImplementedError

    def _made(self, spec: WorkloadSpec) -> Workload:
        if self._inner is None:
            self._inner = self.make(spec)
        return self._inner

    def _prepared(self) -> Workload:
        assert self._inner is not None, "prepare() must come first"
        return self._inner

    def demand(self, spec: WorkloadSpec) -> Demand:
        return self._made(spec).demand(spec)

    def prepare(self, spec: WorkloadSpec) -> None:
        self._made(spec).prepare(spec)

    def begin_epoch(self, epoch: int) -> None:
        self._prepared().begin_epoch(epoch)

    def step(self, batch: Batch) -> StepCost:
        return self._prepared().step(batch)

    def evaluate(self, batches: Iterable[Batch]) -> Mapping[str, float]:
        return self._prepared().evaluate(batches)

    def state_dict(self) -> dict[str, Any]:
        return self._prepared().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._prepared().load_state_dict(state)

    def cleanup(self) -> None:
        if self._inner is not None:
            self._inner.cleanup()
