# SPDX-License-Identifier: Apache-2.0
"""`penstock explain`: run an unchanged program for a while, and report what it waits for."""

from __future__ import annotations

import datetime as dt
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import SECONDS
from penstock.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.explain.conclude import Price
    from penstock.explain.launch import ObservedProgram
    from penstock.explain.observe import Observer
    from penstock.explain.result import Explanation

__all__ = ["command"]

_GRACE_S = 10.0
_SHOWN = 12

_EPILOG = """\b
Examples:
  penstock explain -- python train.py --epochs 1
  penstock explain --seconds 30 --stop --html page.html -- torchrun train.py
  penstock explain --pid 4711 --price 98.32
"""


@click.command(
    "explain",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog=_EPILOG,
)
@click.option(
    "--seconds",
    type=SECONDS,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Length of the observation, from the end of the program's imports.",
)
@click.option("--pid", type=click.IntRange(min=1), metavar="PID", help="Observe a running process and its descendants.")
@click.option("--stop", is_flag=True, help="End the program after the observation, by SIGTERM.")
@click.option(
    "--price",
    type=click.FloatRange(min=0),
    metavar="USD",
    help="Price per hour of what waits, to print the money that waiting costs each day.",
)
@click.option(
    "--instance", metavar="ITEM", help="Machine of the price book instead of --price, such as azure-vm-nd40rs_v2."
)
@click.option("--region", metavar="NAME", help="Region of --instance. [the first one in the price book]")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes that wait at this price.")
@click.option(
    "--rate",
    "stacks_per_s",
    type=click.IntRange(1, 100),
    default=20,
    show_default=True,
    metavar="N",
    help="Stack samples per second, of all processes together.",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the JSON to FILE."
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page for a browser to FILE.",
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON line, after the program's own output."
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD...]")
def command(
    argv: tuple[str, ...],
    seconds: float,
    pid: int | None,
    stop: bool,
    price: float | None,
    instance: str | None,
    region: str | None,
    nodes: int,
    stacks_per_s: int,
    output: Path | None,
    html: Path | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run CMD, unchanged, and report what it waits for: storage, decompression, decoding, Python workers, copies to the
    device, the model or other ranks. Print the evidence, the cost of waiting, and what to change first.

    CMD may use any framework and any way to read its data. The command observes CMD from outside by sampling: stacks of
    Python processes (py-spy, `pip install 'penstock[explain]'`), /proc, and TCP information of the kernel. Sampling
    needs no root, and cost 1.0 to 2.4 % of one core in observations of 60 s. Shorter observations cost more, because
    py-spy has to start. The result states the cost of the observation.

    After the observation, the report is printed immediately, and CMD continues unless --stop is given. Ctrl-C ends the
    observation and CMD, and the report covers the time until then.

    Exit code: that of CMD if it ended by itself; 0 with --stop or --pid. 2: usage. 3: CMD cannot be started or
    observed. 130: interrupted.
    """
    if (pid is None) == (not argv):
        raise click.UsageError("give a command after `--`, or --pid, but not both")
    if pid is not None and stop:
        raise click.UsageError(
            "--stop cannot be combined with --pid, because explain stops only programs that it has started"
        )
    if price is not None and instance is not None:
        raise click.UsageError("give --price or --instance, not both")
    if seconds < 1:
        raise click.UsageError("--seconds: must be at least 1")
    for file in (output, html):
        if file is not None and not file.parent.is_dir():
            raise click.UsageError(f"{file}: the folder {file.parent} does not exist")
    cost = _price(price, instance, region, nodes)

    from penstock.explain.conclude import conclude
    from penstock.explain.launch import ObservedProgram
    from penstock.explain.observe import Observer, check_pid

    started = dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds")
    program: ObservedProgram | None = None
    if pid is not None:
        check_pid(pid)
    else:
        program = ObservedProgram(argv)
        pid = program.pid
    observer = Observer(pid, program, stacks_per_s=stacks_per_s)
    interrupted: KeyboardInterrupt | None = None
    try:
        try:
            seen = observer.run(seconds, _progress(seconds, quiet=quiet))
        except KeyboardInterrupt as error:
            interrupted = error
            if program is not None:
                program.forward(_signal_of(error))
            observer.stop()
            seen = observer.run(seconds, lambda _elapsed, _observed: None)
        _clear(quiet=quiet)
        result = conclude(
            seen,
            argv=argv,
            pid=pid,
            attached=program is None,
            exit_code=program.exit_code if program is not None else None,
            started=started,
            price=cost,
        )
        _write(result, output=output, html=html)
    except KeyboardInterrupt as error:
        interrupted = error
        raise
    finally:
        observer.close()
        if program is not None and (stop or interrupted is not None):
            _end(program, observer)
    _print(result, as_json=as_json)
    if interrupted is not None:
        raise interrupted
    if program is None or stop:
        return 0
    return _wait(program, quiet=quiet)


def _price(price: float | None, instance: str | None, region: str | None, nodes: int) -> Price | None:
    from penstock.explain.conclude import Price

    if instance is not None:
        from penstock.price import book

        found = book.load().find(instance, region)
        if found.unit != "hour":
            raise click.UsageError(f"--instance: {found.item} is priced per {found.unit}, not per hour")
        dates = book.dates_line([found], dt.datetime.now(tz=dt.UTC).date())
        return Price(found.usd_per_unit * nodes, f"{found.item}, {found.region}, times {nodes}; {dates}")
    return None if price is None else Price(price * nodes, f"--price, times {nodes}")


def _signal_of(error: KeyboardInterrupt) -> int:
    return signal.SIGTERM if getattr(error, "signal_name", "") == "SIGTERM" else signal.SIGINT


def _end(program: ObservedProgram, observer: Observer) -> None:
    # No child process of the program may outlive the program. Each process is identified by its pid and start time.
    others = {record.pid: record.start_ticks for record in observer.tree.live() if record.pid != program.pid}
    program.stop(others, _GRACE_S)


def _wait(program: ObservedProgram, *, quiet: bool) -> int:
    """Wait for the program, and return its exit code as a shell would."""
    if program.exit_code is None and not quiet:
        click.echo("explain: the program goes on; Ctrl-C ends it", err=True)
    try:
        code = program.child.wait()
    except KeyboardInterrupt as error:
        program.forward(_signal_of(error))
        with suppress(Exception):
            program.child.wait(_GRACE_S)
        program.stop({}, _GRACE_S)
        raise
    return code if code >= 0 else 128 - code


def _write(result: Explanation, *, output: Path | None, html: Path | None) -> None:
    from penstock.atomic_file import atomic_file
    from penstock.explain.result import encode

    if output is not None:
        with atomic_file(output) as file:
            file.write(encode(result) + b"\n")
    if html is not None:
        from penstock.report.explain_page import write_explain_page

        write_explain_page(result, html)


def _progress(seconds: float, *, quiet: bool) -> Callable[[float, float | None], None]:
    """Show progress on stderr: a line that is replaced on a terminal, else one line every 10 s."""
    state: dict[str, Any] = {"last": -10.0}

    def show(elapsed_s: float, observed_s: float | None) -> None:
        if quiet:
            return
        what = f"starting, {elapsed_s:.0f} s" if observed_s is None else f"observed {observed_s:.0f} of {seconds:.0f} s"
        if sys.stderr.isatty():
            click.echo(f"\rexplain: {what}\x1b[K", err=True, nl=False)
        elif elapsed_s - state["last"] >= 10:
            state["last"] = elapsed_s
            click.echo(f"explain: {what}", err=True)

    return show


def _clear(*, quiet: bool) -> None:
    if not quiet and sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)


def _print(result: Explanation, *, as_json: bool) -> None:
    from penstock.explain.result import encode

    click.echo(encode(result).decode() if as_json else "\n".join(_lines(result)))


def _lines(result: Explanation) -> list[str]:
    """Format the answer, the evidence, what to change, and what could not be observed."""
    from penstock.explain.result import CLASS_TEXTS

    verdict = result.verdict
    color = "green" if verdict.kind in ("healthy", "model") else "yellow"
    lines = [f"{click.style(verdict.kind, fg=color, bold=True)}: {verdict.sentence}"]
    if verdict.reason and verdict.kind != "unknown":
        lines.append(f"  {verdict.reason} (confidence: {verdict.confidence})")
    if result.cost.hours_lost_per_day:
        money = result.cost.usd_lost_per_day
        lines.append(
            f"  waiting costs {result.cost.hours_lost_per_day:.1f} hours a day"
            + (f", {money:,.0f} USD a day ({result.cost.price_source})" if money is not None else "")
        )
    if verdict.second:
        lines.append(f"  next limit after that: {verdict.second}")
    if result.shares:
        lines += ["", "Time of the training loop, and of its loaders:"]
        lines += [
            f"  {CLASS_TEXTS.get(one.name, one.name):<44} {100 * one.consumer:5.1f} % {100 * one.loaders:7.1f} %"
            for one in result.shares
            if max(one.consumer, one.loaders) >= 0.005
        ]
    lines += ["", "Evidence:"]
    for one in result.evidence[:_SHOWN]:
        ceiling = f" of {_value(one.ceiling, one.unit)} ({one.ceiling_source})" if one.ceiling is not None else ""
        lines.append(f"  {one.quantity}: {_value(one.value, one.unit)}{ceiling} [{one.source}]")
    if result.remedies:
        lines += ["", "Change first:"]
        for number, remedy in enumerate(result.remedies, 1):
            lines.append(f"  {number}. {remedy.text}: {remedy.gain_text} predicted ({remedy.gain_source})")
            if remedy.command:
                lines.append(f"     {remedy.command}")
    cost, program = result.overhead, result.program
    lines.append("")
    lines.append(
        f"Observed for {format_seconds(program.seen_s)} after {format_seconds(program.startup_s)} of start-up, without"
        f" pausing the program; the observation used {format_seconds(cost.cpu_s)} of CPU time"
        f" ({100 * cost.share:.1f} % of one core, {100 * cost.share_of_machine:.2f} % of {cost.cores} cores)"
    )
    lines += [f"Not seen: {text}" for text in result.limits]
    if result.program.ended:
        lines.append(f"The program ended with exit code {result.program.exit_code}.")
    return lines


def _value(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.0f} %"
    if unit == "bytes/s":
        return format_rate(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    return f"{value:,.2f} {unit}" if unit != "count" else f"{value:,.2f}"
