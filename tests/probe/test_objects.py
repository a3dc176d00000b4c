# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock probe URL`: the card of an emulated tier has the tier's limits, even if the tier is itself a card.

The probes here are short and the tolerances wide, because other tests use the same cores. benches/probe.py has the
accuracy of full probes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import env, tiers
from penstock.emulator import Emulator
from penstock.errors import NotFound
from penstock.probe import card as cards
from penstock.probe.objects import ObjectProbe
from penstock.probe.run import Settings
from penstock.probe.spending import Meter, prices_of
from tests.peer_stores import azurite, fake_gcs

if TYPE_CHECKING:
    from collections.abc import Callable

_BOOK = """
schema_version = 1
[[tier]]
name = "known"
year = 2026
title = "Limits that the probe must find"
{limits}
[[tier.latency]]
what = "read"
p50_ms = 25.0
p99_ms = 60.0
source = "test"
as_of = "2026"
confidence = "ours"
[tier.burst]
value = 0.8
unit = "s"
source = "test"
as_of = "2026"
confidence = "ours"
"""
_LIMIT = """
[[tier.limit]]
what = "{what}"
scope = "{scope}"
value = {value}
unit = "{unit}"
source = "test"
as_of = "2026"
confidence = "ours"
"""


def _book(folder: Path, *limits: tuple[str, str, float]) -> Path:
    texts = (
        _LIMIT.format(what=what, scope=scope, value=value, unit=what.rpartition("-")[2] + "/s")
        for what, scope, value in limits
    )
    file = folder / "book.toml"
    file.write_text(_BOOK.format(limits="".join(texts)))
    return file


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Twelve objects of 2 MiB in two folders."""
    folder = tmp_path / "bucket"
    for at in range(12):
        place = folder / f"part{at % 2}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"o{at:02d}.bin").write_bytes(os.urandom(2 << 20))
    return folder


def _probe(folder: Path, tier: str, time_s: float = 14.0, **settings: Any) -> tuple[ObjectProbe, cards.Card]:
    with Emulator(folder, tier=tier) as server, env.override(server.env):
        meter = Meter(
            prices_of(server.url, is_custom_endpoint=True, same_region=False),
            budget_usd=settings.pop("budget_usd", 1.0),
            max_bytes=settings.pop("max_bytes", 10**10),
            time_s=time_s,
        )
        wanted = Settings(time_s=time_s, cpu=False, **settings)
        probe = ObjectProbe(server.url, wanted, meter, is_loopback=True)
        probe.run()
        return probe, probe.card()


def _rate(card: cards.Card, what: str, scope: str) -> float:
    (found,) = [one for one in card.limits if (one.what, one.scope) == (what, scope)]
    assert found.is_limit, found
    return found.value


def test_probe_of_an_account_limit_and_of_its_own_card(dataset: Path, tmp_path: Path) -> None:
    book = _book(tmp_path, ("read-bytes", "account", 25e6), ("requests", "account", 250))
    probe, card = _probe(dataset, f"{book}#known")
    assert not card.is_partial, card.missing
    assert _rate(card, "read-bytes", "account") == pytest.approx(25e6, rel=0.1)
    assert _rate(card, "read-requests", "account") == pytest.approx(250, rel=0.25)
    # Few samples in this short probe, and other tests on these cores; benches/probe.py has the accuracy.
    assert card.latency["read"].p50_ms == pytest.approx(25, rel=0.2)
    assert card.latency["read"].p99_ms == pytest.approx(60, rel=0.4)
    burst = max(one.units for one in card.bursts)
    assert burst == pytest.approx(200, rel=0.5)
    assert card.spent["usd"] == 0
    assert card.spent["unknown_prices"]
    file = cards.write(tmp_path / "out", card, probe.rows, spec={"bench": "probe"}, provenance=_provenance())
    written = tiers.find(f"{file}#{card.name}")
    assert written.rate("read-bytes", "account") == pytest.approx(_rate(card, "read-bytes", "account"), rel=1e-4)
    assert written.limits[0].confidence == "measured"
    assert written.limits[0].uncertainty is not None
    assert cards.read(tmp_path / "out") == card
    _, again = _probe(dataset, f"{file}#{card.name}")
    for what in ("read-bytes", "read-requests"):
        assert _rate(again, what, "account") == pytest.approx(_rate(card, what, "account"), rel=0.25)
    assert again.latency["read"].p50_ms == pytest.approx(card.latency["read"].p50_ms, rel=0.2)


def _provenance() -> Any:
    from penstock.bench.results import provenance

    return provenance()


def test_probe_of_limits_per_prefix_and_per_connection(dataset: Path, tmp_path: Path) -> None:
    book = _book(tmp_path, ("read-bytes", "connection", 12e6), ("read-requests", "prefix", 150))
    _, card = _probe(dataset, f"{book}#known")
    assert _rate(card, "read-bytes", "connection") == pytest.approx(12e6, rel=0.15)
    assert _rate(card, "read-requests", "prefix") == pytest.approx(150, rel=0.25)


def test_probe_of_small_objects_does_not_take_the_request_limit_for_one_of_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    for at in range(20):
        (folder / f"{at}.bin").write_bytes(os.urandom(50_000))
    book = _book(tmp_path, ("read-bytes", "account", 500e6), ("requests", "account", 150))
    _, card = _probe(folder, f"{book}#known")
    assert _rate(card, "read-requests", "account") == pytest.approx(150, rel=0.25)
    (moved,) = [one for one in card.limits if one.what == "read-bytes"]
    assert not moved.is_limit
    assert "request limit" in moved.note


def test_probe_measures_writes_and_removes_them(dataset: Path, tmp_path: Path) -> None:
    before = sorted(path for path in dataset.glob("p*/**/*") if path.is_file())
    book = _book(tmp_path, ("write-requests", "account", 200))
    _, card = _probe(dataset, f"{book}#known", time_s=8.0, writes=True)
    assert sorted(path for path in dataset.glob("p*/**/*") if path.is_file()) == before
    assert not list(dataset.glob("penstock-probe-*"))
    assert card.limit("write-requests") is not None
    assert card.limit("write-requests").value == pytest.approx(200, rel=0.25)
    assert card.spent["bytes_written"] > 0


def test_probe_out_of_bytes_names_the_missing_parts(dataset: Path, tmp_path: Path) -> None:
    _, card = _probe(dataset, "none", time_s=5.0, max_bytes=5_000_000)
    assert card.is_partial
    assert "5,000,000 bytes" in card.missing["bandwidth"]
    assert "latency" not in card.missing


def test_probe_command_dry_run_asks_nothing(run_cli: Callable[..., Any], emulator: Callable[..., Any]) -> None:
    server = emulator()
    ran = run_cli("probe", server.url, "--dry-run", "--json", "--budget", "0.25", env=server.env)
    assert ran.code == 0, ran.err
    bound = json.loads(ran.out)
    assert bound["budget_usd"] == 0.25
    assert "not the cloud's own" in bound["unknown_prices"][0]
    assert server.stats()["requests"] == 0
    ran = run_cli("probe", "s3://bucket/train", "--dry-run", "--same-region")
    assert "0.5 USD are 1,250,000 reads" in ran.err


def test_probe_command_of_an_empty_bucket_and_of_wrong_keys(
    run_cli: Callable[..., Any], emulator: Callable[..., Any]
) -> None:
    server = emulator()
    ran = run_cli("probe", server.url, "--time", "5s", env=server.env)
    assert ran.code == 3
    assert "error[not-found]" in ran.err
    ran = run_cli("probe", server.url, "--time", "5s", env={**server.env, "AWS_SECRET_ACCESS_KEY": "wrong"})
    assert ran.code == 3
    assert "error[denied]" in ran.err


def test_probe_command_refuses_odd_settings(run_cli: Callable[..., Any]) -> None:
    for arguments, named in (
        (("--time", "1h"), "time"),
        (("--budget", "0"), "budget"),
        (("--price-tier", "nimbus"), "nimbus"),
        (("--workload", "cosmoflow:z80"), "z80"),
        (("--workload", "nonsense:v100"), "nonsense"),
        (("--name", "a b"), "name"),
    ):
        ran = run_cli("probe", "s3://b/k", "--dry-run", *arguments)
        assert ran.code == 2, (arguments, ran.err)
        assert named in ran.err


def test_probe_interrupted_writes_a_partial_card(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Emulator(dataset, tier="none") as server:
        program = Path(sys.executable).with_name("penstock")
        process = subprocess.Popen(
            [str(program), "probe", server.url, "--time", "30s", "--no-cpu", "-o", str(out), "--json"],
            env={**os.environ, **server.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until = time.monotonic() + 30
        while server.stats()["gets"] < 2100 and time.monotonic() < until:  # in the second part
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    card = json.loads(printed)
    assert card["interrupted"]
    assert card["missing"]["requests"] == "interrupted"
    assert "read" in card["latency"]
    assert cards.read(out).missing == card["missing"]
    assert "(partial)" in tiers.find(f"{out / 'tier.toml'}#{card['name']}").title


def test_probe_of_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="no objects"):
        _probe(tmp_path / "empty", "none", time_s=5.0)


@pytest.mark.parametrize("kind", ["az", "gs"])
def test_probe_of_other_clouds_on_their_emulators(run_cli: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    bodies = {f"part{at % 2}/o{at}.bin": os.urandom(300_000) for at in range(4)}
    with ExitStack() as stack:
        if kind == "az":
            peer: Any = stack.enter_context(azurite(tmp_path))
            for name, body in bodies.items():
                peer.put(name, body)
        else:
            peer = stack.enter_context(fake_gcs(tmp_path, bodies))
        ran = run_cli("probe", f"{kind}://data/", "--time", "6s", "--json", env={**peer.env, "HOME": str(tmp_path)})
        assert ran.code in (0, 1), ran.err  # a busy machine may run out of the short time
        card = json.loads(ran.out)
        assert card["latency"]["read"]["count"] >= 20
        measured = {limit["what"] for limit in card["limits"]}
        assert "read-bytes" in measured or "bandwidth" in card["missing"]
        assert card["objects"]["prefixes"] == 2
        assert any("inflating and decoding" in text for text in card["unseen"]) or "cpu" in card["missing"]
