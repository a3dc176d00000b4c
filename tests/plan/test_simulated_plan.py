# SPDX-License-Identifier: Apache-2.0
"""Tests which scenarios of a plan are simulated, and under which conditions."""

from __future__ import annotations

import pytest

from penstock.plan.predict import predict
from penstock.plan.scenario import scenarios
from penstock.plan.simulated_plan import chosen, conditions_of
from penstock.plan.spec_file import parse
from penstock.price.book import load


def test_simulated_scenario_is_the_largest_possible_one(document):
    document["nodes"] = [1, 2, 4]
    document["dataset"] |= {"samples": 64, "held_out": 0, "raw": "1GB", "stored": "0.3GB"}
    document["path"] = [{"kind": "stream", "store": "hot", "form": "gzip"}]
    found = scenarios(parse(document), load())
    assert predict(found[-1]).impossible  # 4 x 8 ranks x 4 samples are more than an epoch
    assert [each.nodes for each in chosen(found)] == [2]


def test_simulated_spot_pool_stages_again_after_an_interruption(document):
    document["spot"] = {"interruptions_per_hour": 0.05, "checkpoint_every": "15min", "restart": "5min"}
    spec = parse(document)
    spots = {each.path: each for each in scenarios(spec, load()) if each.spot is not None}
    stream, pool = (conditions_of(spec, spots[path]) for path in ("stream gzip", "gzip pool"))
    assert stream.node_mtbf_s == pool.node_mtbf_s == pytest.approx(72_000)
    assert stream.restart_s == 300
    assert pool.restart_s == pytest.approx(300 + predict(spots["gzip pool"]).stage_s)
    # A step of batch 4 at 9.2 samples/s.
    assert stream.checkpoint_steps == round(900 / (4 / 9.2))
