# SPDX-License-Identifier: Apache-2.0
"""Predicts the rehearsal (before it runs) and the published job, from a tier's limits and a probe of this machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from penstock.plan.model import Prediction, Route, StagePrediction, TrainingJob, predict, predict_stage
from penstock.plan.reference_job import EMULATED_V100_SAMPLE_S, GZIP_BYTES, JOB, RAW_BYTES
from penstock.price.cost import storage_usd

if TYPE_CHECKING:
    from penstock.demo.paths import DemoPath
    from penstock.demo.sizes import Size
    from penstock.price.book import Price, PriceBook
    from penstock.tiers import Tier

__all__ = [
    "Costs",
    "Limits",
    "Probe",
    "direct_raw",
    "higher_demand",
    "published_job",
    "rehearsal",
    "saturation_nodes",
    "scaling",
    "staging",
]

# Disk rates of a node in the published study. Reads: "each node's NVMe > 3 GB/s". Writes through the pool: 2.5 GB/s per
# node, measured with elbencho (STUDIES B: > 10 GB/s on 4 nodes).
NODE_READ_BYTES_PER_S = 3.0e9
NODE_WRITE_BYTES_PER_S = 2.5e9
REGION = "South Central US"


class Limits(msgspec.Struct, frozen=True):
    """Limits of a tier for a reader; inf for limits that the tier does not state."""

    account_bytes_per_s: float
    connection_bytes_per_s: float
    requests_per_s: float
    latency_s: float

    @classmethod
    def of(cls, tier: Tier) -> Limits:
        """Read limits of a tier. A `bucket` limit counts as an account limit, because only one bucket is read."""

        def least(whats: set[str], scopes: set[str]) -> float:
            return min(
                (row.value for row in tier.limits if row.what in whats and row.scope in scopes), default=math.inf
            )

        shared = {"account", "bucket"}
        return cls(
            account_bytes_per_s=least({"read-bytes"}, shared),
            connection_bytes_per_s=least({"read-bytes"}, {"connection"}),
            requests_per_s=least({"read-requests", "requests"}, shared | {"prefix"}),
            latency_s=tier.first_byte_s(),
        )

    def scaled(self, factor: float) -> Limits:
        """Return the limits with all rates multiplied by `factor`; the latency is unchanged."""
        return Limits(
            self.account_bytes_per_s * factor,
            self.connection_bytes_per_s * factor,
            self.requests_per_s * factor,
            self.latency_s,
        )


class Probe(msgspec.Struct, frozen=True):
    """CPU seconds that this machine needs to decompress and to decode one raw byte of a sample."""

    inflate_s_per_byte: float
    decode_s_per_byte: float


class Costs(msgspec.Struct, frozen=True):
    """Rows of the price book that the demo uses."""

    node: Price
    hot_read: Price
    hot_storage: Price
    premium_read: Price
    premium_storage: Price

    @classmethod
    def of(cls, book: PriceBook) -> Costs:
        """Find the rows in a price book."""
        return cls(
            node=book.find("azure-vm-nd40rs_v2", REGION),
            hot_read=book.find("azure-hot-read"),
            hot_storage=book.find("azure-hot-storage"),
            premium_read=book.find("azure-premium-read"),
            premium_storage=book.find("azure-premium-storage"),
        )

    def rows(self) -> list[Price]:
        """All rows."""
        return [getattr(self, field) for field in self.__struct_fields__]


def _route(
    path: DemoPath, limits: Limits, *, sample_bytes: float, stored_bytes: float, probe: Probe, disk_bytes_per_s: float
) -> Route:
    raw = path.stored == "raw"
    return Route(
        name=path.name,
        wire_bytes=sample_bytes if raw or path.staged else stored_bytes,
        from_store=not path.staged,
        latency_s=limits.latency_s,
        connection_bytes_per_s=limits.connection_bytes_per_s,
        requests_per_s=limits.requests_per_s,
        in_flight_per_rank=max(1, path.max_in_flight // JOB.ranks),
        inflate_core_s=0.0 if raw or path.staged else sample_bytes * probe.inflate_s_per_byte,
        decode_core_s=sample_bytes * probe.decode_s_per_byte,
        disk_bytes_per_s=disk_bytes_per_s,
    )


def rehearsal(
    path: DemoPath, limits: Limits, size: Size, *, stored_bytes: float, cores: int, probe: Probe
) -> Prediction:
    """Predict the rehearsal on this machine: one node with all ranks, limits scaled by F, an unlimited network."""
    scaled = limits.scaled(size.scale)
    job = msgspec.structs.replace(
        JOB,
        samples=size.volumes,
        epochs=1,
        nodes=1,
        ranks_per_node=JOB.ranks,
        sample_bytes=size.sample_bytes,
        stored_bytes=max(1, round(stored_bytes)),
        cores_per_node=cores,
        nic_bytes_per_s=math.inf,
        account_bytes_per_s=scaled.account_bytes_per_s,
    )
    route = _route(
        path, scaled, sample_bytes=size.sample_bytes, stored_bytes=stored_bytes, probe=probe, disk_bytes_per_s=math.inf
    )
    return predict(job, route, usd_per_node_hour=0.0)


def staging(limits: Limits, probe: Probe) -> StagePrediction:
    """Predict the time to stage the whole published dataset, gzip'd, to the 4 nodes of the published job."""
    inflate = JOB.cores_per_node / probe.inflate_s_per_byte if probe.inflate_s_per_byte else math.inf
    return predict_stage(
        nodes=JOB.nodes,
        wire_bytes=GZIP_BYTES,
        written_bytes=RAW_BYTES,
        nic_bytes_per_s=JOB.nic_bytes_per_s,
        account_bytes_per_s=limits.account_bytes_per_s,
        inflate_bytes_per_s=inflate,
        disk_bytes_per_s=NODE_WRITE_BYTES_PER_S,
        objects=JOB.samples + JOB.held_out,
        requests_per_s=limits.requests_per_s,
    )


