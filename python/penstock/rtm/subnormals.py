# SPDX-License-Identifier: Apache-2.0
"""Flushes subnormal numbers to zero, only while Devito computes.

Devito links its operators with `-ffast-math`. When the first operator is loaded, its start-up code sets the mode for
the whole process, so numbers below 1.2e-38 become zero in every other library, too. This module sets the mode only
while an operator runs, and then restores the caller's mode. All shots are therefore computed in the same mode.
"""

from __future__ import annotations

import ctypes
import platform
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["flushed_subnormals"]

# glibc's fenv_t on x86-64 has 32 bytes. The last 4 are the MXCSR register, whose bits 15 and 6 flush results and
# operands.
_ENVIRONMENT_BYTES, _MXCSR_AT, _FLUSH = 32, 28, 0x8040


@cache
def _libm() -> Any:
    if platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL("libm.so.6")


@contextmanager
def flushed_subnormals() -> Iterator[None]:
    """Set the mode for this thread and the threads that it starts, and restore the mode at the end. Only for x86-64
    with glibc.
    """
    libm = _libm()
    if libm is None:
        yield
        return
    before = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    libm.fegetenv(before)
    register = int.from_bytes(before.raw[_MXCSR_AT:], "little") | _FLUSH
    libm.fesetenv(
        ctypes.create_string_buffer(before.raw[:_MXCSR_AT] + register.to_bytes(4, "little"), _ENVIRONMENT_BYTES)
    )
    try:
        yield
    finally:
        libm.fesetenv(before)
