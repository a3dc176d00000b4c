# SPDX-License-Identifier: Apache-2.0
"""Result of a network benchmark, built from the messages of rank 0, and its conversion to benchmark rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.net.nccl_format import NcclRow
from penstock.bench.net.osu_format import OsuRow
from penstock.bench.net.place import Place, relation
from penstock.bench.net.plan import POINT_TO_POINT, NetPlan
from penstock.bench.rows import End, Latency, Row
from penstock.errors import Corrupt

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FILE", "Compared", "NetResult", "NetTable", "Pair", "read_result"]

FILE = "net.json"  # the file of a result in a folder, beside its rows


class NetTable(msgspec.Struct):
    """Figures of one test.

    Attributes:
        program: Name of the test in its convention, such as `osu_bw`.
        unit: Unit of the rows: of `value` (OSU), or of `algbw` and `busbw` (nccl-tests).
        skipped: Sizes that the library cannot run, such as sizes that do not divide into equal parts.
        source: `penstock`, or the path of an installed program.
    """

    operation: str
    program: str
    unit: str
    rows: list[OsuRow | NcclRow] = []
    skipped: list[int] = []
    source: str = "penstock"

    def osu_rows(self) -> list[OsuRow]:
        return [row for row in self.rows if isinstance(row, OsuRow)]

    def nccl_rows(self) -> list[NcclRow]:
        return [row for row in self.rows if isinstance(row, NcclRow)]

    def figures(self) -> dict[int, float]:
        """OSU's value, or the bus bandwidth out of place (nccl-tests), of each size."""
        found = {row.size_bytes: row.value for row in self.osu_rows()}
        return found | {row.size_bytes: row.out_of_place.busbw for row in self.nccl_rows() if row.out_of_place}


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One size, measured by Penstock and by an installed program.

    Attributes:
        source: Path of the program.
        ratio: ours / theirs; None if theirs is 0 (OSU's programs round small rates to 0.00).
    """

    program: str
    source: str
    unit: str
    size_bytes: int
    ours: float
    theirs: float
    ratio: float | None


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of two ranks a < b in one round of the matrix; bandwidths in bytes/s."""

    a: int
    b: int
    round: int
    latency_us: float
    a_to_b: float
    b_to_a: float


class NetResult(msgspec.Struct, kw_only=True):
    """All that a run has measured."""

    plan: NetPlan
    places: list[Place] = []
    library: str = ""
    tables: list[NetTable] = []
    pairs: list[Pair] = []

    @property
    def world(self) -> int:
        return len(self.places)

    def table(self, operation: str) -> NetTable | None:
        """Penstock's own table of an operation."""
        return next((each for each in self.tables if each.operation == operation and each.source == "penstock"), None)

    def compared(self, theirs: NetTable) -> list[Compared]:
        """Compare the sizes that an installed program's table and Penstock's table of the same operation have."""
        own = self.table(theirs.operation)
        ours = {} if own is None else own.figures()
        return [
            Compared(
                program=theirs.program, source=theirs.source, unit=theirs.unit, size_bytes=size, ours=ours[size],
                theirs=value, ratio=ours[size] / value if value else None,
            )
            for size, value in theirs.figures().items() if size in ours
        ]  # fmt: skip

    def take(self, message: dict[str, Any]) -> None:
        """Add one message of rank 0."""
        match message:
            case {"places": list(places), "library": str(library)}:
                self.places, self.library = msgspec.convert(places, list[Place]), library
            case {"table": str(operation)}:
                self.tables.append(NetTable(operation, self.plan.names[operation], self.plan.unit(operation)))
            case {"row": row}:
                kind: type[OsuRow] | type[NcclRow] = OsuRow if self.plan.convention == "osu" else NcclRow
                measured = row if isinstance(row, OsuRow | NcclRow) else msgspec.convert(row, kind)
                self.tables[-1].rows.append(measured)
            case {"skipped": [_, int(size)]}:
                self.tables[-1].skipped.append(size)
            case {"pair": pair}:
                self.pairs.append(msgspec.convert(pair, Pair))

    def placement(self) -> str:
        """Relations between the ranks of a collective, separated by commas."""
        found = {relation(a, b) for a in self.places for b in self.places if a.rank < b.rank}
        return ", ".join(sorted(found))

    def pair_placement(self) -> str:
        """Relation of the pair of the point-to-point tests."""
        a, b = self.plan.pair
        return relation(self.places[a], self.places[b])

    def rows(self, *, label: str = "") -> list[Row]:
        """All figures as benchmark rows, for `rows.jsonl`."""
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        hosts = len({place.host for place in self.places}) or 1
        found = []
        for table in self.tables:
            is_pair = table.operation in POINT_TO_POINT
            fixed = {
                "convention": self.plan.convention,
                "backend": self.plan.backend,
                "device": self.plan.device,
                "library": self.library,
                "ranks": "2" if is_pair else str(self.world),
                "placement": self.pair_placement() if is_pair else self.placement(),
            }
            if is_pair:
                fixed["pair"] = f"{self.plan.pair[0]}-{self.plan.pair[1]}"
            ratios = {each.size_bytes: each.ratio for each in self.compared(table) if each.ratio is not None}
            for row in table.rows:
                measured = (
                    _osu_row(self.plan, table, row) if isinstance(row, OsuRow) else _nccl_row(self.plan, table, row)
                )
                raw = {**fixed, **_raw(row)}
                if table.source != "penstock" and row.size_bytes in ratios:
                    raw["ours_to_theirs"] = repr(ratios[row.size_bytes])
                found.append(
                    msgspec.structs.replace(
                        measured, hosts=hosts, created=created, label=label, raw=raw, source=table.source
                    )
                )
        return [*found, *(self._pair_row(pair, hosts, created, label) for pair in self.pairs)]

    def _pair_row(self, pair: Pair, hosts: int, created: str, label: str) -> Row:
        size, rate = self.plan.matrix_bytes, min(pair.a_to_b, pair.b_to_a)
        return Row(
            operation="NETPAIR", path_type="net", hosts=hosts, threads=2, block_size_bytes=size, repeat=pair.round,
            last=End(time_s=size / rate, bytes=float(size), bytes_per_s=rate), created=created, label=label,
            io_latency=Latency(mean_us=pair.latency_us), source="penstock",
            raw={
                "pair": f"{pair.a}-{pair.b}", "placement": relation(self.places[pair.a], self.places[pair.b]),
                "a_to_b_bytes_per_s": repr(pair.a_to_b), "b_to_a_bytes_per_s": repr(pair.b_to_a),
                "backend": self.plan.backend, "library": self.library,
            },
        )  # fmt: skip


def read_result(file: Path) -> NetResult:
    """Read the document that `bench net -o` writes.

    Raises:
        Corrupt: The file is not such a document.
    """
    try:
        found = msgspec.json.decode(file.read_bytes())
        plan = msgspec.convert(found["plan"], NetPlan)
        rows: Any = list[OsuRow] if plan.convention == "osu" else list[NcclRow]
        return NetResult(
            plan=plan, library=found["library"], places=msgspec.convert(found["places"], list[Place]),
            tables=[NetTable(**{**each, "rows": msgspec.convert(each["rows"], rows)}) for each in found["tables"]],
            pairs=msgspec.convert(found["pairs"], list[Pair]),
        )  # fmt: skip
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise Corrupt(f"{file}: not a result of `penstock bench net` ({error})", where=str(file)) from None


def _raw(row: OsuRow | NcclRow) -> dict[str, str]:
    if isinstance(row, OsuRow):
        return {} if row.validation is None else {"validation": row.validation}
    found = {"count": str(row.count), "type": row.type, "redop": row.redop, "root": str(row.root)}
    for name, half in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
        if half is not None:
            wrong = "N/A" if half.wrong is None else str(half.wrong)
            found[name] = f"time_us={half.time_us!r} algbw={half.algbw!r} busbw={half.busbw!r} wrong={wrong}"
    return found


def _osu_row(plan: NetPlan, table: NetTable, row: OsuRow) -> Row:
    iterations = row.iterations or 1
    if table.operation in ("bw", "bibw"):
        rate = row.value * 1e6
        moved = float(row.size_bytes * iterations * plan.window * (2 if table.operation == "bibw" else 1))
        # OSU's programs round rates below 5 kB/s to 0.00 MB/s, so the time is unknown.
        time_s = moved / rate if rate else 0.0
        last, latency = End(time_s=time_s, ios=float(iterations), bytes=moved, bytes_per_s=rate), None
    else:
        ways = 2 if table.operation == "latency" else 1
        last = End(time_s=row.value / 1e6 * iterations * ways, ios=float(iterations))
        latency = Latency(count=iterations, min_us=row.min_us, mean_us=row.value, max_us=row.max_us)
    return Row(
        operation=table.program, path_type="net", threads=plan.window if latency is None else 1,
        block_size_bytes=row.size_bytes, last=last, io_latency=latency,
    )  # fmt: skip


def _nccl_row(plan: NetPlan, table: NetTable, row: NcclRow) -> Row:
    half = row.out_of_place or row.in_place
    assert half is not None
    iterations = plan.count(table.operation, row.size_bytes).timed
    last = End(
        time_s=half.time_us / 1e6 * iterations, ios=float(iterations), bytes=float(row.size_bytes * iterations),
        bytes_per_s=half.algbw * 1e9,
    )  # fmt: skip
    return Row(
        operation=table.program, path_type="net", block_size_bytes=row.size_bytes, last=last,
        io_latency=Latency(count=iterations, mean_us=half.time_us),
        invalid=("wrong data",) if any(h is not None and h.wrong for h in (row.out_of_place, row.in_place)) else (),
    )  # fmt: skip
