# SPDX-License-Identifier: Apache-2.0
"""Simulates one epoch: the nodes read ahead over shared limits, compute, wait for each other, fail and restart.

A node reads its part of a step as one transfer. With random servers, such as data nodes, every rank reads for itself.
A simulated step therefore has a few events per node, whatever the number of samples.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import simpy

from penstock.plan.fair_share import OWN_CAP
from penstock.plan.simulation_input import Conditions, SharedLimit, own_cap
from penstock.plan.simulation_network import LimitState, Network

if TYPE_CHECKING:
    import random
    from collections.abc import Generator, Sequence

    from penstock.plan.model import Route, TrainingJob

__all__ = ["WAITS", "Epoch", "EpochResult"]

WAITS = ("compute", "data", "slowest_node", "allreduce", "restart")
"""Parts of a node's time, which add up to the epoch."""

_NORMAL = NormalDist()
_Z99 = _NORMAL.inv_cdf(0.99)
_CAP_STEP = 0.02  # caps with a smaller difference are in the same class, which keeps the number of classes small
_PHASES = 5  # number of back-off levels of clients, from the last refusal to the fair rate


@dataclass
class EpochResult:
    """Result of one replica. Times in seconds; `waits_s` is the mean over nodes.

    Attributes:
        binding_s: Seconds of all transfers, by the shared limit or the term of the step model that was the bottleneck.
        utilisation: Served units of each limit divided by the units that it offered, over the epoch.
        failures: Number of failures; extrapolated, and so not whole, if a part of the epoch was simulated.
        waited_for: For each node that was last in a step: the seconds that the other nodes waited for it.
        task_s: Mean seconds of a task, its data included, if the job is not synchronous.
        samples_read: Samples of all transfers, including the transfers of repeated steps.
        events: Events of the simulation.
    """

    epoch_s: float = 0.0
    waits_s: dict[str, float] = field(default_factory=dict)
    binding_s: dict[str, float] = field(default_factory=dict)
    utilisation: dict[str, float] = field(default_factory=dict)
    refused: float = 0.0
    failures: float = 0.0
    waited_for: dict[int, float] = field(default_factory=dict)
    task_s: float = 0.0
    samples_read: float = 0.0
    events: int = 0


