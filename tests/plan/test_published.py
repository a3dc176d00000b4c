# SPDX-License-Identifier: Apache-2.0
"""Tests that the planner computes the published study's table from its rates.

The rates are in reference/measure.md, sections 6 and 7.
"""

import pytest

from penstock.plan.model import explain_stage, predict_stage, replay
from penstock.plan.reference_job import GZIP_BYTES, JOB, PUBLISHED, RAW_BYTES, STAGE_GZIP_MIN, STAGE_RAW_MIN
from penstock.price.book import load

NODE_USD = load().find("azure-vm-nd40rs_v2").value


def test_job_is_the_published_one():
    assert (JOB.global_batch, JOB.steps_per_epoch, JOB.ranks) == (128, 2_048, 32)
    assert JOB.nodes * NODE_USD == pytest.approx(105.752)


@pytest.mark.parametrize(
    ("path", "epoch_tolerance"),
    [("pool", 0.05), ("premium-mount", 0.09)],  # Premium: the article's rate and time disagree by 8 %
)
def test_replay_stated_rate_gives_published_epoch(path, epoch_tolerance):
    epoch_min, _, _ = replay(JOB, PUBLISHED[path].steps_per_s, NODE_USD)
    assert epoch_min == pytest.approx(PUBLISHED[path].epoch_min_value, rel=epoch_tolerance)


@pytest.mark.parametrize("path", ["pool", "premium-mount", "hot-mount"])
def test_replay_stated_rate_gives_published_hours_and_dollars(path):
    _, run_h, usd = replay(JOB, PUBLISHED[path].steps_per_s, NODE_USD)
    assert usd == pytest.approx(PUBLISHED[path].usd_value, rel=0.05)
    assert run_h == pytest.approx(PUBLISHED[path].run_h_value, rel=0.05 if path != "premium-mount" else 0.09)


def test_replay_hot_epoch_is_above_the_published_bound():
    epoch_min, run_h, _ = replay(JOB, PUBLISHED["hot-mount"].steps_per_s, NODE_USD)
    assert epoch_min > 120  # "more than 2 h"
    assert run_h > 110


def staging(wire_bytes, nic_bytes_per_s=JOB.nic_bytes_per_s):
    return predict_stage(
        nodes=JOB.nodes,
        wire_bytes=wire_bytes,
        written_bytes=RAW_BYTES,
        nic_bytes_per_s=nic_bytes_per_s,
        account_bytes_per_s=JOB.account_bytes_per_s,
    )


def test_stage_raw_is_bound_by_the_network_card():
    output = staging(RAW_BYTES)
    assert output.limited_by == "nic"
    # 34.0 min at the lower of the stated 5-6 Gb/s, -2.9 %. To be within the reference's 2 %, the payload rate would be
    # 4.9 Gb/s. Header overhead makes that likely, but no source states it, so it is not used.
    assert output.stage_s / 60 == pytest.approx(STAGE_RAW_MIN, rel=0.03)
    assert explain_stage(STAGE_RAW_MIN * 60, output, nodes=4, written_bytes=RAW_BYTES).startswith(
        "bound by the nodes' network cards"
    )


def test_stage_raw_published_time_lies_in_the_band_of_the_stated_card():
    headers = 1448 / 1538  # payload of an Ethernet frame at an MTU of 1500, with TCP time stamps
    slow = staging(RAW_BYTES, 5e9 / 8 * headers).stage_s / 60
    fast = staging(RAW_BYTES, 6e9 / 8 * headers).stage_s / 60
    assert fast < STAGE_RAW_MIN < slow


def test_stage_compressed_is_not_explained_by_the_network_card():
    output = staging(GZIP_BYTES)
    assert output.stage_s / 60 == pytest.approx(7.5, rel=0.03)
    words = explain_stage(STAGE_GZIP_MIN * 60, output, nodes=4, written_bytes=RAW_BYTES)
    assert words.startswith("not bound by the nodes' network cards")
    assert "1.63 GB/s per node" in words


def test_stage_many_nodes_spend_the_account():
    output = predict_stage(
        nodes=16,
        wire_bytes=RAW_BYTES,
        written_bytes=RAW_BYTES,
        nic_bytes_per_s=JOB.nic_bytes_per_s,
        account_bytes_per_s=JOB.account_bytes_per_s,
    )
    assert output.limited_by == "account"  # "9-10 nodes saturate it"
