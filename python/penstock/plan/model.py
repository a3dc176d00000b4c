# SPDX-License-Identifier: Apache-2.0
"""Step model: step = max(compute, bytes / min(path, NIC, account), requests / limit, inflate, decode) + allreduce.

Without read-ahead, nothing overlaps: the read time is added to the compute time. Only the part of the allreduce that
does not overlap with computation counts. All functions are pure. The caller passes the limits, which come from a tier,
a data sheet or a probe.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from penstock.errors import ConfigError
from penstock.price.cost import Cost, job_cost

__all__ = [
    "TERM_LABELS",
    "Prediction",
    "Route",
    "StagePrediction",
    "Step",
    "Term",
    "TrainingJob",
    "explain_stage",
    "predict",
    "predict_stage",
    "predict_step",
    "replay",
]

Term = Literal[
    "compute", "reader", "account", "nic", "requests", "inflate", "decode", "disk", "fabric", "link", "observed"
]

TERM_LABELS: dict[str, str] = {
    "compute": "the accelerators",
    "reader": "one file at a time: latency and one connection",
    "account": "the storage account's bandwidth",
    "nic": "the nodes' network cards",
    "requests": "the store's request rate",
    "inflate": "decompression on the nodes' cores",
    "decode": "decoding on the nodes' cores",
    "disk": "the nodes' disks",
    "fabric": "the network between the nodes",
    "link": "the link between the regions",
    "observed": "the rate that was measured or published for this path",
}


class TrainingJob(msgspec.Struct, frozen=True):
    """A training job. Times in seconds, sizes in bytes."""

    samples: int
    epochs: int
    nodes: int
    ranks_per_node: int
    batch_per_rank: int
    compute_step_s: float
    sample_bytes: int
    stored_bytes: int
    cores_per_node: int
    nic_bytes_per_s: float
    account_bytes_per_s: float
    held_out: int = 0
    exposed_allreduce_s: float = 0.0

    def __post_init__(self) -> None:
        whole = (
            self.samples,
            self.epochs,
            self.nodes,
            self.ranks_per_node,
            self.batch_per_rank,
            self.sample_bytes,
            self.stored_bytes,
            self.cores_per_node,
        )
        if min(whole) < 1 or self.compute_step_s < 0 or min(self.nic_bytes_per_s, self.account_bytes_per_s) <= 0:
            raise ValueError(f"counts, sizes and rates of a job must be positive (got {self})")

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.nodes * self.ranks_per_node

    @property
    def global_batch(self) -> int:
        """Samples per step."""
        return self.ranks * self.batch_per_rank

    @property
    def steps_per_epoch(self) -> int:
        """Number of full steps per epoch. Remaining samples are dropped, as in the published job."""
        return self.samples // self.global_batch


class Route(msgspec.Struct, frozen=True):
    """Read characteristics of a path: bytes per sample on the wire, and the limits of the reader and the store.

    Attributes:
        wire_bytes: Bytes of one sample on the wire: stored size, or raw size if whole raw files are read.
        from_store: False if epochs read from local disks. In that case, neither the NIC nor the account limits the
            reads.
        overlaps: True if reads overlap with compute (read-ahead). False for a plain reader, which reads one file
            at a time per rank.
        latency_s: Median time to first byte of one request.
        connection_bytes_per_s: Rate of one connection, which reads one file; inf if unlimited.
        requests_per_s: Request limit of the store for the whole account; inf if unlimited.
        in_flight_per_rank: Number of concurrent requests of a rank; 1 for the plain reader.
        inflate_core_s: CPU seconds to decompress one sample; 0 if the path transfers raw bytes.
        decode_core_s: CPU seconds to frame, check and decode one sample.
        disk_bytes_per_s: Read rate of one node's disk, if epochs read from local disks.
        local_share: Share of the samples that a route from the store reads from local disks, not from the store (a node
            cache).
        local_bytes: Bytes of one sample on the local disks; by default `wire_bytes`.
        remote_share: Share of the local reads that another node's disk serves (a pool), over `fabric_bytes_per_s`,
            the rate of one node's network.
        link_bytes_per_s: Total rate between the regions of the store and of the nodes.
        observed_step_s: Measured or published seconds per step of this path, which replace the modelled reads.
    """

    name: str
    wire_bytes: float
    overlaps: bool = True
    from_store: bool = True
    latency_s: float = 0.0
    connection_bytes_per_s: float = math.inf
    requests_per_s: float = math.inf
    requests_per_sample: float = 1.0
    in_flight_per_rank: int = 16
    inflate_core_s: float = 0.0
    decode_core_s: float = 0.0
    disk_bytes_per_s: float = math.inf
    local_share: float = 0.0
    local_bytes: float | None = None
    remote_share: float = 0.0
    fabric_bytes_per_s: float = math.inf
    link_bytes_per_s: float = math.inf
    observed_step_s: float | None = None


class Step(msgspec.Struct, frozen=True):
    """Duration of one step, its limit, and `terms_s`: the seconds that each limit alone would cause."""

    step_s: float
    limited_by: Term
    terms_s: dict[str, float]


class Prediction(msgspec.Struct, frozen=True):
    """Prediction for a job on a route. `terms_s` maps each limit to the seconds per step that this limit alone would
    cause.
    """

    route: str
    step_s: float
    samples_per_s: float
    epoch_s: float
    run_h: float
    stage_h: float
    wait_share: float
    limited_by: Term
    terms_s: dict[str, float]
    cost: Cost

    @property
    def total_h(self) -> float:
        """Hours for which the nodes are billed: staging and training."""
        return self.run_h + self.stage_h


class StagePrediction(msgspec.Struct, frozen=True):
    """Prediction for staging a dataset. `terms_s` maps each limit to the seconds that this limit alone would cause."""

    stage_s: float
    limited_by: Term
    terms_s: dict[str, float]


def _terms(job: TrainingJob, route: Route) -> dict[str, float]:
    batch, in_node = job.global_batch, job.global_batch / job.nodes
    terms = {"compute": job.compute_step_s}
    if route.observed_step_s is not None:
        return {**terms, "observed": route.observed_step_s}
    stored = 1.0 - route.local_share if route.from_store else 0.0
    if stored:
        terms["account"] = stored * batch * route.wire_bytes / job.account_bytes_per_s
        terms["nic"] = stored * in_node * route.wire_bytes / job.nic_bytes_per_s
        terms["requests"] = stored * batch * route.requests_per_sample / route.requests_per_s
        # One reader alone is never faster than the account or its node's network card.
        rate = min(route.connection_bytes_per_s, job.account_bytes_per_s, job.nic_bytes_per_s)
        one = route.requests_per_sample * route.latency_s + route.wire_bytes / rate
        terms["reader"] = stored * job.batch_per_rank * one / route.in_flight_per_rank
        if route.link_bytes_per_s != math.inf:
            terms["link"] = stored * batch * route.wire_bytes / route.link_bytes_per_s
    if stored < 1.0:
        read = in_node * (1.0 - stored) * (route.wire_bytes if route.local_bytes is None else route.local_bytes)
        terms["disk"] = read / route.disk_bytes_per_s
        if route.remote_share:
            terms["fabric"] = read * route.remote_share / route.fabric_bytes_per_s
    terms["inflate"] = in_node * route.inflate_core_s / job.cores_per_node
    terms["decode"] = in_node * route.decode_core_s / job.cores_per_node
    return terms


def predict_step(job: TrainingJob, route: Route) -> Step:
    """Predict one step: the slowest term or, for a route without read-ahead, computation plus the slowest read.

    Source:
        DESIGN section 4, Plan.
    """
    terms = _terms(job, route)
    slowest_read = max(seconds for name, seconds in terms.items() if name != "compute")
    overlaps = route.overlaps or route.observed_step_s is not None  # a measured step contains its computation
    step = max(job.compute_step_s, slowest_read) if overlaps else job.compute_step_s + slowest_read
    limit = max(terms, key=lambda name: terms[name])
    return Step(step + job.exposed_allreduce_s, limit, terms)  # type: ignore[arg-type]


def predict(
    job: TrainingJob,
    route: Route,
    *,
    usd_per_node_hour: float,
    stage_s: float = 0.0,
    usd_per_request: float = 0.0,
    storage_usd: float = 0.0,
    egress_usd: float = 0.0,
) -> Prediction:
    """Predict a whole job on one route.

    In a synchronous job, all ranks wait for the slowest rank. The model does not include this delay.

    Args:
        stage_s: Seconds of staging before the first step. Staging is billed like the run.
        usd_per_request: Price of one read. Every sample costs `requests_per_sample` reads in every epoch, or only
            once if the route reads from local disks.
        storage_usd: Cost of storing the data for the duration of the job.
        egress_usd: Cost of bytes that leave the region.
    Source:
        DESIGN section 4, Plan.
    """
    found = predict_step(job, route)
    step = found.step_s
    epoch = job.steps_per_epoch * step
    run_h = job.epochs * epoch / 3600
    passes = job.epochs if route.from_store else 1
    requests = passes * job.samples * route.requests_per_sample
    cost = job_cost(
        nodes=job.nodes,
        usd_per_node_hour=usd_per_node_hour,
        run_h=run_h,
        stage_h=stage_s / 3600,
        requests=requests * usd_per_request,
        storage=storage_usd,
        egress=egress_usd,
    )
    return Prediction(
        route=route.name,
        step_s=step,
        samples_per_s=job.global_batch / step,
        epoch_s=epoch,
        run_h=run_h,
        stage_h=stage_s / 3600,
        wait_share=max(0.0, (step - job.compute_step_s - job.exposed_allreduce_s) / step),
        limited_by=found.limited_by,
        terms_s=found.terms_s,
        cost=cost,
    )


def predict_stage(
    *,
    nodes: int,
    wire_bytes: float,
    written_bytes: float,
    nic_bytes_per_s: float,
    account_bytes_per_s: float,
    inflate_bytes_per_s: float = math.inf,
    disk_bytes_per_s: float = math.inf,
    objects: int = 0,
    requests_per_s: float = math.inf,
    link_bytes_per_s: float = math.inf,
) -> StagePrediction:
    """Predict the time to stage `wire_bytes` to `nodes` nodes, which write `written_bytes` to their disks.

    Args:
        inflate_bytes_per_s: Rate at which one node decompresses with all its cores, in decompressed bytes per second.
        disk_bytes_per_s: Write rate of one node's disk.
        link_bytes_per_s: Total rate between the regions of the store and of the nodes.
    """
    if nodes < 1 or wire_bytes < 0 or written_bytes < 0:
        raise ConfigError(
            f"staging: the number of nodes must be at least 1, and bytes must not be negative (got {nodes} nodes,"
            f" {wire_bytes} and {written_bytes} bytes)"
        )
    terms = {
        "nic": wire_bytes / nodes / nic_bytes_per_s,
        "account": wire_bytes / account_bytes_per_s,
        "inflate": written_bytes / nodes / inflate_bytes_per_s,
        "disk": written_bytes / nodes / disk_bytes_per_s,
        "requests": objects / requests_per_s,
    }
    if link_bytes_per_s != math.inf:
        terms["link"] = wire_bytes / link_bytes_per_s
    limit = max(terms, key=lambda name: terms[name])
    return StagePrediction(terms[limit], limit, terms)  # type: ignore[arg-type]


def explain_stage(
    observed_s: float, predicted: StagePrediction, *, nodes: int, written_bytes: float, slack: float = 1.15
) -> str:
    """Describe whether the modelled limits explain an observed staging time; if not, state the remaining cause.

    Args:
        slack: Maximum ratio of observed to modelled time that counts as explained. 1.15 covers protocol overhead (5 %
            for Ethernet, IP and TCP at an MTU of 1500) and the ramp-up.
    """
    ratio = observed_s / predicted.stage_s
    if ratio <= slack:
        return f"bound by {TERM_LABELS[predicted.limited_by]}: {predicted.stage_s / 60:.1f} min modelled, {observed_s / 60:.1f} min observed"
    per_node = written_bytes / nodes / observed_s
    return (
        f"not bound by {TERM_LABELS[predicted.limited_by]} ({predicted.stage_s / 60:.1f} min modelled, {observed_s / 60:.1f} min observed): "
        f"the remaining cause is decompression or the write, {per_node / 1e9:.2f} GB/s per node"
    )


def replay(job: TrainingJob, steps_per_s: float, usd_per_node_hour: float) -> tuple[float, float, float]:
    """Convert a published rate to (epoch minutes, run hours, USD) with the formulas of the published study.

    Source:
        steps = floor(n / (GPUs x batch)); epoch = steps / rate; run = epochs x epoch; USD = nodes x $/h x run.
    """
    if not steps_per_s > 0:
        raise ConfigError(f"the rate must be above 0 steps/s (got {steps_per_s})")
    epoch_s = job.steps_per_epoch / steps_per_s
    run_h = job.epochs * epoch_s / 3600
    return epoch_s / 60, run_h, job_cost(nodes=job.nodes, usd_per_node_hour=usd_per_node_hour, run_h=run_h).total_usd
