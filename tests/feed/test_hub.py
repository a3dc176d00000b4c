# SPDX-License-Identifier: Apache-2.0
"""Tests datasets of the Hugging Face Hub, with recorded answers over loopback: listing, reads, tokens, throttling."""

from __future__ import annotations

import json
import logging
import time

import pytest

import penstock
from penstock.errors import ConfigError, Denied, NotFound, PenstockError, Throttled
from tests.feed.hub import Hub
from tests.feed.parquet import parquet_bytes

TOKEN = "hf_" + "s3cretT0ken"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with Hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        served.files = {f"data/train-{number:05d}-of-00005.parquet": parquet_bytes(x=[10 * number, 10 * number + 1])
                        for number in (3, 0, 4, 1, 2)}  # fmt: skip
        served.files["README.md"] = b"---\nlicense: mit\n---\n"
        served.files["extra/small.parquet"] = parquet_bytes(x=[7])
        served.commit()
        yield served


def numbers(dataset):
    return [int(x) for batch in penstock.Loader(dataset, batch_size=4) for x in batch["x"]]


ALL = [10 * number + at for number in range(5) for at in (0, 1)]


def test_hub_pattern_is_read_over_pages_and_redirects(hub):
    assert numbers(penstock.open("hf://datasets/lab/set/data/*.parquet")) == ALL
    pages = [path for _, path, _ in hub.requests if "/tree/" in path and "cursor" in path]
    assert pages
    assert numbers(penstock.open("hf://datasets/lab/set/extra")) == [7]
    assert numbers(penstock.open("hf://datasets/lab/set@main/data/train-00001-of-00005.parquet")) == [10, 11]
    assert sorted(numbers(penstock.open("hf://datasets/lab/set@refs/convert/parquet/").shuffle(1))) == sorted([*ALL, 7])
    files = [f"hf://datasets/lab/set/data/train-0000{number}-of-00005.parquet" for number in (0, 4)]
    assert numbers(penstock.open(files)) == [0, 1, 40, 41]


def test_hub_listing_is_pinned_to_its_commit(hub, tmp_path, run_cli):
    old = hub.main
    dataset = penstock.open("hf://datasets/lab/set/data/")
    assert dataset.url == f"hf://datasets/lab/set@{old}/data/"
    first = json.loads(dataset.source.manifest())["objects"][0]
    assert len(first["version"]) == 64
    assert first["digests"] == [f"sha256:{first['version']}"]
    manifest = tmp_path / "m.json"
    assert (
        run_cli("index", "hf://datasets/lab/set/data/", "-o", str(manifest), env={"HF_ENDPOINT": hub.endpoint}).code
        == 0
    )
    hub.files = {name: parquet_bytes(x=[-1]) for name in hub.files if name.startswith("data/")}
    assert hub.commit() != old
    assert numbers(dataset) == ALL
    assert numbers(penstock.open("hf://datasets/lab/set/data/", manifest)) == ALL
    assert numbers(penstock.open("hf://datasets/lab/set/data/")) == [-1] * 5


@pytest.mark.parametrize("from_file", [False, True])
def test_hub_token_reaches_the_hub_only(hub, monkeypatch, tmp_path, caplog, from_file):
    caplog.set_level(logging.DEBUG)
    hub.private = TOKEN
    with pytest.raises(Denied, match="does not exist, or is private: set HF_TOKEN"):
        penstock.open("hf://datasets/lab/set/data/")
    if from_file:
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf/token").write_text(TOKEN + "\n")
    else:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    dataset = penstock.open("hf://datasets/lab/set/data/")
    assert numbers(dataset) == ALL
    assert hub.cdn_requests
    assert not [1 for _, headers in hub.cdn_requests if "Authorization" in headers or TOKEN in str(headers)]
    hub.private = "hf_another"
    with pytest.raises(Denied, match="the token does not give access") as caught:
        penstock.open("hf://datasets/lab/set/data/")
    kept = [str(caught.value), str(dataset.source.manifest()), caplog.text, repr(dataset), str(caught.value.__notes__)]
    assert not [text for text in kept if TOKEN in text]


