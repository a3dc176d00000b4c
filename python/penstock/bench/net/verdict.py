# SPDX-License-Identifier: Apache-2.0
"""Verdict on a network: the fit of time to size, what limits a message, and which pairs, links or bindings are at fault.

Each relation (within a socket, within a node, between nodes) has a reference. A pair is slow if its best round is worse
than this reference by more than the noise between rounds. The reference is the better quartile, not the median. If one
of three hosts is bad, two of the three pairs are slow, and the median would be the value of a slow pair.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.net.fit import LineFit, fit_line
from penstock.bench.net.place import Place, Relation, relation
from penstock.units import format_bytes, format_rate, format_seconds, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.net.osu_format import OsuRow
    from penstock.bench.net.result import NetResult, Pair

__all__ = ["Finding", "NetVerdict", "PairFigure", "judge", "wire_rate"]

# A pair is slow if its ratio to the reference is at least `_SLOW` and at least 1 + `_NOISES` x the noise of the rounds.
_SLOW = 1.10
_NOISES = 4
_SLOW_OF_ONE_ROUND = 2.0
# Header bytes of a frame: IPv4 20, TCP 20 plus 12 of timestamps, Ethernet 14. Rate limits of Linux' tc count these
# bytes. They do not count the other 24 bytes of a frame on the wire (preamble, frame check sequence and gap).
_HEADERS_BYTES = 52
_ETHERNET_BYTES = 14
_NO_BANDWIDTH = "no bandwidth shown; send larger messages, or use more --iterations"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One statement of the verdict.

    Attributes:
        kind: `latency-bound` (the measured sizes show no bandwidth), `bandwidth-bound` (the largest do), `slow-pair`,
            `slow-node`, `wrong-affinity` or `note`.
        ranks, hosts: What the statement is about.
    """

    kind: str
    text: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


class PairFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of a pair over the rounds, and how much slower its best round is than the reference of its relation."""

    a: int
    b: int
    relation: str
    latency_us: float
    a_to_b: float
    b_to_a: float
    latency_ratio: float = 1.0
    a_to_b_ratio: float = 1.0
    b_to_a_ratio: float = 1.0
    latency_limit: float = _SLOW
    rate_limit: float = _SLOW

    @property
    def is_latency_slow(self) -> bool:
        return self.latency_ratio > self.latency_limit

    @property
    def is_a_to_b_slow(self) -> bool:
        return self.a_to_b_ratio > self.rate_limit

    @property
    def is_b_to_a_slow(self) -> bool:
        return self.b_to_a_ratio > self.rate_limit

    @property
    def is_slow(self) -> bool:
        return self.is_latency_slow or self.is_rate_slow

    @property
    def is_rate_slow(self) -> bool:
        return self.is_a_to_b_slow or self.is_b_to_a_slow

    @property
    def worst_ratio(self) -> float:
        return max(self.latency_ratio, self.a_to_b_ratio, self.b_to_a_ratio)


class NetVerdict(msgspec.Struct, frozen=True):
    """Fits by test, figures by pair, and statements."""

    fits: dict[str, LineFit]
    pairs: tuple[PairFigure, ...]
    findings: tuple[Finding, ...]


def judge(result: NetResult) -> NetVerdict:
    """Judge a result."""
    fits = _fits(result)
    pairs = pair_figures(result.pairs, result.places)
    findings = [*_affinity(result.places), *_slow(pairs, result.places), *_limits(result, fits)]
    return NetVerdict(fits, pairs, tuple(findings))


# ------------------------------------------------------------ fits


def _fits(result: NetResult) -> dict[str, LineFit]:
    found = {}
    for table in result.tables:
        if table.source != "penstock":
            continue
        points = []
        for row in table.osu_rows():
            if table.operation in ("bw", "bibw"):
                ways = 2 if table.operation == "bibw" else 1
                points.append((row.size_bytes, row.size_bytes * ways / (row.value * 1e6)))
            elif table.operation != "barrier":
                points.append((row.size_bytes, row.value / 1e6))
        points += [(row.size_bytes, row.out_of_place.time_us / 1e6) for row in table.nccl_rows() if row.out_of_place]
        points = [(size, time) for size, time in points if time > 0]
        if table.operation in ("bw", "bibw") and points:
            # For the rate of a stream, leave out the sizes that are limited by the time per message.
            peak = max(size / time for size, time in points)
            large = [(size, time) for size, time in points if size / time >= peak / 2]
            points = large if len(large) >= 3 else points
        if len({size for size, _ in points}) >= 3:
            found[table.program] = fit_line([size for size, _ in points], [time for _, time in points])
    return found


def _limits(result: NetResult, fits: dict[str, LineFit]) -> list[Finding]:
    found = []
    for table in result.tables:
        if table.source != "penstock":
            continue
        fit = fits.get(table.program)
        if table.operation == "barrier":
            found += [_barrier_limit(table.program, row) for row in table.osu_rows()]
        elif fit is None:
            continue
        elif table.operation in ("bw", "bibw"):
            found.append(_stream_limit(result, table.operation, table.program, fit))
        else:
            found.append(_message_limit(table.program, fit))
    return found


def _barrier_limit(program: str, row: OsuRow) -> Finding:
    low, high = (format_seconds((row.value if us is None else us) / 1e6) for us in (row.min_us, row.max_us))
    text = (
        f"{program}: {format_seconds(row.value / 1e6)} (ranks: {low} to {high}): latency-bound, as it carries no data"
    )
    return Finding(kind="latency-bound", text=text)


def _stream_limit(result: NetResult, operation: str, program: str, fit: LineFit) -> Finding:
    if fit.beta_bytes_per_s is None:
        return Finding(kind="latency-bound", text=f"{program}: {_NO_BANDWIDTH}{_misfit(fit)}")
    ways = 2 if operation == "bibw" else 1
    text = f"{program}: {_rate(fit, ways)}, and {_latency(fit)} for each message in the window"
    if relation(*(result.places[rank] for rank in result.plan.pair)) == Relation.NODES:
        wire = wire_rate(fit.beta_bytes_per_s * ways, _mtu(result.places, result.plan.pair))
        if wire is not None:
            text += f"; with TCP's and IP's headers {wire * 8 / 1e9:.3g} Gbit/s on the wire"
    return Finding(kind="bandwidth-bound", text=text + _misfit(fit), ranks=result.plan.pair)


def _message_limit(program: str, fit: LineFit) -> Finding:
    start = f"{program}: {_latency(fit)} for an empty message"
    if fit.half_bytes is None:
        return Finding(kind="latency-bound", text=f"{start}: latency-bound; {_NO_BANDWIDTH}{_misfit(fit)}")
    half = format_bytes(max(1, round(fit.half_bytes)), binary=True)
    text = f"{start}, then {_rate(fit, 1)}: latency-bound below {half}, bandwidth-bound above{_misfit(fit)}"
    return Finding(kind="bandwidth-bound", text=text)


def _misfit(fit: LineFit) -> str:
    if fit.worst_residual <= 0.5:
        return ""
    return (
        f"; the fitted line deviates by up to {fit.worst_residual:.0%}: either the library changes its protocol "
        "between sizes, or other programs use these cores"
    )


def _latency(fit: LineFit) -> str:
    low, high = fit.alpha_s_95
    return f"{format_seconds(fit.alpha_s)} ({format_seconds(low)} to {format_seconds(high)})"


def _rate(fit: LineFit, ways: int) -> str:
    assert fit.beta_bytes_per_s is not None
    assert fit.beta_bytes_per_s_95 is not None
    low, high = fit.beta_bytes_per_s_95
    return f"{format_rate(fit.beta_bytes_per_s * ways)} ({format_rate(low * ways)} to {format_rate(high * ways)})"


def _mtu(places: Sequence[Place], pair: tuple[int, int]) -> int | None:
    """MTU of the pair's interfaces, if each host has only one interface beside the loopback."""
    found = [nic["mtu"] for rank in pair for nic in places[rank].nics.values()]
    return found[0] if len(found) == 2 and found[0] == found[1] else None


def wire_rate(rate_bytes_per_s: float, mtu: int | None) -> float | None:
    """Rate on the wire of a TCP stream over Ethernet, with the headers that Linux' tc counts; None if the MTU is
    unknown.
    """
    if mtu is None or mtu <= _HEADERS_BYTES:
        return None
    return rate_bytes_per_s * (mtu + _ETHERNET_BYTES) / (mtu - _HEADERS_BYTES)


# ------------------------------------------------------------ pairs


