# SPDX-License-Identifier: Apache-2.0
"""Tests that the price book is complete, and that an invalid one is rejected with the row's name."""

import datetime as dt

import pytest

from penstock.errors import ConfigError
from penstock.price.book import Price, dates_line, load
from penstock.price.cost import HOURS_PER_MONTH, storage_usd

ROW = '[[price]]\nitem = "x"\nvalue = 1.0\nunit = "hour"\nregion = "R"\nsource = "S"\nas_of = "2024-07"\n'


def test_book_shipped_has_every_row_of_the_published_job():
    book = load()
    assert book.find("azure-vm-nd40rs_v2").value == 26.438
    assert book.find("azure-vm-nd40rs_v2", "East US").value == 22.032
    for item in (
        "azure-hot-read",
        "azure-premium-read",
        "azure-hot-storage",
        "azure-premium-storage",
        "s3-standard-read",
        "gcs-standard-read",
    ):
        assert book.find(item).usd_per_unit > 0


def test_book_unknown_item_names_what_it_knows():
    with pytest.raises(ConfigError, match="does not contain `warp-drive`") as caught:
        load().find("warp-drive")
    assert "azure-hot-read" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("schema_version = 1\n" + ROW.replace("2024-07", "July"), "not YYYY-MM"),
        ("schema_version = 1\n" + ROW.replace("value = 1.0", "value = -1.0"), "not a valid price"),
        ("schema_version = 1\n" + ROW.replace('source = "S"', 'source = " "'), "no source"),
        ("schema_version = 1\n" + ROW.replace('unit = "hour"', 'unit = "fortnight"'), "fortnight"),
        ("schema_version = 9\n" + ROW, "schema_version 9"),
        ("price = [", "cannot be read"),
    ],
)
def test_book_bad_row_is_refused(text, output):
    with pytest.raises(ConfigError, match=output):
        load(text)


def test_dates_line_warns_past_twelve_months_only():
    row = Price("x", 1.0, "hour", "R", "S", "2024-07")
    assert dates_line([row], dt.date(2025, 7, 31)) == "prices as of 2024-07"
    assert "older than 12 months (oldest 13)" in dates_line([row], dt.date(2025, 8, 1))


def test_book_has_the_file_services_of_the_migration_study():
    book = load()
    # STUDIES D: pools of 4 TiB for a month.
    assert storage_usd(4 << 40, book.find("azure-netapp-standard").usd_per_unit, HOURS_PER_MONTH) == pytest.approx(
        602, abs=0.5
    )
    assert storage_usd(4 << 40, book.find("azure-netapp-ultra").usd_per_unit, HOURS_PER_MONTH) == pytest.approx(
        1608, abs=0.5
    )
    rows = {
        name: book.find(name)
        for name in ("azure-netapp-standard", "azure-vm-rtm", "azure-files-premium", "s3-egress-internet")
    }
    assert [row.confidence for row in rows.values()] == ["derived", "derived", "unverified", "published"]


def test_book_unknown_confidence_is_refused():
    with pytest.raises(ConfigError, match="certain"):
        load("schema_version = 1\n" + ROW + 'confidence = "certain"\n')
