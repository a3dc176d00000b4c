# SPDX-License-Identifier: Apache-2.0
"""Tests of `penstock plan --simulate`: the conditions of the plan file, the text, JSON and errors."""

from __future__ import annotations

import html
import json

import pytest
from click.testing import CliRunner

from penstock.cli.app import penstock
from penstock.errors import ConfigError

SPEC = """
name = "images"
nodes = "1,4"

[dataset]
samples = 200_000
raw = "24GB"

[workload]
epochs = 10
batch = 64
samples_per_s = 400
unit = "images"

[[machine]]
name = "8xV100"
accelerators = 8
cores = 40
nic = "25Gbit/s"

[[store]]
name = "bucket"
tier = "azure-hot@2026"
account = "1.5GB/s"

[[path]]
name = "stream"
kind = "stream"
store = "bucket"

[[path]]
name = "one reader"
kind = "mount"
store = "bucket"

[simulation]
slow_nodes = 0.3
slow_factor = 1.5
node_mtbf = "30min"
restart = "5s"
checkpoint_steps = 10

[[simulation.limit]]
name = "metadata"
per_s = 4000
per_sample = 1
peak_clients = 64
paths = ["stream"]
"""


@pytest.fixture
def plan(tmp_path):
    def run(*arguments, spec=SPEC):
        file = tmp_path / "spec.toml"
        file.write_text(spec)
        return CliRunner().invoke(penstock, ["plan", str(file), "--dry-run", *arguments], catch_exceptions=False)

    return run


def test_simulate_prints_range_reasons_and_use_of_limits(plan):
    done = plan("--simulate", "--replicas", "2", "--seed", "3")
    assert done.exit_code == 0, done.output
    text = done.stdout.partition("Simulated: stream, 4 x 8xV100 (32 accelerators)")[2]
    assert "2 replicas, seed 3" in text
    assert "metadata: it is fastest with 64 concurrent requests" in " ".join(text.split())
    assert "a node's time: " in text
    assert "metadata 100 %" in text
    # Only the largest number of nodes of each path is simulated.
    assert done.stdout.count("Simulated: ") == 2


def test_simulate_json_has_the_figures_and_is_reproducible(plan):
    first, again = (json.loads(plan("--simulate", "--replicas", "2", "--json").stdout)["simulations"] for _ in range(2))
    assert first == again
    stream, reader = first
    assert stream["path"] == "stream"
    simulation = stream["simulation"]
    assert simulation["p5_s"] <= simulation["p50_s"] <= simulation["p95_s"]
    assert simulation["causes"][0]["name"] == "metadata-retrograde"
    # The tail of the tier's latency is taken from the tier book.
    assert any(cause["name"] == "latency" for cause in simulation["causes"])
    assert "metadata" not in reader["simulation"]["utilisation"]


def test_plan_page_has_the_target_and_the_simulated_epochs(plan, tmp_path):
    page = tmp_path / "plan.html"
    done = plan("--simulate", "--replicas", "2", "--target", "1 images/s", "--minimise", "time", "-o", str(page))
    assert done.exit_code == 0, done.output
    (sentence,) = (line for line in done.stdout.splitlines() if line.startswith("Target 1 images/s"))
    text = html.unescape(page.read_text())
    assert f"<p>{sentence}</p>" in text
    section = text.partition("Simulated epochs")[2].partition("</table>")[0]
    assert "metadata 100 %" in section
    assert section.count('<th scope="row">') == 2


def test_plan_without_simulate_has_no_simulation(plan):
    assert "simulations" not in json.loads(plan("--json").stdout)
    assert "Simulated" not in plan().stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("slow_factor = 1.5", "slow_factor = 0.5"), "slow_factor"),
        (("slow_nodes", "slow_node"), "simulation.slow_node: unknown key"),
        (('"stream"]', '"strem"]'), "path `strem` is not defined"),
        (("peak_clients = 64", "peak_clients = 0"), "peak_clients must be above 0"),
    ],
)
def test_simulation_section_with_mistakes_is_refused(plan, change, message):
    with pytest.raises(ConfigError, match=message):
        plan("--simulate", spec=SPEC.replace(*change))