def pair_figures(pairs: Sequence[Pair], places: Sequence[Place]) -> tuple[PairFigure, ...]:
    """Summarise the rounds of each pair, and compare the pair with all other pairs of the same relation."""
    rounds: dict[tuple[int, int], list[Pair]] = {}
    for pair in pairs:
        rounds.setdefault((pair.a, pair.b), []).append(pair)
    medians = {
        key: PairFigure(
            a=key[0],
            b=key[1],
            relation=relation(places[key[0]], places[key[1]]),
            latency_us=statistics.median(each.latency_us for each in held),
            a_to_b=statistics.median(each.a_to_b for each in held),
            b_to_a=statistics.median(each.b_to_a for each in held),
        )
        for key, held in rounds.items()
    }
    found = []
    for key, figure in medians.items():
        alike = [each for each in medians.values() if each.relation == figure.relation]
        latency = _reference([each.latency_us for each in alike])
        slowness = _reference([1 / rate for each in alike for rate in (each.a_to_b, each.b_to_a)])
        held = rounds[key]
        found.append(
            msgspec.structs.replace(
                figure,
                latency_ratio=min(each.latency_us for each in held) / latency,
                a_to_b_ratio=1 / max(each.a_to_b for each in held) / slowness,
                b_to_a_ratio=1 / max(each.b_to_a for each in held) / slowness,
                latency_limit=_limit([[each.latency_us for each in rounds[other.a, other.b]] for other in alike]),
                rate_limit=_limit(
                    [
                        [1 / (each.a_to_b if is_forth else each.b_to_a) for each in rounds[other.a, other.b]]
                        for other in alike
                        for is_forth in (True, False)
                    ]
                ),
            )
        )
    return tuple(found)


def _limit(rounds: Sequence[Sequence[float]]) -> float:
    """Smallest ratio to the reference that counts as slow, given the times of a relation's pairs in each round."""
    if len(rounds[0]) == 1:
        return _SLOW_OF_ONE_ROUND
    noise = statistics.median(statistics.median(held) / min(held) - 1 for held in rounds)
    return max(_SLOW, 1 + _NOISES * noise)


def _reference(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 4]


def _slow(pairs: Sequence[PairFigure], places: Sequence[Place]) -> list[Finding]:
    if len(pairs) == 1:
        return [Finding(kind="note", text="one pair has nothing to be compared with; use 3 or more ranks")]
    found: list[Finding] = []
    for kind in dict.fromkeys(each.relation for each in pairs):
        alike = [each for each in pairs if each.relation == kind]
        if len(alike) < 2:
            continue
        left = [each for each in alike if each.is_slow]
        if kind == Relation.NODES:
            # A bad link of a node affects the bandwidth or the latency of all its pairs. Bandwidth is checked first,
            # because latency has more noise.
            slow = [each for each in alike if each.is_rate_slow]
            node = _common_host(alike, slow, places)
            if node is None:
                slow = [each for each in alike if each.is_latency_slow]
                node = _common_host(alike, slow, places)
            if node is not None:
                found.append(_slow_node(node, slow, places))
                left = [each for each in left if node not in (places[each.a].host, places[each.b].host)]
        found += [_slow_pair(each, places) for each in sorted(left, key=lambda each: -each.worst_ratio)[:4]]
        if len(left) > 4:
            found.append(Finding(kind="note", text=f"{len(left) - 4} more slow pairs {kind}; see the matrix"))
    return found


def _common_host(alike: Sequence[PairFigure], slow: Sequence[PairFigure], places: Sequence[Place]) -> str | None:
    """The host whose pairs are all slow, while all other pairs are fast. None if there is no such host, or more than
    one.
    """
    hosts = dict.fromkeys(places[rank].host for each in slow for rank in (each.a, each.b))
    if len(hosts) < 3:
        return None  # all slow pairs are between the same two hosts, so the link is slow, not a node

    def touches(each: PairFigure, host: str) -> bool:
        return host in (places[each.a].host, places[each.b].host)

    guilty = [host for host in hosts if all(touches(each, host) == (each in slow) for each in alike)]
    return guilty[0] if len(guilty) == 1 else None


