# SPDX-License-Identifier: Apache-2.0
"""Tests the card of a probe: its tier book entry, its name, and the limits that a plan reads from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import tiers
from penstock.bench.machine_card import MachineCard
from penstock.errors import ConfigError, Corrupt, NotFound
from penstock.plan.scenario import limits_of
from penstock.plan.spec import Store
from penstock.probe.card import Burst, Card, FoundLimit, read, tier_name, to_toml
from penstock.probe.estimates import LatencyFit

_MACHINE = MachineCard(cpu="a CPU", cores=2, memory_bytes=2**34, kernel="Linux 6", python="3.11")


def _card(**fields) -> Card:
    made = {
        "name": "probe-b",
        "kind": "objects",
        "url": "s3://b/",
        "created": "2026-11-24T18:00:00Z",
        "machine": _MACHINE,
        "version": "0",
        "limits": (
            FoundLimit(what="read-bytes", scope="account", value=5e7, uncertainty=0.01, is_limit=True),
            FoundLimit(what="read-requests", scope="prefix", value=200.0, uncertainty=0.02, is_limit=True),
            FoundLimit(what="write-bytes", scope="account", value=1e6, uncertainty=0.5, is_limit=False, note="busy"),
        ),
        "bursts": (Burst(what="read-requests", units=100.0, error=10.0),),
        "latency": {
            "read": LatencyFit(count=900, p50_ms=30.0, p99_ms=100.0, p50_error=0.02, p99_error=0.05, shape="lognormal")
        },
        **fields,
    }
    return Card(**made)


def test_card_entry_has_limits_with_their_uncertainty_and_lists_lower_bounds(tmp_path: Path) -> None:
    file = tmp_path / "tier.toml"
    file.write_text(to_toml(_card().tier()))
    tier = tiers.find(f"{file}#probe-b@2026")
    assert tier.rate("read-bytes", "account") == 5e7
    assert tier.rate("write-bytes", "account") is None
    assert tier.observation("write-bytes-reached").value == 1e6
    assert tier.burst.value == pytest.approx(0.5)
    assert {limit.uncertainty for limit in tier.limits} == {0.01, 0.02}
    assert tier.limits[0].confidence == "measured"
    assert "a CPU, 2 cores" in tier.limits[0].source


def test_plan_reads_the_limits_of_a_card(tmp_path: Path) -> None:
    file = tmp_path / "tier.toml"
    file.write_text(to_toml(_card().tier()))
    found = limits_of(Store(name="probed", tier=f"{file}#probe-b"))
    assert found.account_bytes_per_s == 5e7
    assert found.requests_per_s == 200
    assert found.latency_s == pytest.approx(0.03)


def test_tier_of_an_unknown_card_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        tiers.find(f"{tmp_path / 'missing.toml'}#x")
    file = tmp_path / "tier.toml"
    file.write_text(to_toml(_card().tier()))
    with pytest.raises(ConfigError, match="probe-b"):
        tiers.find(f"{file}#other")


@settings(max_examples=50, deadline=None)
@given(note=st.text(max_size=40), url=st.text(max_size=40))
def prop_entry_survives_any_text(note: str, url: str) -> None:
    limit = FoundLimit(what="read-bytes", scope="account", value=5e7, uncertainty=0.01, is_limit=True, note=note)
    tier = _card(url=url, limits=(limit,)).tier()
    text = to_toml(tier)
    folder = Path(_FOLDER[0])
    (folder / "tier.toml").write_text(text, encoding="utf-8")
    assert tiers.find(f"{folder / 'tier.toml'}#probe-b").limits[0].note == note


_FOLDER: list[str] = []


def test_entry_survives_any_text(tmp_path: Path) -> None:
    _FOLDER[:] = [str(tmp_path)]
    prop_entry_survives_any_text()


@settings(max_examples=100, deadline=None)
@given(url=st.text(max_size=60))
def prop_name_is_usable(url: str) -> None:
    name = tier_name(url)
    assert name.replace("-", "").isalnum()
    assert "#" not in name


def test_names_are_usable_and_have_no_password() -> None:
    prop_name_is_usable()
    assert tier_name("s3://bucket/a/train") == "probe-bucket-train"
    assert "hunter2" not in tier_name("https://user:hunter2@host/data")
    assert tier_name("https://host/data?token=hunter2") == "probe-host-data"


def test_card_of_a_newer_build_or_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read(tmp_path)
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(Corrupt, match="not a card"):
        read(tmp_path)
    import msgspec

    newer = msgspec.to_builtins(_card()) | {"schema_version": 99, "limits": {"of another": "type"}}
    (tmp_path / "card.json").write_bytes(msgspec.json.encode(newer))
    with pytest.raises(Corrupt, match="schema version 99"):
        read(tmp_path)
