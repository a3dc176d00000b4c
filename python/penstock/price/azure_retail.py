# SPDX-License-Identifier: Apache-2.0
"""Azure's retail price service, which needs no key: queries, pages, throttling, and mapping of meters to items.

The only module of `price` that uses the network. Source of the protocol: Microsoft Learn, Azure Retail Prices overview
(version 2023-01-01-preview: filter values are case-sensitive, `meterRegion='primary'`, pages by `NextPageLink`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.errors import ConfigError, ServerError, Throttled, Unreachable
from penstock.price.book import CURRENCY, Price, Unit

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["ENDPOINT", "MACHINES", "REGIONS", "SOURCE", "Refreshed", "refresh"]

ENDPOINT = "https://prices.azure.com/api/retail/prices"
SOURCE = "Azure Retail Prices API"
"""Start of the `source` of every refreshed price."""
REGIONS = ("southcentralus", "eastus", "westus", "westus2")
"""Regions of the bundled Azure prices."""
MACHINES = (
    "Standard_ND40rs_v2",
    "Standard_ND96asr_v4",
    "Standard_ND96amsr_A100_v4",
    "Standard_ND96isr_H100_v5",
    "Standard_ND96isr_H200_v5",
    "Standard_NC24ads_A100_v4",
    "Standard_NC40ads_H100_v5",
)
"""Machine types of the bundled Azure prices, by the names that the service uses."""

_VERSION = "2023-01-01-preview"
_MAX_ANSWER_BYTES = 64 << 20
_MAX_PAGES = 200
_REQUEST_TIMEOUT_S = 30.0
_FIRST_WAIT_S = 1.0
_MAX_WAIT_S = 60.0
_UNITS: dict[str, tuple[Unit, int]] = {
    "1 Hour": ("hour", 1),
    "1 GB/Month": ("GiB-month", 1),
    "1 GiB/Month": ("GiB-month", 1),
    "10K": ("request", 10_000),
    "1 GB": ("GiB", 1),
}
# Class of a store's item -> product and SKU. The meters of one SKU differ only in the end of their names.
_STORES = {
    "azure-hot": ("General Block Blob v2", "Hot LRS"),
    "azure-cool": ("General Block Blob v2", "Cool LRS"),
    "azure-premium": ("Premium Block Blob", "Premium LRS"),
    "azure-hot-zrs": ("General Block Blob v2", "Hot ZRS"),
    "azure-hot-grs": ("General Block Blob v2", "Hot GRS"),
}
_STORE_METERS = {
    "storage": " Data Stored",
    "read": " Read Operations",
    "write": " Write Operations",
    "list": " List and Create Container Operations",
    "retrieval": " Data Retrieval",
}
_ONLY_STORAGE = ("azure-hot-zrs", "azure-hot-grs")
_BANDWIDTH = {
    "azure-egress-internet": "Standard Data Transfer Out",
    "azure-egress-cross-region": "Standard Inter-Region Data Transfer",
}


class _Meter(msgspec.Struct, rename="camel"):
    """The fields of one meter that this module uses. All other fields are ignored."""

    retail_price: float
    currency_code: str
    unit_of_measure: str
    product_name: str
    sku_name: str
    meter_name: str
    arm_region_name: str = ""
    arm_sku_name: str = ""
    type: str = "Consumption"
    tier_minimum_units: float = 0.0


class _Page(msgspec.Struct):
    Items: list[_Meter]
    NextPageLink: str | None = None


class Refreshed(NamedTuple):
    """Result of a refresh: prices, and one sentence for each item and region without a price."""

    prices: list[Price]
    missing: list[str]
    requests: int


class _Client:
    """Requests pages, and waits when the service throttles, until `timeout_s` after the start."""

    def __init__(self, endpoint: str, timeout_s: float, on_wait: Callable[[float], None]) -> None:
        if urlsplit(endpoint).scheme not in ("http", "https"):
            raise ConfigError(f"--endpoint: `{endpoint}` is not an http or https URL", where="--endpoint")
        self._endpoint, self._on_wait = endpoint, on_wait
        self._end_s = time.monotonic() + timeout_s
        self.requests = 0

    def meters(self, query: str) -> Iterator[_Meter]:
        """All meters of a filter, over all pages."""
        parameters = {
            "api-version": _VERSION,
            "currencyCode": f"'{CURRENCY}'",
            "meterRegion": "'primary'",
            "$filter": query,
        }
        url: str | None = f"{self._endpoint}?{urlencode(parameters, quote_via=quote, safe='$')}"
        seen: set[str] = set()
        while url:
            page = self._page(url)
            yield from page.Items
            seen.add(url)
            url = self._next(page.NextPageLink, seen) if page.NextPageLink else None

    def _next(self, link: str, seen: set[str]) -> str:
        first, other = urlsplit(self._endpoint), urlsplit(link)
        ports = {"https": 443, "http": 80}
        places = [(p.scheme, p.hostname, p.port or ports.get(p.scheme)) for p in (first, other)]
        if places[0] != places[1]:
            raise ServerError(f"{self._endpoint}: the next page is on another server ({other.scheme}://{other.netloc})")
        if link in seen or len(seen) >= _MAX_PAGES:
            raise ServerError(f"{self._endpoint}: the list of pages does not end ({len(seen)} pages read)")
        return link

    def _page(self, url: str) -> _Page:
        try:
            return msgspec.json.decode(self._get(url), type=_Page)
        except msgspec.DecodeError as error:
            raise ServerError(
                f"{self._endpoint}: the response is not a list of prices: {error}",
                hint="check --endpoint, and that no proxy answers in place of the service",
            ) from error

    def _get(self, url: str) -> bytes:
        import http.client
        import urllib.error
        import urllib.request

        wait_s = _FIRST_WAIT_S
        while True:
            left_s = self._end_s - time.monotonic()
            self.requests += 1
            request = urllib.request.Request(url, headers={"Accept": "application/json", "User-Agent": "penstock"})  # noqa: S310 - http(s) only, checked in __init__ and _next
            try:
                with urllib.request.urlopen(request, timeout=max(1.0, min(_REQUEST_TIMEOUT_S, left_s))) as answer:  # noqa: S310
                    body: bytes = answer.read(_MAX_ANSWER_BYTES + 1)
            except urllib.error.HTTPError as error:
                with error:
                    wait_s = self._refused(error, wait_s)
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                raise Unreachable(
                    f"{self._endpoint} cannot be reached: {reason}",
                    hint="check the network and HTTPS_PROXY; without the network, edit the price file by hand",
                ) from error
            else:
                if len(body) > _MAX_ANSWER_BYTES:
                    raise ServerError(f"{self._endpoint}: a response is longer than {_MAX_ANSWER_BYTES:,} bytes")
                return body

    def _refused(self, error: Any, wait_s: float) -> float:
        """Wait before the next attempt, and return the duration of the next wait. Raise errors that a retry cannot
        fix.
        """
        if error.code not in (429, 500, 502, 503, 504):
            text = error.read(300).decode(errors="replace").strip()
            raise ServerError(f"{self._endpoint} returned status {error.code} {error.reason}: {text}")
        asked = str(error.headers.get("Retry-After") or "")
        pause_s = min(float(asked) if asked.isdigit() else wait_s, _MAX_WAIT_S)
        if time.monotonic() + pause_s >= self._end_s:
            raise Throttled(
                f"{self._endpoint} returned status {error.code} until the time limit ({self.requests} requests)",
                hint="run the command again later, with fewer regions (--region), or with a longer --timeout",
            )
        self._on_wait(pause_s)
        time.sleep(pause_s)
        return min(2 * wait_s, _MAX_WAIT_S)


def _either(field: str, values: Iterable[str]) -> str:
    quoted = [value.replace("'", "''") for value in values]
    return "(" + " or ".join(f"{field} eq '{value}'" for value in quoted) + ")"


def _item_of_machine(name: str) -> str:
    return f"azure-vm-{name.removeprefix('Standard_').casefold()}"


def _machine_items(meter: _Meter, machines: Sequence[str]) -> str | None:
    if meter.product_name.endswith("Windows") or "Low Priority" in f"{meter.sku_name} {meter.meter_name}":
        return None
    if meter.arm_sku_name not in machines:
        return None
    is_spot = meter.sku_name.endswith(" Spot") or meter.meter_name.endswith(" Spot")
    return _item_of_machine(meter.arm_sku_name) + ("-spot" if is_spot else "")


def _store_items(meter: _Meter) -> str | None:
    for name, (product, sku) in _STORES.items():
        if (meter.product_name, meter.sku_name) != (product, sku):
            continue
        for what, end in _STORE_METERS.items():
            # Data Lake accounts have meters such as `Iterative Read Operations`, at another price.
            if meter.meter_name.endswith(end) and "Iterative" not in meter.meter_name:
                return f"{name}-{what}" if what == "storage" or name not in _ONLY_STORAGE else None
    return None


def _bandwidth_items(meter: _Meter) -> str | None:
    return next((item for item, name in _BANDWIDTH.items() if meter.meter_name == name), None)


def _wanted_stores() -> list[str]:
    named = [
        f"{name}-{what}" for name in _STORES for what in _STORE_METERS if what == "storage" or name not in _ONLY_STORAGE
    ]
    return [item for item in named if not item.endswith("-retrieval") or item.startswith("azure-cool")]


def refresh(
    today: dt.date,
    *,
    regions: Sequence[str] = REGIONS,
    machines: Sequence[str] = MACHINES,
    endpoint: str = ENDPOINT,
    timeout_s: float = 300.0,
    on_query: Callable[[str], None] = lambda _what: None,
    on_wait: Callable[[float], None] = lambda _seconds: None,
) -> Refreshed:
    """Ask the service for the current prices of machines, block blobs and egress.

    Args:
        today: Date of the prices.
        regions: Azure's names of regions, such as `eastus`.
        machines: Names of machine types, such as `Standard_ND40rs_v2`.
        timeout_s: Time for all requests and waits together.
        on_query: Receives a description of each query before it is sent.
        on_wait: Receives the seconds of each wait for the service.
    Raises:
        Unreachable: The service cannot be reached.
        Throttled: The service throttled requests until `timeout_s` was over.
        ServerError: The service refused a request, or its answer is not a list of prices.
        ConfigError: A price is not in USD, or the endpoint is not an http or https URL.
    """
    client = _Client(endpoint, timeout_s, on_wait)
    prices: list[Price] = []
    missing: list[str] = []
    for region in regions:
        place = f"armRegionName eq '{region.replace(chr(39), chr(39) * 2)}' and priceType eq 'Consumption'"
        products = sorted({product for product, _ in _STORES.values()})
        asked: list[tuple[str, str, Callable[[_Meter], str | None], list[str]]] = [
            (
                "virtual machines",
                f"serviceName eq 'Virtual Machines' and {_either('armSkuName', machines)}",
                lambda meter: _machine_items(meter, machines),
                [_item_of_machine(name) for name in machines],
            ),
            (
                "block blobs",
                f"serviceName eq 'Storage' and {_either('productName', products)}",
                _store_items,
                _wanted_stores(),
            ),
            (
                "egress",
                f"serviceName eq 'Bandwidth' and {_either('meterName', _BANDWIDTH.values())}",
                _bandwidth_items,
                list(_BANDWIDTH),
            ),
        ]
        for what, query, item_of, wanted in asked:
            if what == "virtual machines" and not machines:
                continue
            on_query(f"{region}: {what}")
            found = _prices(client.meters(f"{query} and {place}"), item_of, region, today)
            prices += [price for price in found.values() if isinstance(price, Price)]
            missing += [reason for reason in found.values() if isinstance(reason, str)]
            missing += [f"{item} in {region}: the service has no price" for item in wanted if item not in found]
    return Refreshed(prices, missing, client.requests)


def _prices(
    meters: Iterable[_Meter], item_of: Callable[[_Meter], str | None], region: str, today: dt.date
) -> dict[str, Price | str]:
    """Price of each item, or the reason why the item has no price. Of several price tiers, the first tier with a price
    above 0 is used.
    """
    tiers: dict[str, list[_Meter]] = {}
    for meter in meters:
        item = item_of(meter)
        if item is not None and meter.type == "Consumption" and meter.arm_region_name == region:
            tiers.setdefault(item, []).append(meter)
    return {item: _price(item, several, region, today) for item, several in tiers.items()}


def _price(item: str, several: list[_Meter], region: str, today: dt.date) -> Price | str:
    paid = [meter for meter in several if meter.retail_price > 0]
    if not paid:
        return f"{item} in {region}: the service has a price of 0, which is left out"
    first = min(meter.tier_minimum_units for meter in paid)
    lowest = [meter for meter in paid if meter.tier_minimum_units == first]
    if len({(meter.retail_price, meter.unit_of_measure) for meter in lowest}) > 1:
        listed = ", ".join(f"{meter.retail_price:g} ({meter.product_name})" for meter in lowest)
        return f"{item} in {region}: the service has several prices: {listed}"
    meter = lowest[0]
    if meter.unit_of_measure not in _UNITS:
        return f"{item} in {region}: the unit `{meter.unit_of_measure}` is unknown"
    unit, per = _UNITS[meter.unit_of_measure]
    if meter.currency_code != CURRENCY:
        raise ConfigError(f"{item} in {region} is priced in {meter.currency_code}, but {CURRENCY} was requested")
    tier = f"; from {first:g} units a month" if first else ""
    return Price(
        item=item,
        value=meter.retail_price,
        unit=unit,
        region=region,
        source=f"{SOURCE}: {meter.product_name}, {meter.meter_name}{tier}",
        as_of=today.isoformat(),
        per=per,
        confidence="published",
    )
