# SPDX-License-Identifier: Apache-2.0
"""Compares `penstock bench net` over MPI with the C programs of OSU, interleaved, on two ranks of this machine.

python -m benches.osu --osu-dir DIR [--mpirun mpirun.openmpi] [--rounds 9]

DIR contains OSU's programs, compiled with the same MPI. Each figure is the best of the rounds, because other programs
can only make a message slower; the ratio of the medians is printed beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.bench.net import parse_osu
from penstock.bench.net.plan import OSU_NAMES

_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
# Sizes that are printed; the ratios below are over all sizes.
_SHOWN = (0, 8, 1024, 8192, 65536, 1 << 20, 4 << 20)
# Lower bound for a ping-pong with mpi4py: only the loop of `penstock bench net`.
_FLOOR = """
import sys
from penstock.bench.net.mpi_transport import load_mpi, restart_with_mpich
restart_with_mpich(sys.argv)
from itertools import repeat
from time import perf_counter
MPI = load_mpi()
count, comm = int(sys.argv[1]), MPI.COMM_WORLD
rank, memory = comm.rank, MPI.Alloc_mem(8)
out = into = (MPI.buffer.fromaddress(memory.address, 8), 8, MPI.CHAR)
send, receive = comm.Send, comm.Recv
def run(count):
    for _ in repeat(None, count):
        if rank == 0:
            send(out, 1, 1); receive(into, 1, 1)
        else:
            receive(into, 0, 1); send(out, 0, 1)
run(100)
begin = perf_counter()
run(count)
if rank == 0:
    print((perf_counter() - begin) / count / 2 * 1e6)
"""


def _run(argv: list[str]) -> str:
    return subprocess.run(
        argv, env={**os.environ, **_ROOT}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=True
    ).stdout  # fmt: skip


def _rows(argv: list[str]) -> dict[int, float]:
    return {row.size_bytes: row.value for row in parse_osu(_run(argv))[0].rows}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--osu-dir", type=Path, required=True)
    parser.add_argument("--mpirun", default="mpirun.openmpi")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--iterations", type=int, help="of both, to keep runs short on a shared machine")
    parser.add_argument("--prefix", default="", help="command that starts mpirun, such as `chrt -f 10`")
    parser.add_argument("tests", nargs="*", default=list(OSU_NAMES))
    given = parser.parse_args()
    start = [*given.prefix.split(), given.mpirun, "-np", "2"]
    own, their = [], []
    if given.iterations is not None:
        count, warm_up = str(given.iterations), str(max(1, given.iterations // 10))
        own, their = ["--iterations", count, "--warm-up", warm_up], ["-i", count, "-x", warm_up]
    if "latency" in given.tests:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
            program.write(_FLOOR)
            program.flush()
            argv = [*start, sys.executable, program.name, str(given.iterations or 10_000)]
            floors = [float(_run(argv)) for _ in range(given.rounds)]
        print(f"mpi4py's floor for 8 bytes: best {min(floors):.2f} us, median {statistics.median(floors):.2f} us")
    for operation in given.tests:
        program = OSU_NAMES[operation]
        ours_argv = [*start, sys.executable, "-m", "penstock", "bench", "net", "--backend", "mpi", operation, *own]
        theirs_argv = [*start, str(given.osu_dir / program), *their]
        rounds: dict[str, list[dict[int, float]]] = {"ours": [], "theirs": []}
        for turn in range(given.rounds):
            for name in ("ours", "theirs") if turn % 2 == 0 else ("theirs", "ours"):
                rounds[name].append(_rows(ours_argv if name == "ours" else theirs_argv))
        is_rate = operation in ("bw", "bibw")
        best = max if is_rate else min
        unit = "MB/s" if is_rate else "us"
        print(f"\n{program} ({unit}), best of {given.rounds} rounds")
        ratios = []
        for size in rounds["theirs"][0]:
            ours, theirs = ([each[size] for each in rounds[name]] for name in ("ours", "theirs"))
            ratio = best(ours) / best(theirs)
            ratios.append((size, ratio))
            if size in _SHOWN or operation == "barrier":
                medians = statistics.median(ours) / statistics.median(theirs)
                print(
                    f"{size:>10}{best(ours):>14.2f}{best(theirs):>14.2f}   ratio {ratio:.3f}   of medians {medians:.3f}"
                )
        large = [ratio for size, ratio in ratios if size >= 65536]
        if large:
            print(
                f"sizes from 64 KiB: median ratio {statistics.median(large):.3f}, {min(large):.3f} to {max(large):.3f}"
            )


if __name__ == "__main__":
    main()
