# SPDX-License-Identifier: Apache-2.0
"""Tests that plan files are read with units, and that mistakes and contradictions are refused with advice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError, NotFound
from penstock.plan.prediction_log import LoggedPrediction
from penstock.plan.scenario import scenarios
from penstock.plan.spec import Dataset, Machine, PathSpec, Place, PlanSpec, Spot, Store, Workload, parse_counts
from penstock.plan.spec_file import load, parse
from penstock.price.book import load as load_book


def test_plan_file_quantities_become_numbers(spec):
    assert spec.dataset.stored_bytes == 1.1e12
    assert spec.machines[0].nic_bytes_per_s == 0.625e9
    assert spec.counts() == (4,)


def test_plan_file_missing_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        load(tmp_path / "spec.toml")


@pytest.mark.parametrize(
    ("place", "key", "message", "hint"),
    [
        (("dataset",), "sampels", "dataset.sampels: unknown key", "did you mean `samples`?"),
        (("machine", 0), "nick", r"machine\[0\].nick: unknown key", "did you mean `nic`?"),
        ((), "storage", "storage: unknown key", "did you mean `store`"),
    ],
)
def test_plan_file_unknown_key_is_refused_with_the_nearest(document, place, key, message, hint):
    section = document
    for part in place:
        section = section[part]
    section[key] = 1
    with pytest.raises(ConfigError, match=message) as caught:
        parse(document)
    assert hint in caught.value.hint


def change(document, path, value):
    *parents, last = path
    for part in parents:
        document = document[part]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("machine", 0, "nic"), "5 Gb", "machine.0..nic: .*`Gb`"),
        (("dataset", "samples"), "many", "dataset.samples"),
        (("dataset", "samples"), 0, "must be above 0"),
        (("nodes",), "8..4", "must go from the smaller to the larger number"),
        (("nodes",), "1..9999999", "above the maximum"),
        (("schema_version",), 2, "this build reads 1"),
        (("dataset", "codec"), "plain", "1.10 TB and dataset.raw 5.10 TB"),
        (("dataset", "objects"), 400_000, "cannot be in several objects"),
        (("workload", "samples_per_s"), 9.2, "samples_per_s and reference both"),
        (("workload",), {"epochs": 1, "batch": 4}, "step time of `ND40rs_v2` is missing"),
        (("machine", 0, "payload_share"), 1.2, "at most 1"),
        (("store", 0), {"name": "hot"}, "nothing limits it"),
        (("store", 0, "connection"), "60GB/s", "cannot be faster than the account"),
        (("path", 4, "store"), "hut", "store `hut` is not defined"),
        (("path", 4, "form"), "planes", "size of the dataset as planes is unknown"),
        (("path", 4, "keep"), "gzip", "keeps nothing on disk"),
        (("path", 4, "copies"), 2, "only for a pool"),
        (("path", 4, "staged_in"), "13min", "does not stage"),
        (("path", 2, "reader"), "100Gbit/s", "cannot be faster than the account"),
        (("path", 4, "name"), "node cache", "occurs twice"),
        (("path",), [], "at least one"),
        (("machine", 0, "disk"), None, "does not declare all disk values"),
        (("machine", 0, "disk_write"), None, "does not declare all disk values"),
        (("place", "replicate"), True, "nothing is copied"),
    ],
)
def test_plan_file_impossible_values_and_contradictions_are_refused(document, path, value, message):
    change(document, path, value)
    if value is None:
        del document["machine"][0][path[-1]]
    if path == ("store", 0, "connection"):
        document["store"][0]["account"] = "50Gbit/s"
    if path == ("path", 2, "reader"):
        document["store"][0]["account"] = "50Gbit/s"
    with pytest.raises(ConfigError, match=message):
        parse(document)


def test_place_with_another_region_and_zone_contradicts_itself(document):
    document["place"] |= {"data_region": "West Europe", "cross_zone": True}
    with pytest.raises(ConfigError, match="contradict each other"):
        parse(document)


def test_prices_in_another_currency_are_refused(document):
    document["machine"][0]["price"] = "24.50 EUR"
    with pytest.raises(ConfigError, match="is in EUR, but the plan is in USD"):
        scenarios(parse(document), load_book())


def test_price_item_unknown_is_refused_with_the_nearest(document):
    document["machine"][0]["price"] = "azure-vm-nd40rsv2"
    with pytest.raises(ConfigError, match="does not contain") as caught:
        scenarios(parse(document), load_book())
    assert "azure-vm-nd40rs_v2" in caught.value.hint


def test_tier_unknown_is_refused(document):
    document["store"][0]["tier"] = "azure-warm"
    with pytest.raises(ConfigError, match="azure-warm"):
        scenarios(parse(document), load_book())


@given(st.lists(st.integers(1, 500), min_size=1, max_size=5))
def prop_counts_of_a_list_and_of_its_text_are_equal(numbers):
    assert parse_counts(",".join(map(str, numbers))) == parse_counts(tuple(numbers)) == tuple(dict.fromkeys(numbers))


test_counts_of_a_list_and_of_its_text_are_equal = prop_counts_of_a_list_and_of_its_text_are_equal


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "dataset", "path", "x"]), inner)
        ),
        max_leaves=8,
    )
)
def prop_any_document_is_a_plan_or_a_clear_error(value):
    document = value if isinstance(value, dict) else {"dataset": value}
    with pytest.raises(ConfigError):  # none of these has all required sections
        parse(document)


test_any_document_is_a_plan_or_a_clear_error = prop_any_document_is_a_plan_or_a_clear_error


def test_plan_can_be_encoded_without_infinite_numbers(spec):
    assert b"Infinity" not in msgspec.json.encode(spec)


def test_reference_page_has_every_key_of_a_plan_file():
    page = (Path(__file__).resolve().parents[2] / "docs/reference/plan-file.md").read_text()
    sections = (PlanSpec, Dataset, Workload, Machine, Store, PathSpec, Place, Spot)
    keys = {field.encode_name for section in sections for field in msgspec.structs.fields(section)}
    keys |= {field.encode_name for field in msgspec.structs.fields(LoggedPrediction)}
    assert sorted(key for key in keys if f"`{key}`" not in page and f"[{key}]" not in page) == []
