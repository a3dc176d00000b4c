# SPDX-License-Identifier: Apache-2.0
"""Predicts a scenario: staging, epochs, job and money, the limiting term, and why a scenario is impossible.

Pure functions: no input, output or clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from penstock.plan.model import Step, predict_stage, predict_step
from penstock.price import cost

if TYPE_CHECKING:
    from penstock.plan.scenario import Scenario

__all__ = ["Money", "ScenarioPrediction", "expected_spot_s", "predict"]


class Money(msgspec.Struct, frozen=True):
    """Cost of a job by item, in `currency`. If the price of an item is unknown, the item and the total are None."""

    currency: str
    compute: float | None
    storage: float | None
    requests: float | None
    egress: float | None
    unknown: tuple[str, ...] = ()

    @property
    def known(self) -> float:
        """Sum of the items with a known price."""
        return sum(item or 0.0 for item in (self.compute, self.storage, self.requests, self.egress))

    @property
    def total(self) -> float | None:
        """Sum of all items; None if a price is unknown."""
        return None if None in (self.compute, self.storage, self.requests, self.egress) else self.known


class ScenarioPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Prediction of one scenario.

    Attributes:
        step_s, samples_per_s, limited_by, terms_s: A step in the steady state (with a node cache, a step of the last
            epoch).
        first_epoch_s, epoch_s: Duration of the first epoch, and the mean over all epochs.
        stage_s, stage_limited_by, stage_terms_s: Staging, without the start of the pool.
        before_s: Everything before the first step: replication, start of the pool, staging.
        lost_s: Expected time lost to interruptions of spot nodes, checkpoints included.
        job_s: Total duration for which the nodes are billed, without the replication, which needs no nodes.
        bytes_read: Bytes that leave the store during the whole job.
        impossible: Reason why the scenario cannot run; empty if it can.
    """

    path: str
    machine: str
    nodes: int
    accelerators: int
    step_s: float
    samples_per_s: float
    limited_by: str
    terms_s: dict[str, float]
    first_epoch_s: float
    epoch_s: float
    stage_s: float
    stage_limited_by: str
    stage_terms_s: dict[str, float]
    before_s: float
    run_s: float
    lost_s: float
    job_s: float
    wait_share: float
    bytes_read: float
    requests: float
    money: Money
    impossible: str = ""

    @property
    def finish_s(self) -> float:
        """Time until the job has ended, replication included."""
        return self.before_s + self.run_s + self.lost_s


def predict(scenario: Scenario) -> ScenarioPrediction:
    """Predict a scenario with the step model.

    Not modelled: the spread of the ranks' speeds, validation after an epoch, and limits that the plan does not state.
    """
    job, route, disks = scenario.job, scenario.route, scenario.disks
    staging = _staging(scenario)
    steps, misses = _epochs(scenario)
    run_s = sum(step.step_s * count for step, count in steps) * job.steps_per_epoch
    last = steps[-1][0]
    is_staged = not route.from_store
    passes = 1.0 if is_staged else misses
    total_samples = job.samples + job.held_out
    bytes_once = scenario.stored_bytes * (disks.copies if disks is not None and scenario.kind == "stage" else 1)
    if is_staged:
        bytes_read = bytes_once
        requests = scenario.requests * (job.nodes if scenario.kind == "stage" else 1)
    else:
        bytes_read = passes * scenario.stored_bytes * job.samples / total_samples
        requests = passes * scenario.requests * job.samples / total_samples
    billed_before_s = scenario.ready_s + staging.step_s
    lost_s = _lost_s(scenario, run_s, billed_before_s)
    job_s = billed_before_s + run_s + lost_s
    return ScenarioPrediction(
        path=scenario.path,
        machine=scenario.machine,
        nodes=scenario.nodes,
        accelerators=scenario.nodes * scenario.accelerators,
        step_s=last.step_s,
        samples_per_s=job.global_batch / last.step_s,
        limited_by=last.limited_by,
        terms_s=last.terms_s,
        first_epoch_s=steps[0][0].step_s * job.steps_per_epoch,
        epoch_s=run_s / job.epochs,
        stage_s=staging.step_s,
        stage_limited_by=staging.limited_by if is_staged else "",
        stage_terms_s=staging.terms_s,
        before_s=scenario.replicate_s + billed_before_s,
        run_s=run_s,
        lost_s=lost_s,
        job_s=job_s,
        wait_share=max(0.0, 1 - (job.compute_step_s + job.exposed_allreduce_s) / last.step_s),
        bytes_read=bytes_read,
        requests=requests,
        money=_money(scenario, job_s, bytes_read, requests),
        impossible=_impossible(scenario, lost_s),
    )


