# SPDX-License-Identifier: Apache-2.0
"""Compares bindings of ranks: the sweep that the size names, affinity-rehearsal.toml or affinity.toml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock import env
from penstock.bench.app.presets import prepare
from penstock.bench.app.spec import load_spec
from penstock.study.result import Claim, PartResult, Table

from .sweeps import overhead_rows, plain, run_sweep

if TYPE_CHECKING:
    from penstock.study.run import Context

__all__ = ["run"]


def run(context: Context) -> PartResult:
    """Run the sweep; each variant is compared with the first one."""
    name = context.size["binding"]
    spec = load_spec(context.study.folder / name)
    if name == "affinity-rehearsal.toml":
        # Its command reads in.lj in the working folder; the input is that of the preset, at the size of this run.
        folder = context.scratch / "lammps"
        prepare("lammps-lj", (), folder, env.read())
        (folder / "in.lj-melt").rename(folder / "in.lj")
        spec = msgspec.structs.replace(
            spec, cwd=str(folder), repeats=max(2, context.size["repeats"] // 2), size=context.size["lammps_size"]
        )
    summary = run_sweep(spec, context.progress)
    rows = overhead_rows(summary, name)
    failed = [cell for variant in summary.variants for cell in variant.cells if cell.error]
    claims = tuple(
        Claim(f"{cell.variant} runs on {cell.ranks} ranks", str(cell.error), holds=False, must=True) for cell in failed
    )
    missing = (
        ()
        if name == "affinity.toml"
        else ("GPUs 0,1 against GPUs 0-3 and CPUs near the adapter: needs 8 nodes with 4 GPUs (affinity.toml)",)
    )
    table = Table("Bindings, against the first one", ("sweep", "variant", "ranks", "cost", "95 % interval", "in words"), tuple(rows), left=2,
                  note="With unbound ranks, both often run on one core while other programs use the machine: Open MPI's ranks keep a core busy while they wait.")  # fmt: skip
    return PartResult(claims=claims, blocks=(table,), not_measured=missing, data=plain(summary))
