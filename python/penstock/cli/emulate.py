# SPDX-License-Identifier: Apache-2.0
"""`penstock emulate`: serve a folder as an S3 endpoint with the limits of a storage tier, until interrupted."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock import env
from penstock.cli.parameters import BYTES
from penstock.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from penstock.emulator import Emulator
    from penstock.tiers import Tier

__all__ = ["command"]

_ENDS = {signal.SIGINT, signal.SIGTERM}
_ACCESS = "PENSTOCK_EMULATE_ACCESS_KEY"
_SECRET = "PENSTOCK_EMULATE_SECRET_KEY"  # noqa: S105 - the name of a variable, not its value


@click.command("emulate")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--tier",
    default="none",
    show_default=True,
    help="Tier whose limits apply: a name in the tier book, with or without its year (azure-hot, azure-hot@2021), or FILE#NAME, such as the card of `penstock probe`.",
)
@click.option(
    "--bind",
    default="127.0.0.1:0",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Address and port to listen on; port 0 selects a free port.",
)
@click.option(
    "--scale",
    type=float,
    default=1.0,
    show_default=True,
    metavar="F",
    help="Factor on the tier's rates, to rehearse a cluster on a laptop; the latency is not scaled.",
)
@click.option(
    "--size",
    type=BYTES,
    default="2GiB",
    show_default=True,
    metavar="SIZE",
    help="Size of an emulated disk's file system; the rates are those of the disk size in its study.",
)
@click.option(
    "--credits",
    type=float,
    default=1.0,
    show_default=True,
    metavar="SHARE",
    help="Share of a disk's burst credits at the start.",
)
@click.option(
    "--tiers",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Tier book to use instead of the bundled one (TOML).",
)
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Allow a --bind address that other machines can reach; data and signatures are not encrypted.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON line: endpoint, url, access_key, secret_key, region, tier, scale, pid.",
)
def command(
    folder: Path,
    tier: str,
    bind: str,
    scale: float,
    size: int,
    credits: float,  # noqa: A002 - the flag's own name
    tiers: Path | None,
    allow_remote: bool,
    as_json: bool,
) -> int:
    """Serve DIR as an S3 bucket with the limits of a storage tier, until Ctrl-C or SIGTERM.

    Any S3 client can read and write it; written objects become plain files in DIR. The keys are generated for this
    run, or set by PENSTOCK_EMULATE_ACCESS_KEY and PENSTOCK_EMULATE_SECRET_KEY.

    If the tier is a disk (aws-gp2@2018), a block device with the disk's limits is mounted on DIR, which must be empty.
    The limits apply to every program. Needs root.
    """
    from penstock.emulator import Emulator
    from penstock.price import disks
    from penstock.tiers import find

    if not folder.is_dir():
        if folder.exists():
            raise NotFound(f"{folder} is not a folder", where=str(folder))
        raise NotFound(f"{folder} does not exist", where=str(folder), hint=f"create it first: mkdir -p {folder}")
    if tier in disks.load():
        from penstock.cli.emulate_disk import emulate_disk

        return emulate_disk(
            folder, tier, size_bytes=size, scale=scale, credits_share=credits, as_json=as_json, ends=_ENDS
        )
    _refuse_remote(bind, allow_remote)
    # Block the signals before the server's threads start. The threads inherit the mask, so `sigwait` below receives the
    # signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        settings = env.read()
        access, secret = settings.get(_ACCESS), settings.get(_SECRET)
        with Emulator(
            folder, tier=tier, scale=scale, bind=bind, tiers=tiers, access_key=access, secret_key=secret
        ) as server:
            facts = {
                "schema_version": 1,
                "endpoint": server.endpoint,
                "url": server.url,
                "access_key": server.access_key,
                "secret_key": server.secret_key,
                "region": server.region,
                "tier": server.tier,
                "scale": server.scale,
                "folder": str(folder.resolve()),
                "pid": os.getpid(),
            }
            click.echo(json.dumps(facts) if as_json else _readable(server, find(tier, tiers)))
            signal.sigwait(_ENDS)
            counted = server.stats()
        if not as_json:
            click.echo(_farewell(counted), err=True)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    return 0


def _refuse_remote(bind: str, allow_remote: bool) -> None:
    address = bind.rpartition(":")[0].strip("[]")
    try:
        is_loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise ConfigError(f"bind: `{bind}` is not ADDRESS:PORT (such as 127.0.0.1:0)", where="bind") from None
    if not is_loopback and not allow_remote:
        raise ConfigError(
            f"bind: {address} can be reached from other machines, but the emulator does not encrypt its traffic",
            where="bind",
            hint="use --allow-remote to allow this",
        )


def _readable(server: Emulator, tier: Tier) -> str:
    lines = [f"{server.url} at {server.endpoint}", ""]
    lines += [f"export {name}={value}" for name, value in server.env.items()]
    scaled = f", rates x {server.scale:g} (F)" if server.scale != 1 else ""
    lines += ["", f"tier {server.tier}{scaled}: {tier.title}"]
    for limit in tier.limits:
        rate = _rate(limit.value * server.scale, limit.unit)
        lines.append(
            f"  {limit.what.replace('-', ' '):15} {rate:>16} per {limit.scope:10} [{limit.confidence}] {limit.source}, {limit.as_of}"
        )
    for latency in tier.latency:
        text = f"{latency.p50_ms:g} ms, p99 {latency.p99_ms:g} ms"
        lines.append(
            f"  {latency.what + ' latency':15} {text:>16}, not scaled   [{latency.confidence}] {latency.source}, {latency.as_of}"
        )
    return "\n".join([*lines, "", "Press Ctrl-C to stop."])


def _rate(value: float, unit: str) -> str:
    if unit != "bytes/s":
        return f"{value:,.0f} requests/s"
    for size, name in ((1e9, "GB/s"), (1e6, "MB/s")):
        if value >= size:
            return f"{value / size:,.2f} {name}"
    return f"{value / 1e3:,.2f} kB/s"


def _farewell(counted: dict[str, int]) -> str:
    return (
        f"{counted['requests']:,} requests, {counted['throttles']:,} of them refused with 503; "
        f"{counted['bytes_out']:,} bytes out, {counted['bytes_in']:,} bytes in"
    )
