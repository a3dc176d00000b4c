# SPDX-License-Identifier: Apache-2.0
"""Tests the simulation: it agrees with the step model without randomness, conserves samples and time, and names causes."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.plan.model import Route, TrainingJob, predict_step
from penstock.plan.simulation import simulate
from penstock.plan.simulation_input import Conditions, SharedLimit

replace = msgspec.structs.replace
# 64 nodes x 8 accelerators would take seconds; the tests use 6 x 4, and 160 steps.
JOB = TrainingJob(
    samples=24 * 4 * 160,
    epochs=1,
    nodes=6,
    ranks_per_node=4,
    batch_per_rank=4,
    compute_step_s=0.1,
    sample_bytes=10_000_000,
    stored_bytes=2_000_000,
    cores_per_node=16,
    nic_bytes_per_s=1e9,
    account_bytes_per_s=5e9,
)
STREAM = Route("stream", 2e6, latency_s=0.03, connection_bytes_per_s=60e6, inflate_core_s=0.005)
ROUTES = {
    "compute": (JOB, STREAM),
    "account": (replace(JOB, account_bytes_per_s=1e9), STREAM),
    "nic": (replace(JOB, nic_bytes_per_s=2e8), STREAM),
    "requests": (JOB, replace(STREAM, requests_per_s=500.0)),
    "reader": (JOB, replace(STREAM, in_flight_per_rank=1, connection_bytes_per_s=10e6)),
    "inflate": (replace(JOB, cores_per_node=1), replace(STREAM, inflate_core_s=0.02)),
    "disk": (JOB, Route("disk", 1e7, from_store=False, disk_bytes_per_s=8e8)),
    "plain reader": (JOB, replace(STREAM, overlaps=False, in_flight_per_rank=1)),
    "link": (JOB, replace(STREAM, link_bytes_per_s=6e8)),
    "observed": (JOB, replace(STREAM, observed_step_s=0.25)),
    "node cache": (replace(JOB, account_bytes_per_s=1e9), replace(STREAM, local_share=0.5, disk_bytes_per_s=1e9)),
}


@pytest.mark.parametrize("name", ROUTES)
def test_simulation_without_randomness_agrees_with_the_step_model(name):
    job, route = ROUTES[name]
    found = simulate(job, route, replicas=1)
    model = predict_step(job, route)
    assert found.model_s == pytest.approx(job.steps_per_epoch * model.step_s)
    assert found.p50_s == pytest.approx(found.model_s, rel=0.015)
    assert "agree" in found.verdict
    if name in ("account", "requests", "link"):
        assert found.utilisation[name] > 0.97
        assert found.binding == {name: pytest.approx(1.0)}


def test_simulation_repeats_with_a_seed_and_differs_with_another():
    conditions = Conditions(step_cv=0.1, latency_p99_ratio=3.0)
    first, again = (
        simulate(JOB, STREAM, conditions=conditions, replicas=2, seed=3, has_causes=False) for _ in range(2)
    )
    assert first == again
    assert simulate(JOB, STREAM, conditions=conditions, replicas=2, seed=4, has_causes=False).p50_s != first.p50_s


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=st.integers(1, 5),
    ranks=st.integers(1, 4),
    step_cv=st.floats(0, 0.5),
    p99=st.floats(1, 5),
    slow=st.floats(0, 1),
    synchronous=st.booleans(),
    overlaps=st.booleans(),
    servers=st.integers(1, 3),
    back_off=st.none() | st.floats(0.3, 1),
    depth=st.integers(1, 4),
    mtbf_s=st.sampled_from([None, 36.0]),
    seed=st.integers(0, 1000),
)
def test_simulation_conserves_samples_and_time(
    nodes, ranks, step_cv, p99, slow, synchronous, overlaps, servers, back_off, depth, mtbf_s, seed
):
    job = replace(JOB, nodes=nodes, ranks_per_node=ranks, samples=nodes * ranks * 4 * 12, account_bytes_per_s=1e9)
    route = replace(STREAM, overlaps=overlaps, requests_per_s=300.0)
    extra = SharedLimit(name="servers", per_s=1e9, per_sample=2e6, servers=servers)
    conditions = Conditions(
        synchronous=synchronous, read_ahead_steps=depth, step_cv=step_cv, latency_p99_ratio=p99, slow_nodes=slow,
        slow_factor=1.5, node_mtbf_s=mtbf_s, restart_s=1.0, checkpoint_steps=2,
    )  # fmt: skip
    found = simulate(
        job, route, conditions=conditions, limits=(extra,), back_off=back_off, replicas=1, seed=seed, has_causes=False
    )
    # Every second of every node has exactly one name.
    assert sum(found.waits_s.values()) == pytest.approx(found.mean_s)
    assert all(seconds >= -1e-9 for seconds in found.waits_s.values())
    # No limit serves more than it has, so no epoch is shorter than its bytes and requests take.
    assert all(0 <= share <= 1 + 1e-9 for share in found.utilisation.values())
    assert found.mean_s >= job.samples * 2e6 / 1e9 * (1 - 1e-9)
    assert found.mean_s >= job.samples / 300.0 * (1 - 1e-9)


def test_simulation_reads_each_sample_once():
    from random import Random

    from penstock.plan.simulation_epoch import Epoch

    conditions = Conditions(step_cv=0.2, latency_p99_ratio=4.0)
    limit = SharedLimit(name="nodes", per_s=1e9, per_sample=2e6, servers=3)
    epoch = Epoch(JOB, STREAM, predict_step(JOB, STREAM).terms_s, [limit], conditions, 50, Random(1))
    found = epoch.run()
    assert found.samples_read == pytest.approx(50 * JOB.global_batch)
    assert sum(state.used for state in epoch.states) == pytest.approx(50 * JOB.global_batch * 2e6)


def test_simulation_stragglers_make_the_others_wait_and_are_named():
    conditions = Conditions(slow_nodes=0.2, slow_factor=1.5)
    found = simulate(JOB, STREAM, conditions=conditions, replicas=3, seed=1)
    assert found.p95_s == pytest.approx(1.5 * found.model_s, rel=0.02)
    assert found.waits_s["slowest_node"] > 0.1 * found.mean_s
    assert found.waited_for
    assert found.causes[0].name == "stragglers"
    # Two of the three replicas have a slow node.
    assert "20 % of the nodes are 1.5 x slower (+33.3 %)" in found.verdict


def test_simulation_step_variation_grows_with_the_number_of_ranks():
    conditions = Conditions(step_cv=0.1)
    few = simulate(replace(JOB, nodes=1, samples=4 * 4 * 160), STREAM, conditions=conditions, replicas=2)
    many = simulate(
        replace(JOB, nodes=24, samples=96 * 4 * 160, account_bytes_per_s=1e11),
        STREAM,
        conditions=conditions,
        replicas=2,
    )
    # Expected maximum of 4 and of 96 normal draws: 1.03 and 2.49 standard deviations.
    assert few.differs == pytest.approx(0.103, abs=0.02)
    assert many.differs == pytest.approx(0.249, abs=0.04)


def test_simulation_failures_repeat_work_since_the_checkpoint():
    conditions = Conditions(node_mtbf_s=72.0, restart_s=2.0, checkpoint_steps=20)
    found = simulate(JOB, STREAM, conditions=conditions, replicas=5, seed=2)
    assert found.failures > 0
    # A failure costs the restart, and on average half a checkpoint interval (20 steps of 0.1 s).
    assert found.waits_s["restart"] == pytest.approx(found.failures * (2.0 + 1.0), rel=0.5)
    assert found.p95_s > found.model_s
    assert any(cause.name == "failures" for cause in found.causes)


def test_simulation_of_a_part_of_an_epoch_extrapolates_its_failures(monkeypatch):
    monkeypatch.setattr("penstock.plan.simulation.MAX_TRANSFERS", 1)
    job = replace(JOB, nodes=2, samples=8 * 4 * 4000)
    conditions = Conditions(node_mtbf_s=10.0, restart_s=0.1, checkpoint_steps=20)
    found = simulate(job, STREAM, conditions=conditions, replicas=16, seed=1, has_causes=False)
    assert found.simulated_steps == 200
    # Each failure happens at one of 2 nodes, in all of the epoch.
    assert found.failures == pytest.approx(found.mean_s * 2 / 10.0, rel=0.3)
    assert sum(found.waits_s.values()) == pytest.approx(found.mean_s)


def test_simulation_without_checkpoints_simulates_the_whole_epoch(monkeypatch):
    monkeypatch.setattr("penstock.plan.simulation.MAX_TRANSFERS", 1)
    job = replace(JOB, nodes=2, samples=8 * 4 * 400)
    conditions = Conditions(node_mtbf_s=200.0, restart_s=1.0)
    found = simulate(job, STREAM, conditions=conditions, replicas=1, has_causes=False)
    assert found.simulated_steps == found.steps == 400


def test_simulation_that_practically_never_reaches_a_checkpoint_is_refused():
    conditions = Conditions(node_mtbf_s=10.0)
    with pytest.raises(ConfigError, match=r"6 nodes fail 9\.6 times between two checkpoints") as caught:
        simulate(JOB, STREAM, conditions=conditions, replicas=1)
    assert "checkpoint_steps" in caught.value.hint
    simulate(JOB, STREAM, conditions=replace(conditions, checkpoint_steps=5, restart_s=0.1), replicas=1)


def test_simulation_without_a_removed_limit_agrees_with_the_step_model_without_it():
    job = replace(JOB, account_bytes_per_s=5e8)
    removed = SharedLimit(name="account", per_s=math.inf, per_sample=2e6)
    found = simulate(job, STREAM, limits=(removed,), replicas=1)
    assert found.model_s == pytest.approx(simulate(JOB, STREAM, replicas=1).model_s)
    assert "agree" in found.verdict


def test_simulation_independent_tasks_repeat_only_their_own():
    conditions = Conditions(synchronous=False, node_mtbf_s=72.0, restart_s=0.5)
    found = simulate(JOB, STREAM, conditions=conditions, replicas=2, seed=2, has_causes=False)
    assert found.failures > 0
    assert found.waits_s["restart"] < found.failures * (0.5 + 0.1) / JOB.nodes + 1e-9


def test_simulation_metadata_server_slows_down_beyond_its_peak():
    def epoch(nodes, peak):
        job = replace(JOB, nodes=nodes, samples=nodes * 16 * 100, compute_step_s=0.001)
        limit = SharedLimit(name="metadata", per_s=2000.0, per_sample=1.0, peak_clients=peak)
        return simulate(job, STREAM, limits=(limit,), replicas=1)

    steady, retrograde = epoch(6, None), epoch(6, 96.0)
    assert steady.samples_per_s == pytest.approx(2000, rel=0.02)
    # 6 nodes x 4 ranks x 16 requests are four times the peak: 2 x 4 / (1 + 16) of the rate.
    assert retrograde.samples_per_s == pytest.approx(2000 * 8 / 17, rel=0.02)
    assert retrograde.causes[0].name == "metadata-retrograde"
    assert epoch(12, 96.0).samples_per_s < retrograde.samples_per_s


def test_simulation_burst_credits_end():
    job = replace(JOB, compute_step_s=0.001)
    total = job.samples * 2e6
    limit = SharedLimit(name="account", per_s=5e8, per_sample=2e6, burst_per_s=2e9, burst_units=6e9)
    found = simulate(job, STREAM, limits=(limit,), replicas=1)
    # The credits last until 6 GB more than the base rate have passed: 4 s at 2 GB/s. Then the base rate applies.
    expected = 4.0 + (total - 8e9) / 5e8
    assert found.p50_s == pytest.approx(expected, rel=0.02)
    assert found.causes[0].name == "account-burst"
    assert found.causes[0].added < 0


def test_simulation_slow_ramp_costs_its_start():
    job = replace(JOB, compute_step_s=0.001)
    limit = SharedLimit(name="account", per_s=2e9, per_sample=2e6, ramp_from_per_s=2e8, ramp_s=10.0)
    found = simulate(job, STREAM, limits=(limit,), replicas=1)
    # Bytes of an exponential ramp: (end - start) x time / ln(end / start).
    ramped = (2e9 - 2e8) * 10.0 / math.log(10)
    assert found.p50_s == pytest.approx(10.0 + (job.samples * 2e6 - ramped) / 2e9, rel=0.03)


def test_simulation_refusals_cost_a_part_of_the_limit():
    job = replace(JOB, compute_step_s=0.001)
    route = replace(STREAM, requests_per_s=1000.0)
    found = simulate(job, route, back_off=0.5, replicas=2)
    assert found.utilisation["requests"] == pytest.approx(0.75, abs=0.08)
    assert found.refused == pytest.approx(0.04 * job.samples, rel=0.1)
    assert found.causes[0].name == "requests-refusals"


def test_simulation_allreduce_hides_reads_that_the_step_model_adds():
    job = replace(JOB, account_bytes_per_s=1e9, exposed_allreduce_s=0.02)
    found = simulate(job, STREAM, replicas=1)
    assert found.p50_s < found.model_s
    assert "reads go on during the allreduce" in found.verdict


def test_simulation_long_epochs_are_extrapolated(monkeypatch):
    from penstock.plan import simulation

    monkeypatch.setattr(simulation, "MAX_TRANSFERS", simulation.MAX_TRANSFERS // 10)
    job = replace(JOB, nodes=2, samples=8 * 4 * 40_000)
    found = simulate(job, STREAM, replicas=1, has_causes=False)
    assert found.simulated_steps == simulation.MAX_TRANSFERS // 2 < found.steps
    assert found.p50_s == pytest.approx(found.model_s, rel=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: simulate(replace(JOB, samples=10), STREAM), "less than one step of 96"),
        (lambda: simulate(JOB, STREAM, replicas=0), "replicas must be at least 1"),
        (lambda: SharedLimit(name="x", per_s=0, per_sample=1), "must be positive"),
        (lambda: SharedLimit(name="x", per_s=10, per_sample=1, burst_per_s=5, burst_units=1), "below the base rate"),
        (lambda: SharedLimit(name="x", per_s=10, per_sample=1, ramp_from_per_s=20, ramp_s=1), "ramp_from_per_s must"),
        (lambda: SharedLimit(name="x", per_s=10, per_sample=1, back_off=1.5), "back_off must be"),
        (lambda: SharedLimit(name="x", per_s=10, per_sample=1, peak_clients=0), "peak_clients must be"),
        (lambda: Conditions(slow_factor=0.5), "slow_factor"),
        (lambda: Conditions(read_ahead_steps=0), "read_ahead_steps"),
        (lambda: Conditions(slow_nodes=1.5), "slow_nodes from 0 to 1"),
    ],
)
def test_simulation_refuses_impossible_input(change, message):
    with pytest.raises(ConfigError, match=message):
        change()
