# SPDX-License-Identifier: Apache-2.0
"""`penstock array rtm`: reverse time migration, shot by shot. The state of a job is in its store."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.array.convert import progress_bar
from penstock.cli.parameters import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.arrays.rtm.worker import WorkerReport

__all__ = ["command"]


@click.group("rtm")
def command() -> None:
    """Image a velocity model by reverse time migration with Devito.

    A job is a folder on any store. `prepare` creates it, `shots` computes shots on any number of machines, `stack`
    makes the image. If a worker is killed, other workers repeat the shots that it was computing.
    """


@command.command("prepare")
@click.argument("job", metavar="JOB")
@click.option("--model", metavar="VOLUME", help="Velocity model (x, z) or (x, y, z). [five layers of 1.5 to 3.5 km/s]")
@click.option("--shape", default="201,201", show_default=True, metavar="X,[Y,]Z", help="Grid of the layered model.")
@click.option("--spacing", type=float, metavar="KM", help="Grid spacing in km. [the model's spacing, or 0.01]")
@click.option("--shots", type=click.IntRange(1), default=16, show_default=True, metavar="N", help="Number of shots.")
@click.option(
    "--frequency", type=float, default=15.0, show_default=True, metavar="HZ", help="Peak frequency of the source."
)
@click.option(
    "--backend",
    type=click.Choice(["segy", "hdf5", "zarr", "zarr-blosc"]),
    default="zarr-blosc",
    show_default=True,
    help="Format of the model volumes.",
)
@click.option("--volumes", metavar="FOLDER", help="Folder of the model volumes, on any store. [below JOB]")
@click.option(
    "--aperture",
    type=float,
    metavar="KM",
    help="Half width of the part of the grid that is computed for a shot. [the whole grid]",
)
@click.option(
    "--method",
    type=click.Choice(["snapshots", "revolver"]),
    default="snapshots",
    show_default=True,
    help="Method for storing the forward field.",
)
@click.option(
    "--snapshot-factor",
    type=click.IntRange(1),
    metavar="N",
    help="Number of time steps between two snapshots; a larger number takes less memory. [up to 8, limited by the frequency]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def prepare_command(
    job: str,
    model: str | None,
    shape: str,
    spacing: float | None,
    shots: int,
    frequency: float,
    backend: str,
    volumes: str | None,
    aperture: float | None,
    method: str,
    snapshot_factor: int | None,
    as_json: bool,
) -> int:
    """Create the job folder JOB: the survey and the model volumes."""
    from penstock.arrays.rtm.prepare import prepare, read_model
    from penstock.errors import ConfigError
    from penstock.rtm.velocity_model import layered

    if model is not None:
        values, stated_km = read_model(model)
        spacing_km = spacing or stated_km
        if spacing_km is None:
            raise ConfigError(
                f"spacing: {model} does not contain the grid spacing", where="spacing", hint="pass --spacing KM"
            )
    else:
        sides = [part.strip() for part in shape.split(",")]
        if len(sides) not in (2, 3) or not all(side.isdecimal() for side in sides):
            raise ConfigError(f"shape: must be 2 or 3 whole numbers (got `{shape}`)", where="shape")
        spacing_km = spacing or 0.01
        values = layered(tuple(int(side) for side in sides), spacing_km)
    made = prepare(
        job, values, spacing_km=spacing_km, shots=shots, frequency_hz=frequency, backend=backend, volumes_url=volumes,
        aperture_km=aperture, method=method, snapshot_factor=snapshot_factor,
    )  # fmt: skip
    facts: dict[str, Any] = {
        "job": made.location.url,
        "shots": made.survey.shots,
        "steps": made.survey.plan.steps,
        "memory_bytes": made.survey.plan.memory_bytes,
    }
    click.echo(
        json.dumps({"schema_version": 1, **facts})
        if as_json
        else f"{facts['job']}: {facts['shots']:,} shots of {facts['steps']:,} steps, {facts['memory_bytes'] / 1e6:,.0f} MB each"
    )
    return 0


@command.command("shots")
@click.argument("job", metavar="JOB")
@click.option(
    "--stage",
    type=click.Choice(["model", "migrate", "all"]),
    default="all",
    show_default=True,
    help="Stage to compute: model (gathers), migrate (images), or all.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of worker processes on this machine. [compute in the current process]",
)
@click.option("--dask", metavar="ADDRESS|local", help="Compute with Dask: the address of a scheduler, or local.")
@click.option(
    "--lease",
    type=SECONDS,
    default=60.0,
    metavar="TIME",
    help="Time after which another worker computes the shot of a dead worker. [60s]",
)
@click.option(
    "--no-wait", is_flag=True, help="End when other workers compute the remaining shots, instead of waiting for them."
)
@click.option("--no-memory-check", is_flag=True, help="Start even if the memory seems too small for the workers.")
@click.option(
    "--snapshots-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Store snapshots in a file in this folder, not in memory.",
)
@click.option(
    "--redo", type=click.IntRange(0), multiple=True, metavar="SHOT", help="Compute a finished shot again. Repeatable."
)
@click.option("--first", type=click.IntRange(0), metavar="I", help="First shot to compute. [any]")
@click.option("--timeout", type=SECONDS, default=600.0, metavar="TIME", help="Time limit of one request. [10min]")
@click.option("--events", is_flag=True, help="Print one JSON line for each finished shot, and a report.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def shots_command(
    job: str,
    stage: Any,
    workers: int | None,
    dask: str | None,
    lease: float,
    no_wait: bool,
    no_memory_check: bool,
    snapshots_dir: str | None,
    redo: tuple[int, ...],
    first: int | None,
    timeout: float,
    events: bool,
    as_json: bool,
) -> int:
    """Compute the shots of JOB until all are finished. Can run on any number of machines at the same time.

    After SIGUSR1, the worker finishes its shot and ends. After Ctrl-C or SIGTERM, it releases the shot immediately.
    Devito reads its own variables (DEVITO_LANGUAGE, DEVITO_PLATFORM), which can select a GPU.

    Before the first shot, the command compares the memory that the workers need with the available memory. If the
    memory is too small, it ends with an error that contains both numbers.

    Exit code 0: all shots are finished; with --no-wait, other workers may still compute the remaining shots. 1: shots
    remain. 143: stopped by a signal, and shots remain.
    """
    from penstock.arrays.rtm.dask_workers import run_with_dask
    from penstock.arrays.rtm.job import Job
    from penstock.arrays.rtm.local_workers import LocalWorkers
    from penstock.arrays.rtm.worker import Worker, stage_kinds

    if redo:
        opened = Job.load(job, timeout_s=timeout)
        opened.forget(list(redo), stage_kinds(opened, stage))
    options: dict[str, Any] = {
        "stage": stage, "term_s": lease, "snapshots_dir": snapshots_dir, "checks_memory": not no_memory_check,
    }  # fmt: skip
    with _shown(events) as on_shot:
        if dask is not None:
            address = None if dask == "local" else dask
            report = run_with_dask(
                job, workers=workers or 2, address=address, on_shot=on_shot, timeout_s=timeout, **options
            )
        elif workers is not None:
            many = LocalWorkers(job, workers, waits=not no_wait, on_shot=on_shot, timeout_s=timeout, **options)
            with _stopping(many.stop):
                report = many.run()
        else:
            worker = Worker(
                Job.load(job, timeout_s=timeout), waits=not no_wait, first=first, on_shot=on_shot, **options
            )
            with _stopping(worker.stop):
                try:
                    report = worker.run()
                except BaseException:
                    worker.give_back()
                    raise
    if events:
        click.echo(json.dumps({"event": "report", **report.to_json()}))
    elif as_json:
        click.echo(json.dumps({"schema_version": 1, **report.to_json()}))
    else:
        click.echo(_readable(report))
    if report.is_complete or (no_wait and dask is None and report.is_held_elsewhere):
        return 0
    return 143 if report.is_stopped else 1


@contextmanager
def _shown(events: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    lock = threading.Lock()
    if events:

        def print_event(facts: dict[str, Any]) -> None:
            with lock:
                click.echo(json.dumps({"event": "shot", **facts}))

        yield print_event
        return
    done = 0
    with progress_bar() as advance:

        def count(_facts: dict[str, Any]) -> None:
            nonlocal done
            with lock:
                done += 1
                advance("shots", done, 0)

        yield count


@contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Stop the worker after its current shot on SIGUSR1, which batch systems send when the time limit is near."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def _readable(report: WorkerReport) -> str:
    lines = [f"{kind}: {len(shots):,} shots" for kind, shots in report.computed.items()]
    io_s = report.claim_s + report.read_s + report.write_s
    lines.append(
        f"compute {report.compute_s:.1f} s, I/O {io_s:.1f} s, build {report.build_s:.1f} s; {report.remaining:,} shots remain"
    )
    lines += [f"shot {shot}: {text}" for shot, text in sorted(report.failed.items())]
    return "\n".join(lines)


@command.command("stack")
@click.argument("job", metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def stack_command(job: str, as_json: bool) -> int:
    """Stack the images of all shots of JOB: Zarr, SEG-Y and a picture."""
    from dataclasses import asdict

    from penstock.arrays.rtm.stack import stack_images

    with progress_bar() as advance:
        report = stack_images(job, progress=lambda done, total: advance("stack", done, total))
    if as_json:
        click.echo(json.dumps({"schema_version": 1, **asdict(report)}))
    else:
        click.echo("\n".join(str(url) for url in (report.image_url, report.segy_url, report.picture_url) if url))
    return 0


@command.command("status")
@click.argument("job", metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def status_command(job: str, as_json: bool) -> int:
    """Show the finished shots of JOB, the claims of its workers, and how the time was spent."""
    from penstock.arrays.rtm.status import status

    found = status(job)
    if as_json:
        click.echo(json.dumps({"schema_version": 1, **found.to_json()}))
        return 0
    lines = []
    for kind, stage in found.stages.items():
        parts = ", ".join(f"{name.removesuffix('_s')} {seconds:.2f} s" for name, seconds in stage.seconds.items())
        lines.append(
            f"{kind:8} {stage.done:,} of {stage.total:,} shots; median {parts or 'unknown'}; I/O {stage.io_share:.1%}"
        )
    lines += [
        f"shot {claim.shot}: {'abandoned by' if claim.is_abandoned else 'claimed by'} process {claim.pid} on {claim.host}"
        for claim in found.claims
    ]
    lines += [f"shot {shot}: {text}" for shot, text in found.failed.items()]
    lines.append("stacked" if found.is_stacked else "not stacked")
    click.echo("\n".join(lines))
    return 0


@command.command("script")
@click.argument("job", metavar="JOB")
@click.option(
    "--scheduler",
    type=click.Choice(["slurm", "pbs", "dask-slurm", "dask-pbs"]),
    required=True,
    help="Batch system. pbs and dask-pbs are experimental.",
)
@click.option("--tasks", type=click.IntRange(1), default=8, show_default=True, metavar="N", help="Number of workers.")
@click.option(
    "--cores", type=click.IntRange(1), default=8, show_default=True, metavar="N", help="Number of cores per worker."
)
@click.option("--memory-gb", type=float, metavar="GB", help="Memory per worker in GB. [the site's default]")
@click.option("--time", "limit", type=SECONDS, default=7200.0, metavar="TIME", help="Time limit of a task. [2h]")
@click.option("--queue", metavar="NAME", help="Queue or partition.")
@click.option("--account", metavar="NAME", help="Account to charge.")
@click.option("--local-dir", default="/tmp", show_default=True, metavar="DIR", help="Fast local disk of the nodes.")  # noqa: S108
@click.option("--keep-snapshots", is_flag=True, help="Store snapshots on the local disk, instead of in memory.")
@click.option(
    "--setup",
    multiple=True,
    metavar="LINE",
    help="Shell command that runs first, such as `module load ...`; repeatable.",
)
def script_command(
    job: str,
    scheduler: str,
    tasks: int,
    cores: int,
    memory_gb: float | None,
    limit: float,
    queue: str | None,
    account: str | None,
    local_dir: str,
    keep_snapshots: bool,
    setup: tuple[str, ...],
) -> int:
    """Print a script that computes the shots of JOB on a batch system.

    The script runs an array of workers, or a Dask program. The Slurm script was tested with a real Slurm. The PBS
    scripts have not been tested on a PBS server yet.
    """
    from penstock.arrays.rtm.batch_scripts import ScriptRequest, batch_script
    from penstock.env import read

    request = ScriptRequest(
        job, tasks=tasks, cores=cores, memory_gb=memory_gb, limit_s=limit, queue=queue, account=account,
        local_dir=local_dir, keeps_snapshots=keep_snapshots, setup=setup, variables=read(),
    )  # fmt: skip
    click.echo(batch_script(scheduler, request), nl=False)
    return 0
