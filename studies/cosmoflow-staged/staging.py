# SPDX-License-Identifier: Apache-2.0
"""Part `staging`: 4 rehearsed hosts stage raw and gzip'd volumes from an emulated account through cards of 5 Gb/s x F.

The account is on a fifth host, which has no limit but that of its tier. Every card is limited in the kernel (tc), and
the times are those that `penstock stage` reports: the slowest host's. They are extrapolated to 327,680 volumes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.child_process import child_process
from penstock.cluster import Cluster, raise_for_failures
from penstock.datasets.cosmoflow import generate
from penstock.demo.data import inflate, multiply
from penstock.launchers.netns_hosts import Hosts
from penstock.plan.reference_job import JOB
from penstock.study.result import Claim, PartResult, Table, Text, Value
from penstock.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.study.run import Context

__all__ = ["run"]

_TIER = "azure-hot@2021"
_LIMIT_S = 300.0
_NEAR = 0.15


def run(context: Context) -> PartResult:
    """Stage both forms, and compare with the limit of the cards."""
    size, limits = context.size, context.study.tables["limits"]
    scale = (size["stage_voxels"] / 128) ** 3
    context.progress(f"making {size['stage_volumes']} volumes of {size['stage_voxels']} voxels a side")
    bytes_of = _make(context.scratch / "bucket", size)
    card = limits["nic_bytes_per_s"] * scale
    rows: dict[str, dict[str, float]] = {}
    with ExitStack() as running:
        hosts = running.enter_context(Hosts.up(f"study-{uuid4().hex[:6]}", JOB.nodes + 1, rate_bytes_per_s=card))
        cluster = running.enter_context(Cluster.open("local", {"hosts": hosts.name}))
        store = cluster.nodes[-1]
        raise_for_failures(cluster.run(["tc", "qdisc", "del", "dev", "e0", "root"], on=[store], timeout_s=30), "tc")
        url, variables = running.enter_context(_account(hosts, store, context.scratch / "bucket", scale))
        for form in ("raw", "gzip"):
            context.progress(f"staging {format_bytes(bytes_of[form])} {form} to {JOB.nodes} hosts")
            rows[form] = _stage(cluster, f"{url}{form}/", f"{hosts.own_disk}/{form}", variables)
    whole = (JOB.samples + JOB.held_out) / size["stage_volumes"]
    note = f"{size['stage_volumes']} volumes on {JOB.nodes} hosts, extrapolated to {JOB.samples + JOB.held_out:,}"
    measured = {
        f"stage-{form}": Value(row["seconds"] * whole / 60, f"{row['seconds']:.1f} s for {note}", scale=scale)
        for form, row in rows.items()
    }
    return PartResult(
        measured=measured,
        claims=_claims(rows, bytes_of, card),
        blocks=(
            Text(title="Staging rehearsed", text=f"Cards of {format_rate(card)} (5 Gb/s x F) and an account of {format_rate(limits['account_bytes_per_s'] * scale)}; F = {scale:g}."),
            _table(rows, bytes_of, card),
        ),
        data={"rows": rows, "bytes": bytes_of, "card_bytes_per_s": card},
    )  # fmt: skip


def _make(bucket: Path, size: dict[str, Any]) -> dict[str, int]:
    """Fill a bucket with both forms; return the size of each."""
    generate(bucket / "gzip", samples=size["stage_distinct"], voxels=size["stage_voxels"], seed=1, compress="gzip")
    inflate(bucket / "gzip", bucket / "raw")
    for form in ("gzip", "raw"):
        multiply(bucket / form, size["stage_distinct"], size["stage_volumes"])
    return {form: sum(file.stat().st_size for file in (bucket / form).iterdir()) for form in ("gzip", "raw")}


@contextmanager
def _account(hosts: Hosts, node: Any, bucket: Path, scale: float) -> Iterator[tuple[str, dict[str, str]]]:
    """Serve the bucket on a host; yield its URL and the variables of its clients."""
    argv = [
        sys.executable, "-m", "penstock", "emulate", str(bucket), "--tier", _TIER, "--scale", str(scale), "--bind",
        f"{node.address}:0", "--allow-remote", "--json",
    ]  # fmt: skip
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with child_process(hosts.enter(node.name, argv), grace_s=10, start_new_session=True, **options) as child:
        assert child.stdout is not None
        found = json.loads(child.stdout.readline())
        yield (
            found["url"],
            {
                "AWS_ENDPOINT_URL": found["endpoint"], "AWS_REGION": found["region"], "PENSTOCK_ALLOW_HTTP": "1",
                "AWS_ACCESS_KEY_ID": found["access_key"], "AWS_SECRET_ACCESS_KEY": found["secret_key"],
            },
        )  # fmt: skip


def _stage(cluster: Cluster, url: str, folder: str, variables: dict[str, str]) -> dict[str, float]:
    """Stage a share to each of the first hosts at once; return the slowest host's seconds, and the bytes of all."""
    nodes = cluster.nodes[: JOB.nodes]
    argv = [sys.executable, "-m", "penstock", "stage", url, folder, "--decompress", "--json"]
    ended = cluster.run(argv, on=nodes, env=variables, timeout_s=_LIMIT_S)
    raise_for_failures(ended, "stage")
    found = [json.loads(each.out.decode().splitlines()[-1]) for each in ended]
    return {
        "seconds": max(each["seconds"] for each in found),
        "bytes_in": sum(each["bytes_in"] for each in found),
        "bytes_out": sum(each["bytes_out"] for each in found),
    }


def _claims(rows: dict[str, dict[str, float]], bytes_of: dict[str, int], card: float) -> tuple[Claim, ...]:
    raw, packed = rows["raw"]["seconds"], rows["gzip"]["seconds"]
    limits_s = {form: size / JOB.nodes / card for form, size in bytes_of.items()}
    claims = [
        Claim(
            "staging raw is bound by the network cards, within 15 %",
            f"{raw:.1f} s; the cards allow {limits_s['raw']:.1f} s",
            holds=raw <= (1 + _NEAR) * limits_s["raw"],
        ),
        Claim(
            "staging gzip is faster than raw, but by less than its bytes suggest (published: 35 min and 13 min)",
            f"{raw / packed:.1f} times as fast; {bytes_of['raw'] / bytes_of['gzip']:.1f} times fewer bytes; the cards allow {limits_s['gzip']:.1f} of {packed:.1f} s",
            holds=1 < raw / packed < bytes_of["raw"] / bytes_of["gzip"],
        ),
    ]
    is_whole = all(row["bytes_in"] >= bytes_of[form] for form, row in rows.items())
    claims.append(Claim("every byte of both forms is staged", f"{rows['raw']['bytes_out']:,.0f} bytes raw, {rows['gzip']['bytes_out']:,.0f} from gzip", holds=is_whole and rows["raw"]["bytes_out"] == rows["gzip"]["bytes_out"], must=True))  # fmt: skip
    return tuple(claims)


def _table(rows: dict[str, dict[str, float]], bytes_of: dict[str, int], card: float) -> Table:
    lines = tuple(
        (
            form, format_bytes(bytes_of[form]), f"{row['seconds']:.2f} s", f"{bytes_of[form] / JOB.nodes / card:.2f} s",
            format_rate(row["bytes_in"] / JOB.nodes / row["seconds"]), format_rate(row["bytes_out"] / JOB.nodes / row["seconds"]),
        )
        for form, row in rows.items()
    )  # fmt: skip
    head = ("form", "stored", "slowest host", "limit of the cards", "into a host", "written on a host")
    return Table("Both forms", head, lines)
