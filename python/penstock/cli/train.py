# SPDX-License-Identifier: Apache-2.0
"""`penstock train`: train a workload from any URL."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal

import click

from penstock.cli.parameters import BYTES, SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.errors import Mismatch, PenstockError
    from penstock.ranks import Rank
    from penstock.train.progress import Progress

__all__ = ["ProgressPrinter", "command"]

_LINE_S = 10.0
_SYNTHETIC_STEPS = 100  # the default of tf_cnn_benchmarks
_TURN_WARM_UP = 5


def _setting(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """Parse NAME=VALUE pairs. A value that is valid JSON is parsed as JSON; any other value is text."""
    settings: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"`{pair}` is not NAME=VALUE")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings


def _ranks(_ctx: click.Context, _param: click.Parameter, given: str | None) -> tuple[int, ...] | None:
    """Parse `ranks=1,2,4`."""
    if given is None:
        return None
    name, _, numbers = given.partition("=")
    found = [text.strip() for text in numbers.split(",")]
    if name.strip() != "ranks" or not all(text.isdecimal() and int(text) > 0 for text in found):
        raise click.BadParameter(f"`{given}` is not a list of numbers of ranks, such as ranks=1,2,4")
    return tuple(int(text) for text in found)


def _device(_ctx: click.Context, _param: click.Parameter, given: str) -> str:
    if given not in ("auto", "cpu", "cuda") and not re.fullmatch(r"cuda:\d+", given):
        raise click.BadParameter(f"`{given}` is not one of auto, cpu, cuda and cuda:N")
    return given


@click.command(name="train")
@click.argument("workload")
@click.option(
    "--data",
    metavar="URL",
    help="Training data: s3://, file:// or a folder.",
)
@click.option(
    "--synthetic",
    is_flag=True,
    help="Use synthetic data, made once in memory, instead of --data: 100 steps, or --steps.",
)
@click.option(
    "--compare-synthetic",
    is_flag=True,
    help="Alternate turns on --data and on synthetic data; print what the data path costs.",
)
@click.option("--validation", metavar="URL", help="Validation data; the metric is computed after each epoch.")
@click.option(
    "--ranks",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of processes on this node, under torchrun.",
)
@click.option(
    "--scale",
    metavar="ranks=N,N",
    callback=_ranks,
    help="Measure how the training scales over these total numbers of ranks: on this node, or with --launcher.",
)
@click.option(
    "--launcher",
    type=click.Choice(["mpi", "local", "slurm", "torchrun", "ssh", "pbs"]),
    help="With --scale: launcher that starts the ranks on several nodes; see penstock bench app.",
)
@click.option(
    "--nodes",
    metavar="HOST,HOST",
    help="With --launcher: nodes (mpi, ssh), or their number (local).  [default: the job's]",
)
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1),
    help="With --launcher: maximum number of ranks on a node.  [default: all]",
)
@click.option(
    "--scaling",
    type=click.Choice(["weak", "strong"]),
    default="weak",
    show_default=True,
    help="With --scale: weak has the same batch per rank at every size, strong the same global batch.",
)
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="With --scale: runs of every size, in turn."
)
@click.option("--batch-size", type=click.IntRange(1), help="Number of samples per step and rank.  [default: 4]")
@click.option(
    "--global-batch", type=click.IntRange(1), help="Number of samples per step over all ranks, instead of --batch-size."
)
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True, help="Number of epochs.")
@click.option(
    "--steps", type=click.IntRange(1), help="Stop after this many steps, counted from the start of the training."
)
@click.option(
    "--warm-up",
    "warm_up_steps",
    type=click.IntRange(0),
    help="Steps at the start of an epoch or turn that rates exclude.  [default: 0, which "
    "excludes only the run's first step; 5 with --compare-synthetic or --scale, 10 with --format tf_cnn]",
)
@click.option(
    "--turn-steps",
    type=click.IntRange(2),
    help="Steps of a turn of --compare-synthetic, with its warm-up.  [default: 30 after the warm-up, or more: turns take "
    "at least 50 times as long as the start of the feed, or 15 s]",
)
@click.option(
    "--max-turns",
    type=click.IntRange(16),
    default=40,
    show_default=True,
    help="Maximum number of turns of --compare-synthetic.",
)
@click.option("--voxels", type=int, help="Side of a volume in voxels.  [default: cosmoflow 128]")
@click.option(
    "--filters", type=int, help="Number of filters of the first convolution.  [default: cosmoflow 32, MLPerf's]"
)
@click.option(
    "--recipe",
    help="Recipe to start from: for cosmoflow mlperf, nvidia, nvidia-small, sc18, demo; for ResNet imagenet, demo.  "
    "[default: the first]",
)
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_setting,
    help="Other setting of the workload; repeatable.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights, order and dropout.")
@click.option(
    "--accelerator",
    metavar="NAME",
    help="Emulate the published step time of an accelerator, such as a100 or h100, instead of computing the step.",
)
@click.option(
    "--device", default="auto", show_default=True, callback=_device, help="Device: auto, cpu, cuda or cuda:N, one GPU."
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Number of torch's CPU threads per rank; equal numbers give bit-identical losses.",
)
@click.option(
    "--join-timeout",
    "join_timeout_s",
    type=SECONDS,
    default="5min",
    show_default=True,
    metavar="TIME",
    help="Time limit for all ranks to join; the error names the missing ones.",
)
@click.option("--memory", "memory_bytes", type=BYTES, help="Memory limit for data in flight, such as 2GiB.")
@click.option("--max-in-flight", type=click.IntRange(1), help="Maximum number of requests in flight.")
@click.option(
    "--on-error",
    type=click.Choice(["raise", "substitute"]),
    help="Action for a sample that cannot be read: end the run, or use the next sample in its place.  [default: raise]",
)
@click.option(
    "--manifest",
    type=click.Path(exists=True, dir_okay=False),
    help="Manifest of the training data, instead of a listing.",
)
@click.option(
    "--stage",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Stage the training data to this folder first; the time counts. Several nodes need a shared folder.",
)
@click.option("--stage-decompress", is_flag=True, help="Decompress objects while they are staged.")
@click.option("--checkpoint", metavar="URL", help="Store or folder for checkpoints, such as s3://bucket/run7.")
@click.option(
    "--checkpoint-steps",
    type=click.IntRange(1),
    help="Also write a checkpoint every N steps, not only after each epoch.",
)
@click.option(
    "--checkpoint-keep",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Number of checkpoints to keep; with 1, the previous one stays until a finite loss follows.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue from the latest undamaged checkpoint in --checkpoint, if any; only the learning rate may differ.",
)
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="File for a trace of all ranks' steps, which Perfetto and chrome://tracing open.",
)
@click.option(
    "--mllog",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="File for MLPerf's :::MLLOG lines, as its compliance checker reads them.",
)
@click.option("--archive", metavar="URL", help="URL to copy the run's folder and checkpoint to at the end.")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(file_okay=False),
    default="runs",
    show_default=True,
    help="Folder for the result: DIR/ID/result.json.",
)
@click.option(
    "--price-tier",
    metavar="NAME",
    help="Tier whose prices apply: s3-standard, gcs-standard, azure-hot, azure-premium. [by the URL]",
)
@click.option("--no-save", is_flag=True, help="Do not save the result.")
@click.option("--label", default="", help="Name of the storage path in reports.")
@click.option("--allow-debug", is_flag=True, help="Save the row of a debug build, marked INVALID.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["human", "tf_cnn"]),
    default="human",
    show_default=True,
    help="Text on stdout: for people, or the lines of tf_cnn_benchmarks at the end of the run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line on stdout.")
def command(
    workload: str,
    data: str | None,
    synthetic: bool,
    warm_up_steps: int | None,
    ranks: int,
    scale: tuple[int, ...] | None,
    scaling: Literal["weak", "strong"],
    repeats: int,
    launcher: str | None,
    nodes: str | None,
    ranks_per_node: int | None,
    batch_size: int | None,
    global_batch: int | None,
    settings: dict[str, Any],
    voxels: int | None,
    filters: int | None,
    recipe: str | None,
    output: str,
    price_tier: str | None,
    no_save: bool,
    output_format: str,
    as_json: bool,
    **rest: Any,
) -> None:
    """Train WORKLOAD (cosmoflow, resnet50, resnet152, resnet18, trivial, or a plug-in's) and save the result.

    \b
    penstock train cosmoflow --data s3://cosmo/train/ --ranks 8 --batch-size 1
    penstock train cosmoflow --data staged --voxels 32 --recipe demo --epochs 6
    penstock train cosmoflow --data s3://cosmo/train/ --accelerator a100
    penstock train resnet50 --data s3://imagenet/train/ --set amp=true
    penstock train cosmoflow --synthetic --steps 50
    penstock train cosmoflow --data s3://cosmo/train/ --compare-synthetic
    penstock train cosmoflow --synthetic --scale ranks=1,2,4 --scaling strong
    penstock train resnet50 --synthetic --scale ranks=8,16 --launcher slurm

    Under torchrun or srun this process is the rank that the launcher started, and --ranks is ignored.
    """  # noqa: D301 - click reads the \b, and not its spelling
    from penstock import env
    from penstock.errors import ConfigError, Mismatch
    from penstock.train import TrainSpec, run

    if synthetic and rest["compare_synthetic"]:
        raise ConfigError("--synthetic and --compare-synthetic cannot be combined", hint="give only one of them")
    if output_format == "tf_cnn" and (as_json or rest["compare_synthetic"]):
        raise ConfigError("--format tf_cnn cannot be combined with --json or --compare-synthetic")
    if synthetic and data is not None:
        raise ConfigError("--synthetic and --data cannot be combined", hint="give only one of them")
    if data is None and not synthetic:
        raise ConfigError("the training data is missing", hint="give --data URL, or --synthetic")
    if batch_size is not None and global_batch is not None:
        raise ConfigError("--batch-size and --global-batch cannot be combined", hint="give only one of them")
    if rest["checkpoint"] is not None:
        _check_checkpoint(rest["checkpoint"])
    here = _detect(env.read())
    if scale is not None and (here.world > 1 or output_format != "human"):
        raise ConfigError(
            "--scale starts the ranks itself, so it cannot run under a launcher or with --format tf_cnn",
            hint="start it once, outside mpirun or srun, and name the launcher with --launcher",
        )
    if launcher is None and (nodes is not None or ranks_per_node is not None):
        raise ConfigError("--nodes and --ranks-per-node need --launcher")
    if launcher is not None and scale is None:
        raise ConfigError(
            "--launcher needs --scale", hint="to train once, start this command under the launcher, such as srun"
        )
    ranks = min(scale) if scale is not None else ranks
    world = here.world if here.world > 1 else ranks
    size = global_batch or (batch_size or 4) * world
    if synthetic or data is None:
        data = f"dummy://{(rest['steps'] or _SYNTHETIC_STEPS) * size}"
    if warm_up_steps is None:
        warm_up_steps = _TURN_WARM_UP if rest["compare_synthetic"] or scale is not None else 0
        if scale is not None and rest["steps"] is not None:
            warm_up_steps = min(warm_up_steps, rest["steps"] - 1)
        if output_format == "tf_cnn":
            from penstock.train.tf_cnn_lines import WARM_UP_STEPS

            warm_up_steps = WARM_UP_STEPS
    if rest["steps"] is not None and 0 < warm_up_steps >= rest["steps"]:
        raise ConfigError(
            f"--steps {rest['steps']} leaves no step to measure after {warm_up_steps} warm-up steps",
            hint=f"use --steps {warm_up_steps + 1} or more, or a smaller --warm-up",
        )
    named = {"voxels": voxels, "filters": filters, "recipe": recipe}
    spec = TrainSpec(
        workload=workload,
        data=data,
        warm_up_steps=warm_up_steps,
        keep_step_times=output_format == "tf_cnn",
        ranks=ranks,
        global_batch=size,
        settings={**{k: v for k, v in named.items() if v is not None}, **settings},
        runs=None if no_save else output,
        **rest,
    )
    if scale is not None:
        from penstock.cli.train_scaling import Placement, run_scaling

        on = None if launcher is None else Placement(launcher, nodes, ranks_per_node)
        saved = None if no_save else output
        run_scaling(spec, scale, scaling=scaling, repeats=repeats, on=on, output=saved, as_json=as_json)
        return
    printer = ProgressPrinter(price_tier)
    if here.world > 1:
        from penstock.cli import signals
        from penstock.train import peers

        signals.end_at_once()
        signals.before_end(peers.signalled)
    try:
        result = run(spec, report=printer, on_lost=_end)
    except Mismatch as error:
        _advise_voxels(error)
        raise
    finally:
        printer.end()
    if here.rank == 0:
        if as_json:
            click.echo(json.dumps(result if printer.money is None else {**result, "money": printer.money}))
        elif output_format == "tf_cnn":
            from penstock.train.tf_cnn_lines import tf_cnn_lines

            _check_measured(result, warm_up_steps)
            batch = result["spec"]["global_batch"] / result["world"]
            facts = {"batch": batch, "workers": result["world"], "warm_up": warm_up_steps}
            click.echo("\n".join(tf_cnn_lines(result["step_times"], result["losses"], **facts)))
        else:
            from penstock.cli.train_output import print_result

            print_result(result, output, saved=not no_save)


def _detect(environment: Mapping[str, str]) -> Rank:
    from penstock.errors import ConfigError
    from penstock.ranks import detect

    try:
        return detect(environment)
    except ConfigError as error:
        # The error's own hint names --node, which this command does not have.
        hint = "start every rank with one launcher, such as torchrun or srun, or unset its variables"
        raise ConfigError(str(error), where=error.where, hint=hint) from None


def _check_checkpoint(url: str) -> None:
    from penstock.errors import ConfigError
    from penstock.feed.checkpoint.folder import CheckpointFolder

    path = CheckpointFolder(url).path
    if path is not None and path.is_file():
        raise ConfigError(f"--checkpoint: {path} is a file, not a folder", hint="use a folder, or the URL of a store")


def _check_measured(result: Mapping[str, Any], warm_up_steps: int) -> None:
    from penstock.errors import ConfigError

    if not any(step > warm_up_steps for step, _ in result["step_times"]):
        raise ConfigError(
            f"the run had {result['steps']:,} steps, and --format tf_cnn leaves out the first {warm_up_steps}",
            hint=f"use more data or --epochs, for {warm_up_steps + 1} steps or more, or a smaller --warm-up",
        )


def _advise_voxels(error: Mismatch) -> None:
    """Replace the hint of an error about the size of volumes: this command declares no fields."""
    found = re.search(r"has ([\d,]+) bytes, want int16 \[(\d+), \2, \2, 4\]", error.message)
    if found is None:
        return
    side = round((int(found[1].replace(",", "")) / 8) ** (1 / 3))
    if side**3 * 8 == int(found[1].replace(",", "")):
        error.__notes__ = [
            f"use --voxels {side}"
            if side % 32 == 0
            else f"use volumes whose side is a multiple of 32 voxels; these have {side}"
        ]


def _end(cause: PenstockError) -> None:
    """Terminate a rank whose main thread is still waiting for a failed rank."""
    from penstock.cli.app import print_error
    from penstock.cli.signals import signal_exit_code
    from penstock.train.worker import exit_now

    code = signal_exit_code()
    exit_now(print_error(cause) if code is None else code)


class ProgressPrinter:
    """Prints the progress line. On a terminal it is rewritten; otherwise, one line is printed every ten seconds and at
    each new phase.

    Before the first line, prints the cost of all epochs if their requests are billed.
    """

    def __init__(self, price_tier: str | None = None) -> None:
        from rich.console import Console

        self.money: dict[str, Any] | None = None
        self._price_tier, self._is_priced = price_tier, False
        self._console = Console(stderr=True)
        self._status: Any = None
        self._printed_s = float("-inf")
        self._phase = ""

    def __call__(self, progress: Progress) -> None:
        import time

        if progress.data and not self._is_priced:
            self._price(progress)
        text = _line(progress)
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status(text)
                self._status.start()
            self._status.update(text)
            return
        now = time.monotonic()
        if now - self._printed_s > _LINE_S or progress.phase != self._phase:
            self._printed_s, self._phase = now, progress.phase
            click.echo(text, err=True)

    def _price(self, progress: Progress) -> None:
        from penstock.cli.epoch_cost import money_text
        from penstock.price.estimates import estimate_epochs

        self._is_priced = True
        self.money = estimate_epochs(**progress.data, epochs=progress.epochs, tier=self._price_tier)
        if self.money is not None:
            click.echo(money_text(self.money), err=True)

    def end(self) -> None:
        if self._status is not None:
            self._status.stop()


def _line(progress: Progress) -> str:
    of = f"/{progress.steps:,}" if progress.steps else ""
    parts = [
        f"{progress.phase} epoch {min(progress.epoch + 1, progress.epochs)}/{progress.epochs}",
        f"step {progress.step:,}{of}",
        f"{progress.samples_per_s:,.1f} {progress.unit}",
        f"data wait {100 * progress.wait_share:.1f} %",
    ]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4f}")
    parts += [f"{name} {value:.4f}" for name, value in progress.metrics.items() if name in ("mae", "top1")]
    return " · ".join(parts)
