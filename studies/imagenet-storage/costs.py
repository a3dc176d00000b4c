# SPDX-License-Identifier: Apache-2.0
"""Images/s for money, an io1 disk by the hour, and the cost and delay of data in another zone or region. All modelled."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from penstock.price import book as books
from penstock.price import disks
from penstock.price.cost import HOURS_PER_MONTH, egress_usd, requests_usd, storage_usd
from penstock.study.result import Claim, PartResult, Table, Text, Value

from .limits import DiskRates, on_disk, on_store

if TYPE_CHECKING:
    from penstock.price.book import Price, PriceBook
    from penstock.study.run import Context

__all__ = ["disk_usd_per_hour", "run"]

# Disk -> price of its capacity, price of its IOPS, node with 8 V100 of the same cloud.
ITEMS = {
    "aws-gp2@2018": ("aws-ebs-gp2-storage", None, "aws-vm-p3.16xlarge"),
    "aws-st1@2018": ("aws-ebs-st1-storage", None, "aws-vm-p3.16xlarge"),
    "aws-io1@2018": ("aws-ebs-io1-storage", "aws-ebs-io1-iops", "aws-vm-p3.16xlarge"),
    "azure-premium-ssd@2018": ("azure-disk-premium-ssd-storage", None, "azure-vm-nd40rs_v2"),
    "gcp-pd-ssd@2018": ("gcp-pd-ssd-storage", None, "gcp-vm-n1-highmem-64-v100"),
}
_GPUS = 8


class _Prices:
    """The book, and the prices that were used."""

    def __init__(self, book: PriceBook) -> None:
        self.book, self.used = book, dict[str, "Price"]()

    def __call__(self, item: str) -> float:
        found = self.used.setdefault(item, self.book.find(item))
        return found.usd_per_unit


def disk_usd_per_hour(name: str, data_bytes: float, price: Any) -> float:
    """USD/h of a disk that has its full limits: the size that has them, at least that of the data, and its IOPS."""
    capacity, iops, _ = ITEMS[name]
    disk = disks.find(name)
    found: float = storage_usd(max(data_bytes, disk.size_bytes), price(capacity), 1.0)
    if iops is not None:
        found += DiskRates.of(name).ios_per_s * price(iops) / HOURS_PER_MONTH
    return found


def run(context: Context) -> PartResult:
    """Compute all tables from the price book."""
    spec = context.study.tables
    price = _Prices(books.load())
    whole, images = float(spec["dataset"]["bytes"]), spec["dataset"]["images"]
    rows, frontier = [], []
    for model_name in ("resnet50", "resnet152", "resnet50-amp"):
        model = spec["model"][model_name]
        for disk, (_, _, node) in ITEMS.items():
            rate, limit = on_disk(spec, disk, model, _GPUS)
            hour = price(node) + disk_usd_per_hour(disk, whole, price)
            frontier.append(
                {"model": model["label"], "storage": disk, "images_per_s": rate, "usd_per_hour": hour, "limit": limit}
            )
        s3_rate, limit = on_store(spec, "s3-standard@2026", model, _GPUS)
        # Storage of the set, and a GET per image and epoch, spread over the hours of the epochs.
        hour = (
            price("aws-vm-p3.16xlarge")
            + storage_usd(whole, price("s3-standard-storage"), 1.0)
            + requests_usd(s3_rate * 3600, price("s3-standard-read"))
        )
        frontier.append(
            {
                "model": model["label"],
                "storage": "s3-standard@2026, a GET per image",
                "images_per_s": s3_rate,
                "usd_per_hour": hour,
                "limit": limit,
            }
        )
    for each in frontier:
        better = [
            o
            for o in frontier
            if o is not each
            and o["model"] == each["model"]
            and o["images_per_s"] >= each["images_per_s"]
            and o["usd_per_hour"] < each["usd_per_hour"]
        ]
        each["dominated"] = bool(better)
        million = 1e6 / each["images_per_s"] / 3600 * each["usd_per_hour"]
        each["usd_per_million_images"] = million
        rows.append(
            (
                each["model"],
                each["storage"],
                f"{each['images_per_s']:,.0f}",
                each["limit"],
                f"{each['usd_per_hour']:.2f}",
                f"{each['images_per_s'] / each['usd_per_hour']:,.0f}",
                f"{million:.2f}",
                "no" if better else "yes",
            )
        )
    cheapest = [_cheapest(frontier, target) for target in spec["costs"]["targets"]]
    io1 = disk_usd_per_hour("aws-io1@2018", disks.find("aws-io1@2018").size_bytes, price)
    moves = [_move(name, item, directions, delay, whole, spec, price) for name, item, directions, delay in _MOVES]
    blocks = (
        Table("Images/s for money: a node of 8 V100 and its storage, on demand", ("model", "storage", "images/s", "limit", "USD/h", "images/s per USD/h", "USD per million images", "worth considering"), tuple(rows), left=2,
              note="Not worth considering: another storage is as fast or faster, and costs less. gp2, st1 and the SSDs are as large as their full limits require."),
        Table("The cheapest way to reach a target, ResNet-50 with mixed precision", ("target, images/s", "nodes", "storage", "USD/h", "USD per million images"), tuple(cheapest), left=0,
              note="Whole nodes of 8 V100, each with a copy of the data on its own disk, or all from one store."),
        Table("700 GB in another zone or region: modelled, not measured", ("where", "copied once, USD", "read every epoch, USD", "copy takes, min", "new object arrives"), tuple(moves), left=1,
              note=f"Copies run at {spec['costs']['copy_gbit_per_s']:g} Gbit/s. Cross-zone traffic of AWS and Google is charged in both directions. Reads every epoch assume no copy. {spec['costs']['delay_source']}"),
        Text(books.dates_line(list(price.used.values()), dt.datetime.now(tz=dt.UTC).date()) + "."),
        Table("Prices", ("item", "USD", "unit", "region", "as of", "confidence", "source"),
              tuple((p.item, f"{p.usd_per_unit:.6g}", p.unit, p.region, p.as_of, p.confidence, p.source) for p in price.used.values()), left=1),
    )  # fmt: skip
    claims = (
        Claim("an io1 disk with the most IOPS costs about 15 USD an hour", f"{io1:.2f} USD: {32_000} IOPS and {disks.find('aws-io1@2018').size_gib} GiB at list prices", abs(io1 / 15 - 1) <= 0.1),
    )  # fmt: skip
    data = {"frontier": frontier, "io1_usd_per_hour": io1, "images": images}
    return PartResult(
        predicted={"io1-usd-per-hour": Value(io1, "32,000 IOPS and 640 GiB at list prices")},
        claims=claims,
        blocks=blocks,
        data=data,
    )


def _cheapest(frontier: list[dict[str, Any]], target: float) -> tuple[str, ...]:
    """The cheapest storage and number of nodes for a target; S3's limit holds for all nodes together."""
    found = []
    for each in (each for each in frontier if "AMP" in each["model"]):
        is_store = "GET" in each["storage"]
        if is_store and each["images_per_s"] < target:
            continue  # requests/s of a prefix: more nodes do not help
        nodes = -(-target // each["images_per_s"])
        found.append((nodes * each["usd_per_hour"], int(nodes), each["storage"]))
    usd, nodes, storage = min(found)
    return (f"{target:,.0f}", str(nodes), storage, f"{usd:.2f}", f"{1e6 / target / 3600 * usd:.2f}")


# Name, item of the traffic, directions that are charged, and words about the delay of a new object.
_MOVES = (
    ("AWS, another zone", "aws-egress-cross-zone", 2, "at once: S3 serves all zones"),
    (
        "AWS, another region",
        "aws-egress-cross-region",
        1,
        "minutes; 99.99 % within 15 min with replication time control",
    ),
    ("Google, another zone", "gcp-egress-cross-zone", 2, "at once: a bucket serves all zones"),
    ("Google, another region", "gcp-egress-cross-region", 1, "minutes; dual-region turbo within 15 min"),
    ("Azure, another zone", "azure-egress-cross-zone", 1, "at once with zone redundancy"),
    ("Azure, another region", "azure-egress-cross-region", 1, "not bounded; 15 min with priority replication"),
)


def _move(
    name: str, item: str, directions: int, delay: str, whole: float, spec: dict[str, Any], price: _Prices
) -> tuple[str, ...]:
    once = directions * egress_usd(whole, price(item))
    minutes = whole * 8 / (spec["costs"]["copy_gbit_per_s"] * 1e9) / 60
    return (name, f"{once:.2f}", f"{once:.2f}", f"{minutes:.0f}", delay)
