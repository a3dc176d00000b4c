# SPDX-License-Identifier: Apache-2.0
"""`penstock stage`: copy a dataset, or this node's share of it, to a folder or a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import BYTES, RATE, SECONDS, patterns, with_units
from penstock.cli.progress import Follow, Log, options
from penstock.cli.signals import stopped

if TYPE_CHECKING:
    from penstock.stage import StageSpec

__all__ = ["command"]

# Maximum number of failures printed on stderr. The JSON output contains all.
_MAX_SHOWN = 20


@click.command("stage")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--decompress", is_flag=True, help="Decompress .gz, .zst and .lz4 during the copy, and drop the suffix.")
@click.option(
    "--compress",
    type=click.Choice(["gzip", "zstd"]),
    help="Compress uncompressed objects. In a store, the name is unchanged and Content-Encoding names the codec; in a folder, .gz or .zst is added to the name.",
)
@click.option("--level", type=int, metavar="N", help="Level of --compress: gzip 0 to 12 [6], zstd 1 to 22 [3].")
@click.option("--node", type=int, metavar="I", help="Number of this node, from 0; with --nodes. [from the launcher]")
@click.option("--nodes", type=int, metavar="N", help="Number of nodes that share the dataset. [from the launcher]")
@click.option(
    "--manifest",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Manifest of SRC, instead of a listing; its versions are pinned.",
)
@patterns
@click.option(
    "--share-by",
    metavar="RULE",
    help="Rule that divides the objects: `bytes` [default], or `name:PATTERN`, where {} stands for the number of an object's group.",
)
@click.option("--weights", metavar="W,W,..|@FILE", help="Weights of the nodes' shares, such as 1,1,2,2. [equal]")
@click.option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="URL",
    help="Another URL with the same objects, to spread the reads over; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be copied, and each node's share; change nothing.")
@click.option(
    "--price-tier",
    metavar="NAME",
    help="Tier whose prices --dry-run uses: s3-standard, gcs-standard, azure-hot, azure-premium. [by the URL]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    metavar="N",
    help="Maximum number of requests in flight; throttling lowers it for a while.",
)
@click.option(
    "--memory", type=BYTES, default="1GiB", show_default=True, metavar="SIZE", help="Maximum number of bytes in flight."
)
@click.option(
    "--max-inflated",
    type=BYTES,
    metavar="SIZE",
    help="Maximum decompressed size of one object. [the highest ratio that its codec can reach]",
)
@click.option(
    "--allow-case-collisions",
    is_flag=True,
    help="Stage keys that differ only by case; the file system must be case-sensitive.",
)
@click.option("--overwrite", is_flag=True, help="Replace files or objects in DST that were not staged from SRC.")
@click.option(
    "--journal",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder for the journal of a stage to a store. [~/.local/state/penstock/stage]",
)
@click.option(
    "--timeout",
    type=SECONDS,
    metavar="TIME",
    help="Time limit of the whole stage; the same command continues it.",
)
@click.option(
    "--retry-timeout", type=SECONDS, metavar="TIME", help="Longest time to retry one request that the store throttles."
)
@click.option(
    "--max-requests-per-s",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Maximum requests per second of the whole job, divided among the nodes.",
)
@click.option(
    "--max-bytes-per-s",
    type=RATE,
    metavar="RATE",
    help="Maximum bytes per second of the whole job (500MB/s, 10Gbit/s), divided among the nodes.",
)
@click.option(
    "--object-timeout", type=SECONDS, metavar="TIME", help="Time limit of one object; only that object fails."
)
@click.option(
    "--idle-timeout",
    type=SECONDS,
    metavar="TIME",
    help="Time without received data after which a read is sent again, from the last received byte. [30s]",
)
@click.option(
    "--wait-timeout",
    type=SECONDS,
    metavar="TIME",
    help="Longest time that the node's other ranks wait for a heartbeat of the rank that stages. [600s for the first, then 120s]",
)
@options
@click.option(
    "--progress-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder that all nodes of the launch share, for their common progress. [~/.cache/penstock/launches]",
)
@click.option("--quiet", is_flag=True, help="Show no progress; same as --progress none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line at the end.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    source: str,
    destination: str,
    *,
    node: int | None,
    nodes: int | None,
    weights: str | None,
    price_tier: str | None,
    style: str,
    log: str | None,
    progress_dir: str | None,
    quiet: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Copy the objects under SRC to DST, a folder or s3://, az:// or gs://, and verify them.

    A file or object appears under its final name only when it is complete and verified. If a stage is stopped or
    killed, the same command continues it. A finished stage copies nothing. Under Slurm, PBS, Flux, MPI, torchrun or
    Horovod each node copies its share: its first rank stages, and its other ranks wait.

    SRC may be a pattern, such as s3://bucket/train/*.tfrecord.gz (quote it). Shares are equal in stored bytes, and in
    written bytes if the objects allow it; each node computes the same plan. --share-by name:'*_{}.tfrecord*' divides
    groups of objects by a number in their names instead: with 64 groups and 16 nodes, node 0 copies the first four
    groups.

    --dry-run prints the objects, bytes and requests, each node's share, and the cost of the requests with the date of
    the price.

    Exit code 1: some objects could not be staged; they are listed.
    """
    from penstock import env, ranks
    from penstock.stage import StageSpec

    rank = ranks.place(env.read(), node, nodes)
    if rank.note and not quiet:
        click.echo(f"note: {rank.note}", err=True)
    spec = StageSpec(source, destination, rank=rank, weights=_weights(weights), **with_units(ctx.command, settings))
    style = "none" if quiet else style
    with Log(log, rank.node, rank.nodes) as log_file:
        log_file.write("start", f"stage {source} to {destination}, rank {rank.rank} of {rank.world} ({rank.launcher})")
        try:
            summary = _follow(spec, style=style, log=log_file, folder=progress_dir)
        except KeyboardInterrupt as stop:
            what, code = stopped(stop)
            click.echo(f"{what}; finished files are kept, and the same command resumes from there", err=True)
            log_file.write("end", what)
            # Return the exit code immediately, without waiting for requests in flight on other threads.
            return code
        for failure in summary["failed"]:
            log_file.write("failed", f"[{failure['code']}] {failure['error']}")
        log_file.write("end", "planned" if spec.dry_run else _readable(summary))
    if spec.dry_run:
        from penstock.cli.stage_estimate import readable
        from penstock.price.estimates import estimate_stage

        summary = estimate_stage(
            summary,
            tier=price_tier,
            max_requests_per_s=spec.max_requests_per_s,
            max_bytes_per_s=spec.max_bytes_per_s,
        )
        click.echo(json.dumps(summary) if as_json else readable(summary))
        return 0
    for failure in summary["failed"][:_MAX_SHOWN]:
        click.echo(f"error[{failure['code']}]: {failure['error']}", err=True)
    if (left := len(summary["failed"]) - _MAX_SHOWN) > 0:
        click.echo(f"... and {left:,} more (--json lists all)", err=True)
    if summary["failed"]:
        click.echo(
            f"  hint: repair {len(summary['failed']):,} of {summary['objects']:,} objects at the source (they are not staged), then run the same command again",
            err=True,
        )
    click.echo(json.dumps(summary) if as_json else _readable(summary))
    return 1 if summary["failed"] else 0


