# SPDX-License-Identifier: Apache-2.0
"""Tests that the step model names the correct limit, and changes in the correct direction."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.plan.model import Route, predict, predict_stage, replay
from penstock.plan.reference_job import EMULATED_V100_SAMPLE_S, JOB

RAW, GZIP = JOB.sample_bytes, JOB.stored_bytes
RATE = st.floats(min_value=1e3, max_value=1e12)


def result(route, job=JOB, **money):
    return predict(job, route, usd_per_node_hour=26.438, **money)


def test_predict_streamed_gzip_from_hot_is_bound_by_the_accelerators():
    output = result(Route("hot", GZIP, latency_s=0.03, connection_bytes_per_s=60e6, requests_per_s=20_000))
    assert output.limited_by == "compute"
    assert output.wait_share == 0
    assert output.run_h == pytest.approx(11.87, rel=0.01)


def test_predict_plain_reader_adds_the_read_to_the_compute():
    output = result(
        Route("mount", RAW, overlaps=False, latency_s=0.03, connection_bytes_per_s=60e6, in_flight_per_rank=1)
    )
    assert output.limited_by == "reader"
    assert output.step_s == pytest.approx(JOB.compute_step_s + 4 * (0.03 + RAW / 60e6))
    assert output.wait_share > 0.5


def test_predict_hungrier_accelerators_spend_the_account_or_the_cards():
    hungry = msgspec.structs.replace(JOB, compute_step_s=JOB.batch_per_rank * EMULATED_V100_SAMPLE_S)
    assert result(Route("hot", GZIP), hungry).limited_by == "nic"
    wide = msgspec.structs.replace(hungry, nic_bytes_per_s=25e9 / 8)
    assert result(Route("hot", GZIP), wide).limited_by == "account"


@pytest.mark.parametrize("nodes", [8, 16])
def test_predict_at_the_measured_rate_the_account_lasts_to_about_25_nodes(nodes):
    # STUDIES A: "about 25 nodes at the measured rate".
    fits = msgspec.structs.replace(JOB, nodes=nodes)
    assert result(Route("hot", GZIP), fits).limited_by == "compute"
    beyond = msgspec.structs.replace(JOB, nodes=26)
    assert result(Route("hot", GZIP), beyond).limited_by == "account"


def test_predict_slow_inflate_is_named():
    one_core = msgspec.structs.replace(JOB, cores_per_node=1)
    assert result(Route("hot", GZIP, inflate_core_s=RAW / 0.3e9), one_core).limited_by == "inflate"


def test_predict_staged_pays_requests_once_and_the_staging():
    route = Route("disk", RAW, from_store=False, disk_bytes_per_s=3e9)
    output = result(route, stage_s=780, usd_per_request=1e-6)
    assert output.cost.requests_usd == pytest.approx(JOB.samples * 1e-6)
    assert output.cost.nodes_usd == pytest.approx(4 * 26.438 * (output.run_h + 780 / 3600))
    assert output.total_h == pytest.approx(output.run_h + 780 / 3600)


@given(RATE, RATE, st.booleans())
def prop_more_bandwidth_never_slows(rate, more, overlaps):
    slow, fast = sorted((rate, more))
    a = result(Route("a", GZIP, overlaps=overlaps), msgspec.structs.replace(JOB, account_bytes_per_s=slow))
    b = result(Route("b", GZIP, overlaps=overlaps), msgspec.structs.replace(JOB, account_bytes_per_s=fast))
    assert b.step_s <= a.step_s
    assert math.isclose(a.samples_per_s * a.step_s, JOB.global_batch)
    assert a.step_s >= JOB.compute_step_s


test_predict_more_bandwidth_never_slows = prop_more_bandwidth_never_slows


def test_model_nonsense_is_refused():
    with pytest.raises(ConfigError, match="must be above 0"):
        replay(JOB, 0, 1)
    with pytest.raises(ConfigError, match="number of nodes must be at least 1"):
        predict_stage(nodes=0, wire_bytes=1, written_bytes=1, nic_bytes_per_s=1, account_bytes_per_s=1)
    with pytest.raises(ValueError, match="positive"):
        msgspec.structs.replace(JOB, nodes=0)