class Epoch:
    """One replica of an epoch of `steps` steps. `run` may be called once."""

    def __init__(
        self,
        job: TrainingJob,
        route: Route,
        terms_s: dict[str, float],
        limits: Sequence[SharedLimit],
        conditions: Conditions,
        steps: int,
        rng: random.Random,
    ) -> None:
        self._job, self._route, self._conditions, self._steps, self._rng = job, route, conditions, steps, rng
        self._limits = limits
        self.states = [LimitState(limit) for limit in limits for _ in range(limit.servers)]
        self._readers = job.ranks_per_node if any(limit.servers > 1 for limit in limits) else 1
        per_node = job.global_batch / job.nodes
        self._samples = per_node / self._readers
        cap, self._cap_name = own_cap(terms_s, per_node)
        self._cap = cap / self._readers
        self._slow = {node for node in range(job.nodes) if rng.random() < conditions.slow_nodes}
        self._depth = conditions.read_ahead_steps if route.overlaps else 1
        clients = job.ranks_per_node / self._readers * route.in_flight_per_rank
        self._clients = clients if route.from_store else 1.0
        self.result = EpochResult()

    def run(self) -> EpochResult:
        """Simulate until the last step is done, with a restart after each failure."""
        found, job = self.result, self._job
        now, first = 0.0, 0
        totals = dict.fromkeys(WAITS, 0.0)
        while True:
            attempt = _Attempt(self, now, first, totals)
            failure = self._next_failure_s()
            attempt.run(now + failure)
            found.events += attempt.events
            if attempt.is_done:
                now, totals = attempt.end, attempt.totals
                break
            # The work since the last checkpoint is done again. The time for this work counts as restart, not as
            # computation.
            found.failures += 1
            first, totals = attempt.saved_step, dict(attempt.saved_totals)
            ended = now + failure + self._conditions.restart_s
            totals["restart"] += (ended - attempt.saved_at) * job.nodes
            now = ended
        found.epoch_s = now
        found.waits_s = {name: seconds / job.nodes for name, seconds in totals.items()}
        at = 0
        for limit in self._limits:
            mine = self.states[at : at + limit.servers]
            at += limit.servers
            offered = sum(state.offered for state in mine)
            found.utilisation[limit.name] = sum(state.used for state in mine) / offered if offered else 0.0
            found.refused += sum(state.refused for state in mine)
        return found

    def _next_failure_s(self) -> float:
        mtbf_s = self._conditions.node_mtbf_s
        if mtbf_s is None or not self._conditions.synchronous:
            return math.inf
        return self._rng.expovariate(self._job.nodes / mtbf_s)

    def compute_s(self, node: int) -> float:
        """Draw the compute time of one step: the time of the node's slowest rank."""
        seconds = self._job.compute_step_s * (self._conditions.slow_factor if node in self._slow else 1.0)
        if self._conditions.step_cv:
            sigma = math.sqrt(math.log1p(self._conditions.step_cv**2))
            # u^(1/n), with uniform u, is the quantile of the largest of n equally distributed draws.
            highest = (1.0 - self._rng.random()) ** (1.0 / self._job.ranks_per_node)
            seconds *= math.exp(sigma * _NORMAL.inv_cdf(min(highest, 1 - 1e-12)) - sigma * sigma / 2)
        return seconds

    def transfer(self, network: Network) -> tuple[Any, float]:
        """Start the transfer of one reader's part of a step; also return the seconds of its slowest request."""
        cap, slowest = self._cap, 0.0
        if self._conditions.latency_p99_ratio > 1 and self._route.latency_s and self._route.from_store:
            cap, slowest = self._drawn_latency(cap)
        uses, at, back_off = [], 0, 1.0
        for limit in self._limits:
            server = self._rng.randrange(limit.servers) if limit.servers > 1 else 0
            uses.append((at + server, limit.per_sample))
            at += limit.servers
            if limit.back_off is not None:
                # A client is at a random point between its last refusal and its fair rate.
                phase = (self._rng.randrange(_PHASES) + 0.5) / _PHASES
                back_off = min(back_off, limit.back_off + (1 - limit.back_off) * phase)
        return network.transfer(self._samples, cap, tuple(uses), back_off), slowest

    def _drawn_latency(self, cap: float) -> tuple[float, float]:
        """Draw the latencies of a transfer's requests; return its cap, and the time of the slowest request."""
        route = self._route
        sigma = math.log(self._conditions.latency_p99_ratio) / _Z99
        transfer_s = route.wire_bytes / route.connection_bytes_per_s
        requests = max(1, round(self._samples * route.requests_per_sample))
        drawn = [route.latency_s * math.exp(sigma * self._rng.gauss(0.0, 1.0)) for _ in range(min(requests, 256))]
        mean = sum(drawn) / len(drawn)
        ranks = self._job.ranks_per_node / self._readers
        in_flight = ranks * route.in_flight_per_rank
        reading_s = self._samples * (route.requests_per_sample * mean + transfer_s) / in_flight
        mine = min(cap if self._cap_name != "reader" else math.inf, self._samples / reading_s)
        steps = round(math.log(mine / cap) / _CAP_STEP) if cap > 0 else 0
        return cap * math.exp(_CAP_STEP * steps), max(drawn) + transfer_s

    @property
    def parts(self) -> tuple[TrainingJob, Route, Conditions, list[LimitState], int, int, int]:
        """Input of an attempt."""
        return self._job, self._route, self._conditions, self.states, self._readers, self._depth, self._steps

    def add_network(self, network: Network) -> None:
        """Add the counters of a network to the result."""
        network.finish()
        names = [limit.name for limit in self._limits for _ in range(limit.servers)]
        for index, seconds in network.busy_s.items():
            name = self._cap_name if index == OWN_CAP else names[index]
            self.result.binding_s[name] = self.result.binding_s.get(name, 0.0) + seconds
        self.result.samples_read += network.started

    @property
    def clients(self) -> float:
        """Concurrent requests of one transfer."""
        return self._clients


