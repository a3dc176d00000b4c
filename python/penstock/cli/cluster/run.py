# SPDX-License-Identifier: Apache-2.0
"""`penstock cluster run`: run a command on all nodes at the same time. Prints each line with its node's name, and each
exit code.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.cluster.options import json_flag, opened, reaching, spelt
from penstock.cli.cluster.placement import BIND_HELP

if TYPE_CHECKING:
    from penstock.protocols import Exit

__all__ = ["command"]


@click.command("run", context_settings={"ignore_unknown_options": True})
@reaching("10min")
@click.option("--leader", is_flag=True, help="Run on the first node only.")
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of ranks on each node.",
)
@click.option("--bind", metavar="BINDING", help=BIND_HELP)
@click.option("--cwd", metavar="DIR", help="Working directory of the command on the node.")
@click.option(
    "--logs", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Folder for one log per node."
)
@click.option("--dry-run", is_flag=True, help="Print the command lines that would be started here; start nothing.")
@json_flag
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [WORD]...")
def command(
    launcher: str,
    nodes: str | None,
    on: tuple[str, ...],
    settings: tuple[str, ...],
    timeout: float,
    leader: bool,
    ranks_per_node: int,
    bind: str | None,
    cwd: str | None,
    logs: Path | None,
    dry_run: bool,
    as_json: bool,
    argv: tuple[str, ...],
) -> int:
    """Run a command on all nodes at the same time.

    Words are passed unchanged, without a shell; {rank}, {world}, {local_rank} and {node} are replaced by each rank's
    values. Exit code 1: a node failed; stderr shows which node, and the reason.
    """
    from penstock.protocols import RunRequest

    with opened(launcher, nodes, on, settings) as cluster:
        chosen = [cluster.leader] if leader else list(cluster.nodes)
        if dry_run:
            request = RunRequest(argv, chosen, ranks_per_node, expand_placeholders=True, bind=bind)
            for line in cluster.launcher.line(request):
                click.echo(spelt(list(line)))
            return 0
        exits = cluster.run(
            argv, on=chosen, ranks_per_node=ranks_per_node, timeout_s=timeout, cwd=cwd, logs=logs, expand_placeholders=True,
            on_line=None if as_json else _print_line, bind=bind,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps({"schema_version": 2, "exits": [as_row(each) for each in exits]}))
    return print_failures(exits)


def _print_line(node: str, rank: int, stream: str, line: bytes) -> None:  # noqa: ARG001
    to = sys.stdout if stream == "out" else sys.stderr
    # Write each line in one call, because threads of several nodes write at the same time.
    to.buffer.write(node.encode() + b": " + line + b"\n")
    to.flush()


def as_row(ended: Exit) -> dict[str, object]:
    """Convert an Exit to a row for --json."""
    return {
        "node": ended.node,
        "rank": ended.rank,
        "code": ended.code,
        "seconds": ended.seconds,
        "cpus": ended.cpus,
        "stdout": ended.out.decode(errors="replace"),
        "stderr": ended.err.decode(errors="replace"),
        "error": None if ended.fault is None else str(ended.fault),
    }


def print_failures(exits: list[Exit]) -> int:
    """Print the failed ranks on stderr. Return the exit code: 3 if a node was not reached, 1 if a command failed,
    otherwise 0.
    """
    from penstock.cluster.exits import describe

    bad = [each for each in exits if each.code != 0]
    for each in bad[:20]:
        click.echo(f"error[{getattr(each.fault, 'code', 'rank-failed')}]: rank {each.rank}, {describe(each)}", err=True)
        if hint := getattr(each.fault, "hint", None):
            click.echo(f"  hint: {hint}", err=True)
    if len(bad) > 20:
        click.echo(f"... and {len(bad) - 20:,} more (--json lists all)", err=True)
    if any(each.fault is not None for each in bad):
        return 3
    return 1 if bad else 0
