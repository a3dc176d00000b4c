# SPDX-License-Identifier: Apache-2.0
"""Tests the limits of money, bytes and time of a probe."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.probe.spending import Meter, Prices, Spent, prices_of

_GIB = 2**30


def _meter(**limits) -> Meter:
    prices = limits.pop("prices", Prices(tier="t", read_usd=1e-6, write_usd=1e-5, egress_usd_per_gib=0.1))
    return Meter(prices, **{"budget_usd": 1.0, "max_bytes": 10 * _GIB, "time_s": 60.0, **limits})


def test_prices_of_a_cloud_come_from_the_book() -> None:
    found = prices_of("s3://b/k", is_custom_endpoint=False, same_region=False)
    assert found.tier == "s3-standard"
    assert found.read_usd == pytest.approx(0.0004 / 1000)
    assert found.egress_usd_per_gib == pytest.approx(0.09)
    inside = prices_of("s3://b/k", is_custom_endpoint=False, same_region=True)
    assert inside.egress_usd_per_gib == 0


def test_prices_of_another_endpoint_are_unknown_and_said_so() -> None:
    found = prices_of("s3://b/k", is_custom_endpoint=True, same_region=False)
    assert found.read_usd is None
    assert "not the cloud's own" in found.unknown[0]
    assert prices_of("s3://b/k", is_custom_endpoint=True, same_region=False, tier="azure-hot").tier == "azure-hot"
    assert not prices_of("http://h/", is_custom_endpoint=True, same_region=False).is_billed
    with pytest.raises(ConfigError, match="nimbus"):
        prices_of("s3://b/k", is_custom_endpoint=False, same_region=False, tier="nimbus")


def test_meter_allows_what_the_budget_pays() -> None:
    meter = _meter(budget_usd=0.001)
    assert meter.allow("read", 10**6, 0) == 1000
    assert meter.allow("write", 10**6, 0) == 100
    assert meter.allow("read", 10**6, 0, share=0.1) == 100
    # 1 MiB of egress costs about 98 times as much as the request.
    assert meter.allow("read", 10**6, 1 << 20) == 10


def test_meter_refuses_after_the_budget_is_spent() -> None:
    meter = _meter(budget_usd=0.001)
    meter.count("read", 999, 0)
    assert meter.allow("read", 5, 0) == 1
    meter.count("read", 1, 0)
    with pytest.raises(Spent, match=r"budget of 0\.001 USD"):
        meter.allow("read", 5, 0)
    with pytest.raises(Spent):
        meter.check("read", 1, 0)


def test_meter_refuses_bytes_above_the_limit() -> None:
    meter = _meter(max_bytes=10_000, prices=Prices(tier=None, read_usd=None, write_usd=None, egress_usd_per_gib=None))
    assert meter.allow("read", 100, 1000) == 10
    meter.count("read", 10, 10_000)
    with pytest.raises(Spent, match="10,000 bytes"):
        meter.allow("read", 1, 1000)


def test_meter_ends_at_its_time() -> None:
    now = [0.0]
    meter = _meter(time_s=10.0, clock=lambda: now[0])
    assert meter.seconds(4) == 4
    now[0] = 8.0
    assert meter.seconds(4) == 2
    now[0] = 9.8
    with pytest.raises(Spent, match="time limit"):
        meter.seconds(4)
