# SPDX-License-Identifier: Apache-2.0
"""Tests the refresh against a price service on loopback: what it asks, and what it does with each kind of answer."""

import datetime as dt
import json
import socket

import pytest

from penstock.errors import ConfigError, ServerError, Throttled, Unreachable
from penstock.price.azure_retail import ENDPOINT, refresh
from penstock.price.book import load, parse
from tests.price.retail_service import METERS, PAGE, machine, retail_service

TODAY = dt.date(2026, 11, 24)
NO_WAIT = {"Retry_After": "0"}


@pytest.fixture
def service():
    with retail_service() as server:
        yield server


def ask(service, **more):
    return refresh(TODAY, **{"regions": ["eastus"], "endpoint": service.url, "timeout_s": 10.0, **more})


def test_refresh_takes_the_linux_machine_on_demand_and_spot(service):
    prices = {price.item: price for price in ask(service).prices}
    assert prices["azure-vm-nd96isr_h100_v5"].value == 98.32
    assert prices["azure-vm-nd96isr_h100_v5-spot"].value == 18.169536
    assert prices["azure-vm-nd40rs_v2"].value == 22.032
    assert {price.as_of for price in prices.values()} == {"2026-11-24"}
    assert {price.region for price in prices.values()} == {"eastus"}
    assert all(price.source.startswith("Azure Retail Prices API: ") for price in prices.values())


def test_refresh_takes_the_first_paid_tier_of_blobs_and_egress(service):
    prices = {price.item: (price.value, price.unit, price.per) for price in ask(service).prices}
    assert prices["azure-hot-storage"] == (0.0208, "GiB-month", 1)
    assert prices["azure-hot-read"] == (0.0044, "request", 10_000)
    assert prices["azure-hot-write"] == (0.055, "request", 10_000)
    assert prices["azure-premium-storage"] == (0.195, "GiB-month", 1)
    assert prices["azure-egress-internet"] == (0.087, "GiB", 1)


def test_refresh_reads_all_pages(service):
    found = ask(service)
    assert len([q for q in service.queries if "$skip" in q]) >= 3
    assert found.requests == len(service.queries)
    assert max(int(q.get("$skip", 0)) for q in service.queries) >= PAGE


def test_refresh_names_what_is_missing_and_never_makes_it_zero(service):
    found = ask(service)
    assert all(price.value > 0 for price in found.prices)
    said = "\n".join(found.missing)
    assert "azure-vm-nd96asr_v4 in eastus: the service has a price of 0" in said
    assert "azure-vm-nd96isr_h200_v5 in eastus: the service has no price" in said
    assert "azure-vm-nc24ads_a100_v4 in eastus: the unit `1 Day` is unknown" in said
    assert "azure-vm-nc40ads_h100_v5 in eastus: the service has several prices: 6.98" in said
    assert "azure-cool-read in eastus: the service has no price" in said


def test_refresh_of_several_regions_asks_each(service):
    found = ask(service, regions=["southcentralus", "eastus"], machines=["Standard_ND40rs_v2"])
    assert [(p.region, p.value) for p in found.prices if p.item == "azure-vm-nd40rs_v2"] == [
        ("southcentralus", 26.438),
        ("eastus", 22.032),
    ]


def test_refresh_waits_when_throttled_and_goes_on(service):
    service.refusals += [(429, NO_WAIT), (503, NO_WAIT)]
    waits = []
    assert ask(service, on_wait=waits.append).prices
    assert waits == [0.0, 0.0]


def test_refresh_throttled_until_the_time_is_over_is_reported(service):
    service.refusals += [(429, {"Retry_After": "30"})]
    with pytest.raises(Throttled, match=r"returned status 429 until the time limit \(1 requests\)"):
        ask(service, timeout_s=2.0)


def test_refresh_of_a_refused_filter_is_not_repeated(service):
    service.refusals += [(400, {})]
    with pytest.raises(ServerError, match=r"returned status 400 Bad Request.*slow down"):
        ask(service)
    assert len(service.queries) == 1


@pytest.mark.parametrize("body", [b"<html>login</html>", b"{}", b'{"Items": [{"retailPrice": "free"}]}', b""])
def test_refresh_of_an_answer_without_prices_is_refused(service, body):
    service.body = body
    with pytest.raises(ServerError, match="is not a list of prices"):
        ask(service)


def test_refresh_follows_no_page_to_another_server(service):
    service.next_place = "http://127.0.0.2:1/api/retail/prices"
    with pytest.raises(ServerError, match="the next page is on another server"):
        ask(service)


def test_refresh_ends_although_the_pages_do_not(service):
    page = {"Items": METERS[:1], "NextPageLink": service.url + "?again=1"}
    service.body = json.dumps(page).encode()
    with pytest.raises(ServerError, match="does not end"):
        ask(service)


