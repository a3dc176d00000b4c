# SPDX-License-Identifier: Apache-2.0
"""Tests that the user's own prices take precedence over the bundled ones, wherever a cost is computed."""

import pytest

from penstock.errors import ConfigError, NotFound
from penstock.price.book import bundled, load, own_prices
from penstock.price.estimates import estimate_epochs
from penstock.price.override import VARIABLE, own_file

OWN = """schema_version = 1
[[price]]
item = "s3-standard-read"
value = 0.0008
unit = "request"
per = 1_000
region = "us-east-1"
source = "our contract"
as_of = "2026-11-01"
[[price]]
item = "our-cluster-node"
value = 3.5
unit = "hour"
region = "basement"
source = "our accountant"
as_of = "2026-11"
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    file = tmp_path / "prices.toml"
    file.write_text(OWN)
    monkeypatch.setenv(VARIABLE, str(file))
    return file


def test_override_comes_before_the_bundled_prices(own):
    book = load()
    assert book.find("s3-standard-read").usd_per_unit == pytest.approx(0.8e-6)
    assert book.find("our-cluster-node", "basement").value == 3.5
    assert book.find("s3-standard-write") == bundled().find("s3-standard-write")


def test_override_changes_the_cost_and_its_dates(own):
    money = estimate_epochs("s3://b/", objects=1000, size_bytes=10, requests=1_000_000, epochs=1)
    assert money["without_cache"]["requests_usd"] == pytest.approx(0.8)
    assert "2026-11-01" in money["dates"]


def test_override_is_the_user_s_file_unless_the_variable_names_another(tmp_path):
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert own_file(home) is None
    file = tmp_path / "penstock/prices.toml"
    file.parent.mkdir()
    file.write_text(OWN)
    assert own_file(home) == file
    assert own_prices(home)[0].source == "our contract"
    assert own_file({**home, VARIABLE: "/other.toml"}).name == "other.toml"
    assert own_prices({**home, VARIABLE: ""}) == ()


def test_override_that_is_missing_or_invalid_is_reported_with_its_path(own, monkeypatch):
    own.write_text(OWN.replace('"hour"', '"fortnight"'))
    with pytest.raises(ConfigError, match=r"prices\.toml cannot be read.*fortnight"):
        load()
    own.write_text(OWN + 'currency = "EUR"\n')
    with pytest.raises(ConfigError, match="our-cluster-node is priced in EUR"):
        load()
    own.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        load()
    monkeypatch.setenv(VARIABLE, str(own) + "x")
    with pytest.raises(NotFound, match="does not exist"):
        load()
