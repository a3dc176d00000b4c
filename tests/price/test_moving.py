# SPDX-License-Identifier: Apache-2.0
"""What moving a dataset costs, worked by hand."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.price.moving import TIERS, moving_cost, tier_of_url


def test_moving_cost_is_requests_and_egress_by_node():
    priced = moving_cost("s3://b/", [1_000_000, 500_000], [2**40, 2**39])
    assert priced is not None
    cost, used = priced
    assert (cost.tier, cost.is_inferred) == ("s3-standard", True)
    assert cost.requests_usd == pytest.approx([0.4, 0.2])
    assert cost.total_requests_usd == pytest.approx(0.6)
    assert cost.total_egress_usd == pytest.approx(1536 * 0.09)
    assert cost.as_of == tuple(price.as_of for price in used)


def test_moving_cost_of_a_tier_that_is_told_holds_and_an_unknown_one_is_refused():
    priced = moving_cost("s3://b/", [10_000], [1], tier="azure-premium")
    assert priced is not None
    assert priced[0].total_requests_usd == pytest.approx(0.0019)
    assert (priced[0].egress_usd, priced[0].is_inferred) == (None, False)
    with pytest.raises(ConfigError, match="--price-tier"):
        moving_cost("s3://b/", [1], [1], tier="tape")


def test_moving_cost_of_files_and_web_servers_is_nobodys_bill():
    assert [tier_of_url(url) for url in ("/data", "file:///data", "http://h/x/", "gs://b/")] == [
        None,
        None,
        None,
        "gcs-standard",
    ]
    assert moving_cost("/data", [1], [1]) is None
    assert all(moving_cost("x", [1], [1], tier=name) for name in TIERS)