def test_hub_that_throttles_slows_down_and_ends_only_at_the_budget(hub, monkeypatch):
    hub.throttled, began = 3, time.monotonic()
    assert numbers(penstock.open("hf://datasets/lab/set/data/")) == ALL
    assert hub.throttled == 0
    assert time.monotonic() - began > 0.2
    monkeypatch.setenv("PENSTOCK_GIVE_UP_AFTER_S", "0.5")
    hub.throttled, hub.throttle = 10_000, {"Retry-After": "0.1"}
    with pytest.raises(Throttled) as caught:
        penstock.open("hf://datasets/lab/set/data/")
    assert "set HF_TOKEN" in str(caught.value.__notes__)


def test_hub_redirect_that_expired_is_resolved_again(hub):
    dataset = penstock.open("hf://datasets/lab/set/data/train-00000-of-00005.parquet")
    loader = penstock.Loader(dataset, batch_size=2)
    assert [batch["x"].tolist() for batch in loader] == [[0, 1]]
    hub.expired = {path for path, _ in hub.cdn_requests}
    resolved = sum("/resolve/" in path for _, path, _ in hub.requests)
    assert [batch["x"].tolist() for batch in loader] == [[0, 1]]
    assert sum("/resolve/" in path for _, path, _ in hub.requests) > resolved


def test_hub_errors_name_what_is_missing(hub):
    with pytest.raises(NotFound, match="revision nope of hf://datasets/lab/set"):
        penstock.open("hf://datasets/lab/set@nope/data/")
    with pytest.raises(NotFound, match=f"revision {'0' * 40} of hf://datasets/lab/set"):
        penstock.open(f"hf://datasets/lab/set@{'0' * 40}/data/")
    with pytest.raises(NotFound, match="no/such") as caught:
        penstock.open("hf://datasets/lab/set/no/such/")
    assert "on the dataset's page" in str(caught.value.__notes__)
    with pytest.raises(Denied, match="does not exist, or is private") as caught:
        penstock.open("hf://datasets/lab/other/")
    assert "AWS" not in str(caught.value.__notes__)
    assert "hf auth whoami" in str(caught.value.__notes__)
    with pytest.raises(ConfigError, match=r"hf:// must be followed by datasets/ORG/NAME"):
        penstock.open("hf://lab/set")
    hub.gated = True
    with pytest.raises(Denied, match="gated: log in to the Hub"):
        penstock.open("hf://datasets/lab/set/data/")


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("inward", "redirects to an address of this machine or of a metadata service"),
        ("short", "pinned version: 104 bytes, found: 95 bytes"),
        ("cycle", "pages that repeat"),
        ("json", "a malformed page"),
    ],
)
def test_hub_that_misbehaves_is_one_error(hub, monkeypatch, fault, problem):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("PENSTOCK_GIVE_UP_AFTER_S", "0.3")
    hub.fault = fault
    with pytest.raises(PenstockError, match=problem) as caught:
        numbers(penstock.open("hf://datasets/lab/set/data/"))
    assert TOKEN not in str(caught.value)
    assert "Signature" not in str(caught.value)


def test_hub_redirect_without_a_size_is_refused(hub):
    hub.fault = "size"
    with pytest.raises(PenstockError, match="the redirect has no size"):
        penstock.open("hf://datasets/lab/set/data/train-00001-of-00005.parquet")


def test_hub_endpoint_over_plain_http_to_another_machine_is_refused(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://10.0.0.1")
    with pytest.raises(ConfigError, match=r"HF_ENDPOINT: .*plain http"):
        penstock.open("hf://datasets/lab/set/data/")


@pytest.mark.parametrize("tail", ["", "/"])
def test_hub_folder_is_staged_with_and_without_a_slash(hub, tmp_path, run_cli, tail):
    done = run_cli("stage", f"hf://datasets/lab/set/data{tail}", str(tmp_path / "d"), env={"HF_ENDPOINT": hub.endpoint})
    assert done.code == 0, done.err
    assert numbers(penstock.open(tmp_path / "d")) == ALL