def _weights(text: str | None) -> str | None:
    """Return the weights, from the text itself or, if the text is `@FILE`, from the file."""
    if text is None or not text.startswith("@"):
        return text
    from pathlib import Path

    from penstock.errors import ConfigError

    try:
        return Path(text[1:]).read_text(encoding="utf-8")[: 1 << 24]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--weights: {text[1:]} cannot be read: {error}", where="--weights") from error


def _follow(spec: StageSpec, *, style: str, log: Log, folder: str | None) -> dict[str, Any]:
    from penstock import env, stage
    from penstock.stage.node_progress import SharedProgress, folder_for

    rank = spec.rank
    if rank.local_rank > 0 and not spec.dry_run:
        if style != "none":
            click.echo(
                f"rank {rank.rank} waits for rank {rank.rank - rank.local_rank}, which stages for node {rank.node}",
                err=True,
            )
        return stage.run_as(spec)
    if spec.dry_run:
        return stage.wait(stage.start(spec))
    job = stage.start(spec)
    place = folder_for(env.read(), rank, folder, spec.source)
    # Only the first node shows progress. All other nodes send their progress to the first node.
    board = None if place is None else SharedProgress(place, rank.node, rank.nodes)
    shows = board is None or rank.node == 0
    return Follow(style=style, log=log, board=board, shows=shows).wait(job)


def _readable(summary: dict[str, Any]) -> str:
    from penstock.units import format_bytes, format_rate, format_seconds

    share = f"node {summary['node']} of {summary['nodes']}: " if summary["nodes"] > 1 else ""
    if not summary["objects"]:
        return f"{share}nothing to do: {summary['objects_total']:,} objects for {summary['nodes']:,} nodes"
    whole = f"{summary['objects']:,} objects, {format_bytes(summary['bytes'])}"
    rate = format_rate(summary["bytes_in"] / max(summary["seconds"], 1e-9))
    lines = [
        f"{share}{whole} in {summary['destination']}",
        f"  {summary['moved']:,} moved, {summary['skipped']:,} already there, {len(summary['failed']):,} failed",
        f"  {format_bytes(summary['bytes_in'])} read, {format_bytes(summary['bytes_out'])} written in {format_seconds(summary['seconds'])} ({rate})",
    ]
    if summary["without_checksum"] and not summary["source"].startswith("file:"):
        lines.append(
            f"  {summary['without_checksum']:,} had no checksum from their store; the manifest contains Penstock's"
        )
    for mirror in summary.get("mirrors", []):
        lines.append(f"  {mirror['url']}: {format_bytes(mirror['bytes'])} in {mirror['reads']:,} reads")
        if "left_out" in mirror:
            lines.append(f"    left out: {mirror['left_out']}")
    if summary["throttles"] or summary["retries"]:
        lines.append(f"  {summary['throttles']:,} requests throttled, {summary['retries']:,} sent again")
    return "\n".join(lines)
