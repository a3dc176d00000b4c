# SPDX-License-Identifier: Apache-2.0
"""Tests when a pool pays off: the arithmetic of study A, and the direction of each change. Issue 5, point 3."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.plan.breakeven import JobDemand, break_even

# STUDIES A, (D): 15 minutes per epoch is 0.25 GB/s per node, on 4 nodes and an account of 50 Gbit/s.
_STUDY = JobDemand(
    stored_bytes=int(0.25e9 * 4 * 900), nodes=4, epochs=48, epoch_s=900, source_bytes_per_s=6.25e9, nic_bytes_per_s=0.7e9
)  # fmt: skip
_RATES = st.floats(min_value=1e6, max_value=1e12)
_EATEN = st.builds(
    JobDemand, stored_bytes=st.integers(1, 10**15), nodes=st.integers(1, 4096), epochs=st.integers(1, 1000),
    epoch_s=st.floats(0.1, 1e6), source_bytes_per_s=_RATES, nic_bytes_per_s=_RATES, compression_ratio=st.floats(1, 10),
    copies=st.integers(1, 4), ready_s=st.floats(0, 100),
)  # fmt: skip


def test_the_studys_job_needs_no_pool_and_would_from_about_25_nodes_on():
    found = break_even(_STUDY)
    assert found.node_bytes_per_s == pytest.approx(0.25e9)
    assert found.from_nodes == 26
    assert (found.faster, found.from_epochs) == ("stream", None)
    assert found.stream_epoch_s == 900
    # The time of a stage: 900 GB at 2.8 GB/s through four cards of 5.6 Gbit/s. The account is not the limit.
    assert found.before_s == pytest.approx(321, rel=0.01)


@pytest.mark.parametrize(("nodes", "faster"), [(25, "stream"), (27, "pool"), (40, "pool")])
def test_as_the_nodes_grow_the_account_is_spent(nodes, faster):
    # The same demand per node on more nodes: an epoch takes 4/nodes of the time.
    found = break_even(msgspec.structs.replace(_STUDY, nodes=nodes, epoch_s=900 * 4 / nodes))
    assert (found.from_nodes, found.faster) == (26, faster)
    # At 27 nodes, an epoch from a pool saves 10.7 s and the stage takes 144 s, so 14 epochs repay it.
    assert found.from_epochs == {25: None, 27: 14, 40: 3}[nodes]


@given(_EATEN)
def test_from_these_epochs_on_the_pool_is_sooner_and_before_them_it_is_not(eaten):
    found = break_even(eaten)
    assert (found.faster == "pool") == (found.pool_s < found.stream_s)
    if found.from_epochs is None:
        assert found.pool_epoch_s >= found.stream_epoch_s * (1 - 1e-6)
        return
    late, early = found.from_epochs + 1, found.from_epochs - 1
    assert break_even(msgspec.structs.replace(eaten, epochs=late)).faster == "pool"
    assert early < 1 or break_even(msgspec.structs.replace(eaten, epochs=early)).faster == "stream"


@given(_EATEN)
def test_a_store_feeds_fewer_nodes_than_those_from_which_a_pool_pays(eaten):
    found = break_even(eaten)
    assert (found.from_nodes - 1) * found.node_bytes_per_s <= eaten.source_bytes_per_s * (1 + 1e-9)
    assert found.from_nodes * found.node_bytes_per_s >= eaten.source_bytes_per_s * (1 - 1e-9)


@pytest.mark.parametrize("bad", [{"nodes": 0}, {"epochs": 0}, {"epoch_s": 0.0}, {"source_bytes_per_s": math.nan}])
def test_what_no_job_eats_is_refused(bad):
    with pytest.raises(ConfigError):
        msgspec.structs.replace(_STUDY, **bad)
