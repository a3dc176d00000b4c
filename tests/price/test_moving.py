# SPDX-License-Identifier: Apache-2.0
"""Tests the cost of moving a dataset against figures computed by hand."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.price.transfer_cost import TIERS, epochs_cost, tier_of_url, transfer_cost


def test_moving_cost_is_requests_and_egress_by_node():
    priced = transfer_cost("s3://b/", [1_000_000, 500_000], [2**40, 2**39])
    assert priced is not None
    cost, used = priced
    assert (cost.tier, cost.is_inferred) == ("s3-standard", True)
    assert cost.requests_usd == pytest.approx([0.4, 0.2])
    assert cost.total_requests_usd == pytest.approx(0.6)
    assert cost.total_egress_usd == pytest.approx(1536 * 0.09)
    assert cost.as_of == tuple(price.as_of for price in used)


def test_moving_cost_of_a_tier_that_is_told_holds_and_an_unknown_one_is_refused():
    priced = transfer_cost("s3://b/", [10_000], [1], tier="azure-premium")
    assert priced is not None
    assert priced[0].total_requests_usd == pytest.approx(0.0019)
    assert (priced[0].egress_usd, priced[0].is_inferred) == ([pytest.approx(0.087 / 2**30)], False)
    with pytest.raises(ConfigError, match="--price-tier"):
        transfer_cost("s3://b/", [1], [1], tier="tape")


def test_moving_cost_of_files_and_web_servers_is_nobodys_bill():
    assert [tier_of_url(url) for url in ("/data", "file:///data", "http://h/x/", "gs://b/")] == [
        None,
        None,
        None,
        "gcs-standard",
    ]
    assert transfer_cost("/data", [1], [1]) is None
    assert all(transfer_cost("x", [1], [1], tier=name) for name in TIERS)


def test_epochs_cost_moves_all_each_epoch_or_each_object_once_a_node():
    priced = epochs_cost("s3://b/", objects=1000, size_bytes=2**40, requests=2000, epochs=10)
    assert priced is not None
    cost, used = priced
    assert used
    assert cost.streamed.total_egress_usd == pytest.approx(10 * 1024 * 0.09)
    assert cost.cached.total_egress_usd == pytest.approx(1024 * 0.09)
    assert cost.streamed.total_requests_usd == pytest.approx(20_000 * 0.4e-6)
    assert cost.cached.total_requests_usd == pytest.approx(1000 * 0.4e-6)


def test_epochs_cost_of_several_nodes_fills_each_cache_as_epochs_go():
    def cached_bytes(nodes, epochs):
        priced = epochs_cost("s3://b/", objects=100, size_bytes=2**30, requests=100, epochs=epochs, nodes=nodes)
        assert priced is not None
        return priced[0].cached.total_egress_usd / 0.09

    assert cached_bytes(4, 1) == pytest.approx(1)  # the nodes share an epoch: each object is read once in total
    assert cached_bytes(4, 2) == pytest.approx(4 * (1 - 0.75**2))
    assert cached_bytes(4, 100) == pytest.approx(4, rel=1e-6)
    assert epochs_cost("/data", objects=1, size_bytes=1, requests=1, epochs=1) is None
    with pytest.raises(ConfigError):
        epochs_cost("s3://b/", objects=1, size_bytes=1, requests=1, epochs=0)
