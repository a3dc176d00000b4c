# SPDX-License-Identifier: Apache-2.0
"""Tests the limits that change with time or load, from the phases of probes of known stores."""

from __future__ import annotations

import math

import msgspec
import pytest

from penstock.errors import Corrupt
from penstock.plan.card_limits import CardLimit, CardPhase, ProbeCard, limits_of_card, read_card

WIRE = 364_000.0


def _card(*phases, base):
    """(concurrency, seconds, bytes/s[, throttled]); the last phase is held, the first is the latency's."""
    lines = [
        CardPhase("latency" if not at else "bandwidth", one[0], one[1], one[2], one[3] if len(one) > 3 else 0.0)
        for at, one in enumerate(phases)
    ]
    return ProbeCard("seen", (CardLimit("read-bytes", "account", base),), tuple(lines))


def test_card_of_a_constant_store_adds_nothing():
    card = _card((4, 2.0, 1e6), (1, 0.5, 9e6), (4, 0.9, 12e6), (16, 0.9, 12e6), (16, 2.5, 12e6), base=12e6)
    assert limits_of_card(card, WIRE) == ([], [])


def test_card_with_burst_credits_gives_their_number():
    # Measured on a store with 60 MB of credits, 8 MB/s and 40 MB/s.
    card = _card(
        (4, 1.75, 4.68e6), (1, 0.501, 40.6e6), (1, 0.876, 40.8e6), (4, 0.877, 24.3e6), (1, 2.5, 7.9e6), base=8.0e6
    )  # fmt: skip
    (limit,), notes = limits_of_card(card, WIRE)
    assert (limit.burst_per_s, limit.burst_units) == (40.8e6, pytest.approx(60e6, rel=0.03))
    assert "burst credits of 59 MB" in notes[0]


def test_card_of_a_store_that_still_rises_gives_a_ramp():
    # Measured on a store that starts at 4 MB/s and doubles every 2.5 s up to 30 MB/s.
    card = _card(
        (4, 1.62, 5.0e6), (1, 0.5, 6.9e6), (1, 0.88, 8.3e6), (4, 0.88, 10.6e6), (16, 0.88, 13.2e6), (64, 0.88, 16.0e6),
        (256, 0.88, 17.8e6), (256, 2.5, 22.8e6), base=28.6e6,
    )  # fmt: skip
    (limit,), _ = limits_of_card(card, WIRE)
    assert 3e6 < limit.ramp_from_per_s < 8e6
    # Bytes of an exponential ramp. The store had risen for 7.3 s.
    risen = (28.6e6 - limit.ramp_from_per_s) * limit.ramp_s / math.log(28.6e6 / limit.ramp_from_per_s)
    true = (30e6 - 4e6) * 7.3 / math.log(30 / 4) + (limit.ramp_s - 7.3) * 30e6
    assert risen == pytest.approx(true, rel=0.15)


def test_card_of_a_store_that_refuses_before_its_bytes_are_used_up_drops_the_byte_limit():
    card = _card(
        (4, 3.0, 1e5), (1, 0.5, 2.9e6), (1, 0.9, 2.9e6), (4, 0.9, 7.2e6), (16, 0.9, 2.5e6, 0.61), (4, 2.5, 8.4e6), base=8.4e6
    )  # fmt: skip
    (limit,), notes = limits_of_card(card, WIRE)
    assert limit.per_s == math.inf
    assert "only its request limit counts" in notes[0]


@pytest.mark.parametrize(("requests_per_s", "is_dropped"), [(38.0, True), (5_900.0, False)])
def test_card_whose_request_limit_explains_its_byte_rate_drops_the_byte_rate(requests_per_s, is_dropped):
    limits = (
        CardLimit("read-bytes", "account", 13.4e6, is_limit=False, uncertainty=0.04),
        CardLimit("read-requests", "account", requests_per_s),
    )
    phases = _card((4, 3.0, 1.5e5), (1, 0.5, 8.7e6), (4, 0.9, 13.2e6), (4, 2.5, 13.3e6), base=13.4e6).phases
    found, _ = limits_of_card(ProbeCard("seen", limits, phases), WIRE)
    assert [limit.per_s for limit in found] == ([math.inf] if is_dropped else [])


def test_card_beside_another_tier_is_not_read(tmp_path):
    file = tmp_path / "tier.toml"
    assert read_card(file, "seen") is None
    (tmp_path / "card.json").write_bytes(msgspec.json.encode(_card((1, 1.0, 1e6), (1, 1.0, 1e6), base=1e6)))
    assert read_card(file, "other") is None
    assert read_card(file, "seen").limits[0].value == 1e6
    (tmp_path / "card.json").write_text('{"name": 3}')
    with pytest.raises(Corrupt, match="is not a card of a probe"):
        read_card(file, "seen")
