# SPDX-License-Identifier: Apache-2.0
"""Tests the cost formulae against figures computed by hand, and their properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.price.book import load
from penstock.price.cost import billed_requests, egress_usd, job_cost, requests_usd, storage_usd

AMOUNT = st.floats(min_value=0, max_value=1e9)


def test_requests_of_an_epoch_cost_cents():
    book = load()
    assert requests_usd(262_144, book.find("azure-hot-read").usd_per_unit) == pytest.approx(0.115, abs=0.001)
    assert requests_usd(262_144, book.find("s3-standard-read").usd_per_unit) == pytest.approx(0.105, abs=0.001)
    assert requests_usd(262_144, book.find("azure-premium-read").usd_per_unit) == pytest.approx(0.05, abs=0.001)


def test_billed_requests_hierarchical_account_counts_four_mib_units():
    assert billed_requests(16_777_216 + 150, bytes_per_unit=4 << 20) == 5  # the record's frame needs a fifth unit
    assert billed_requests(2_828_486, bytes_per_unit=4 << 20) == 1
    assert billed_requests(16_777_216, requests=9) == 9


def test_storage_one_gib_for_a_month_is_its_price():
    assert storage_usd(2**30, 0.0208, 730) == pytest.approx(0.0208)
    assert egress_usd(2**31, 0.09) == pytest.approx(0.18)


def test_cost_negative_amount_is_refused():
    with pytest.raises(ConfigError, match="run_h"):
        job_cost(nodes=4, usd_per_node_hour=1, run_h=-1)
    with pytest.raises(ConfigError, match="count"):
        requests_usd(float("nan"), 1)


@given(AMOUNT, AMOUNT, AMOUNT, AMOUNT)
def prop_job_cost_is_the_sum_of_its_parts(run_h, stage_h, requests, rate):
    cost = job_cost(nodes=3, usd_per_node_hour=rate, run_h=run_h, stage_h=stage_h, requests=requests)
    assert cost.total_usd == pytest.approx(3 * rate * (run_h + stage_h) + requests)
    assert job_cost(nodes=3, usd_per_node_hour=rate, run_h=run_h).total_usd <= cost.total_usd * (1 + 1e-12)


test_job_cost_parts_add_up = prop_job_cost_is_the_sum_of_its_parts
