# SPDX-License-Identifier: Apache-2.0
"""A price service on loopback that answers as Azure's does: filters, pages, versions and throttling.

Its meters are in the shape of recorded answers (the H100 rows with their prices are those of 2026-09-16).
"""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, urlsplit

PAGE = 4
HEAD = {"BillingCurrency": "USD", "CustomerEntityId": "Default", "CustomerEntityType": "Retail"}


def machine(sku, price, region="eastus", end="", product="", unit="1 Hour", currency="USD", **more):
    name = sku.removeprefix("Standard_").replace("_", " ")
    return {
        "currencyCode": currency, "tierMinimumUnits": 0.0, "retailPrice": price, "unitPrice": price,
        "armRegionName": region, "location": "US East", "effectiveStartDate": "2023-08-01T00:00:00Z",
        "meterId": "00000000", "meterName": f"{name}{end}", "productId": "DZH0", "skuId": "DZH0/1",
        "productName": f"Virtual Machines {name.split()[0]} Series{product}", "skuName": f"{name}{end}",
        "serviceName": "Virtual Machines", "serviceFamily": "Compute", "unitOfMeasure": unit, "type": "Consumption",
        "isPrimaryMeterRegion": True, "armSkuName": sku, **more,
    }  # fmt: skip


def meter(service, product, sku, name, price, unit, region="eastus", tier=0.0):
    return {
        **machine("Standard_X", price, region, unit=unit), "serviceName": service, "productName": product,
        "skuName": sku, "meterName": name, "armSkuName": "", "tierMinimumUnits": tier,
    }  # fmt: skip


H100 = "Standard_ND96isr_H100_v5"
METERS = [
    machine(H100, 98.32),
    machine(H100, 102.736, product=" Windows"),
    machine(H100, 18.169536, end=" Spot"),
    machine(H100, 41.094, end=" Low Priority", product=" Windows"),
    machine(H100, 400_000.0, type="Reservation", reservationTerm="1 Year"),
    machine("Standard_ND40rs_v2", 22.032),
    machine("Standard_ND40rs_v2", 26.438, "southcentralus"),
    machine("Standard_ND96asr_v4", 0.0),
    machine("Standard_NC24ads_A100_v4", 3.673, unit="1 Day"),
    machine("Standard_NC40ads_H100_v5", 6.98),
    machine("Standard_NC40ads_H100_v5", 7.98),
    meter("Storage", "General Block Blob v2", "Hot LRS", "Hot LRS Data Stored", 0.0208, "1 GB/Month"),
    meter("Storage", "General Block Blob v2", "Hot LRS", "Hot LRS Data Stored", 0.01997, "1 GB/Month", tier=51200.0),
    meter("Storage", "General Block Blob v2", "Hot LRS", "Hot Read Operations", 0.0044, "10K"),
    meter("Storage", "General Block Blob v2", "Hot LRS", "Hot Iterative Read Operations", 0.0715, "10K"),
    meter("Storage", "General Block Blob v2", "Hot LRS", "Hot LRS Write Operations", 0.055, "10K"),
    meter("Storage", "Premium Block Blob", "Premium LRS", "Premium LRS Data Stored", 0.195, "1 GB/Month"),
    meter("Storage", "Tables", "Standard LRS", "LRS Data Stored", 0.045, "1 GB/Month"),
    meter("Bandwidth", "Rtn Preference: MGN", "Standard", "Standard Data Transfer Out", 0.0, "1 GB"),
    meter("Bandwidth", "Rtn Preference: MGN", "Standard", "Standard Data Transfer Out", 0.087, "1 GB", tier=100.0),
    meter("Bandwidth", "Rtn Preference: MGN", "Standard", "Standard Data Transfer Out", 0.083, "1 GB", tier=10340.0),
]  # fmt: skip


def holds(expression, row):
    """Whether a row matches an OData filter of the subset that the service documents: `and`, `or`, `eq`."""
    row = {**row, "priceType": row["type"]}
    text = re.sub(r"(\w+) eq '((?:[^']|'')*)'", lambda m: str(row.get(m[1]) == m[2].replace("''", "'")), expression)
    assert re.fullmatch(r"(True|False|and|or|[() ])+", text), text
    return eval(text)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments):
        pass

    def answer(self, code, body, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        service = self.server
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        service.queries.append(query)
        if service.refusals:
            code, headers = service.refusals.pop(0)
            self.answer(code, {"error": "slow down"}, **headers)
            return
        if service.body is not None:
            self.answer(200, service.body)
            return
        assert query["api-version"] == "2023-01-01-preview"
        assert (query["currencyCode"], query["meterRegion"]) == ("'USD'", "'primary'")
        rows = [row for row in service.meters if holds(query["$filter"], row)]
        skip = int(query.get("$skip", 0))
        link = None
        if len(rows) > skip + PAGE:
            again = "&".join(f"{k}={quote(v)}" for k, v in {**query, "$skip": str(skip + PAGE)}.items())
            link = f"{service.next_place or service.url}?{again}"
        page = rows[skip : skip + PAGE]
        self.answer(200, {**HEAD, "Items": page, "NextPageLink": link, "Count": len(page)})


@contextmanager
def retail_service(meters=None):
    """Serve the meters; yields the server, with its `url`, the `queries` that it got, and the `refusals` to come."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{server.server_port}/api/retail/prices"
    server.meters, server.queries, server.refusals = METERS if meters is None else meters, [], []
    server.body = server.next_place = None
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
