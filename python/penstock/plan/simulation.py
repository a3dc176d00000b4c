# SPDX-License-Identifier: Apache-2.0
"""Discrete-event simulation of an epoch on many nodes that share limits, compared with the step model.

The step model (`plan.model`) has no randomness and no queues. The simulation adds these causes of delay: stragglers,
first-byte latency with a tail, random data nodes, a metadata server that slows down under load, refusals with back-off,
burst credits, slow ramps, and failures with restarts. Without any such cause, the durations of an epoch in the
simulation and in the step model agree within 2 %. To explain the difference, each cause is also simulated alone.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from statistics import fmean, median
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import ConfigError
from penstock.extras import require
from penstock.plan.model import predict_step
from penstock.plan.simulation_input import Conditions, SharedLimit, limits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.plan.model import Route, TrainingJob
    from penstock.plan.simulation_epoch import EpochResult

__all__ = ["Cause", "Simulation", "simulate"]

MAX_TRANSFERS = 300_000
"""Maximum number of transfers in one replica. A longer epoch is simulated in part, and its time is extrapolated."""

_MIN_STEPS = 200
# Maximum number of failures expected between two checkpoints. At 5, the next checkpoint takes e^5 = 148 attempts on
# average; with more failures, an epoch practically never ends.
_MAX_FAILURES_PER_CHECKPOINT = 5.0
_NAMED_NODES = 3
_AGREES = 0.02
_LIMIT_LABELS = {"account": "account bandwidth", "requests": "request rate", "link": "link between regions"}


class Cause(msgspec.Struct, frozen=True):
    """One reason why the simulated epoch differs from the step model. `added` is a share of the step model's epoch."""

    name: str
    added: float
    reason: str


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of all replicas. Times in seconds.

    Attributes:
        p5_s, p50_s, p95_s: Percentiles of the epoch over replicas, interpolated; with few replicas, p5 and p95 are
            close to the extremes.
        model_s: Epoch of the step model, the given limits included.
        waits_s: Time of the mean node, by cause: its own computation, and waiting for data, for the slowest node, for
            the allreduce and for work that is repeated after a failure. Adds up to the mean epoch.
        binding: Share of the reading time in which each limit was the bottleneck.
        utilisation: Served units of each shared limit, as a share of the units that it could serve in the epoch.
        waited_for: Nodes for which all other nodes waited longest, with the seconds, in the median replica.
        refused: Mean number of refused requests.
        failures: Mean number of failures.
        task_s: Mean seconds of one task, for jobs whose nodes do not wait for each other.
        causes: Mean time that each condition adds to the step model's epoch if it acts alone, largest first.
        simulated_steps: Steps that were simulated, of `steps`.
        seed: Replica i uses the seed `SEED/i`.
    """

    route: str
    nodes: int
    ranks: int
    steps: int
    simulated_steps: int
    replicas: int
    seed: int
    p5_s: float
    p50_s: float
    p95_s: float
    mean_s: float
    model_s: float
    samples_per_s: float
    waits_s: dict[str, float]
    binding: dict[str, float]
    utilisation: dict[str, float]
    waited_for: tuple[tuple[int, float], ...]
    refused: float
    failures: float
    task_s: float
    causes: tuple[Cause, ...]
    events: int

    @property
    def differs(self) -> float:
        """Median epoch divided by the step model's epoch, minus 1."""
        return self.p50_s / self.model_s - 1 if self.model_s else 0.0

    @property
    def uses_of_limits(self) -> str:
        """Utilisation of each shared limit, as text."""
        return ", ".join(
            f"{_LIMIT_LABELS.get(name, name)} {100 * share:.0f} %" for name, share in self.utilisation.items()
        )

    @property
    def verdict(self) -> str:
        """Sentence that compares the simulation with the step model, and gives the reasons."""
        model, low, high = (_seconds(value) for value in (self.model_s, self.p5_s, self.p95_s))
        if abs(self.differs) <= _AGREES and (self.p95_s - self.p5_s) <= _AGREES * self.model_s:
            return f"simulation and step model agree: {_seconds(self.p50_s)} and {model} ({100 * self.differs:+.1f} %)"
        reasons = "; ".join(
            f"{cause.reason} ({100 * cause.added:+.1f} %)" for cause in self.causes if abs(cause.added) >= 0.005
        )
        text = f"step model {model}, simulation {low} to {high} (p5 to p95, median {100 * self.differs:+.1f} %)"
        return f"{text}: {reasons or 'the conditions act only together'}"


