# SPDX-License-Identifier: Apache-2.0
"""Tests what a probe concludes from its measurements, without a store: which limit explains a rate, what a failure
leaves in the card, and that no credential reaches it.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.bench.phases import Hooks
from penstock.bench.rows import End, Row
from penstock.cli.probe import readable
from penstock.errors import Unreachable
from penstock.probe import card as cards
from penstock.probe import codec_rates
from penstock.probe.card import FoundLimit
from penstock.probe.estimates import Rate
from penstock.probe.files import DiskProbe
from penstock.probe.objects import ObjectProbe
from penstock.probe.run import Settings
from penstock.probe.spending import Meter, Spent, prices_of

if TYPE_CHECKING:
    from collections.abc import Callable


def _probe(url: str = "s3://b/", keys: tuple[str, ...] = ("a",), **more: Any) -> ObjectProbe:
    prices = prices_of(url, is_custom_endpoint=True, same_region=False, tier="none")
    meter = Meter(prices, budget_usd=1.0, max_bytes=10**9, time_s=60.0)
    probe = ObjectProbe(url, Settings(time_s=60.0, **more), meter)
    probe.keys = probe.large = list(keys)
    return probe


@pytest.mark.parametrize(
    ("requests_per_s", "scope", "prefixes", "is_limit"),
    [
        # The request limit allows 2.1 GB/s of reads of 363,518 bytes, so it does not explain 14 MB/s.
        (5886.0, "account", 1, True),
        (40.0, "account", 1, False),
        # 20 requests/s per prefix allow 29 MB/s over four prefixes, and 7 MB/s in one.
        (20.0, "prefix", 4, True),
        (20.0, "prefix", 1, False),
    ],
)
def test_byte_limit_is_dropped_only_if_the_request_limit_explains_it(
    requests_per_s: float, scope: str, prefixes: int, is_limit: bool
) -> None:
    probe = _probe(keys=tuple(f"part{at % prefixes}/{at}" for at in range(8)))
    probe.held_bytes = 363_518
    probe.limits = [
        FoundLimit(what="read-bytes", scope="account", value=14e6, uncertainty=0.01, is_limit=True),
        FoundLimit(what="read-requests", scope=scope, value=requests_per_s, uncertainty=0.01, is_limit=True),
    ]
    probe._reconcile()
    moved = probe.limits[0]
    assert moved.is_limit is is_limit
    assert ("the request limit allows no more" in moved.note) is not is_limit


def test_request_limit_stays_if_the_check_of_one_prefix_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = _probe(keys=("a/1", "b/1"))
    probe.small_bytes = 4096

    def spent(*_: Any, **__: Any) -> None:
        raise Spent("the budget of 1 USD is reached")

    monkeypatch.setattr(probe, "pause", lambda _seconds: 0.0)
    monkeypatch.setattr(probe, "_phase", spent)
    assert not probe._prefix_limit(32, Rate(per_s=100.0, error=0.01))
    assert probe.unseen == ["whether the request limit is one per prefix: the budget of 1 USD is reached"]


def test_rate_at_one_concurrency_is_no_limit_unless_the_store_refused() -> None:
    probe, row = _probe(), Row(operation="WRITE", last=End(time_s=3.0), threads=64)
    probe._add_rate("write-bytes", "account", Rate(per_s=1e6, error=0.01), row, is_reached=None)
    probe._add_rate("write-requests", "account", Rate(per_s=200, error=0.01, throttled=0.5), row, is_reached=None)
    assert [one.is_limit for one in probe.limits] == [False, True]
    assert probe.limits[0].note == "not refused; measured only with 64 in flight"


def test_full_memory_folder_leaves_the_card_without_codec_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    folder_of = Path(__file__).parent
    probe = _probe(str(folder_of))
    probe._part("cpu", lambda: codec_rates.measure(probe))
    assert "No space left on device" in probe.missing["cpu"]
    assert probe.card().is_partial


def test_object_with_a_long_name_is_copied(tmp_path: Path) -> None:
    (tmp_path / ("n" * 240 + ".tfrecord.gz")).write_bytes(b"x")
    copies = tmp_path / "copies"
    copies.mkdir()
    probe = _probe(str(tmp_path))
    assert codec_rates._copy(probe, copies) == (1, 1)
    (copy,) = copies.iterdir()
    assert copy.name.endswith(".tfrecord.gz")


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter2@host/data",
        "https://hunter2@host/data",
        "https://host/data?sv=1&sig=hunter2",
        "https://host/data?X-Amz-Credential=hunter2&X-Amz-Security-Token=hunter2&X-Amz-Signature=hunter2",
    ],
)
def test_card_of_a_url_with_credentials_contains_none(url: str, tmp_path: Path) -> None:
    from penstock.bench.results import provenance

    probe = _probe(url)
    probe.unseen.append("something")

    def unreachable() -> None:
        raise Unreachable(f"{url}: no answer", hint=f"check {url}")

    probe.missing["latency"] = "planted"
    probe._part("bandwidth", unreachable)
    card = probe.card()
    cards.write(tmp_path, card, [], spec={}, provenance=provenance())
    texts = [file.read_text() for file in tmp_path.iterdir()] + [readable(card), card.name]
    assert len(texts) == 4
    assert not any("hunter2" in text for text in texts)
    assert "host" in card.name


def test_interrupted_disk_probe_counts_the_reads_of_the_phase(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"x" * (16 << 20))
    prices = prices_of(str(tmp_path), is_custom_endpoint=True, same_region=False, tier="none")
    meter = Meter(prices, budget_usd=1.0, max_bytes=10**9, time_s=30.0)

    def on_progress(_phase: str, _workers: int, seen: tuple[int, int, int]) -> None:
        if seen[0] >= 5:
            raise KeyboardInterrupt

    probe = DiskProbe(str(tmp_path), Settings(time_s=30.0, cpu=False), meter, hooks=Hooks(on_progress=on_progress))
    with pytest.raises(KeyboardInterrupt):
        probe.run()
    spent = probe.card().spent
    assert spent["read_requests"] >= 5
    assert spent["bytes_read"] == 4096 * spent["read_requests"]


def test_probe_command_refuses_zero_bytes(run_cli: Callable[..., Any]) -> None:
    ran = run_cli("probe", "s3://b/k", "--dry-run", "--max-bytes", "0")
    assert ran.code == 2, ran.err
    assert "max-bytes: must be at least 1" in ran.err
