# SPDX-License-Identifier: Apache-2.0
"""Runs a sweep of `penstock bench app` in this process; makes the container image and the tables of all parts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.app.run import measure
from penstock.bench.app.summary import summarise
from penstock.study.result import Table, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.app.cells import Cell
    from penstock.bench.app.spec import Spec
    from penstock.bench.app.summary import Overhead, Summary

__all__ = ["OPEN_MPI", "cost_value", "make_image", "overhead_rows", "run_sweep", "scaling_table"]

OPEN_MPI = {"program": "mpirun.openmpi"}


def run_sweep(spec: Spec, progress: Callable[[str], None]) -> Summary:
    """Run all sizes and variants, and summarise them."""

    def ran(cell: Cell, _run: object, done: int, total: int) -> None:
        progress(
            f"run {done} of {total}: {cell.variant}, {cell.ranks} ranks" + (f": {cell.error}" if cell.error else "")
        )

    return summarise(spec, measure(spec, on_run=ran))


def make_image(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Make a Charliecloud image of this machine's own programs; return it and the folders to bind into it.

    It has another root and other files in `/etc`, and the programs, Open MPI's settings and the Python environment of the
    host.
    """
    bound = dict.fromkeys(["/usr", sys.base_prefix, sys.prefix, str(Path(__file__).resolve().parents[2])])
    for name in ("usr", "etc", "dev", "proc", "sys", "tmp", "run", "home", "root", "mnt"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("hosts", "resolv.conf", "passwd", "group"):
        (folder / "etc" / name).touch()
    # Debian's settings exclude some of Open MPI's transports, so without them the image would not run the same program.
    if (settings := Path("/etc/openmpi")).is_dir():
        shutil.copytree(settings, folder / "etc/openmpi")
    outer: list[str] = []
    for path in sorted(bound):
        if not any(path == one or path.startswith(f"{one}/") for one in outer):
            outer.append(path)
            (folder / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    return folder, tuple(f"{path}:{path}" for path in outer)


def cost_value(found: Overhead) -> Value:
    """Extra time of a variant in per cent, with its interval."""
    cost = found.cost
    low, high = (None if one is None else 100 * one for one in (cost.low, cost.high))
    return Value(100 * cost.value, found.sentence, low=low, high=high)


def overhead_rows(summary: Summary, what: str) -> list[tuple[str, ...]]:
    """Rows: what, variant, ranks, cost with its interval, sentence."""
    rows = []
    for each in summary.overheads:
        cost = each.cost
        wide = (
            "one round"
            if cost.low is None or cost.high is None
            else f"{100 * cost.low:+.1f} to {100 * cost.high:+.1f} %"
        )
        rows.append((what, each.variant, str(each.ranks), f"{100 * cost.value:+.1f} %", wide, each.sentence))
    failed = [cell for variant in summary.variants for cell in variant.cells if cell.error]
    rows += [(what, cell.variant, str(cell.ranks), "–", "–", f"did not run: {cell.error}") for cell in failed]
    return rows


def scaling_table(summary: Summary, title: str, note: str = "") -> Table:
    """Table of sizes with efficiency and its interval."""
    rows = []
    for variant in summary.variants:
        for cell in variant.cells:
            share = cell.efficiency
            rows.append((
                variant.variant, str(cell.ranks), "–" if cell.value is None else f"{cell.value:,.2f}",
                "–" if share is None else f"{100 * share.value:.1f} %",
                "–" if share is None or share.low is None or share.high is None else f"{100 * share.low:.1f} to {100 * share.high:.1f} %",
                cell.error or "; ".join(cell.notes) or "–",
            ))  # fmt: skip
    verdict = "; ".join(text for variant in summary.variants for text in variant.verdict)
    return Table(
        title,
        ("variant", "ranks", summary.quantity, "efficiency", "95 % interval", "notes"),
        tuple(rows),
        note=". ".join(t for t in (verdict, note) if t),
    )


def plain(summary: Summary) -> object:
    """The summary as plain values, for `results.json`."""
    return msgspec.to_builtins(summary)