def _staging(scenario: Scenario) -> Step:
    """Duration of staging as a `Step`; 0 s for a path that reads from the store."""
    disks, job = scenario.disks, scenario.job
    if scenario.route.from_store or disks is None:
        return Step(0.0, "compute", {})
    if scenario.staged_in_s is not None:
        return Step(scenario.staged_in_s, "observed", {"observed": scenario.staged_in_s})
    everyone = job.nodes if scenario.kind == "stage" else 1
    has_same_form = scenario.inflate_bytes_per_s == scenario.kept_inflate_bytes_per_s
    inflate = math.inf if has_same_form else scenario.inflate_bytes_per_s * job.cores_per_node
    found = predict_stage(
        nodes=job.nodes,
        wire_bytes=everyone * scenario.stored_bytes,
        written_bytes=disks.copies * disks.kept_bytes,
        nic_bytes_per_s=job.nic_bytes_per_s,
        account_bytes_per_s=job.account_bytes_per_s,
        link_bytes_per_s=scenario.route.link_bytes_per_s,
        # A pool writes every copy of an object, but decompresses the object only once.
        inflate_bytes_per_s=inflate * max(1, disks.copies // everyone),
        disk_bytes_per_s=disks.write_bytes_per_s,
        objects=round(everyone * scenario.requests),
        requests_per_s=scenario.route.requests_per_s,
    )
    return Step(found.stage_s, found.limited_by, found.terms_s)


def _epochs(scenario: Scenario) -> tuple[list[tuple[Step, int]], float]:
    """Steps of the epochs as (step, number of epochs), and the passes over the dataset that reach the store.

    A node cache keeps what its node has read. With a global shuffle over N nodes, a node has already read a sample of
    its epoch e with probability 1 - (1 - 1/N)^(e-1). Disks that are too small keep the part that fits.
    """
    job, route, disks = scenario.job, scenario.route, scenario.disks
    if scenario.kind != "node-cache" or disks is None:
        return [(predict_step(job, route), job.epochs)], float(job.epochs)
    fits = min(1.0, disks.size_bytes / disks.kept_bytes)
    raw = scenario.raw_bytes / (job.samples + job.held_out)
    steps: list[tuple[Step, int]] = []
    misses = 0.0
    for epoch in range(job.epochs):
        local = min(fits, 1 - (1 - 1 / job.nodes) ** epoch)
        is_settled = fits - local < 1e-6
        count = job.epochs - epoch if is_settled else 1
        inflate = (1 - local) / scenario.inflate_bytes_per_s + local / scenario.kept_inflate_bytes_per_s
        mixed = msgspec.structs.replace(route, local_share=local, inflate_core_s=raw * inflate)
        steps.append((predict_step(job, mixed), count))
        misses += count * (1 - local)
        if is_settled:
            break
    return steps, misses


def expected_spot_s(
    work_s: float, *, rate_per_s: float, every_s: float, checkpoint_s: float, restart_s: float
) -> float:
    """Expected duration of `work_s` seconds of work with checkpoints, restarts, and exponentially distributed
    interruptions.

    Args:
        rate_per_s: Interruptions per second of the whole job, > 0.
        every_s: Work between checkpoints. An interruption loses the work since the last checkpoint.
        restart_s: Time from an interruption until work goes on. A restart can also be interrupted.
    Returns:
        Seconds; inf if the job practically never reaches a checkpoint.
    Source:
        J. T. Daly, 2006, A higher order estimate of the optimum checkpoint interval for restart dumps, eq. 13:
        M e^(R/M) (e^((tau + delta)/M) - 1) T_s / tau.
    """
    exponent = rate_per_s * (every_s + checkpoint_s)
    if exponent + rate_per_s * restart_s > 500:  # e^500 s is far above the age of the universe, and near overflow
        return math.inf
    return math.exp(rate_per_s * restart_s) * math.expm1(exponent) / rate_per_s * work_s / every_s


def _lost_s(scenario: Scenario, run_s: float, before_s: float) -> float:
    spot = scenario.spot
    if spot is None:
        return 0.0
    rate = spot.interruptions_per_hour / 3600 * scenario.nodes
    # A new node has an empty disk, so its data must be staged again.
    restart = spot.restart_s + before_s
    every = min(spot.checkpoint_every_s, run_s) or spot.checkpoint_every_s
    total = expected_spot_s(run_s, rate_per_s=rate, every_s=every, checkpoint_s=spot.checkpoint_s, restart_s=restart)
    return total - run_s


def _money(scenario: Scenario, job_s: float, bytes_read: float, requests: float) -> Money:
    prices, hours = scenario.prices, job_s / 3600
    stored = scenario.stored_bytes + scenario.replicated_bytes
    crossed = scenario.replicated_bytes or bytes_read
    is_endless = not math.isfinite(job_s)
    return Money(
        currency=prices.currency,
        compute=_times(prices.node_hour, scenario.nodes * hours),
        storage=None
        if prices.gib_month is None
        else math.inf
        if is_endless
        else cost.storage_usd(stored, prices.gib_month, hours + scenario.replicate_s / 3600),
        requests=_times(prices.request, requests),
        egress=_times(prices.egress_gib, crossed / cost.GIB),
        unknown=prices.unknown,
    )


def _times(price: float | None, amount: float) -> float | None:
    return None if price is None else price * amount


def _impossible(scenario: Scenario, lost_s: float) -> str:
    job, disks = scenario.job, scenario.disks
    if job.steps_per_epoch == 0:
        return (
            f"the global batch ({job.global_batch:,} samples on {job.ranks:,} ranks) is larger than an epoch "
            f"({job.samples:,} samples)"
        )
    if scenario.kind in ("stage", "pool") and disks is not None:
        needed = disks.copies * disks.kept_bytes / job.nodes
        if needed > disks.size_bytes:
            return (
                f"the nodes' disks: {needed / 1e12:.3g} TB per node are needed, and {disks.size_bytes / 1e12:.3g} TB "
                "are there"
            )
    if not math.isfinite(lost_s):
        return "interruptions: spot nodes are interrupted before they reach a checkpoint"
    return ""