class _Attempt:
    """The steps from one start of the job until its end or the next failure."""

    def __init__(self, epoch: Epoch, start: float, first: int, totals: dict[str, float]) -> None:
        self._epoch = epoch
        self._job, self._route, self._conditions, states, self._readers, self._depth, self._steps = epoch.parts
        self._env = simpy.Environment(initial_time=start)
        self._network = Network(self._env, states, epoch.clients)
        nodes = self._job.nodes
        self._first = first
        self._taken = [first] * nodes  # per node: number of steps whose place in the read-ahead is free again
        self._room: list[list[simpy.Event]] = [[] for _ in range(nodes)]
        self._missing: list[defaultdict[int, int]] = [defaultdict(lambda: self._readers) for _ in range(nodes)]
        self._ready: list[dict[int, simpy.Event]] = [{} for _ in range(nodes)]
        self._arrived: list[tuple[int, float]] = []
        self._step_end = self._env.event()
        self._left = nodes
        self._done = self._env.event()
        self._task_s = 0.0
        self.totals = dict(totals)
        self.saved_step, self.saved_at, self.saved_totals = first, start, dict(totals)
        self.is_done = False
        self.end = start
        self.events = 0

    def run(self, until: float) -> None:
        """Simulate until the last step or until `until`."""
        env = self._env
        for node in range(self._job.nodes):
            for _ in range(self._readers):
                env.process(self._read(node))
            env.process(self._train(node) if self._conditions.synchronous else self._work(node))
        stop = self._done
        if math.isfinite(until):
            stop = env.any_of([self._done, env.timeout(until - env.now)])
        while not stop.processed:
            env.step()
            self.events += 1
        self.is_done = self._done.triggered
        self.end = env.now
        self._epoch.add_network(self._network)

    def _read(self, node: int) -> Generator[simpy.Event, Any, None]:
        env = self._env
        for step in range(self._first, self._steps):
            while step - self._taken[node] >= self._depth:
                room = env.event()
                self._room[node].append(room)
                yield room
            began = env.now
            transfer, slowest = self._epoch.transfer(self._network)
            yield transfer
            # The slowest request delays its own step. All other requests go on with the next step.
            late = began + slowest - env.now
            if late > 0:
                later: Any = env.timeout(late)
                later.callbacks.append(lambda _event, step=step: self._deliver(node, step))
            else:
                self._deliver(node, step)

    def _deliver(self, node: int, step: int) -> None:
        missing = self._missing[node]
        missing[step] -= 1
        if missing[step] == 0:
            ready = self._ready[node].get(step)
            if ready is not None:
                ready.succeed()

    def _batch(self, node: int, step: int) -> Generator[simpy.Event, Any, None]:
        """Wait for the batch of a step, and free its place in the read-ahead."""
        began = self._env.now
        if self._missing[node][step]:
            ready = self._ready[node][step] = self._env.event()
            yield ready
            self._ready[node].pop(step)
        del self._missing[node][step]
        self.totals["data"] += self._env.now - began
        if self._route.overlaps:
            self._free(node, step)

    def _free(self, node: int, step: int) -> None:
        self._taken[node] = step + 1
        waiting, self._room[node] = self._room[node], []
        for room in waiting:
            room.succeed()

    def _train(self, node: int) -> Generator[simpy.Event, Any, None]:
        for step in range(self._first, self._steps):
            yield from self._batch(node, step)
            seconds = self._epoch.compute_s(node)
            yield self._env.timeout(seconds)
            self.totals["compute"] += seconds
            end = self._step_end
            self._arrived.append((node, self._env.now))
            if len(self._arrived) == self._job.nodes:
                self._env.process(self._finish(step, node, end))
            yield end
            if not self._route.overlaps:
                self._free(node, step)

    def _finish(self, step: int, last: int, end: simpy.Event) -> Generator[simpy.Event, Any, None]:
        """Reduce the gradients after the last node has arrived, and release all nodes."""
        now = self._env.now
        waited = sum(now - at for _, at in self._arrived)
        self.totals["slowest_node"] += waited
        if waited > 0:
            nodes = self._epoch.result.waited_for
            nodes[last] = nodes.get(last, 0.0) + waited
        self._arrived = []
        self._step_end = self._env.event()
        allreduce_s = self._job.exposed_allreduce_s
        if allreduce_s:
            yield self._env.timeout(allreduce_s)
        self.totals["allreduce"] += allreduce_s * self._job.nodes
        every = self._conditions.checkpoint_steps
        if every is not None and (step + 1) % every == 0:
            self.saved_step, self.saved_at, self.saved_totals = step + 1, self._env.now, dict(self.totals)
        end.succeed()
        if step + 1 == self._steps:
            self._done.succeed()

    def _work(self, node: int) -> Generator[simpy.Event, Any, None]:
        """Run independent tasks on one node. A failure repeats only the current task of the node."""
        env, rng = self._env, self._epoch._rng  # noqa: SLF001 - the two classes are one simulation
        mtbf_s = self._conditions.node_mtbf_s
        for step in range(self._first, self._steps):
            began = env.now
            yield from self._batch(node, step)
            seconds = self._epoch.compute_s(node)
            while seconds and mtbf_s is not None and (failed := rng.expovariate(1 / mtbf_s)) < seconds:
                yield env.timeout(failed + self._conditions.restart_s)
                self.totals["restart"] += failed + self._conditions.restart_s
                self._epoch.result.failures += 1
            yield env.timeout(seconds)
            self.totals["compute"] += seconds
            self._task_s += env.now - began
            if not self._route.overlaps:
                self._free(node, step)
        self._arrived.append((node, env.now))
        self._left -= 1
        if not self._left:
            self.totals["slowest_node"] += sum(env.now - at for _, at in self._arrived)
            self._epoch.result.task_s = self._task_s / (self._job.nodes * (self._steps - self._first))
            self._done.succeed()
