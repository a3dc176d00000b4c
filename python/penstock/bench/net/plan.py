# SPDX-License-Identifier: Apache-2.0
"""Plan of a network benchmark: which tests run, over which library, and with which sizes and iterations.

Two conventions exist, and they are never mixed. `osu` follows the OSU micro-benchmarks 5.3 (sizes, windows, iterations,
warm-up, units); `nccl` follows nccl-tests. Times of the two conventions are not comparable: OSU puts a barrier after
each timed call, and nccl-tests runs its calls back to back.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.errors import ConfigError
from penstock.units import format_bytes

__all__ = [
    "MEMORY_CAP_BYTES",
    "NCCL_NAMES",
    "OSU_NAMES",
    "OSU_WINDOW",
    "POINT_TO_POINT",
    "REDUCTIONS",
    "Count",
    "NetPlan",
    "operations_of",
]

# For each operation of a convention, the program that defines its semantics.
OSU_NAMES = {
    "latency": "osu_latency",
    "bw": "osu_bw",
    "bibw": "osu_bibw",
    "allreduce": "osu_allreduce",
    "allgather": "osu_allgather",
    "reduce-scatter": "osu_reduce_scatter",
    "bcast": "osu_bcast",
    "alltoall": "osu_alltoall",
    "barrier": "osu_barrier",
}
NCCL_NAMES = {
    "allreduce": "all_reduce_perf",
    "allgather": "all_gather_perf",
    "reduce-scatter": "reduce_scatter_perf",
    "bcast": "broadcast_perf",
    "alltoall": "alltoall_perf",
    "sendrecv": "sendrecv_perf",
}
POINT_TO_POINT = frozenset({"latency", "bw", "bibw"})
# Operations on float32 elements. All other operations move bytes.
REDUCTIONS = frozenset({"allreduce", "reduce-scatter"})
# Maximum memory of one rank's buffers in OSU's programs (osu_coll.h, MAX_MEM_LIMIT).
MEMORY_CAP_BYTES = 512 << 20
# Messages in flight in osu_bw and osu_bibw.
OSU_WINDOW = 64
_LARGE = 8192
_MAX_NCCL_BYTES = 16 << 30


class Count(msgspec.Struct, frozen=True):
    """Iterations of one size: the timed iterations, and the warm-up before them."""

    timed: int
    warm_up: int


class NetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The tests to run, and their settings. None means the default of the convention.

    Attributes:
        operations: Keys of `OSU_NAMES` or `NCCL_NAMES`.
        min_bytes, max_bytes: Smallest and largest message.
        window: Messages in flight in bw and bibw.
        pair: Ranks of the point-to-point tests. OSU's programs use two ranks, 0 and 1.
        matrix: Measure latency and bandwidth of every pair of ranks.
        rounds: Repetitions of the matrix; a pair's figure is the median.
        matrix_bytes: Message size for the bandwidths in the matrix.
        validates: Check the received data at each size, outside the clock.
        join_s: Time limit for all ranks to join.
    """

    convention: Literal["osu", "nccl"] = "osu"
    backend: Literal["mpi", "gloo", "nccl"] = "gloo"
    device: Literal["cpu", "cuda"] = "cpu"
    operations: tuple[str, ...] = ()
    min_bytes: int | None = None
    max_bytes: int | None = None
    iterations: int | None = None
    warm_up: int | None = None
    window: int = OSU_WINDOW
    pair: tuple[int, int] = (0, 1)
    matrix: bool = False
    rounds: int = 3
    matrix_bytes: int = 1 << 20
    validates: bool = True
    join_s: float = 60.0

    @property
    def names(self) -> dict[str, str]:
        return OSU_NAMES if self.convention == "osu" else NCCL_NAMES

    @property
    def min_world(self) -> int:
        """Smallest number of ranks: 1 for the collectives of nccl-tests over NCCL, to test NCCL on a single GPU."""
        is_nccl = self.convention == self.backend == "nccl"
        return 1 if is_nccl and not self.matrix and "sendrecv" not in self.operations else 2

    def unit(self, operation: str) -> str:
        """Unit of the figures of an operation: OSU's value, or algbw and busbw of nccl-tests."""
        if self.convention == "nccl":
            return "GB/s"
        return "MB/s" if operation in ("bw", "bibw") else "us"

    def check(self, world: int) -> None:
        """Check the plan for a number of ranks.

        Raises:
            ConfigError: A value is out of range, or the convention does not have an operation.
        """
        if world < self.min_world:
            raise ConfigError(f"bench net: needs at least 2 ranks (got {world})", hint="set --ranks 2 or more")
        for name in self.operations:
            if name not in self.names:
                raise ConfigError(
                    f"{name}: not a test of convention {self.convention}; its tests are {', '.join(self.names)}"
                )
        low, high = self.min_bytes, self.max_bytes
        if (low is not None and low < 0) or (high is not None and high < 1):
            raise ConfigError(f"sizes: must not be negative (got {low} to {high} bytes)", where="--max-size")
        if low is not None and high is not None and low > high:
            raise ConfigError(
                f"sizes: the smallest, {format_bytes(low, binary=True)}, exceeds the largest, "
                f"{format_bytes(high, binary=True)}",
                where="--min-size",
            )
        cap = MEMORY_CAP_BYTES if self.convention == "osu" else _MAX_NCCL_BYTES
        for flag, value in (("--min-size", low), ("--max-size", high)):
            if value is not None and value > cap:
                raise ConfigError(
                    f"sizes: {format_bytes(value, binary=True)} exceeds the limit of {format_bytes(cap, binary=True)} "
                    f"for convention {self.convention}",
                    where=flag,
                    hint=f"set {flag} {format_bytes(cap, binary=True).replace(' ', '')} or less",
                )
        for name, value, least in (
            ("--iterations", self.iterations, 1),
            ("--warm-up", self.warm_up, 0),
            ("--window", self.window, 1),
            ("--rounds", self.rounds, 1),
            ("--pairs-size", self.matrix_bytes, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{name}: must be at least {least} (got {value})", where=name)
        if self.matrix_bytes > MEMORY_CAP_BYTES:
            raise ConfigError(f"--pairs-size: {self.matrix_bytes:,} bytes exceed the limit of {MEMORY_CAP_BYTES:,}")
        a, b = self.pair
        if world > 1 and (a == b or not (0 <= a < world and 0 <= b < world)):
            raise ConfigError(
                f"--pair: {a},{b} must be two different ranks from 0 to {world - 1}",
                where="--pair",
            )
        for name in self.operations:
            if not self.sizes(name, world):
                raise ConfigError(
                    f"{name}: has no message size from {'its smallest' if low is None else f'{low:,} bytes'} to "
                    f"{'its largest' if high is None else f'{high:,} bytes'} on {world} ranks",
                    where="--max-size" if low is None else "--min-size",
                    hint="use a larger --max-size (reductions and nccl-tests start at 4 bytes), a smaller --min-size, "
                    "or fewer ranks (allgather and alltoall hold the parts of all ranks in at most "
                    f"{format_bytes(MEMORY_CAP_BYTES, binary=True)})",
                )

    def sizes(self, operation: str, world: int) -> list[int]:
        """Sizes of an operation in bytes, as its program would use them."""
        return self._nccl_sizes() if self.convention == "nccl" else self._osu_sizes(operation, world)

    def _osu_sizes(self, operation: str, world: int) -> list[int]:
        if operation == "barrier":
            return [0]
        least = {"latency": 0}.get(operation, 4 if operation in REDUCTIONS else 1)
        default = 1 << 22 if operation in POINT_TO_POINT else 1 << 20
        high = self.max_bytes or max(default, self.min_bytes or 0)
        if operation in ("allgather", "alltoall"):
            high = min(high, MEMORY_CAP_BYTES // world)
        size = least
        if self.min_bytes is not None and self.min_bytes > least:
            size = self.min_bytes // 4 * 4 if operation in REDUCTIONS else self.min_bytes
        found = []
        while size <= high:
            found.append(size)
            size = size * 2 if size else 1
        return found

    def _nccl_sizes(self) -> list[int]:
        """By default, nccl-tests measures one size of 32 MiB. In a range, each size is twice the previous one, as with
        `-f 2`.
        """
        default = 32 << 20
        low = self.min_bytes if self.min_bytes is not None else min(default, self.max_bytes or default)
        high = self.max_bytes if self.max_bytes is not None else max(default, low)
        found, size = [], max(low, 4)
        while size <= high:
            found.append(size)
            size *= 2
        return found

    def count(self, operation: str, size_bytes: int) -> Count:
        """Iterations of one size. OSU's collectives compare the number of elements, not of bytes, with the threshold of
        8,192.
        """
        if self.convention == "nccl":
            base = Count(20, 1)
        else:
            is_large = (size_bytes // 4 if operation in REDUCTIONS else size_bytes) > _LARGE
            if operation == "latency":
                base = Count(1_000, 10) if is_large else Count(10_000, 100)
            elif operation in POINT_TO_POINT:
                base = Count(20, 2) if is_large else Count(100, 10)
            else:
                base = Count(100, 10) if is_large or operation == "barrier" else Count(1_000, 200)
        return Count(
            self.iterations if self.iterations is not None else base.timed,
            self.warm_up if self.warm_up is not None else base.warm_up,
        )


def operations_of(names: tuple[str, ...], convention: str) -> tuple[str, ...]:
    """Convert names of operations, or of their programs, to operations. Without names, returns all operations of the
    convention.

    Raises:
        ConfigError: A name is unknown, or belongs to the other convention.
    """
    known = OSU_NAMES if convention == "osu" else NCCL_NAMES
    other = NCCL_NAMES if convention == "osu" else OSU_NAMES
    programs = {program: operation for operation, program in known.items()}
    found = []
    for name in names:
        spelt = name.replace("_", "-") if name not in programs else name
        if name in programs or spelt in known:
            found.append(programs.get(name, spelt))
            continue
        if name in other.values() or spelt in other:
            alternative = "nccl" if convention == "osu" else "osu"
            raise ConfigError(
                f"{name}: a test of convention {alternative}, not of {convention}",
                hint=f"set --convention {alternative}; the two conventions cannot be mixed in one run",
            )
        raise ConfigError(f"{name}: unknown test; the tests of convention {convention} are {', '.join(known)}")
    return tuple(dict.fromkeys(found)) or tuple(known)