def _slow_node(host: str, slow: Sequence[PairFigure], places: Sequence[Place]) -> Finding:
    into, out_of = [], []
    for each in slow:
        forth = (each.is_a_to_b_slow, each.a_to_b_ratio, each.a_to_b)
        back = (each.is_b_to_a_slow, each.b_to_a_ratio, each.b_to_a)
        is_a = places[each.a].host == host
        out_of.append(forth if is_a else back)
        into.append(back if is_a else forth)
    parts = []
    for what, held in (("from this node", out_of), ("to this node", into)):
        if sum(is_slow for is_slow, _, _ in held) > len(held) / 2:
            ratio, rate = (statistics.median(each[at] for each in held) for at in (1, 2))
            parts.append(f"{format_rate(rate)} {what} ({ratio:.1f} times slower)")
    if sum(each.is_latency_slow for each in slow) > len(slow) / 2:
        parts.append(f"latency {statistics.median(each.latency_ratio for each in slow):.1f} times higher")
    text = (
        f"bad link of node {host}: all pairs with this node are slow, and no other pairs between nodes are slow: "
        f"{', '.join(parts)}"
    )
    ranks = tuple(sorted(place.rank for place in places if place.host == host))
    return Finding(kind="slow-node", text=text, ranks=ranks, hosts=(host,))


def _slow_pair(each: PairFigure, places: Sequence[Place]) -> Finding:
    hosts = tuple(dict.fromkeys((places[each.a].host, places[each.b].host)))
    parts = []
    if each.is_latency_slow:
        parts.append(f"latency {each.latency_us:.2f} µs, {each.latency_ratio:.2f} times the reference")
    for source, sink, rate, ratio, is_slow in (
        (each.a, each.b, each.a_to_b, each.a_to_b_ratio, each.is_a_to_b_slow),
        (each.b, each.a, each.b_to_a, each.b_to_a_ratio, each.is_b_to_a_slow),
    ):
        if is_slow:
            parts.append(f"{format_rate(rate)} from {source} to {sink}, {ratio:.2f} times slower than the reference")
    text = f"slow pair: ranks {each.a} and {each.b}, {each.relation} ({' and '.join(hosts)}): {', '.join(parts)}"
    return Finding(kind="slow-pair", text=text, ranks=(each.a, each.b), hosts=hosts)


# ------------------------------------------------------------ affinity


def _affinity(places: Sequence[Place]) -> list[Finding]:
    found = []
    owners: dict[tuple[str, int], list[int]] = {}
    for place in places:
        if len(place.cores) == 1:
            owners.setdefault((place.host, place.cores[0]), []).append(place.rank)
    for (host, core), ranks in owners.items():
        if len(ranks) > 1:
            text = (
                f"wrong affinity: ranks {', '.join(map(str, ranks))} are all bound to core {core} of {host}, so they wait "
                "for each other; bind each rank to a core of its own"
            )
            found.append(Finding(kind="wrong-affinity", text=text, ranks=tuple(ranks), hosts=(host,)))
    for host in dict.fromkeys(place.host for place in places):
        here = [place for place in places if place.host == host]
        cores = {core for place in here for core in place.cores}
        if cores and len(here) > len(cores):
            text = (
                f"wrong affinity: {len(here)} ranks share {plural(len(cores), 'core')} of {host}, so ranks that wait delay ranks "
                f"that measure; use fewer ranks on {host}"
            )
            found.append(
                Finding(kind="wrong-affinity", text=text, ranks=tuple(place.rank for place in here), hosts=(host,))
            )
    for place in places:
        near = _device_numa(place)
        if near is None or not place.numa or near[1] in place.numa:
            continue
        text = (
            f"wrong affinity: rank {place.rank} on {place.host} runs on NUMA node {', '.join(map(str, place.numa))}, but its "
            f"{near[0]} is at NUMA node {near[1]}; bind the rank there"
        )
        found.append(Finding(kind="wrong-affinity", text=text, ranks=(place.rank,), hosts=(place.host,)))
    return found


def _device_numa(place: Place) -> tuple[str, int] | None:
    """The device whose NUMA node a rank should be on: its GPU, or otherwise the only network interface with a node."""
    if place.gpu is not None:
        at = place.gpus.get(place.gpu)
        return None if at is None else (f"GPU {place.gpu}", at)
    known = [(name, at) for name, nic in place.nics.items() if (at := nic.get("numa")) is not None]
    return (f"network interface {known[0][0]}", known[0][1]) if len(known) == 1 else None
