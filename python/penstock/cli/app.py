# SPDX-License-Identifier: Apache-2.0
"""Top-level command: the group of verbs, and the conversion of errors to text and exit codes."""

from __future__ import annotations

import errno
import os
import select
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.group import LazyGroup
from penstock.cli.signals import end, listening, stopped
from penstock.env import override, read
from penstock.errors import Bug, Denied, NoSpace, NotFound, PenstockError, SystemFault, redact

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["VERBS", "main", "print_error"]

# Verbs and their descriptions. A table, so that `penstock --help` does not import any verb.
VERBS = {
    "demo": "Train one model over four storage paths, and report speed, limits and cost of each path.",
    "dataset": "Generate realistic datasets for experiments.",
    "emulate": "Serve a folder as an S3 endpoint with the limits of a storage tier.",
    "peek": "Show a dataset's format, fields, sizes, counts and cost, and the code that reads it.",
    "index": "List a dataset once into a manifest.",
    "stage": "Copy a dataset to this node or a store, verified and resumable.",
    "verify": "Verify a staged copy, and repair it.",
    "diff": "Compare two datasets by their listings or manifests.",
    "convert": "Convert a dataset of records to TFRecord, tar or Parquet.",
    "array": "Open, convert and image volumes: SEG-Y, Zarr, HDF5.",
    "audit-order": "Check that a dataset is delivered in the same order for any number of ranks and threads.",
    "train": "Train a workload from any URL.",
    "bench": "Measure a storage path, and report its limit and what to change.",
    "cluster": "List nodes, run commands on them, copy files to them.",
    "study": "Repeat published experiments, and compare each figure with the published one.",
    "plan": "Predict hours and cost of each path, and name the limit that decides.",
    "report": "Create a page with a verdict from the results of Penstock or another benchmark.",
    "explain": "Run a program and report what it waits for: storage, decoding, workers, the model or other ranks.",
    "run": "Run a job file on a cluster: pool, stage, ranks, archive.",
    "pool": "Start a file system on the job's own nodes, and stop it.",
    "probe": "Measure the limits of a store or a disk in minutes, as a tier that can be emulated.",
    "doctor": "Check the connection to a store, or list what nodes lack for each engine.",
    "config": "Show the settings and where they come from; allow a folder's own file; refresh prices.",
}

_EPILOG = "Every verb has --json (data on stdout, messages on stderr). Guide: docs/guides/first-steps.md"


def _stdout_is_broken() -> bool:
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Exit with 0 if the program that reads stdout has ended, as in `penstock ... | head`. (click would exit with
    1.)
    """
    try:
        yield
    except BrokenPipeError as error:
        if not _stdout_is_broken():  # another pipe is broken, an error that click would hide
            raise _foreseen(error) from error
        # The interpreter flushes stdout again at exit. Redirect stdout to /dev/null, where this flush succeeds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from error


class _Verbs(LazyGroup):
    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _reader_may_leave():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader_may_leave():
            return super().invoke(ctx)


def _completion(ctx: click.Context, _param: click.Parameter, shell: str | None) -> None:
    if shell and not ctx.resilient_parsing:
        from click.shell_completion import get_completion_class

        kind = get_completion_class(shell)
        assert kind is not None  # the shell is one of click's own choices
        click.echo(kind(ctx.command, {}, "penstock", "_PENSTOCK_COMPLETE").source())
        ctx.exit()


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from penstock import __version__

        click.echo(f"penstock {__version__}")
        ctx.exit()


@click.group(
    cls=_Verbs,
    package="penstock.cli",
    verbs=VERBS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version and exit."
)
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    expose_value=False,
    is_eager=True,
    callback=_completion,
    help="Print the completion script of a shell and exit; source it.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Settings file to use instead of ./penstock.toml and the user's own.",
)
@click.option(
    "--prices",
    type=click.Path(path_type=Path),
    help="Price file whose prices come before the bundled ones, instead of the user's own prices.toml.",
)
@click.pass_context
def penstock(ctx: click.Context, debug: bool, config: Path | None, prices: Path | None) -> None:
    """Move training data from object storage to accelerators, and show which path is worth its price."""
    # Imported here, because --help does not need TOML, msgspec and units.
    from penstock.cli.parameters import default_map
    from penstock.cli.renamed import renamed_variables
    from penstock.config import load, store_variables

    ctx.obj = {"debug": debug, "config": load(read(), Path.cwd(), only=config)}
    verb = ctx.invoked_subcommand
    if verb != "config":  # `config` must be able to show and allow settings that other verbs reject
        ctx.with_resource(override(store_variables(ctx.obj["config"])))
    ctx.with_resource(override(renamed_variables(read())))
    if prices is not None:  # set in the environment, so that all processes of a job use the same prices
        ctx.with_resource(override({"PENSTOCK_PRICES": str(prices.absolute())}))
    command = penstock.get_command(ctx, verb) if verb else None
    if verb and command is not None:
        ctx.default_map = {verb: default_map(ctx.obj["config"], command, (verb,))}


def _print(error: PenstockError) -> None:
    plain = False if read().get("NO_COLOR") else None  # None: colour only if stderr is a terminal
    click.echo(f"{click.style(f'error[{error.code}]', fg='red', bold=True)}: {error}", err=True, color=plain)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)


def print_error(error: PenstockError) -> int:
    """Print an error and its hint on stderr, and return its exit code."""
    _print(error)
    return error.exit_code


def _foreseen(error: Exception) -> PenstockError:
    """Convert a Python exception to a Penstock error: an OSError to the matching class, any other exception to a
    Bug.
    """
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        text = f"{place}{error.strerror or error}"
        if isinstance(error, FileNotFoundError):
            return NotFound(text)
        if isinstance(error, PermissionError):
            return Denied(text)
        return NoSpace(text) if error.errno in (errno.ENOSPC, errno.EDQUOT) else SystemFault(text)
    return Bug(
        f"{type(error).__name__}: {error}",
        hint="report the bug, and include the output of the same command with --debug",
    )


def _print_redacted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """`sys.excepthook` of --debug. Redacts tracebacks, because other libraries' errors may quote a URL with a
    password.
    """
    import traceback

    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def main(argv: list[str] | None = None) -> Any:
    """Run one command line and exit with 0 (success), 1 (negative result, or some data failed), 2 (usage), 3 (error),
    130 (interrupted) or 143 (terminated).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    if debug:  # accepted anywhere, because users append it to the command that failed
        arguments = [a for a in arguments if a != "--debug"]
        sys.excepthook = _print_redacted
    with listening():
        end(_run(arguments, debug=debug))


def _run(arguments: list[str], *, debug: bool) -> int:
    """Run the command, print any error, and return the exit code."""
    try:
        code = penstock.main(args=arguments, prog_name="penstock", standalone_mode=False, auto_envvar_prefix="PENSTOCK")
    except click.exceptions.Abort as abort:
        # click converts every interrupt to an Abort. An interrupt that Penstock raised can have a hint.
        what, code = stopped(abort.__cause__ or abort)
        if isinstance(abort.__cause__, PenstockError) and abort.__cause__.hint:
            _print(abort.__cause__)
        else:
            click.echo(what, err=True)
    except click.ClickException as error:
        vars(error)["message"] = redact(error.message)  # through `vars`, because click declares the attribute final
        error.show()
        code = error.exit_code
    except PenstockError as error:
        if debug:
            raise
        code = print_error(error)
    except KeyboardInterrupt as stop:
        what, code = stopped(stop)
        click.echo(what, err=True)
    except Exception as error:
        if debug:
            raise
        code = print_error(_foreseen(error))
    return code if isinstance(code, int) else 0
