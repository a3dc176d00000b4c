# SPDX-License-Identifier: Apache-2.0
"""Which limit each storage reaches at the published size: from data sheets and step times, without a measurement."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import tiers
from penstock.plan.model import Route, TrainingJob, predict
from penstock.price import disks
from penstock.study.result import Claim, PartResult, Table, Text, Value

from . import training

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.study.run import Context

__all__ = ["DISKS", "DiskRates", "Node", "image_bytes", "on_disk", "run"]

DISKS = (
    "aws-gp2@2018", "aws-st1@2018", "aws-io1@2018", "azure-premium-ssd@2018", "gcp-pd-ssd@2018", "gcp-local-ssd@2018",
)  # fmt: skip
GCS = "gcs-standard@2026"
_WORDS = {
    "compute": "the accelerators", "disk": "the disk", "throughput": "throughput", "IOPS": "IOPS",
    "decode": "decoding on the cores", "nic": "the network card", "requests": "requests/s of the store",
    "account": "the account", "reader": "latency",
}  # fmt: skip


class Node(msgspec.Struct, frozen=True):
    """A node of the study: its cores, network card and CPU seconds to decode an image."""

    cores: int
    nic_bytes_per_s: float
    decode_core_s: float


class DiskRates(msgspec.Struct, frozen=True):
    """Limits of a disk at scale F. `io_bytes` is the largest I/O that counts as one."""

    bytes_per_s: float
    ios_per_s: float
    io_bytes: int = 262_144

    @classmethod
    def of(cls, name: str, scale: float = 1.0) -> DiskRates:
        """Limits of a disk in the disk book, while it has burst credits."""
        disk = disks.find(name)
        moved, ios = disk.limit("bytes"), disk.limit("ios")
        return cls(
            moved.most(disk.size_bytes) * scale if moved else math.inf,
            ios.most(disk.size_bytes) * scale if ios else math.inf,
            disk.io_bytes,
        )

    def images_per_s(self, bytes_per_image: float, ios_per_image: float = 1.0) -> tuple[float, str]:
        """Images/s, and which of the two limits is reached."""
        by = {"throughput": self.bytes_per_s / bytes_per_image, "IOPS": self.ios_per_s / ios_per_image}
        limit = min(by, key=lambda name: by[name])
        return by[limit], limit


def image_bytes(spec: Mapping[str, Any]) -> float:
    """Mean bytes of an image in the published data set."""
    return float(spec["dataset"]["bytes"] / spec["dataset"]["images"])


def _job(spec: Mapping[str, Any], model: Mapping[str, Any], gpus: int, nodes: int = 1) -> TrainingJob:
    node = spec["node"]
    demand = training.demand_of(model, gpus)
    size = round(image_bytes(spec))
    return TrainingJob(
        samples=spec["dataset"]["images"], epochs=1, nodes=nodes, ranks_per_node=gpus, batch_per_rank=64,
        compute_step_s=64 * gpus / demand if math.isfinite(demand) else 0.0, sample_bytes=size, stored_bytes=size,
        cores_per_node=node["cores"], nic_bytes_per_s=node["nic_bytes_per_s"], account_bytes_per_s=math.inf,
    )  # fmt: skip


def on_disk(spec: Mapping[str, Any], disk: str, model: Mapping[str, Any], gpus: int) -> tuple[float, str]:
    """Predict images/s of one node with a disk, and the limit in words."""
    one = image_bytes(spec)
    allowed, which = DiskRates.of(disk).images_per_s(one)
    route = Route(
        disk,
        wire_bytes=one,
        from_store=False,
        disk_bytes_per_s=allowed * one,
        decode_core_s=spec["node"]["decode_core_s"],
    )
    found = predict(_job(spec, model, gpus), route, usd_per_node_hour=0.0)
    return found.samples_per_s, _WORDS[which if found.limited_by == "disk" else found.limited_by]


def on_store(
    spec: Mapping[str, Any], tier_name: str, model: Mapping[str, Any], gpus: int, nodes: int = 1
) -> tuple[float, str]:
    """Predict images/s of nodes that read single images from an object store, and the limit in words."""
    tier = tiers.find(tier_name)
    one = image_bytes(spec)
    requests = tier.rate("read-requests", "prefix") or tier.rate("read-requests", "bucket") or math.inf
    account = tier.rate("read-bytes", "account") or math.inf
    route = Route(
        tier.label, wire_bytes=one, latency_s=tier.first_byte_s(), requests_per_s=requests, in_flight_per_rank=64,
        connection_bytes_per_s=tier.rate("read-bytes", "connection") or math.inf, decode_core_s=spec["node"]["decode_core_s"],
    )  # fmt: skip
    job = msgspec.structs.replace(_job(spec, model, gpus, nodes), account_bytes_per_s=account)
    found = predict(job, route, usd_per_node_hour=0.0)
    return found.samples_per_s, _WORDS[found.limited_by]


def on_data_nodes(spec: Mapping[str, Any], count: int, bytes_per_s: float) -> float:
    """Images/s that fully replicated data nodes serve, if each of them sends `bytes_per_s`."""
    return count * bytes_per_s / image_bytes(spec)


def run(context: Context) -> PartResult:
    """Compute all cells at the published size."""
    spec = context.study.tables
    published = context.study.expected.tables["published"]
    models = {name: spec["model"][name] for name in ("resnet50", "resnet152", "resnet50-amp", "trivial")}
    rows = []
    cells: dict[tuple[str, str, int], tuple[float, str]] = {}
    for disk in DISKS:
        rates = DiskRates.of(disk)
        row = [disk, f"{rates.bytes_per_s / 1e6:,.0f} MB/s, {rates.ios_per_s:,.0f} IOPS"]
        for name, model in models.items():
            for gpus in (4, 8):
                cells[disk, name, gpus] = found = on_disk(spec, disk, model, gpus)
                row.append(f"{found[0]:,.0f}: {found[1]}")
        rows.append(tuple(row))
    head = ("disk", "limits", *(f"{model['label']}, {gpus} V100" for model in models.values() for gpus in (4, 8)))
    fp32, amp, heavy = (spec["model"][name] for name in ("resnet50", "resnet50-amp", "resnet152"))

    def ratio(name: str) -> float:
        return cells["aws-io1@2018", name, 8][0] / cells["aws-io1@2018", name, 4][0]

    gcs = {}
    for name in ("resnet50", "resnet152"):
        model = spec["model"][f"{name}-p100"]
        gcs[name] = on_store(spec, GCS, model, 4)[0] / on_disk(spec, "gcp-pd-ssd@2018", model, 4)[0]
    nic = spec["node"]["nic_bytes_per_s"]
    per_node = float(published["v100x8_images_per_s"])
    out_bytes = published["data_node_gbit_per_s"] * 1e9 / 8
    inverted = {
        "v100x8-resnet50": Value(published["v100x64_images_per_s"] / 8, "a 64th of 8 nodes' demand, x 8"),
        "v100x64-resnet50": Value(8 * per_node, "8 nodes of 4,200 images/s"),
        "hdfs-2": Value(2 * out_bytes / published["image_bytes"], "2 x 11 Gbit/s, 100 kB an image"),
        "hdfs-4": Value(
            4 * out_bytes / published["image_bytes"], "4 x 11 Gbit/s: the article's own prediction of 55,000"
        ),
        "hdfs-2-bytes": Value(
            published["hdfs_images_per_s"][1] * published["image_bytes"] / 1e9, "25,000 images/s of 100 kB"
        ),
    }
    predicted = {
        "v100x8-resnet50": Value(training.demand_of(fp32, 8), "8 x 412 images/s, fp32"),
        "v100x64-resnet50": Value(training.demand_of(fp32, 64), "64 x 412 images/s, fp32"),
        "io1-4-to-8-resnet50": Value(ratio("resnet50"), "fp32: the accelerators limit both"),
        "io1-4-to-8-resnet152": Value(ratio("resnet152"), "the accelerators limit both"),
        "gcs-to-ssd-resnet50": Value(gcs["resnet50"], "enough requests in flight"),
        "gcs-to-ssd-resnet152": Value(gcs["resnet152"], "enough requests in flight"),
        "gcs-efficiency": Value(1.0, "32 P100 ask 0.77 GB/s of 25 GB/s, read in whole shards"),
        "hdfs-2-to-4": Value(2.0, "twice the network cards"),
        **{f"hdfs-{n}": Value(on_data_nodes(spec, n, nic), f"{n} x 25 Gbit/s") for n in (1, 2, 4)},
        "hdfs-2-bytes": Value(2 * nic / 1e9, "2 x 25 Gbit/s"),
    }  # fmt: skip
    wanted = {"aws-gp2@2018": "throughput", "aws-st1@2018": "IOPS"}
    claims = [
        Claim(f"{disk} is limited by {word} with 4 V100 on ResNet-50 (AMP), predicted", f"{cells[disk, 'resnet50-amp', 4][1]}, {cells[disk, 'resnet50-amp', 4][0]:,.0f} images/s", cells[disk, "resnet50-amp", 4][1] == word)
        for disk, word in wanted.items()
    ] + [
        Claim(f"{disk} keeps up with 4 V100 on ResNet-50, predicted", f"{cells[disk, 'resnet50', 4][0]:,.0f} of {training.demand_of(fp32, 4):,.0f} images/s", cells[disk, "resnet50", 4][1] == _WORDS["compute"])
        for disk in ("aws-io1@2018", "azure-premium-ssd@2018")
    ]  # fmt: skip
    clusters = []
    for model in (fp32, heavy, amp):
        for gpus in (32, 64):
            need = training.demand_of(model, gpus)
            clusters.append((
                f"{model['label']}, {gpus} V100", f"{need:,.0f}",
                *(f"{served:,.0f}: {'enough' if served >= need else 'too few'}" for served in published["hdfs_images_per_s"]),
            ))  # fmt: skip
    blocks = (
        Text(
            "A cell contains images/s of one node and the limit: IOPS and throughput are the disk's. Every image of"
            f" {image_bytes(spec) / 1e3:.0f} kB is read on its own, in shuffled order: a read of at most 256 KiB (st1: 1 MiB) is one I/O."
            " The prediction assumes read-ahead, so the slowest limit alone determines the rate.",
            title="Which disk limits which model",
        ),
        Table("Predicted from limits alone, images/s", head, tuple(rows), left=2),
        Table(
            "What 64 V100 ask of HDFS, images/s", ("training", "asked", *(f"{n} data nodes, published" for n in published["data_nodes"])),
            tuple(clusters), note="Published: 2 data nodes are enough for ResNet-152 on 64 V100 and for ResNet-50 on 32; 4 are enough for ResNet-50 on 64.",
        ),
    )  # fmt: skip
    data = [
        {"disk": d, "model": m, "gpus": g, "images_per_s": rate, "limit": word}
        for (d, m, g), (rate, word) in cells.items()
    ]
    return PartResult(inverted=inverted, predicted=predicted, claims=tuple(claims), blocks=blocks, data=data)