def published_job(path: DemoPath, limits: Limits, costs: Costs, probe: Probe, job: TrainingJob = JOB) -> Prediction:
    """Predict hours and cost of the published job on this path, including the cost of storing the data for that
    time.
    """
    premium = path.tier == "azure-premium"
    job = msgspec.structs.replace(job, account_bytes_per_s=limits.account_bytes_per_s)
    route = _route(
        path,
        limits,
        sample_bytes=job.sample_bytes,
        stored_bytes=job.stored_bytes,
        probe=probe,
        disk_bytes_per_s=NODE_READ_BYTES_PER_S,
    )
    stage_s = staging(limits, probe).stage_s if path.staged else 0.0
    node_usd = costs.node.usd_per_unit
    bare = predict(job, route, usd_per_node_hour=node_usd, stage_s=stage_s)
    rent = storage_usd(
        RAW_BYTES if path.stored == "raw" else GZIP_BYTES,
        (costs.premium_storage if premium else costs.hot_storage).usd_per_unit,
        bare.total_h,
    )
    read = (costs.premium_read if premium else costs.hot_read).usd_per_unit
    return predict(job, route, usd_per_node_hour=node_usd, stage_s=stage_s, usd_per_request=read, storage_usd=rent)


def direct_raw(path: DemoPath, limits: Limits, costs: Costs, probe: Probe) -> Prediction:
    """Predict the published job on the same tier with the same 32 readers of raw files, but without the mount."""
    return published_job(path, msgspec.structs.replace(limits, connection_bytes_per_s=math.inf), costs, probe)


def higher_demand(path: DemoPath, limits: Limits, costs: Costs, probe: Probe) -> Prediction:
    """Predict the published job with the rate of MLPerf Storage's emulated V100, instead of the measured rate of a
    V100.
    """
    return published_job(
        path,
        limits,
        costs,
        probe,
        msgspec.structs.replace(JOB, compute_step_s=JOB.batch_per_rank * EMULATED_V100_SAMPLE_S),
    )


def scaling(
    path: DemoPath, limits: Limits, costs: Costs, probe: Probe, nodes: list[int]
) -> list[tuple[int, Prediction]]:
    """Predict the job for other numbers of nodes. The batch grows with the nodes; the account's limits do not."""
    return [(n, published_job(path, limits, costs, probe, msgspec.structs.replace(JOB, nodes=n))) for n in nodes]


def saturation_nodes(path: DemoPath, limits: Limits, costs: Costs, probe: Probe, most: int = 256) -> int | None:
    """Smallest number of nodes at which the accelerators no longer limit the path; None if this number is above
    `most`.
    """
    for nodes, prediction in scaling(path, limits, costs, probe, list(range(1, most + 1))):
        if prediction.limited_by != "compute":
            return nodes
    return None
