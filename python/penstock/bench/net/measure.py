# SPDX-License-Identifier: Apache-2.0
"""Measures on one rank: OSU's tests, nccl-tests' tests, and the matrix of pairs. All ranks make the same calls.

OSU's point-to-point tests time all iterations on the first rank. OSU's collective tests time each call separately on
every rank. A barrier that is not timed follows each call, so that the wait for a late rank does not count. nccl-tests
times its calls back to back between two barriers, and averages over ranks.
"""

from __future__ import annotations

import statistics
from itertools import repeat
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.bench.net.memory import bytes_of, expected, floats_of
from penstock.bench.net.nccl_format import NcclHalf, NcclRow, bus_factor
from penstock.bench.net.osu_format import OsuRow
from penstock.bench.net.plan import POINT_TO_POINT, REDUCTIONS
from penstock.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.net.plan import Count, NetPlan
    from penstock.bench.net.transport import Transport

    Emit = Callable[[dict[str, Any]], None]
    Stage = Callable[[str, int], None]

__all__ = ["measure_matrix", "measure_tests"]

_SMALL_BYTES = 8
_MATRIX_WINDOW = 16
_LATENCY_S = 0.03
_BANDWIDTH_S = 0.15


def measure_tests(plan: NetPlan, transport: Transport, emit: Emit, stage: Stage) -> None:
    """Run the tests of a plan. Emits `{"table": ...}` and `{"row": ...}` messages; only the messages of rank 0 matter.

    Args:
        stage: Called with the operation and the size before each size.

    Raises:
        Corrupt: A rank received wrong data; the error contains the size and the ranks.
    """
    for operation in plan.operations:
        emit({"table": operation})
        sizes = plan.sizes(operation, transport.world)
        parts = transport.world if operation in ("allgather", "alltoall") and plan.convention == "osu" else 1
        for name in ("send", "recv"):  # once for all sizes, as OSU's programs do
            transport.memory.take(name, sizes[-1] * parts if sizes else 0)
        for size in sizes:
            stage(operation, size)
            if plan.convention == "nccl":
                _emit_nccl(plan, transport, operation, size, emit)
                continue
            row = _osu_row(plan, transport, operation, size)
            if row is None:
                emit({"skipped": [operation, size]})
            else:
                emit({"row": row})


# ------------------------------------------------------------ OSU


def _osu_row(plan: NetPlan, transport: Transport, operation: str, size: int) -> OsuRow | None:
    count = plan.count(operation, size)
    if operation in POINT_TO_POINT:
        return _osu_point_to_point(plan, transport, operation, size, count)
    call = _prepared(plan, transport, operation, size)
    if call is None:
        return None
    transport.barrier()
    total_s, barrier, clock = 0.0, transport.barrier, perf_counter
    if operation == "barrier":
        for at in range(count.warm_up + count.timed):
            begin = clock()
            call()
            end = clock()
            if at >= count.warm_up:
                total_s += end - begin
    else:
        for at in range(count.warm_up + count.timed):
            begin = clock()
            call()
            end = clock()
            if at >= count.warm_up:
                total_s += end - begin
            barrier()
    means = [each * 1e6 / count.timed for each in transport.gather(total_s)]
    return OsuRow(
        size_bytes=size, value=statistics.fmean(means), min_us=min(means), max_us=max(means), iterations=count.timed
    )


