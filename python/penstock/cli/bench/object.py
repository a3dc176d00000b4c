# SPDX-License-Identifier: Apache-2.0
"""`penstock bench object`: measure an object store's request rate, latency and throttling, and the cost of back-off."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.bench.hosts import measured, on_hosts
from penstock.cli.bench.load import load_of, loads
from penstock.cli.bench.output import outputs
from penstock.cli.parameters import BYTES, SECONDS, Several

__all__ = ["command"]

_OPERATIONS = "put,get,range,list,head,delete"


@click.command("object")
@click.argument("url", metavar="URL")
@click.option(
    "--operations",
    type=Several(str, "list"),
    default=None,
    metavar="LIST",
    help=f"Operations to run, in this order: {_OPERATIONS}.  [default: put,get,head,list,delete; get of existing objects]",
)
@click.option(
    "--mix",
    metavar="WEIGHTS",
    help="Mix of operations by weight, instead of one after the other: get=70,put=20,delete=10.",
)
@click.option(
    "--size",
    type=Several(BYTES, "sizes"),
    default="1MiB",
    show_default=True,
    metavar="SIZES",
    help="Size of each object; several sizes make a sweep.",
)
@click.option(
    "--range-size", type=BYTES, default="1MiB", show_default=True, metavar="SIZE", help="Size of each ranged read."
)
@click.option(
    "--concurrency",
    type=Several(int, "list"),
    default="16",
    show_default=True,
    metavar="LIST",
    help="Number of requests in flight; several numbers make a sweep.",
)
@click.option(
    "--objects",
    type=int,
    default=256,
    show_default=True,
    help="Number of objects to create; with --existing, the maximum number to read.",
)
@click.option(
    "--prefixes", type=int, default=16, show_default=True, help="Number of prefixes that the objects are spread over."
)
@click.option(
    "--ramp",
    type=SECONDS,
    default="0s",
    show_default=True,
    metavar="TIME",
    help="Time over which the workers start one after the other; the result has a time series of it.",
)
@loads("workers", "Time limit of each phase.  [default: each object once]")
@click.option("--request-limit", type=int, metavar="N", help="End a phase after N requests.")
@click.option("--until-stable", is_flag=True, help="End a phase when the last 7 of 25 samples differ by at most 7.5 %.")
@click.option(
    "--attempt-timeout",
    type=SECONDS,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="Time without received data after which an attempt fails.",
)
@click.option(
    "--retry-timeout",
    type=SECONDS,
    default="5min",
    show_default=True,
    metavar="TIME",
    help="Time of failed attempts after which a request fails and ends the benchmark.",
)
@click.option("--list-keys", type=int, default=1000, show_default=True, help="Number of keys that one LIST reads.")
@click.option(
    "--existing",
    is_flag=True,
    help="Read existing objects below URL. Without this flag, the objects are created in a new folder, and no other objects are changed.",
)
@on_hosts
@outputs
def command(url: str, **given: Any) -> None:
    """Measure the store of URL: s3://, az://, gs://, hdfs://, http(s):// or a folder.

    Objects are created below URL in a folder named penstock-bench-..., and deleted at the end, even after Ctrl-C. With
    --nodes, or a --launcher other than `local`, all nodes run the benchmark together, each in its own folder.
    """
    from penstock.bench.distributed.config import Objects
    from penstock.bench.objects import ObjectBench, ObjectPoint, parse_mix, run
    from penstock.stage.spec import absolute

    default = ("get",) if given["existing"] else ("put", "get", "head", "list", "delete")
    bench = ObjectBench(
        operations=given["operations"] or (() if given["mix"] else default),
        mix=parse_mix(given["mix"]) if given["mix"] else None,
        range_size_bytes=given["range_size"],
        objects=given["objects"],
        prefixes=given["prefixes"],
        ramp_s=given["ramp"],
        request_limit=given["request_limit"],
        until_stable=given["until_stable"],
        attempt_limit_s=given["attempt_timeout"],
        give_up_after_s=given["retry_timeout"],
        list_keys=given["list_keys"],
        existing=given["existing"],
        **load_of(given),
    )
    points = tuple(
        ObjectPoint(object_size_bytes=size, concurrency=count)
        for size in (given["size"] if not given["existing"] else given["size"][:1])
        for count in given["concurrency"]
    )
    work = Objects(url=absolute(url), bench=bench, points=points)
    measured(work, lambda hooks: run(url, bench, points, hooks), bench.plain(points), given)
