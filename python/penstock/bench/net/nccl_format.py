# SPDX-License-Identifier: Apache-2.0
"""Format of nccl-tests: writes its header, rows and footer, and parses its output.

Source: the format strings in NVIDIA/nccl-tests, src/util.cu. Factors from algbw to busbw: doc/PERFORMANCE.md in the
same repository.
"""

from __future__ import annotations

import math
import re

import msgspec

from penstock.bench.net.plan import NCCL_NAMES
from penstock.errors import Corrupt

__all__ = ["NcclHalf", "NcclRow", "NcclTable", "bus_factor", "nccl_footer", "nccl_header", "nccl_line", "parse_nccl"]


class NcclHalf(msgspec.Struct, frozen=True):
    """Figures of a row, out of place or in place: time of one call, GB/s (10^9 bytes), and wrong elements (None: not
    checked).
    """

    time_us: float
    algbw: float
    busbw: float
    wrong: int | None = None


class NcclRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a table. `size_bytes` is the larger of the bytes sent and received by a rank."""

    size_bytes: int
    count: int
    type: str = "float"
    redop: str = "none"
    root: int = -1
    out_of_place: NcclHalf | None = None
    in_place: NcclHalf | None = None


class NcclTable(msgspec.Struct, frozen=True):
    """Output of one program of nccl-tests. `avg_busbw` and `out_of_bounds` are None if the footer is missing."""

    program: str
    rows: tuple[NcclRow, ...]
    avg_busbw: float | None = None
    out_of_bounds: int | None = None


def bus_factor(operation: str, world: int) -> float:
    """Factor from algbw to busbw: the share of the bytes that must cross each rank's link."""
    return {
        "allreduce": 2 * (world - 1) / world,
        "allgather": (world - 1) / world,
        "reduce-scatter": (world - 1) / world,
        "alltoall": (world - 1) / world,
    }.get(operation, 1.0)


def nccl_header(operation: str, *, low: int, high: int, warm_up: int, iterations: int, validates: bool) -> str:
    """Header of a run. nccl-tests also prints its version and one line for each device, which belong to NCCL only."""
    blank = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
    name = f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}"
    unit = f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}"
    titles = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
    units = f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
    return (
        f"# Collective test starting: {NCCL_NAMES[operation]}\n"
        f"# nThread 1 nGpus 1 minBytes {low} maxBytes {high} step: 2(factor) warmup iters: {warm_up} iters: {iterations} "
        f"agg iters: 1 validation: {int(validates)} graph: 0 unalign: 0\n"
        f"#\n#\n{blank}           out-of-place                       in-place          \n"
        f"{name}{titles}{titles} \n{unit}{units}{units} \n"
    )


def nccl_line(row: NcclRow) -> str:
    """One line of a table."""
    first = f"{row.size_bytes:>12}  {row.count:>12}  {row.type:>8}  {row.redop:>6}  {row.root:>6}"
    return f"{first}{_half(row.out_of_place)}{_half(row.in_place)}\n"


def nccl_footer(operation: str, rows: list[NcclRow]) -> str:
    """Footer of a run: wrong rows, and the mean bus bandwidth over all rows, out of place and in place."""
    halves = [half for row in rows for half in (row.out_of_place, row.in_place) if half is not None]
    bad = sum(1 for half in halves if half.wrong)
    mean = sum(half.busbw for half in halves) / len(halves) if halves else 0.0
    return (
        f"# {'Out of bounds values':<20} : {bad} {'FAILED' if bad else 'OK'}\n"
        f"# {'Avg bus bandwidth':<20} : {mean:g} \n#\n# Collective test concluded: {NCCL_NAMES[operation]}\n"
    )


def _half(half: NcclHalf | None) -> str:
    if half is None:
        return " " * 32
    wrong = "  N/A" if half.wrong is None else f"{half.wrong:>6g}"
    return f"  {_shrunk(half.time_us, 7)}  {_shrunk(half.algbw, 6)}  {_shrunk(half.busbw, 6)}  {wrong}"


def _shrunk(value: float, width: int) -> str:
    """A number with as many decimals (at most two) as fit into the width; otherwise in exponent form."""
    for decimals in (2, 1, 0):
        text = f"{value:>{width}.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:>{width}.{1 if width >= 7 else 0}e}"


_START = re.compile(r"# Collective test starting:\s*(\S+)")
_FOOT = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)")
_END = re.compile(r"# Collective test concluded:\s*(\S+)")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[A-Za-z]\w*\s")


def parse_nccl(text: str) -> NcclTable:
    """Parse the output of one program. The additional columns of `-I` and `-S` are not supported.

    Raises:
        Corrupt: There is no row, or a row is not valid; the error contains the line.
    """
    program, mean, bounds, rows = "", None, None, []
    for number, line in enumerate(text.splitlines(), start=1):
        if found := (_START.match(line) or _END.match(line)):
            program = found[1].rsplit("/", 1)[-1]
        elif found := _FOOT.match(line):
            mean = _number(found[1], number, line)
        elif found := _BOUNDS.match(line):
            bounds = int(found[1])
        elif _ROW.match(line):
            rows.append(_row(line, number))
    if not rows:
        raise Corrupt(
            "output of nccl-tests: contains no result rows",
            hint="run the program by itself, and read its error messages",
        )
    return NcclTable(program, tuple(rows), mean, bounds)


def _row(line: str, number: int) -> NcclRow:
    fields = line.split()
    if len(fields) not in (9, 13):
        raise Corrupt(f"output of nccl-tests, line {number}: {len(fields)} values, not 9 or 13: {line[:100]}")
    try:
        halves: list[NcclHalf | None] = [_half_of(fields[at : at + 4], number, line) for at in range(5, len(fields), 4)]
        # A row with only out-of-place or only in-place figures has blanks in place of the missing figures.
        if len(halves) == 1 and not line[52:84].strip():
            halves.insert(0, None)
        out, inside = halves[0], halves[1] if len(halves) == 2 else None
        return NcclRow(
            size_bytes=int(fields[0]), count=int(fields[1]), type=fields[2], redop=fields[3], root=int(fields[4]),
            out_of_place=out, in_place=inside,
        )  # fmt: skip
    except ValueError as error:
        if isinstance(error, Corrupt):
            raise
        raise Corrupt(f"output of nccl-tests, line {number}: not a row of numbers: {line[:100]}") from None


def _half_of(fields: list[str], number: int, line: str) -> NcclHalf:
    time_us, algbw, busbw = (_number(field, number, line) for field in fields[:3])
    return NcclHalf(time_us, algbw, busbw, None if fields[3] == "N/A" else int(_number(fields[3], number, line)))


def _number(text: str, number: int, line: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Corrupt(f"output of nccl-tests, line {number}: {text} is not a finite number: {line[:100]}")
    return value
