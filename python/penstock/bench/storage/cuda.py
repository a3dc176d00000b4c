# SPDX-License-Identifier: Apache-2.0
"""ctypes bindings of the CUDA driver (libcuda) and cuFile (libcufile): GPU memory, pinned host memory, copies.

Does not run phases or open files. Each calling thread must make the device current with `enter`.
"""

from __future__ import annotations

import ctypes
from typing import Any

from penstock.errors import BudgetExceeded, SystemFault, Unsupported

__all__ = ["CuFile", "Device"]

_OUT_OF_MEMORY = 2
_HINT = "measure without --gpu, or on a host with an NVIDIA GPU and its driver"


def _library(name: str, what: str, hint: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise Unsupported(f"{what}: {error}", where="--gpu", hint=hint) from None


class Device:
    """One GPU, with its primary context, which all CUDA code of this process shares."""

    def __init__(self, number: int) -> None:
        """Open the driver.

        Raises:
            Unsupported: The driver is missing, or no GPU has this number.
        """
        self._cuda = _library("libcuda.so.1", "this machine has no CUDA driver", _HINT)
        count = ctypes.c_int()
        if self._cuda.cuInit(0) != 0 or self._cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
            raise Unsupported("the CUDA driver finds no GPU", where="--gpu", hint=_HINT)
        if not 0 <= number < count.value:
            raise Unsupported(
                f"GPU {number} does not exist: this machine has {count.value} GPUs, numbered from 0", where="--gpu"
            )
        device = ctypes.c_int()
        self._context = ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), number)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._device = device
        self._is_held = True
        self.enter()
        name = ctypes.create_string_buffer(128)
        self._call("cuDeviceGetName", name, 128, device)
        self.name = name.value.decode(errors="replace")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code == _OUT_OF_MEMORY:
            raise BudgetExceeded(f"--gpu: {name}: not enough GPU memory or pinned memory")
        if code != 0:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise SystemFault(f"--gpu: {name}: {(text.value or b'error %d' % code).decode(errors='replace')}")

    def enter(self) -> None:
        """Make the device current for the calling thread."""
        self._call("cuCtxSetCurrent", self._context)

    def pinned(self, size: int) -> ctypes.c_void_p:
        """Allocate page-aligned host memory that the GPU can access directly. Release it with `unpin`."""
        found = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(found), ctypes.c_size_t(size), 0)
        return found

    def unpin(self, memory: ctypes.c_void_p) -> None:
        """Release pinned memory."""
        self._call("cuMemFreeHost", memory)

    def memory(self, size: int) -> ctypes.c_uint64:
        """Allocate GPU memory. Release it with `free`."""
        found = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(found), ctypes.c_size_t(size))
        return found

    def free(self, memory: ctypes.c_uint64) -> None:
        """Release GPU memory."""
        self._call("cuMemFree_v2", memory)

    def to_device(self, there: ctypes.c_uint64, here: ctypes.c_void_p, size: int) -> None:
        """Copy from host memory to the GPU; returns when the copy is complete."""
        self._call("cuMemcpyHtoD_v2", there, here, ctypes.c_size_t(size))

    def from_device(self, here: ctypes.c_void_p, there: ctypes.c_uint64, size: int) -> None:
        """Copy from the GPU to host memory; returns when the copy is complete."""
        self._call("cuMemcpyDtoH_v2", here, there, ctypes.c_size_t(size))

    def close(self) -> None:
        """Release the device; safe to call twice."""
        if not self._is_held:
            return
        self._is_held = False
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)


class _Status(ctypes.Structure):
    """CUfileError_t."""

    _fields_ = (("code", ctypes.c_int), ("driver", ctypes.c_int))


class _Handle(ctypes.Structure):
    """CUfileDescr_t: kind 1 is a Linux file descriptor."""

    _fields_ = (("kind", ctypes.c_int), ("fd", ctypes.c_void_p), ("operations", ctypes.c_void_p))


class CuFile:
    """Reads and writes between files and GPU memory. Bypasses host memory if the drivers and the file system support
    that.
    """

    def __init__(self) -> None:
        """Open cuFile's driver.

        Raises:
            Unsupported: cuFile is missing.
        """
        self._cufile = _library(
            "libcufile.so.0", "cuFile is not installed", "measure with --gpu alone, through pinned memory"
        )
        for name in ("cuFileDriverOpen", "cuFileHandleRegister"):
            getattr(self._cufile, name).restype = _Status
        for name in ("cuFileRead", "cuFileWrite"):
            function = getattr(self._cufile, name)
            function.restype = ctypes.c_ssize_t
            function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int64)
        if (status := self._cufile.cuFileDriverOpen()).code != 0:
            raise Unsupported(f"cuFile's driver cannot be opened (error {status.code})", where="--cufile")

    def register(self, fd: int, place: str) -> ctypes.c_void_p:
        """Register an open file. Release the returned handle with `release`.

        Raises:
            Unsupported: cuFile does not support the file system.
        """
        handle = ctypes.c_void_p()
        asked = _Handle(1, fd, None)
        if (status := self._cufile.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(asked))).code != 0:
            raise Unsupported(f"cuFile does not support {place} (error {status.code})", where="--cufile")
        return handle

    def release(self, handle: ctypes.c_void_p) -> None:
        """Release a handle."""
        self._cufile.cuFileHandleDeregister(handle)

    def read(self, handle: ctypes.c_void_p, there: ctypes.c_uint64, size: int, offset: int, place: str) -> None:
        """Read a block from a file into GPU memory."""
        self._whole(self._cufile.cuFileRead(handle, there.value, size, offset, 0), size, offset, place)

    def write(self, handle: ctypes.c_void_p, there: ctypes.c_uint64, size: int, offset: int, place: str) -> None:
        """Write a block from GPU memory to a file."""
        self._whole(self._cufile.cuFileWrite(handle, there.value, size, offset, 0), size, offset, place)

    @staticmethod
    def _whole(done: int, size: int, offset: int, place: str) -> None:
        if done != size:
            raise SystemFault(f"{place}: cuFile moved {done:,} of {size:,} bytes at {offset:,}", where=place)
