# SPDX-License-Identifier: Apache-2.0
"""Utilisation of NVIDIA GPUs, read from NVML through ctypes. Experimental: it was tested only on an idle GPU.

Function names and structures: nvml.h of CUDA 13.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

__all__ = ["GpuMonitor"]


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class GpuMonitor:
    """GPUs of this node. Without NVML or without a GPU, `count` is 0, and `read` does nothing."""

    def __init__(self) -> None:
        self.utilization: list[list[float]] = []
        self._library: ctypes.CDLL | None = None
        self._handles: list[ctypes.c_void_p] = []
        with suppress(OSError, AttributeError):
            self._open(ctypes.CDLL("libnvidia-ml.so.1"))

    def _open(self, library: ctypes.CDLL) -> None:
        if library.nvmlInit_v2() != 0:
            return
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        self._library = library
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0:
                self._handles.append(handle)
                self.utilization.append([])

    @property
    def count(self) -> int:
        """Number of GPUs."""
        return len(self._handles)

    def read(self) -> None:
        """For each GPU, read the share of the last sampling period in which a kernel ran."""
        if self._library is None:
            return
        for index, handle in enumerate(self._handles):
            found = _Utilization()
            if self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(found)) == 0:
                self.utilization[index].append(found.gpu / 100)

    def mean_utilization(self) -> float | None:
        """Mean over the used GPUs, or over all GPUs if none was used. None without a GPU."""
        means = [sum(values) / len(values) for values in self.utilization if values]
        used = [value for value in means if value > 0.01] or means
        return sum(used) / len(used) if used else None
