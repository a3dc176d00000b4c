# SPDX-License-Identifier: Apache-2.0
"""Message buffers of a rank, in host or GPU memory, and the patterns that validate the received data."""

from __future__ import annotations

import mmap
from typing import Any

__all__ = ["Memory", "bytes_of", "expected", "floats_of", "scatter_counts"]

_PAGE_BYTES = 4096
# Period of the bytes that ranks send: a prime, so that no block size of a network is a multiple of this period.
_PERIOD_BYTES = 251


class Memory:
    """Named buffers. Host buffers are numpy arrays of bytes at page boundaries; GPU buffers are torch tensors."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._held: dict[str, Any] = {}

    def take(self, name: str, size_bytes: int) -> Any:
        """Return the first bytes of a buffer, which grows if it is too small. The address of a buffer is stable until
        the buffer grows.
        """
        held = self._held.get(name)
        if held is None or len(held) < size_bytes:
            held = self._held[name] = self._allocate(max(size_bytes, _PAGE_BYTES))
        return held[:size_bytes]

    def write(self, name: str, values: Any) -> None:
        """Copy a numpy array to the start of a buffer."""
        import numpy as np

        raw = np.ascontiguousarray(values).view(np.uint8)
        target = self.take(name, len(raw))
        if self.device == "cpu":
            target[:] = raw
        else:
            import torch

            target.copy_(torch.from_numpy(raw))

    def read(self, name: str, size_bytes: int) -> Any:
        """Return the first bytes of a buffer as a numpy array on the host."""
        found = self.take(name, size_bytes)
        return found if self.device == "cpu" else found.cpu().numpy()

    def _allocate(self, size_bytes: int) -> Any:
        if self.device != "cpu":
            import torch

            return torch.zeros(size_bytes, dtype=torch.uint8, device=self.device)
        import numpy as np

        # Do not let numpy allocate: above 4 MiB, it requests huge pages, and OSU's programs do not.
        pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return np.frombuffer(pages, np.uint8)


def bytes_of(rank: int, size_bytes: int, *, start: int = 0) -> Any:
    """Bytes that a rank sends, from byte `start` on. The values differ between ranks, between neighbouring bytes, and
    between blocks of any power of two, so that swapped blocks are detected.
    """
    import numpy as np

    period = (np.arange(start, start + _PERIOD_BYTES) * 7 + rank * 31 + 1) % _PERIOD_BYTES
    return np.resize(period.astype(np.uint8), size_bytes)


def floats_of(rank: int, count: int) -> Any:
    """float32 values that a rank reduces: small whole numbers, whose sums are exact in any order."""
    import numpy as np

    return ((np.arange(count, dtype=np.int64) + rank) % 13).astype(np.float32)


def scatter_counts(count: int, world: int) -> list[int]:
    """Elements that each rank gets in a reduce-scatter. As in OSU, each of the first ranks gets one element of the
    remainder.
    """
    return [count // world + (rank < count % world) for rank in range(world)]


def expected(operation: str, size_bytes: int, rank: int, world: int, *, peer: int = 0) -> Any:
    """Data that a rank must have received, as a numpy array of bytes or float32.

    Args:
        size_bytes: Size as in OSU: the bytes that a rank sends to one rank or, for reductions, the bytes that a rank
            contributes.
        peer: Sender of a point-to-point message.
    """
    import numpy as np

    if operation in ("allreduce", "reduce-scatter"):
        count = size_bytes // 4
        total = sum(floats_of(each, count) for each in range(world))
        if operation == "allreduce":
            return total
        counts = scatter_counts(count, world)
        start = sum(counts[:rank])
        return total[start : start + counts[rank]]
    if operation == "allgather":
        return np.concatenate([bytes_of(each, size_bytes) for each in range(world)])
    if operation == "alltoall":
        return np.concatenate([bytes_of(each, size_bytes, start=rank * size_bytes) for each in range(world)])
    return bytes_of(0 if operation == "bcast" else peer, size_bytes)
