# SPDX-License-Identifier: Apache-2.0
"""Third table: cost of the published migration with file services (billed by capacity) and object storage (by use)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.price.book import bundled
from penstock.price.cost import job_cost, requests_usd, storage_usd
from penstock.study.result import PartResult, Value

from . import report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.price.book import PriceBook
    from penstock.study.run import Context

__all__ = ["measure", "run", "stored_bytes", "upper_requests"]

# Prices derived from the article's own sums: these rows only check the formula.
_FROM_THE_ARTICLE = {"netapp-standard", "netapp-ultra", "compute"}


def run(context: Context) -> PartResult:
    """Compute the costs, with the requests of a shot as measured by the part `shots` if it ran."""
    cost, expected = context.study.tables["cost"], context.study.expected.tables
    shots = context.done.get("shots")
    per_shot = next(
        (row["requests_per_shot"] for row in (shots.data if shots else ()) if (row["backend"], row["workers"]) == ("zarr-blosc-s3", 1)),
        {},
    )  # fmt: skip
    found = measure(cost, per_shot, expected["cost"])
    known = {figure.id for figure in context.study.expected.figure}
    values: dict[str, dict[str, Value]] = {"inverted": {}, "predicted": {}}
    for row in found["rows"]:
        name = f"cost-{row['item']}-{row['runs']}"
        if name in known:
            column = "inverted" if row["item"] in _FROM_THE_ARTICLE else "predicted"
            values[column][name] = Value(row["here_usd"])
    values["predicted"] |= _shots_on_blob(cost, context.study.tables["limits"])
    missing = () if per_shot else ("requests of a shot: the cost has those of the objects' parts only",)
    return PartResult(
        inverted=values["inverted"],
        predicted=values["predicted"],
        blocks=tuple(report.cost_blocks(found, expected)),
        not_measured=missing,
        data=found,
    )


def _shots_on_blob(cost: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Value]:
    """Seconds of a shot with 10 to 100 machines on one account: the computation, and the account's time for its bytes."""
    moved = cost["model_bytes"] + cost["gather_bytes"] + 2 * cost["image_bytes"]
    found = {}
    for machines in (10, 50, 100):
        io_s = machines * moved / limits["account_bytes_per_s"]
        note = f"{cost['local_shot_s']:,.0f} s on the file system, and {io_s:.1f} s of one account for {moved / 1e6:,.0f} MB a shot"
        found[f"shot-zarr-blosc-s3-{machines}"] = Value(cost["local_shot_s"] + io_s, note)
    return found


def stored_bytes(cost: Mapping[str, Any], *, images: bool) -> int:
    """Bytes of one run: the model and the gathers; with `images`, also an image of each shot."""
    each: int = cost["gather_bytes"] + (cost["image_bytes"] if images else 0)
    return int(cost["model_bytes"] + cost["shots"] * each)


def upper_requests(cost: Mapping[str, Any], per_shot: Mapping[str, float]) -> tuple[float, float]:
    """Reads and writes of one run, an upper bound: the requests measured here, and one for each part of an object.

    Args:
        per_shot: Requests of a shot as measured on the small objects here: gets, heads, puts, lists, deletes.
    """
    part_bytes: int = cost["part_bytes"]

    def parts(size_bytes: int) -> int:
        return -(-size_bytes // part_bytes)

    # A shot reads the model and its gather, and writes an image and an illumination. Azure bills lists as writes, and
    # no deletes.
    reads = (
        per_shot.get("gets", 0) + per_shot.get("heads", 0) + parts(cost["gather_bytes"]) + parts(cost["model_bytes"])
    )
    writes = per_shot.get("puts", 0) + per_shot.get("lists", 0) + 2 * parts(cost["image_bytes"])
    return cost["shots"] * reads, cost["shots"] * writes


def measure(
    cost: Mapping[str, Any],
    per_shot: Mapping[str, float],
    published: Mapping[str, Mapping[str, float]],
    book: PriceBook | None = None,
) -> dict[str, Any]:
    """Rows of the table in USD, and the prices that they use."""
    book = book or bundled()
    prices = {
        name: book.find(name)
        for name in (
            "azure-netapp-standard", "azure-netapp-ultra", "azure-files-premium", "azure-hot-storage", "azure-hot-read",
            "azure-hot-write", "azure-vm-rtm",
        )
    }  # fmt: skip
    price = {name: each.usd_per_unit for name, each in prices.items()}
    reads, writes = upper_requests(cost, per_shot)
    requests = requests_usd(reads, price["azure-hot-read"]) + requests_usd(writes, price["azure-hot-write"])
    rows = []
    for runs in cost["runs"]:
        # A pool is billed whether it is used or not: the same for any number of runs that it holds.
        here = {
            f"{name}": storage_usd(cost["pool_bytes"], price[f"azure-{name}"], cost["kept_hours"])
            for name in ("netapp-standard", "netapp-ultra", "files-premium")
        }
        for name, images in (("hot-blob", False), ("hot-blob-with-images", True)):
            kept = storage_usd(stored_bytes(cost, images=images), price["azure-hot-storage"], cost["kept_hours"])
            here[name] = runs * (kept + requests)
        here["compute"] = job_cost(
            nodes=1, usd_per_node_hour=price["azure-vm-rtm"], run_h=runs * cost["shots"] * cost["shot_s"] / 3600
        ).total_usd
        stated = published.get(str(runs), {})
        rows += [
            {"runs": runs, "item": item, "published_usd": stated.get(item), "here_usd": round(usd, 2)}
            for item, usd in here.items()
        ]
    return {
        "rows": rows,
        "requests_usd_per_run": round(requests, 2),
        "reads_per_run": reads,
        "writes_per_run": writes,
        "prices": [
            {"item": each.item, "usd_per_unit": each.usd_per_unit, "unit": each.unit, "region": each.region, "as_of": each.as_of,
             "confidence": each.confidence, "source": each.source}
            for each in prices.values()
        ],
    }  # fmt: skip
