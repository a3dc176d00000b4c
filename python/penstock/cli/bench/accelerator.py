# SPDX-License-Identifier: Apache-2.0
"""`penstock bench accelerator`: measure whether storage can keep emulated accelerators busy."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import BYTES

if TYPE_CHECKING:
    from penstock.bench.importers.dlio import DlioWorkload
    from penstock.bench.results import RunRecord
    from penstock.protocols import Demand
    from penstock.train import TrainSpec

__all__ = ["command"]


@click.command("accelerator")
@click.argument("model")
@click.argument("data", required=False)
@click.option("--accelerator", metavar="NAME", help="Accelerator whose published step time is used.  [default: h100]")
@click.option(
    "--ranks", type=click.IntRange(1), default=1, show_default=True, help="Number of accelerators on this node."
)
@click.option("--epochs", type=click.IntRange(1), help="Number of epochs.  [default: 1, or the file's]")
@click.option("--steps", type=click.IntRange(1), help="Stop after this many steps.")
@click.option("--voxels", type=int, default=128, show_default=True, help="Side of a volume in voxels, for cosmoflow.")
@click.option("--seed", type=int, help="Seed of the order.  [default: 0, or the file's]")
@click.option("--against", type=click.Choice(["torch"]), help="Repeat the run with a plain PyTorch DataLoader.")
@click.option(
    "--checkpoint",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Also write and restore a checkpoint in this folder.",
)
@click.option(
    "--checkpoint-size",
    type=BYTES,
    help="Size of the checkpoint of all ranks together.  [default: the file's, else 1GiB]",
)
@click.option("--memory", "memory_bytes", type=BYTES, help="Memory limit for data in flight, such as 2GiB.")
@click.option(
    "--summary",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for DLIO's summary.json.",
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(file_okay=False),
    default="runs",
    show_default=True,
    help="Folder for the results.",
)
@click.option("--no-save", is_flag=True, help="Do not save the results.")
@click.option("--allow-debug", is_flag=True, help="Save the rows of a debug build, marked INVALID.")
@click.option("--dry-run", is_flag=True, help="Print what the accelerators would read; read nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(
    model: str,
    data: str | None,
    summary: Path | None,
    against: str | None,
    checkpoint: str | None,
    checkpoint_size: int | None,
    dry_run: bool,
    as_json: bool,
    **rest: Any,
) -> None:
    """Feed emulated accelerators from the storage at DATA, and print their utilisation.

    MODEL is cosmoflow, unet3d, resnet50, retinanet or dlrm, or a workload file of DLIO (*.yaml); the default of DATA is
    that file's data folder. `penstock dataset` generates the data. The harness is first measured with batches in
    memory; if it costs over 1 % of a step, no verdict is given. Exit code 1: the required utilisation was not reached.

    \b
    penstock bench accelerator unet3d s3://train/unet3d/ --accelerator h100 --ranks 4
    penstock bench accelerator cosmoflow s3://cosmo/train/ --accelerator a100
    penstock bench accelerator unet3d_h100.yaml data/unet3d/train --against torch --summary summary.json
    """  # noqa: D301 - click reads the \b, and not its spelling
    from penstock.bench.checkpoint import measure
    from penstock.cli.train import ProgressPrinter
    from penstock.train.utilisation import calibrate, run_reader, utilisation, verdict
    from penstock.train.utilisation import summary as dlio_summary

    file = _dlio_file(model)
    spec, demand = _spec(model, data, file, rest)
    document = _asked(spec, demand)
    for name in file.passed_over if file else ():
        click.echo(f"{name} has no effect in the emulation and is ignored", err=True)
    if dry_run:
        _print(document, as_json)
        return
    harness = calibrate(spec, demand.facts["step_s"])
    document["harness"] = {**asdict(harness), "share": harness.share}
    records: dict[str, RunRecord] = {}
    for reader in ("penstock", *([against] if against else [])):
        printer = ProgressPrinter()
        try:
            records[reader] = run_reader(spec, reader, report=printer)
        finally:
            printer.end()
    document["feeds"] = [_row(reader, record) for reader, record in records.items()]
    ours = records["penstock"]
    if summary:
        facts = dlio_summary(ours, au_required=document["au_required"], record_bytes=demand.sample_bytes)
        summary.write_text(json.dumps(facts, indent=4) + "\n", encoding="utf-8")
    if checkpoint:
        size = checkpoint_size or (file.checkpoint_bytes if file else None) or 1 << 30
        times = measure(Path(checkpoint), total_bytes=size, ranks=spec.ranks)
        rates = {"write_bytes_per_s": times.write_bytes_per_s, "restore_bytes_per_s": times.restore_bytes_per_s}
        document["checkpoint"] = {**asdict(times), **rates}
    judged = verdict(harness, utilisation(ours.epoch_times), document["au_required"])
    document["verdict"] = asdict(judged)
    _print(document, as_json)
    if judged.result == "fail":
        click.get_current_context().exit(1)


def _dlio_file(model: str) -> DlioWorkload | None:
    from penstock.bench.importers.dlio import is_file, read

    return read(Path(model)) if is_file(model) else None


def _spec(model: str, data: str | None, file: DlioWorkload | None, rest: dict[str, Any]) -> tuple[TrainSpec, Demand]:
    """Return the spec of the training run, and the data rate that its workload demands."""
    from penstock.errors import ConfigError
    from penstock.protocols import WorkloadSpec
    from penstock.train import TrainSpec
    from penstock.train.workloads import load_workload

    url = data or (file.data if file else None)
    if url is None:
        raise ConfigError(f"the URL of the data of {model} is missing", hint="run penstock bench accelerator MODEL URL")
    accelerator = rest["accelerator"] or ("dlio" if file else "h100")
    if model == "cosmoflow":
        workload, settings, batch = "cosmoflow", {"voxels": rest["voxels"]}, 1
    else:
        workload = "emulated"
        settings = file.settings if file else {"model": model}
        facts = WorkloadSpec(seed=0, global_batch=1, accelerator=accelerator, settings=settings)
        batch = load_workload(workload).demand(facts).facts["step_batch"]
    spec = TrainSpec(
        workload=workload,
        data=url,
        settings=settings,
        accelerator=accelerator,
        global_batch=batch * rest["ranks"],
        ranks=rest["ranks"],
        epochs=rest["epochs"] or (file.epochs if file else 1),
        steps=rest["steps"] or (file.steps if file else None),
        seed=rest["seed"] if rest["seed"] is not None else (file.seed if file else 0),
        memory_bytes=rest["memory_bytes"],
        runs=None if rest["no_save"] else rest["output"],
        allow_debug=rest["allow_debug"],
    ).check()
    demand = load_workload(workload).demand(
        WorkloadSpec(seed=spec.seed, global_batch=spec.global_batch, accelerator=accelerator, settings=settings)
    )
    return spec, demand


def _asked(spec: TrainSpec, demand: Demand) -> dict[str, Any]:
    """Data rate that the accelerators need to never wait."""
    rate = (demand.samples_per_s or 0.0) * spec.ranks
    return {
        "schema_version": 2,
        "model": demand.facts["model"],
        "data": spec.data,
        "accelerator": spec.accelerator,
        "ranks": spec.ranks,
        "batch": spec.global_batch // spec.ranks,
        "step_s": demand.facts["step_s"],
        "au_required": demand.facts["au_required"],
        "required": {"samples_per_s": rate, "bytes_per_s": rate * demand.sample_bytes},
    }


def _row(reader: str, record: RunRecord) -> dict[str, Any]:
    from penstock.train.utilisation import utilisation

    busy = utilisation(record.epoch_times)
    return {
        "reader": reader,
        "run": record.id,
        "au": sum(busy) / len(busy),
        "au_by_epoch": busy,
        "samples_per_s": record.samples_per_s,
        "bytes_read": record.bytes,
        "wait_share": record.wait_share,
        "cpu_s": record.cpu_s,
        "limiting": record.loader.get("limiting"),
        "invalid": list(record.invalid),
    }


def _print(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(document))
        return
    from penstock.units import format_bytes

    wanted = document["required"]
    click.echo(
        f"{document['model']} on {document['ranks']} x {document['accelerator']}: a step of {document['batch']} every "
        f"{1000 * document['step_s']:.3f} ms, {wanted['samples_per_s']:,.1f} samples/s, {format_bytes(int(wanted['bytes_per_s']))}/s decoded"
    )
    if "harness" in document:
        harness = document["harness"]
        meeting = f", {1e6 * harness['barrier_s']:.1f} us of it in barriers" if harness["barrier_s"] else ""
        click.echo(
            f"harness: {100 * harness['utilisation']:.2f} % busy on data in memory, {1e6 * harness['overhead_s']:.1f} us per step{meeting}"
        )
    for row in document.get("feeds", ()):
        why = f", limited by {row['limiting']}" if row["limiting"] else ""
        click.echo(
            f"{row['reader']:>9}: {100 * row['au']:.2f} % busy, {row['samples_per_s']:,.1f} samples/s, "
            f"{row['cpu_s']:.2f} CPU-s{why}"
        )
        for reason in row["invalid"]:
            click.echo(f"{'':>9}  INVALID: {reason}")
    if "checkpoint" in document:
        kept = document["checkpoint"]
        click.echo(
            f"checkpoint of {format_bytes(kept['bytes'])}: written in {max(kept['write_s']):.2f} s, restored in {max(kept['restore_s']):.2f} s, by the slowest rank"
        )
    if "verdict" in document:
        click.echo(f"{document['verdict']['result']}: {document['verdict']['reason']}")
