# SPDX-License-Identifier: Apache-2.0
"""Third table: cost of the published migration with file services (billed by capacity) and object storage (by use)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.price.book import load
from penstock.price.cost import job_cost, requests_usd, storage_usd

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.price.book import PriceBook

__all__ = ["measure", "stored_bytes", "upper_requests"]


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
    book = book or load()
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