def test_refresh_in_another_currency_is_refused():
    with (
        retail_service([machine("Standard_ND40rs_v2", 20.0, currency="EUR")]) as server,
        pytest.raises(ConfigError, match="EUR"),
    ):
        ask(server)


def test_refresh_without_network_is_reported_with_what_to_do():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{free.getsockname()[1]}/"
        with pytest.raises(Unreachable, match="cannot be reached") as caught:
            refresh(TODAY, regions=["eastus"], endpoint=place)
    assert "HTTPS_PROXY" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="--endpoint"):
        refresh(TODAY, endpoint="file:///etc/passwd")
    assert ENDPOINT.startswith("https://")


def command(run_cli, service, *more):
    return run_cli("config", "prices", "refresh", "--endpoint", service.url, "--region", "eastus", *more)


def test_refresh_command_writes_a_file_that_changes_costs(run_cli, service, tmp_path, monkeypatch):
    file = tmp_path / "deep/prices.toml"
    done = command(run_cli, service, "--output", str(file))
    assert done.code == 0, done.err
    assert "98.32 USD/hour  azure-vm-nd96isr_h100_v5  eastus  (unchanged)" in done.out
    assert "missing: azure-vm-nd96asr_v4 in eastus" in done.err
    monkeypatch.setenv("PENSTOCK_PRICES", str(file))
    assert load().find("azure-egress-internet", "eastus").as_of == dt.datetime.now(tz=dt.UTC).date().isoformat()


def test_refresh_command_keeps_own_prices_and_replaces_refreshed_ones(run_cli, service, tmp_path):
    file = tmp_path / "prices.toml"
    command(run_cli, service, "--output", str(file))
    own = '[[price]]\nitem = "azure-hot-read"\nvalue = 0.001\nunit = "request"\nper = 10_000\nregion = "eastus"\n'
    own += 'source = "our contract"\nas_of = "2026-01"\n'
    file.write_text(file.read_text() + own)
    before = parse(file.read_text()).price
    service.meters = [machine("Standard_ND40rs_v2", 21.0)]
    assert command(run_cli, service, "--output", str(file)).code == 0
    after = parse(file.read_text())
    assert after.find("azure-hot-read", "eastus").source == "our contract"
    assert after.find("azure-vm-nd40rs_v2", "eastus").value == 21.0
    assert len(after.price) == len(before)


def test_refresh_command_keeps_the_default_region_of_an_item(run_cli, service, tmp_path):
    file = tmp_path / "prices.toml"
    command(run_cli, service, "--region", "southcentralus", "--output", str(file))
    assert parse(file.read_text()).find("azure-vm-nd40rs_v2").region == "southcentralus"


def test_refresh_command_dry_run_and_json_write_nothing(run_cli, service, tmp_path):
    file = tmp_path / "prices.toml"
    done = command(run_cli, service, "--output", str(file), "--dry-run", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["file"] is None
    assert {"item": "azure-egress-internet", "was": 0.087}.items() <= found["changes"][-1].items()
    assert found["missing"]
    assert not file.exists()


def test_refresh_command_without_any_price_keeps_the_file(run_cli, service, tmp_path):
    file = tmp_path / "prices.toml"
    command(run_cli, service, "--output", str(file))
    before = file.read_bytes()
    service.meters = []
    done = command(run_cli, service, "--output", str(file))
    assert (done.code, file.read_bytes()) == (1, before)
    assert "no price was found" in done.err


def test_show_lists_prices_with_their_age_and_owner(run_cli, tmp_path):
    file = tmp_path / "ours.toml"
    file.write_text(
        'schema_version = 1\n[[price]]\nitem = "our-h100"\nvalue = 2.5\nunit = "hour"\nregion = "here"\n'
        'source = "us"\nas_of = "2026-11"\n'
    )
    done = run_cli("--prices", str(file), "config", "prices", "show", "h100")
    assert done.code == 0
    assert done.out.splitlines()[0] == "own  2.5 USD/hour  our-h100  here  (2026-11; unverified)"
    assert "azure-vm-nd96isr_h100_v5" in done.out
    assert "months old" in done.out
    assert "are older than 12 months" in done.err
    found = json.loads(run_cli("--prices", str(file), "config", "prices", "show", "--json").out)
    assert found["own_file"] == str(file)
    assert [row["is_own"] for row in found["prices"][:2]] == [True, False]
    assert {"item", "value", "unit", "currency", "region", "as_of", "source"} <= found["prices"][5].keys()
    assert run_cli("config", "prices", "show", "warp-drive").code == 3
