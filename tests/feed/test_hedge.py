# SPDX-License-Identifier: Apache-2.0
"""Tests hedging: late requests are sent a second time, within a budget, and the batches stay the same."""

from __future__ import annotations

import pytest

import penstock
from penstock.emulator import Emulator

from .conftest import batches, dataset

SOURCE = 'source = "this test"\nas_of = "2026-11"\nconfidence = "ours"\n'
TAIL = (
    'schema_version = 1\n[[tier]]\nname = "tailed"\nyear = 2026\ntitle = "A tail"\n'
    f'[[tier.latency]]\nwhat = "read"\np50_ms = 1.0\np99_ms = 1.0\n{SOURCE}'
)
REFUSES = f'[[tier.limit]]\nwhat = "read-requests"\nscope = "account"\nvalue = 20.0\nunit = "requests/s"\n{SOURCE}'
OBJECTS = 400


@pytest.fixture
def tailed(made, tmp_path, monkeypatch):
    """`tailed()`: a loader of 400 objects from a server where 1 in 20 requests takes 1.5 s, the server, the batches."""
    running = []

    def start(limits: str = "", samples: int = OBJECTS) -> tuple[penstock.Loader, Emulator, list[list[int]]]:
        book = tmp_path / "tiers.toml"
        book.write_text(TAIL + "tail_share = 0.05\ntail_ms = 1500.0\n" + limits)
        folder = made([1] * OBJECTS, "none")
        server = Emulator(folder, tier="tailed", tiers=book)
        running.append(server)
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        here = dataset(folder, records_per_object=1).take(samples).shuffle(3)
        want = batches(penstock.Loader(here, batch_size=8, rank=0, world=1))
        there = dataset(server.url, records_per_object=1).take(samples).shuffle(3)
        loader = penstock.Loader(there, batch_size=8, max_in_flight=8, rank=0, world=1, prefetch_next_epoch=False)
        return loader, server, want

    yield start
    for server in running:
        server.stop()


def test_late_requests_are_asked_again_within_the_budget(tailed):
    loader, server, want = tailed()
    before = server.stats()["gets"]
    assert batches(loader) == want
    report = loader.report()
    asked = server.stats()["gets"] - before
    # 20 of 400 requests are expected to be late. The chance that none of the last 350 is late is 2 in 10^8.
    assert 0 < report["hedges_won"] <= report["hedges"] <= 0.05 * OBJECTS
    # The server does not count a request whose connection closes before it was read.
    assert OBJECTS < asked <= OBJECTS + report["hedges"]
    assert "hedged" in str(report)


def test_hedging_that_is_off_asks_once(tailed, monkeypatch):
    monkeypatch.setenv("PENSTOCK_HEDGE", "0")
    loader, server, want = tailed()
    before = server.stats()["gets"]
    assert batches(loader) == want
    assert (loader.report()["hedges"], server.stats()["gets"] - before) == (0, OBJECTS)


def test_a_store_that_throttles_is_asked_nothing_twice(tailed):
    loader, _, want = tailed(REFUSES, 120)
    assert batches(loader) == want
    report = loader.report()
    assert report["throttles"] > 0
    assert report["hedges"] == 0
