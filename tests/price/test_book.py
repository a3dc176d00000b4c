# SPDX-License-Identifier: Apache-2.0
"""Tests that the price book is complete, and that an invalid one is rejected with the row's name."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.price.book import Price, bundled, dates_line, load, parse, to_toml
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


def test_book_unknown_item_names_the_nearest():
    with pytest.raises(ConfigError, match="does not contain `azure-hot-reed`") as caught:
        load().find("azure-hot-reed")
    assert "names are azure-hot-read, " in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="warp-drive") as caught:
        load().find("warp-drive")
    assert "penstock config prices show" in (caught.value.hint or "")


def test_book_unknown_region_lists_the_known_ones():
    with pytest.raises(ConfigError, match="does not contain `azure-hot-read` in Mars") as caught:
        load().find("azure-hot-read", "Mars")
    assert "West US" in (caught.value.hint or "")


def test_book_region_is_found_by_its_exact_name_before_a_part_of_another():
    book = load(
        "schema_version = 1\n"
        + ROW.replace('"R"', '"West US 2"')
        + ROW.replace('"R"', '"West US"').replace("1.0", "2.0")
    )
    assert book.find("x", "West US").value == 2.0
    assert book.find("x", "westus2").value == 1.0
    with pytest.raises(ConfigError, match="several regions") as refused:
        book.find("x", "west")
    assert "West US 2; West US" in refused.value.hint
    assert book.find("x", "us 2").value == 1.0
    assert book.find("x").value == 1.0


MACHINES = {
    "8 x V100": ("azure-vm-nd40rs_v2", "aws-vm-p3.16xlarge", "gcp-vm-n1-highmem-64-v100"),
    "8 x A100 40 GB": ("azure-vm-nd96asr_v4", "aws-vm-p4d.24xlarge", "gcp-vm-a2-highgpu-8g"),
    "8 x A100 80 GB": ("azure-vm-nd96amsr_a100_v4", "aws-vm-p4de.24xlarge", "gcp-vm-a2-ultragpu-8g"),
    "8 x H100": ("azure-vm-nd96isr_h100_v5", "aws-vm-p5.48xlarge", "gcp-vm-a3-highgpu-8g"),
    "8 x H200": ("azure-vm-nd96isr_h200_v5", "aws-vm-p5en.48xlarge", "gcp-vm-a3-ultragpu-8g"),
    "8 x B200": ("aws-vm-p6-b200.48xlarge", "gcp-vm-a4-highgpu-8g"),
}
NO_SPOT = {"azure-vm-nd96isr_h200_v5"}


@pytest.mark.parametrize("item", [item for items in MACHINES.values() for item in items])
def test_book_has_machines_of_three_clouds_with_spot_below_on_demand(item):
    book = bundled()
    price = book.find(item)
    assert 20 < price.value < 130
    assert price.unit == "hour"
    assert book.has(f"{item}-spot") == (item not in NO_SPOT)
    for spot in (row for row in book.price if row.item == f"{item}-spot"):
        assert spot.value < book.find(item, spot.region.split(",")[0]).value


def test_book_has_every_store_class_with_its_requests_and_egress_of_each_kind():
    book = bundled()
    for store in ("azure-hot", "azure-cool", "azure-premium", "s3-standard", "s3-standard-ia", "s3-express",
                  "gcs-standard", "gcs-coldline"):  # fmt: skip
        assert all(book.has(f"{store}-{what}") for what in ("storage", "read", "write")), store
    for cloud in ("aws", "azure", "gcp"):
        assert all(book.has(f"{cloud}-egress-{kind}") for kind in ("cross-zone", "cross-region")), cloud
    assert all(book.has(f"{store}-egress-internet") for store in ("s3", "gcs", "azure"))


def test_book_has_no_item_twice_for_a_region():
    seen = set()
    for row in bundled().price:
        for region in row.region.split(", "):
            assert (row.item, region) not in seen
            seen.add((row.item, region))


def test_book_is_in_one_currency():
    with pytest.raises(ConfigError, match="x is priced in EUR, but all other prices and the costs are in USD"):
        load("schema_version = 1\n" + ROW + ROW + 'currency = "EUR"\n')
    with pytest.raises(ConfigError, match="two currencies"):
        assert Price("x", 1.0, "hour", "R", "S", "2024-07", currency="EUR").usd_per_unit
    with pytest.raises(ConfigError, match="not a code"):
        load("schema_version = 1\n" + ROW + 'currency = "dollars"\n')


def test_book_written_and_read_again_is_the_same():
    prices = bundled().price
    assert parse(to_toml(prices, "two\nlines")).price == prices


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1).filter(str.strip)


@given(
    item=TEXT,
    region=TEXT,
    value=st.floats(min_value=0, max_value=1e5),
    per=st.integers(min_value=1, max_value=10**6),
    unit=st.sampled_from(["hour", "GiB-month", "GiB", "request", "IOPS-month", "MBps-month"]),
)
def prop_price_survives_toml(item, region, value, per, unit):
    price = Price(item, value, unit, region, 'a "source" \\ with quotes', "2026-11-24", per)
    assert parse(to_toml([price])).price == (price,)


test_price_survives_toml = prop_price_survives_toml


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
    old = "prices as of 2024-07, all older than 12 months (oldest: 13 months): check them before you spend"
    assert dates_line([row], dt.date(2025, 8, 1)) == old
    newer = Price("y", 1.0, "hour", "R", "S", "2025-07")
    assert "2024-07 to 2025-07, 1 of 2 older than 12 months" in dates_line([row, newer], dt.date(2025, 8, 1))


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
