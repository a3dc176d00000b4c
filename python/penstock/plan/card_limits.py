# SPDX-License-Identifier: Apache-2.0
"""Finds limits that change with time or load (burst credits, a slow ramp, refusals) in the phases of a probe's card.

The card's own limits are constant rates. If a store was faster early in the probe, it had burst credits. If its rate
rose at an unchanged concurrency, it was still ramping up. If it refused requests before its byte rate stopped rising,
the probe could not reach a byte limit. Each of these three effects changes the first minutes of a job, so the
simulation includes it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import Corrupt
from penstock.plan.simulation_input import SharedLimit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["CardLimit", "CardPhase", "ProbeCard", "limits_of_card", "read_card"]

_FASTER = 1.25  # minimum ratio of a phase's rate to the sustained rate that shows burst credits
_RISING = 1.15  # minimum growth between two phases of equal concurrency that noise does not explain
_REFUSED = 0.01
_GAIN = 1.1  # as in the probe: a rate that grows by less than this factor has reached its limit
_EXPLAINED = 1.5  # a request limit explains a byte rate if it allows at most this multiple of the rate
_MAX_RAMP_S = 600.0


class CardPhase(msgspec.Struct, frozen=True):
    """One phase of a card, as `penstock.probe.card.PhaseLine`."""

    part: str
    concurrency: int
    seconds: float
    bytes_per_s: float | None
    throttled: float


class CardLimit(msgspec.Struct, frozen=True):
    """One limit of a card, as `penstock.probe.card.FoundLimit`."""

    what: str
    scope: str
    value: float
    is_limit: bool = True
    uncertainty: float = 0.0


class ProbeCard(msgspec.Struct, frozen=True):
    """The parts of `card.json` that the planner reads. Packages that read results do not import packages that
    measure.
    """

    name: str
    limits: tuple[CardLimit, ...] = ()
    phases: tuple[CardPhase, ...] = ()
    unseen: tuple[str, ...] = ()


def read_card(tier_file: Path, name: str) -> ProbeCard | None:
    """Read the card beside a tier book that `penstock probe` wrote; None if it is missing or has another name.

    Raises:
        Corrupt: `card.json` is not a card.
    """
    file = tier_file.with_name("card.json")
    try:
        card = msgspec.json.decode(file.read_bytes(), type=ProbeCard)
    except OSError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{file} is not a card of a probe: {error}", where=str(file)) from None
    return card if card.name == name else None


def limits_of_card(card: ProbeCard, wire_bytes: float) -> tuple[list[SharedLimit], list[str]]:
    """Return limits that replace limits of the card's tier, and a sentence on each new limit.

    Args:
        wire_bytes: Bytes of one sample on the wire.
    """
    phases = [one for one in card.phases if one.part == "bandwidth" and one.bytes_per_s]
    found = next((one for one in card.limits if (one.what, one.scope) == ("read-bytes", "account")), None)
    if len(phases) < 2 or found is None:
        return [], []
    requests = next((one for one in card.limits if one.what == "read-requests" and one.is_limit), None)
    if requests is not None and not found.is_limit:
        highest = found.value * (1 + found.uncertainty)
        if requests.value * wire_bytes <= _EXPLAINED * highest:
            note = f"the store's request limit explains its byte rate: only its {requests.value:,.0f} requests/s count"
            return [SharedLimit(name="account", per_s=math.inf, per_sample=wire_bytes)], [note]
    *sweep, hold = phases
    base = found.value
    if _is_rising_when_refused(sweep) and (hold.throttled <= _REFUSED):
        note = "the store refuses requests before its byte rate stops rising: only its request limit counts"
        return [SharedLimit(name="account", per_s=math.inf, per_sample=wire_bytes)], [note]
    held, peak = _burst(card.phases, sweep, hold, base)
    if held > 0:
        note = f"burst credits of {held / 1e6:,.0f} MB were spent during the probe: a rested store has them again"
        limit = SharedLimit(name="account", per_s=base, per_sample=wire_bytes, burst_per_s=peak, burst_units=held)
        return [limit], [note]
    ramp = _ramp(card.phases, sweep, hold, base)
    if ramp is not None:
        start, ramp_s = ramp
        note = (
            f"the rate still rose at the end of the probe: a rested store is taken to start at {start / 1e6:,.1f} MB/s "
            f"and to rise for {ramp_s:.0f} s; how far it rises then was not seen"
        )
        limit = SharedLimit(name="account", per_s=base, per_sample=wire_bytes, ramp_from_per_s=start, ramp_s=ramp_s)
        return [limit], [note]
    return [], []


def _rate(phase: CardPhase) -> float:
    return phase.bytes_per_s or 0.0


def _is_rising_when_refused(sweep: Sequence[CardPhase]) -> bool:
    """True if the store refused requests in the last phase, while the rate still rose with the concurrency in the
    phases before.
    """
    if len(sweep) < 3 or sweep[-1].throttled <= _REFUSED:
        return False
    before, last = sweep[-3], sweep[-2]
    return last.throttled <= _REFUSED and last.concurrency > before.concurrency and _rate(last) > _GAIN * _rate(before)


def _burst(
    phases: Sequence[CardPhase], sweep: Sequence[CardPhase], hold: CardPhase, base: float
) -> tuple[float, float]:
    """Credits in bytes, and the rate while there are credits; (0, 0) if no phase was faster without a refusal."""
    peak = max(_rate(one) for one in sweep)
    if peak < _FASTER * base or any(one.throttled > _REFUSED for one in sweep) or _rate(hold) >= peak / _FASTER:
        return 0.0, 0.0
    spent, most = 0.0, 0.0
    for one in phases:
        if one is hold:
            break
        # Credits that are earned while the balance is at its maximum are lost.
        spent = max(0.0, spent + (_rate(one) - base) * one.seconds)
        most = max(most, spent)
    return most, peak


def _ramp(
    phases: Sequence[CardPhase], sweep: Sequence[CardPhase], hold: CardPhase, base: float
) -> tuple[float, float] | None:
    """Rate at the first request, and the seconds from the first request until `base` is reached; None if the rate did
    not rise with time.
    """
    last = sweep[-1]
    if last.concurrency != hold.concurrency or max(last.throttled, hold.throttled) > _REFUSED:
        return None
    growth = _rate(hold) / _rate(last)
    if growth < _RISING:
        return None
    per_s = math.log(growth) / ((last.seconds + hold.seconds) / 2)
    elapsed_s = hold.seconds / 2
    for one in phases:
        if one is hold:
            break
        elapsed_s += one.seconds
    slowest = min(_rate(one) for one in sweep)
    start = max(_rate(hold) * math.exp(-per_s * elapsed_s), slowest / 4)
    if start >= base:
        return None
    return start, min(_MAX_RAMP_S, math.log(base / start) / per_s)
