# SPDX-License-Identifier: Apache-2.0
"""Input of the simulation: the limits that all nodes share, and conditions that the step model does not cover."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import msgspec

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.plan.model import Route, TrainingJob

__all__ = ["Conditions", "PathLimit", "SharedLimit", "SimulationSpec", "limits_of", "own_cap"]

_Duration = Annotated[float, msgspec.Meta(extra={"quantity": "duration"})]  # as in plan.spec: `2000h` in a plan file

_NOT_OWN = {"compute", "account", "requests", "link"}  # terms that do not limit the reads of a single node
_NO_CAP = 1e15  # samples/s; a route without any limit still needs finite rates


class SharedLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit that all nodes share, in units per second.

    Attributes:
        name: Name in results, such as `account`.
        per_s: Units per second of one server.
        per_sample: Units that one sample takes: its bytes, its requests, or its file opens.
        servers: Number of equal servers, such as data nodes. Each read goes to a random server, so several reads can go
            to one server while another server is idle. For a dataset that is spread evenly over several accounts, use
            one server with the total rate of the accounts.
        peak_clients: Number of concurrent requests at which a metadata server is fastest. With more requests, the
            server slows down (retrograde scaling); with fewer, it is not yet fully used. None means a constant rate.
        burst_per_s, burst_units: Rate while there are burst credits, and the number of credits, in units. Credits are
            earned at `per_s` and spent by use; the epoch starts with all credits.
        ramp_from_per_s, ramp_s: A store that scales up slowly: its rate at the start, and the time after which it
            has reached `per_s`. The rate grows exponentially in between.
        back_off: Lowest share of its fair rate to which a client falls after a refusal (503). After that, the client's
            share rises again, so each client is at a random point of this range. None means that requests above the
            limit wait and are not refused.
        refused_share: Refused requests as a share of served requests, while this limit is the bottleneck. Source of the
            default: decision 0526, 2 to 6 % measured.
    """

    name: str
    per_s: float
    per_sample: float
    servers: int = 1
    peak_clients: float | None = None
    burst_per_s: float | None = None
    burst_units: float = 0.0
    ramp_from_per_s: float | None = None
    ramp_s: _Duration = msgspec.field(name="ramp", default=0.0)
    back_off: float | None = None
    refused_share: float = 0.04

    def __post_init__(self) -> None:
        if not (self.per_s > 0 and 0 < self.per_sample < math.inf and self.servers >= 1):
            raise ConfigError(
                f"limit {self.name}: rates, units and servers must be positive (got {self.per_s}, {self.per_sample}, {self.servers})"
            )
        if self.burst_per_s is not None and (self.burst_per_s < self.per_s or self.burst_units <= 0):
            raise ConfigError(
                f"limit {self.name}: a burst of {self.burst_per_s}/s is below the base rate of {self.per_s}/s, or has no credits"
            )
        if self.ramp_from_per_s is not None and not (0 < self.ramp_from_per_s <= self.per_s and self.ramp_s > 0):
            raise ConfigError(
                f"limit {self.name}: ramp_from_per_s must be above 0 and at most {self.per_s}/s, and ramp_s above 0 "
                f"(got {self.ramp_from_per_s}/s, {self.ramp_s} s)"
            )
        if self.back_off is not None and not 0 < self.back_off <= 1:
            raise ConfigError(f"limit {self.name}: back_off must be above 0 and at most 1 (got {self.back_off})")
        if self.peak_clients is not None and self.peak_clients <= 0:
            raise ConfigError(f"limit {self.name}: peak_clients must be above 0 (got {self.peak_clients})")

    @property
    def is_constant(self) -> bool:
        """True if the limit always has the same rate, so that a part of an epoch is representative of the whole
        epoch.
        """
        return self.burst_per_s is None and self.ramp_from_per_s is None

    def rate_at(self, seconds: float, clients: float) -> float:
        """Return the units per second of one server, without its burst.

        Source:
            Universal scalability law without contention (Gunther 2007): X(n) = l n / (1 + k n^2), peak at 1 / sqrt(k).
        """
        rate = self.per_s
        if self.ramp_from_per_s is not None and seconds < self.ramp_s:
            rate = self.ramp_from_per_s * (self.per_s / self.ramp_from_per_s) ** (seconds / self.ramp_s)
        if self.peak_clients is not None and clients > 0:
            load = clients / self.peak_clients
            rate *= 2 * load / (1 + load * load)
        return rate


class Conditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that the step model leaves out. The defaults have no randomness.

    Attributes:
        synchronous: True if all nodes wait for each other after every step. False for independent tasks, such as the
            shots of a seismic survey.
        read_ahead_steps: Number of steps that a node reads ahead of its computation.
        step_cv: Coefficient of variation of a rank's compute time. The slowest rank of a node counts.
        slow_nodes: Share of nodes that compute slower by `slow_factor`, drawn for each replica.
        latency_p99_ratio: 99th percentile of the first-byte latency divided by its median (lognormal).
        node_mtbf_s: Mean seconds between failures (or spot interruptions) of one node; None means no failures.
        restart_s: Seconds from a failure until the first repeated step.
        checkpoint_steps: Steps between checkpoints; None restarts the epoch.
    """

    synchronous: bool = True
    read_ahead_steps: int = 2
    step_cv: float = 0.0
    slow_nodes: float = 0.0
    slow_factor: float = 1.0
    latency_p99_ratio: float = 1.0
    node_mtbf_s: _Duration | None = msgspec.field(name="node_mtbf", default=None)
    restart_s: _Duration = msgspec.field(name="restart", default=300.0)
    checkpoint_steps: int | None = None

    def __post_init__(self) -> None:
        if self.read_ahead_steps < 1 or (self.checkpoint_steps is not None and self.checkpoint_steps < 1):
            raise ConfigError(f"read_ahead_steps and checkpoint_steps must be at least 1 (got {self})")
        if min(self.step_cv, self.restart_s) < 0 or not 0 <= self.slow_nodes <= 1:
            raise ConfigError(f"step_cv and restart_s must be at least 0, and slow_nodes from 0 to 1 (got {self})")
        if min(self.slow_factor, self.latency_p99_ratio) < 1 or (
            self.node_mtbf_s is not None and self.node_mtbf_s <= 0
        ):
            raise ConfigError(f"slow_factor and latency_p99_ratio must be at least 1, node_mtbf_s above 0 (got {self})")


class PathLimit(SharedLimit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[simulation.limit]]`: a limit that some paths share. `paths` lists these paths by name; the default is all
    paths.
    """

    paths: tuple[str, ...] = ()


class SimulationSpec(Conditions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[simulation]` of a plan file: what `penstock plan --simulate` adds to the step model.

    Attributes:
        back_off: `SharedLimit.back_off` of the stores' request limits. None means that requests above the limit wait.
        limits: Further limits. A limit that is named `account` or `requests` replaces the store's limit of this name.
    """

    back_off: float | None = None
    limits: tuple[PathLimit, ...] = msgspec.field(name="limit", default=())


def limits_of(
    job: TrainingJob, route: Route, terms_s: dict[str, float], *, back_off: float | None = None
) -> tuple[SharedLimit, ...]:
    """Return the limits of the step model that all nodes share: the account, the request rate, and the link between two
    regions.

    Args:
        terms_s: Terms of the step model for this job and route.
        back_off: `SharedLimit.back_off` of the request rate.
    """
    rates = {
        "account": job.account_bytes_per_s,
        "requests": route.requests_per_s,
        "link": route.link_bytes_per_s,
    }
    return tuple(
        SharedLimit(
            name=name,
            per_s=rate,
            # With a node cache, only a part of the samples comes from the store. The terms account for this share.
            per_sample=terms_s[name] * rate / job.global_batch,
            back_off=back_off if name == "requests" else None,
        )
        for name, rate in rates.items()
        if terms_s.get(name) and math.isfinite(rate)
    )


def own_cap(terms_s: dict[str, float], samples: float) -> tuple[float, str]:
    """Return the samples per second of one node if no shared limit is the bottleneck, and the term that causes this
    rate.

    Args:
        terms_s: Terms of the step model.
        samples: Samples of one node in a step.
    """
    own = {name: seconds for name, seconds in terms_s.items() if name not in _NOT_OWN and seconds > 0}
    if not own:
        return _NO_CAP, "none"
    slowest = max(own, key=lambda name: own[name])
    return min(samples / own[slowest], _NO_CAP), slowest