def _osu_point_to_point(plan: NetPlan, transport: Transport, operation: str, size: int, count: Count) -> OsuRow:
    a, b = plan.pair
    is_first, is_in = transport.rank == a, transport.rank in plan.pair
    took_s, wrong = 0.0, 0
    if is_in:
        peer = b if is_first else a
        transport.memory.take("recv", size)
        if plan.validates:
            transport.memory.write("send", bytes_of(transport.rank, size))
            transport.memory.take("recv", size)[:] = 0
        run = transport.point_to_point(operation, peer, size, plan.window, is_first=is_first)
        if plan.validates:
            run(1)
            receives = operation != "bw" or not is_first
            wrong = _wrong(transport, expected(operation, size, transport.rank, 2, peer=peer)) if receives else 0
        transport.agree(0, peer, is_first=is_first)
        run(count.warm_up)
        begin = perf_counter()
        run(count.timed)
        took_s = perf_counter() - begin
    transport.rest()
    # As in OSU, the first rank's time counts.
    gathered = transport.gather((took_s, wrong))
    _refuse_wrong(operation, size, [each[1] for each in gathered])
    took_s = gathered[a][0]
    if operation == "latency":
        value = took_s * 1e6 / (2 * count.timed)
    else:
        value = size / 1e6 * count.timed * plan.window * (2 if operation == "bibw" else 1) / took_s
    return OsuRow(size_bytes=size, value=value, iterations=count.timed)


def _prepared(plan: NetPlan, transport: Transport, operation: str, size: int) -> Callable[[], None] | None:
    """Fill the buffers, make the call, and validate the result if the plan asks for that."""
    _fill(transport, operation, size)
    call = transport.collective(operation, size)
    if call is None or operation == "barrier" or not plan.validates:
        return call
    call()
    transport.synchronize()
    wrong = _wrong(transport, expected(operation, size, transport.rank, transport.world))
    _refuse_wrong(operation, size, transport.gather(wrong))
    return call


