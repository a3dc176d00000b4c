# SPDX-License-Identifier: Apache-2.0
"""Tests the tier book: every number has a source, a name without a year is resolved, and invalid books are rejected."""

from __future__ import annotations

import pytest

from penstock import tiers
from penstock.errors import ConfigError

PROMISED = {"none", "s3-standard", "gcs-standard", "azure-hot", "azure-premium", "azure-hot@2021", "azure-premium@2021"}

LIMIT = (
    '[[tier.limit]]\nwhat = "read-bytes"\nscope = "account"\nvalue = 1.0\nunit = "bytes/s"\n'
    'source = "s"\nas_of = "2026"\nconfidence = "ours"\n'
)
HEAD = 'schema_version = 1\n[[tier]]\nname = "t"\nyear = 2020\ntitle = "t"\n'


def test_load_bundled_book_has_the_promised_tiers():
    book = tiers.load()
    assert set(book) >= PROMISED
    assert book["azure-hot"].year > book["azure-hot@2021"].year
    assert book["none"].limits == ()


def test_load_bundled_book_says_where_every_number_is_from():
    for tier in tiers.load().values():
        numbers = [*tier.limits, *tier.latency, *tier.observed, *filter(None, (tier.queue, tier.burst))]
        assert numbers or tier.name == "none"
        for number in numbers:
            assert number.source
            assert number.as_of[:2] == "20"
            assert number.confidence == "published" or number.note, f"{tier.label}: {number}"


def test_azure_hot_2021_is_the_studys_account():
    hot = tiers.find("azure-hot@2021")
    assert hot.rate("read-bytes", "account") == 50e9 / 8
    assert hot.rate("read-bytes", "prefix") is None
    seen = hot.observation("fuse-reader-bytes")
    # 0.24 steps/s of 128 samples over 32 readers.
    assert seen is not None
    assert seen.value == pytest.approx(0.24 * 128 / 32 * 128**3 * 4 * 2, rel=1e-6)
    assert seen.confidence == "derived"
    assert hot.first_byte_s() > tiers.find("azure-premium@2021").first_byte_s() > 0 == tiers.find("none").first_byte_s()


def test_find_unknown_tier_lists_the_known_ones():
    with pytest.raises(ConfigError, match="`warm` is not one of azure-hot, azure-hot@2021"):
        tiers.find("warm")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not toml [",
        "schema_version = 2\ntier = []",
        HEAD + LIMIT.replace("1.0", "0.0"),
        HEAD + LIMIT.replace("1.0", "-1.0"),
        HEAD + LIMIT.replace("1.0", "inf"),
        HEAD + LIMIT.replace("1.0", "nan"),
        HEAD + LIMIT.replace("bytes/s", "requests/s"),
        HEAD + LIMIT.replace('source = "s"\n', ""),
        HEAD + LIMIT.replace('"ours"', '"hearsay"'),
        HEAD + LIMIT + 'colour = "red"\n',
        HEAD + HEAD.removeprefix("schema_version = 1\n"),
    ],
)
def test_load_book_that_breaks_the_rules_is_refused(tmp_path, text):
    book = tmp_path / "tiers.toml"
    book.write_text(text)
    with pytest.raises(ConfigError, match="tier book"):
        tiers.load(book)


def test_load_own_book_is_read(tmp_path):
    book = tmp_path / "tiers.toml"
    book.write_text(HEAD + LIMIT)
    assert tiers.load(book)["t"].rate("read-bytes", "account") == 1.0
    with pytest.raises(ConfigError, match="cannot be read"):
        tiers.load(tmp_path / "none.toml")