def simulate(
    job: TrainingJob,
    route: Route,
    *,
    conditions: Conditions | None = None,
    limits: Sequence[SharedLimit] = (),
    back_off: float | None = None,
    replicas: int = 5,
    seed: int = 0,
    has_causes: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Simulate one epoch of a job on a route.

    Args:
        conditions: Conditions that the step model leaves out; by default none.
        limits: Further limits that the nodes share, such as data nodes or a metadata server. A limit that is named
            `account` or `requests` replaces the limit of this name in the job and route, or removes it if the rate is
            infinite.
        back_off: If set, the route's request limit refuses requests, with this value as `SharedLimit.back_off`.
            Penstock's value is 0.9 (decision 0526).
        has_causes: Also simulate each condition alone, with the same seeds.
        progress: Called with the number of finished and of all parts of the work.
    Raises:
        ConfigError: The job has no full step, a number is out of its range, or failures come so often that the job
            practically never reaches a checkpoint.
        MissingPackage: SimPy is not installed.
    """
    require("penstock plan --simulate", "plan")
    if replicas < 1:
        raise ConfigError(f"replicas must be at least 1 (got {replicas})")
    if job.steps_per_epoch < 1:
        raise ConfigError(
            f"{job.samples:,} samples are less than one step of {job.global_batch:,}",
            hint="use fewer nodes, or a smaller batch",
        )
    conditions = conditions or Conditions()
    if route.observed_step_s is not None:
        route = msgspec.structs.replace(route, overlaps=True)  # a measured step contains its computation
    terms_s = predict_step(job, route).terms_s
    given = {limit.name for limit in limits}
    usual = limits_of(job, route, terms_s, back_off=back_off)
    shared = (
        *(limit for limit in usual if limit.name not in given),
        *(limit for limit in limits if math.isfinite(limit.per_s)),
    )
    model_s = _model_s(job, route, terms_s, shared, given)
    _refuse_endless_restarts(job, conditions, model_s)
    runner = _Runner(job, route, terms_s, seed)
    alone = _alone(conditions, shared) if has_causes else []
    total = replicas + len(alone) + bool(has_causes)
    finished: list[EpochResult] = []
    for replica in range(replicas):
        finished.append(runner.run(conditions, shared, replica))
        if progress is not None:
            progress(len(finished), total)
    causes = []
    if has_causes:
        plain_conditions, plain_limits = _plain(conditions, shared)
        plain_s = runner.run(plain_conditions, plain_limits, 0).epoch_s
        causes.append(Cause("start", plain_s / model_s - 1, _start_reason(job, plain_s - model_s)))
        for number, (name, reason, its_conditions, its_limits) in enumerate(alone):
            if progress is not None:
                progress(replicas + 1 + number, total)
            epochs = [runner.run(its_conditions, its_limits, replica).epoch_s for replica in range(replicas)]
            causes.append(Cause(name, (fmean(epochs) - plain_s) / model_s, reason))
        causes.sort(key=lambda cause: -abs(cause.added))
        if progress is not None:
            progress(total, total)
    return _summary(runner, finished, conditions, shared, model_s, tuple(causes))


def _refuse_endless_restarts(job: TrainingJob, conditions: Conditions, model_s: float) -> None:
    if not conditions.synchronous or conditions.node_mtbf_s is None:
        return
    steps = min(conditions.checkpoint_steps or job.steps_per_epoch, job.steps_per_epoch)
    between_s = steps / job.steps_per_epoch * model_s
    failures = between_s * job.nodes / conditions.node_mtbf_s
    if failures > _MAX_FAILURES_PER_CHECKPOINT:
        raise ConfigError(
            f"{job.nodes:,} nodes fail {failures:.1f} times between two checkpoints ({_seconds(between_s)}): "
            "the epoch practically never ends",
            hint="lower simulation.checkpoint_steps, or use fewer nodes",
        )


class _Runner:
    """Runs replicas of one job, in part if the epoch is long."""

    def __init__(self, job: TrainingJob, route: Route, terms_s: dict[str, float], seed: int) -> None:
        self.job, self.route, self.terms_s, self.seed = job, route, terms_s, seed
        self.steps = job.steps_per_epoch

    def simulated_steps(self, conditions: Conditions, limits: Sequence[SharedLimit]) -> int:
        """Number of steps to simulate: all steps, or a part of a long epoch if all limits are constant and the part has
        a checkpoint.
        """
        readers = self.job.ranks_per_node if any(limit.servers > 1 for limit in limits) else 1
        part = min(self.steps, max(_MIN_STEPS, MAX_TRANSFERS // (self.job.nodes * readers)))
        # A failure repeats all steps since the last checkpoint, so a simulated part without a checkpoint would repeat
        # too few steps.
        has_failures = conditions.synchronous and conditions.node_mtbf_s is not None
        is_too_short = has_failures and (conditions.checkpoint_steps or self.steps) > part
        is_constant = all(limit.is_constant for limit in limits)
        return part if is_constant and not is_too_short else self.steps

    def run(self, conditions: Conditions, limits: Sequence[SharedLimit], replica: int) -> EpochResult:
        """Simulate one replica, and extrapolate to the whole epoch."""
        from penstock.plan.simulation_epoch import Epoch

        steps = self.simulated_steps(conditions, limits)
        rng = random.Random(f"{self.seed}/{replica}")
        found = Epoch(self.job, self.route, self.terms_s, limits, conditions, steps, rng).run()
        scale = self.steps / steps
        found.epoch_s *= scale
        found.refused *= scale
        found.failures *= scale
        found.waits_s = {name: seconds * scale for name, seconds in found.waits_s.items()}
        found.waited_for = {node: seconds * scale for node, seconds in found.waited_for.items()}
        return found


def _model_s(
    job: TrainingJob, route: Route, terms_s: dict[str, float], limits: Sequence[SharedLimit], given: set[str]
) -> float:
    """Epoch of the step model, in which each limit has its constant rate and perfectly shared servers.

    Args:
        given: Names of the limits that replace, or with an infinite rate remove, a term of the step model.
    """
    replaced = given | {limit.name for limit in limits}
    reading = [seconds for name, seconds in terms_s.items() if name != "compute" and name not in replaced]
    reading += [job.global_batch * limit.per_sample / (limit.per_s * limit.servers) for limit in limits]
    slowest = max(reading, default=0.0)
    step = max(job.compute_step_s, slowest) if route.overlaps else job.compute_step_s + slowest
    return job.steps_per_epoch * (step + job.exposed_allreduce_s)


_Alone = tuple[str, str, Conditions, tuple[SharedLimit, ...]]


def _plain(conditions: Conditions, limits: Sequence[SharedLimit]) -> tuple[Conditions, tuple[SharedLimit, ...]]:
    """Conditions under which the simulation describes the same job as the step model."""
    kept = Conditions(synchronous=conditions.synchronous, read_ahead_steps=conditions.read_ahead_steps)
    return kept, tuple(_constant(limit) for limit in limits)


def _constant(limit: SharedLimit) -> SharedLimit:
    return SharedLimit(name=limit.name, per_s=limit.per_s * limit.servers, per_sample=limit.per_sample)


def _alone(conditions: Conditions, limits: Sequence[SharedLimit]) -> list[_Alone]:
    """For each condition that is in force: the conditions and limits with only this one."""
    plain, plain_limits = _plain(conditions, limits)
    replace = msgspec.structs.replace
    found: list[_Alone] = []
    if conditions.step_cv:
        reason = f"the slowest rank of each step: compute times vary by {100 * conditions.step_cv:.0f} %"
        found.append(("step-variation", reason, replace(plain, step_cv=conditions.step_cv), plain_limits))
    if conditions.slow_nodes and conditions.slow_factor > 1:
        reason = f"stragglers: {100 * conditions.slow_nodes:.0f} % of the nodes are {conditions.slow_factor:g} x slower"
        slow = replace(plain, slow_nodes=conditions.slow_nodes, slow_factor=conditions.slow_factor)
        found.append(("stragglers", reason, slow, plain_limits))
    if conditions.latency_p99_ratio > 1:
        reason = f"late first bytes: the p99 is {conditions.latency_p99_ratio:.3g} x the median"
        late = replace(plain, latency_p99_ratio=conditions.latency_p99_ratio)
        found.append(("latency", reason, late, plain_limits))
    if conditions.node_mtbf_s is not None:
        reason = (
            f"failures: one per node in {_seconds(conditions.node_mtbf_s)}, work since the last checkpoint is repeated"
        )
        failing = replace(
            plain,
            node_mtbf_s=conditions.node_mtbf_s,
            restart_s=conditions.restart_s,
            checkpoint_steps=conditions.checkpoint_steps,
        )
        found.append(("failures", reason, failing, plain_limits))
    for index, limit in enumerate(limits):
        for name, reason, alone in _limit_causes(limit, plain_limits[index]):
            changed = (*plain_limits[:index], alone, *plain_limits[index + 1 :])
            found.append((f"{limit.name}-{name}", reason, plain, changed))
    return found


def _limit_causes(limit: SharedLimit, plain: SharedLimit) -> list[tuple[str, str, SharedLimit]]:
    replace = msgspec.structs.replace
    found = []
    if limit.servers > 1:
        reason = f"{limit.name}: reads meet at one of the {limit.servers} servers while others are idle"
        found.append(("servers", reason, replace(plain, per_s=limit.per_s, servers=limit.servers)))
    if limit.peak_clients is not None:
        reason = f"{limit.name}: it is fastest with {limit.peak_clients:,.0f} concurrent requests, and slower with more or fewer"
        found.append(("retrograde", reason, replace(plain, peak_clients=limit.peak_clients)))
    if limit.burst_per_s is not None:
        reason = f"{limit.name}: faster while there are burst credits"
        burst = replace(
            plain, burst_per_s=limit.burst_per_s * limit.servers, burst_units=limit.burst_units * limit.servers
        )
        found.append(("burst", reason, burst))
    if limit.ramp_from_per_s is not None:
        reason = f"{limit.name}: full rate only after {_seconds(limit.ramp_s)}"
        ramp = replace(plain, ramp_from_per_s=limit.ramp_from_per_s * limit.servers, ramp_s=limit.ramp_s)
        found.append(("ramp", reason, ramp))
    if limit.back_off is not None:
        reason = f"{limit.name}: refused clients back off to {100 * limit.back_off:.0f} % of their share"
        found.append(("refusals", reason, replace(plain, back_off=limit.back_off, refused_share=limit.refused_share)))
    return found


def _start_reason(job: TrainingJob, difference_s: float) -> str:
    if difference_s < 0 and job.exposed_allreduce_s:
        return "reads go on during the allreduce, which the step model adds to them"
    return "nothing is read ahead before the first step"


def _summary(
    runner: _Runner,
    finished: Sequence[EpochResult],
    conditions: Conditions,
    limits: Sequence[SharedLimit],
    model_s: float,
    causes: tuple[Cause, ...],
) -> Simulation:
    job = runner.job
    epochs = sorted(one.epoch_s for one in finished)
    middle = min(finished, key=lambda one: abs(one.epoch_s - median(epochs)))
    binding: defaultdict[str, float] = defaultdict(float)
    for one in finished:
        total = sum(one.binding_s.values()) or 1.0
        for name, seconds in one.binding_s.items():
            binding[name] += seconds / total / len(finished)
    named = (
        sorted(middle.waited_for.items(), key=lambda item: -item[1])[:_NAMED_NODES]
        if middle.waits_s["slowest_node"] > _AGREES * middle.epoch_s
        else []
    )
    return Simulation(
        route=runner.route.name,
        nodes=job.nodes,
        ranks=job.ranks,
        steps=runner.steps,
        simulated_steps=runner.simulated_steps(conditions, limits),
        replicas=len(finished),
        seed=runner.seed,
        p5_s=_percentile(epochs, 0.05),
        p50_s=_percentile(epochs, 0.5),
        p95_s=_percentile(epochs, 0.95),
        mean_s=fmean(epochs),
        model_s=model_s,
        samples_per_s=job.steps_per_epoch * job.global_batch / median(epochs),
        waits_s={name: fmean(one.waits_s[name] for one in finished) for name in finished[0].waits_s},
        binding=dict(sorted(binding.items(), key=lambda item: -item[1])),
        utilisation={limit.name: fmean(one.utilisation[limit.name] for one in finished) for limit in limits},
        waited_for=tuple((node, seconds / (job.nodes - 1)) for node, seconds in named),
        refused=fmean(one.refused for one in finished),
        failures=fmean(one.failures for one in finished),
        task_s=fmean(one.task_s for one in finished),
        causes=causes,
        events=sum(one.events for one in finished),
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Percentile by linear interpolation between the order statistics."""
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def _seconds(seconds: float) -> str:
    from penstock.units import format_seconds

    return format_seconds(seconds)