def _fill(transport: Transport, operation: str, size: int, *, in_place: bool = False) -> None:
    """Fill this rank's send buffer for a collective, and clear its receive buffer. `size` has the same meaning as in
    OSU.
    """
    import numpy as np

    rank, world, memory = transport.rank, transport.world, transport.memory
    if operation == "barrier":
        return
    if operation in REDUCTIONS:
        memory.write("recv", floats_of(rank, size // 4) if in_place else np.zeros(size, np.uint8))
        memory.write("send", floats_of(rank, size // 4))
        return
    parts = world if operation in ("allgather", "alltoall") else 1
    received = np.zeros(size * parts, np.uint8)
    if operation == "bcast" and rank == 0:
        received = bytes_of(0, size)
    if in_place and operation == "allgather":
        received[rank * size : (rank + 1) * size] = bytes_of(rank, size)
    elif in_place and operation == "alltoall":
        received = bytes_of(rank, size * world)
    memory.write("recv", received)
    memory.write("send", bytes_of(rank, size * world if operation == "alltoall" else size))


def _wrong(transport: Transport, wanted: Any) -> int:
    """Number of wrong elements at the start of the receive buffer."""
    found = transport.memory.read("recv", wanted.nbytes).view(wanted.dtype)
    return int((found != wanted).sum())


def _refuse_wrong(operation: str, size: int, wrong: list[int]) -> None:
    bad = [rank for rank, count in enumerate(wrong) if count]
    if bad:
        shown = ", ".join(f"{rank} ({wrong[rank]:,} elements)" for rank in bad[:4])
        raise Corrupt(
            f"{operation} of {size:,} bytes: wrong data on {len(bad)} of {len(wrong)} ranks: {shown}",
            hint="check the network and its library before you trust any result: one of them corrupts data",
        )


# ------------------------------------------------------------ nccl-tests


def _emit_nccl(plan: NetPlan, transport: Transport, operation: str, size: int, emit: Emit) -> None:
    world = transport.world
    # A rank's part is rounded down to 16 bytes, as nccl-tests does.
    is_split = operation in ("allgather", "reduce-scatter", "alltoall")
    part = size // world // 16 * 16 if is_split else size // 4 * 4
    total = part * world if is_split else part
    if part == 0:
        emit({"skipped": [operation, size]})
        return
    halves = [_nccl_half(plan, transport, operation, part, total, in_place=in_place) for in_place in (False, True)]
    row = NcclRow(
        size_bytes=total,
        count=part // 4,
        redop="sum" if operation in REDUCTIONS else "none",
        root=0 if operation == "bcast" else -1,
        out_of_place=halves[0],
        in_place=halves[1],
    )
    emit({"row": row})


def _nccl_half(
    plan: NetPlan, transport: Transport, operation: str, part: int, total: int, *, in_place: bool
) -> NcclHalf | None:
    size = total if operation == "reduce-scatter" else part
    call = transport.collective(operation, size, in_place=in_place)
    if call is None:
        return None
    wrong = None
    # As in nccl-tests, all-to-all in place is not checked.
    if plan.validates and not (in_place and operation in ("alltoall", "sendrecv")):
        _fill(transport, operation, size, in_place=in_place)
        call()
        transport.synchronize()
        source = (transport.rank - 1) % transport.world
        wanted = expected(operation, size, transport.rank, transport.world, peer=source)
        wrong = sum(transport.gather(_wrong(transport, wanted)))
    count = plan.count(operation, total)
    for _ in repeat(None, count.warm_up):
        call()
    transport.synchronize()
    transport.barrier()
    begin = perf_counter()
    for _ in repeat(None, count.timed):
        call()
    transport.synchronize()
    took_s = statistics.fmean(transport.gather((perf_counter() - begin) / count.timed))
    algbw = total / 1e9 / took_s
    return NcclHalf(took_s * 1e6, algbw, algbw * bus_factor(operation, transport.world), wrong)


# ------------------------------------------------------------ pairs


def measure_matrix(plan: NetPlan, transport: Transport, emit: Emit, stage: Stage) -> None:
    """Measure each pair of ranks, one pair at a time, in rounds. Emits a `{"pair": ...}` message per pair and round,
    with the ranks a < b, the one-way latency, and the bandwidth in each direction.
    """
    pairs = [(a, b) for a in range(transport.world) for b in range(a + 1, transport.world)]
    for turn in range(plan.rounds):
        for a, b in pairs if turn % 2 == 0 else reversed(pairs):
            stage(f"pair {a}-{b}", plan.matrix_bytes)
            mine: tuple[float, ...] = ()
            if transport.rank in (a, b):
                mine = _pair(plan, transport, a, b)
            transport.rest()
            gathered = transport.gather(mine)
            latency_s, forth = gathered[a]
            _, back = gathered[b]
            emit(
                {
                    "pair": {
                        "a": a,
                        "b": b,
                        "round": turn,
                        "latency_us": latency_s * 1e6,
                        "a_to_b": forth,
                        "b_to_a": back,
                    }
                }
            )


def _pair(plan: NetPlan, transport: Transport, a: int, b: int) -> tuple[float, float]:
    """Latency in seconds, and the bandwidth in bytes/s from this rank to its peer."""
    is_first = transport.rank == a
    peer = b if is_first else a
    run = transport.point_to_point("latency", peer, _SMALL_BYTES, 1, is_first=is_first)
    latency_s = _timed(transport, run, peer, is_first=is_first, warm_up=20, target_s=_LATENCY_S, most=5_000) / 2
    rates = []
    for sends in (is_first, not is_first):
        run = transport.point_to_point("bw", peer, plan.matrix_bytes, _MATRIX_WINDOW, is_first=sends)
        window_s = _timed(transport, run, peer, is_first=sends, warm_up=2, target_s=_BANDWIDTH_S, most=200)
        rates.append(plan.matrix_bytes * _MATRIX_WINDOW / window_s)
    return latency_s, rates[0] if is_first else rates[1]


def _timed(
    transport: Transport,
    run: Callable[[int], None],
    peer: int,
    *,
    is_first: bool,
    warm_up: int,
    target_s: float,
    most: int,
) -> float:
    """Seconds of one iteration. The first rank chooses the number of iterations, so that all together take about
    `target_s`.
    """
    transport.agree(0, peer, is_first=is_first)
    begin = perf_counter()
    run(warm_up)
    one_s = (perf_counter() - begin) / warm_up
    count = transport.agree(max(3, min(most, int(target_s / one_s) + 1)), peer, is_first=is_first)
    run(1)
    begin = perf_counter()
    run(count)
    return (perf_counter() - begin) / count
