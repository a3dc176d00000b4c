# SPDX-License-Identifier: Apache-2.0
"""Scenario: one combination of nodes, machine and path of a plan, with every limit and price as a number.

`scenarios` reads the tier book and the price book once; afterwards nothing needs a file. `plan.predict` predicts a
scenario, and the simulation and the studies start from scenarios as well.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import msgspec

from penstock import tiers
from penstock.errors import ConfigError
from penstock.plan.model import Route, TrainingJob
from penstock.plan.reference_steps import sample_s
from penstock.plan.spec import Machine, PathSpec, PlanSpec, Spot, Store, nearest

if TYPE_CHECKING:
    from penstock.plan.spec import Form, Kind, Workload
    from penstock.price.book import Price, PriceBook

__all__ = ["LocalDisks", "Prices", "Scenario", "StoreLimits", "limits_of", "scenarios"]

GIB = 2**30
# Default number of concurrent requests of one rank, as in `Route`.
IN_FLIGHT = 16
# First part of a tier's name -> prefix of the cloud's egress prices in the book.
_CLOUDS = {"s3": "aws", "gcs": "gcp", "azure": "azure"}
_MONEY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?\d+)?)\s*([A-Z]{3})\s*")


class StoreLimits(msgspec.Struct, frozen=True):
    """Limits of a store for all nodes together, and of one connection; inf where the store states none.

    Attributes:
        errors: Uncertainty of each limit that a probe measured, by the name of the limit's attribute. The uncertainty
            is half the width of the 95 % interval, as a share of the limit.
    """

    account_bytes_per_s: float
    connection_bytes_per_s: float
    requests_per_s: float
    latency_s: float
    errors: dict[str, float] = {}


class Prices(msgspec.Struct, frozen=True):
    """Prices of one scenario, in `currency`; None if the price is unknown. `unknown` lists the unknown prices, each
    with the reason.

    Attributes:
        node_hour: One node for one hour, at the spot price for a spot machine.
        gib_month: One GiB in the store for a month.
        request: One read request.
        egress_gib: One GiB that leaves the region or zone of the store; 0 if reads cross no border.
        used: Rows of the price book.
        substituted: Prices of another region, used because the book has no price for the data's region.
    """

    currency: str
    node_hour: float | None
    gib_month: float | None
    request: float | None
    egress_gib: float | None
    unknown: tuple[str, ...] = ()
    used: tuple[Price, ...] = ()
    substituted: tuple[str, ...] = ()


class LocalDisks(msgspec.Struct, frozen=True):
    """Local disks of one node, and what a path stores on them. Rates in bytes/s, sizes in bytes of the whole dataset.

    Attributes:
        kept_bytes: Size of the dataset in the form on the disks.
        copies: Copies of every object on all nodes together: the number of nodes for `stage`.
    """

    read_bytes_per_s: float
    write_bytes_per_s: float
    size_bytes: float
    kept_bytes: float
    copies: int


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of nodes, machine and path.

    Attributes:
        job, route: Input of `plan.model`. For a node cache, the route is the route of the first epoch.
        disks: Local disks, for paths that stage or cache; else None.
        stored_bytes, requests: Whole dataset in the store: bytes in the path's form, and read requests for the whole
            dataset.
        ready_s, staged_in_s: See `spec.PathSpec`.
        inflate_bytes_per_s: Rate at which one core decompresses the path's form, in raw bytes; inf for plain data.
        kept_inflate_bytes_per_s: Rate at which one core decompresses the form on the disks, in raw bytes.
        replicate_s: Time to copy the data to the nodes' region before anything else.
        replicated_bytes: Bytes of the copy in the nodes' region, which is stored in addition.
        limit_errors: `StoreLimits.errors` of the path's store.
    """

    path: str
    kind: Kind
    form: Form
    machine: str
    accelerators: int
    nodes: int
    job: TrainingJob
    route: Route
    prices: Prices
    stored_bytes: float
    raw_bytes: float
    requests: float
    disks: LocalDisks | None = None
    inflate_bytes_per_s: float = math.inf
    kept_inflate_bytes_per_s: float = math.inf
    ready_s: float = 0.0
    staged_in_s: float | None = None
    replicate_s: float = 0.0
    replicated_bytes: float = 0.0
    spot: Spot | None = None
    unit: str = "samples"
    limit_errors: dict[str, float] = {}

    @property
    def title(self) -> str:
        """Name for messages: path, nodes and machine."""
        return f"{self.path}, {self.nodes} x {self.machine}"


def limits_of(store: Store) -> StoreLimits:
    """Limits of a store, for all its accounts together. A limit in the plan replaces the limit of the tier.

    A limit of a bucket or a prefix counts as a limit of the account, because only one dataset is read.

    Raises:
        ConfigError: The tier is unknown.
    """
    tier = tiers.find(store.tier) if store.tier is not None else None
    shared = {"account", "bucket"}
    errors: dict[str, float] = {}

    def limit(name: str, given: float | None, whats: set[str], scopes: set[str]) -> float:
        if given is not None:
            return given
        rows = [row for row in tier.limits if row.what in whats and row.scope in scopes] if tier is not None else []
        if not rows:
            return math.inf
        least = min(rows, key=lambda row: row.value)
        if least.uncertainty is not None:
            errors[name] = least.uncertainty
        return least.value

    account = limit("account_bytes_per_s", store.account_bytes_per_s, {"read-bytes"}, shared)
    connection = limit("connection_bytes_per_s", store.connection_bytes_per_s, {"read-bytes"}, {"connection"})
    requests = limit("requests_per_s", store.requests_per_s, {"read-requests", "requests"}, {*shared, "prefix"})
    latency = store.latency_s
    if latency is None:
        latency = tier.first_byte_s() if tier is not None else 0.0
        read = next((one for one in tier.latency if one.what == "read"), None) if tier is not None else None
        if read is not None and read.uncertainty is not None:
            errors["latency_s"] = read.uncertainty
    return StoreLimits(store.accounts * account, connection, store.accounts * requests, latency, errors)


def scenarios(spec: PlanSpec, book: PriceBook) -> list[Scenario]:
    """All combinations of a plan, in the order of its machines, paths and nodes. With `[spot]`, each machine occurs
    twice: at its own price, and as a spot machine.

    Args:
        book: Price book. A price that the book lacks is unknown, and never 0.
    Raises:
        ConfigError: A tier, a reference or a price item is unknown, or prices are in several currencies.
    """
    limits = {store.name: limits_of(store) for store in spec.stores}
    counts = spec.counts()
    found = []
    for machine, accelerators in (variant for given in spec.machines for variant in given.variants()):
        for spot in (None, spec.spot) if spec.spot is not None else (None,):
            for path in spec.paths:
                prices = _prices(spec, machine, spec.store(path.store), book, is_spot=spot is not None)
                found += [
                    _scenario(spec, machine, path, limits[path.store], prices, accelerators, nodes, spot=spot)
                    for nodes in counts
                ]
    return found


def _step_s(machine: Machine, workload: Workload) -> float:
    own = (machine.step_s, machine.samples_per_s, machine.reference)
    step, rate, reference = (
        own
        if any(value is not None for value in own)
        else (workload.step_s, workload.samples_per_s, workload.reference)
    )
    if step is not None:
        return step
    return workload.batch / rate if rate is not None else workload.batch * sample_s(reference or "")


def _inflate_rate(form: Form, workload: Workload) -> float:
    rates = {"plain": math.inf, "gzip": workload.inflate_bytes_per_s, "planes": workload.planes_bytes_per_s}
    return rates[form] or math.inf


def _scenario(
    spec: PlanSpec,
    machine: Machine,
    path: PathSpec,
    limits: StoreLimits,
    prices: Prices,
    accelerators: int,
    nodes: int,
    *,
    spot: Spot | None,
) -> Scenario:
    data, work, place = spec.dataset, spec.workload, spec.place
    total = data.total_samples
    stored, raw = data.bytes_as(path.form), data.raw_bytes
    assert stored is not None  # spec_checks
    keep = path.keep or (path.form if path.kind == "node-cache" else "plain")
    kept = data.bytes_as(keep)
    assert kept is not None
    nic = machine.nic_bytes_per_s * machine.payload_share
    job = TrainingJob(
        samples=data.samples,
        held_out=data.held_out,
        epochs=work.epochs,
        nodes=nodes,
        ranks_per_node=accelerators,
        batch_per_rank=work.batch,
        compute_step_s=_step_s(machine, work),
        exposed_allreduce_s=work.allreduce_s,
        sample_bytes=max(1, round(raw / total)),
        stored_bytes=max(1, round(stored / total)),
        cores_per_node=machine.cores,
        nic_bytes_per_s=nic,
        account_bytes_per_s=limits.account_bytes_per_s,
    )
    is_staged = path.kind in ("stage", "pool")
    requests = _requests(data.objects or total, stored, path)
    # If a pool has fewer nodes than copies, each node has one copy.
    copies = {"stage": nodes, "pool": min(path.copies, nodes)}.get(path.kind, 1)
    crosses = place.crosses != "none" and not place.replicates
    inflate = _inflate_rate(path.form, work)
    kept_inflate = _inflate_rate(keep, work)
    route = Route(
        name=path.title,
        wire_bytes=stored / total,
        from_store=not is_staged,
        overlaps=path.kind != "mount" if path.overlaps is None else path.overlaps,
        latency_s=limits.latency_s + (place.distance_s if crosses else 0.0),
        connection_bytes_per_s=min(limits.connection_bytes_per_s, path.reader_bytes_per_s or math.inf),
        requests_per_s=limits.requests_per_s,
        requests_per_sample=requests / total,
        in_flight_per_rank=path.in_flight or (1 if path.kind == "mount" else IN_FLIGHT),
        inflate_core_s=raw / total / (kept_inflate if is_staged else inflate),
        decode_core_s=raw / total / (work.decode_bytes_per_s or math.inf),
        disk_bytes_per_s=machine.disk_read_bytes_per_s or math.inf,
        local_bytes=kept / total,
        remote_share=1 - copies / nodes if path.kind == "pool" else 0.0,
        fabric_bytes_per_s=machine.fabric_bytes_per_s or nic,
        link_bytes_per_s=(place.link_bytes_per_s or math.inf) if crosses else math.inf,
        observed_step_s=None if path.steps_per_s is None else 1 / path.steps_per_s,
    )
    disks = None
    if path.kind in ("stage", "pool", "node-cache"):
        disks = LocalDisks(
            read_bytes_per_s=machine.disk_read_bytes_per_s or math.inf,
            write_bytes_per_s=machine.disk_write_bytes_per_s or math.inf,
            size_bytes=machine.disk_bytes or math.inf,
            kept_bytes=kept,
            copies=copies,
        )
    return Scenario(
        path=path.title,
        kind=path.kind,
        form=path.form,
        machine=machine.name if spot is None else f"{machine.name} spot",
        accelerators=accelerators,
        nodes=nodes,
        job=job,
        route=route,
        prices=prices,
        stored_bytes=stored,
        raw_bytes=raw,
        requests=requests,
        disks=disks,
        inflate_bytes_per_s=inflate,
        kept_inflate_bytes_per_s=kept_inflate,
        ready_s=path.ready_s,
        staged_in_s=path.staged_in_s,
        replicate_s=stored / (place.link_bytes_per_s or math.inf) if place.replicates else 0.0,
        replicated_bytes=stored if place.replicates else 0.0,
        spot=spot,
        unit=work.unit,
        limit_errors=limits.errors,
    )


def _requests(objects: int, stored_bytes: float, path: PathSpec) -> float:
    """Read requests for the whole dataset: one per object, or one per part of an object."""
    part = path.part_bytes or math.inf
    return objects * max(1, math.ceil(stored_bytes / objects / part)) if part < math.inf else float(objects)


def _prices(spec: PlanSpec, machine: Machine, store: Store, book: PriceBook, *, is_spot: bool) -> Prices:
    """Look up the prices of a machine and a store. All these prices must be in the plan's currency."""
    unknown: list[str] = []
    used: list[Price] = []
    substituted: list[str] = []
    items = {row.item for row in book.price}

    def money(
        what: str, given: str | None, key: str, region: str | None, *, may_substitute: bool = True
    ) -> float | None:
        if given is None:
            unknown.append(f"{what}: no price; set {key}")
            return None
        inline = _MONEY.fullmatch(given)
        if inline is not None:
            _refuse_other_currency(inline[2], spec.currency, key)
            return float(inline[1])
        if given not in items:
            raise ConfigError(f"{key}: the price book does not contain `{given}`", hint=nearest(given, items))
        try:
            row = book.find(given, region)
        except ConfigError:  # the item is in the book, but not for this region
            regions = "; ".join(row.region for row in book.price if row.item == given)
            if not may_substitute:
                unknown.append(f"{what}: no price of {given} in {region} (the book has {regions})")
                return None
            row = book.find(given)
            substituted.append(f"{what}: no price of {given} in {region}; that of {row.region} is used")
        _refuse_other_currency(row.currency, spec.currency, f"{key} ({given})")
        used.append(row)
        return row.value / row.per

    tier = (store.tier or "").rpartition("#")[2].partition("@")[0]

    def in_book(name: str) -> str | None:
        return name if name in items else None

    def by_tier(suffix: str) -> str | None:
        return in_book(f"{tier}-{suffix}")

    place = spec.place
    data_region = place.data_region or place.region
    egress: float | None = 0.0
    if place.crosses != "none":
        # For traffic between zones, some stores bill nothing, and others bill the price of traffic between machines.
        # Therefore, the plan must state the price.
        cloud = _CLOUDS.get(tier.partition("-")[0], "")
        usual = in_book(f"{cloud}-egress-cross-region") if place.crosses == "region" else None
        egress = money(
            f"egress to another {place.crosses}",
            store.egress_price or place.egress_price or usual,
            "place.egress_price",
            data_region,
        )
    node = (
        money(
            f"spot {machine.name}",
            machine.spot_price or in_book(f"{machine.price}-spot"),
            f"machine `{machine.name}` spot_price",
            place.region,
            may_substitute=False,
        )
        if is_spot
        else money(machine.name, machine.price, f"machine `{machine.name}` price", place.region, may_substitute=False)
    )
    return Prices(
        currency=spec.currency,
        node_hour=node,
        gib_month=money(
            f"storage in {store.name}",
            store.storage_price or by_tier("storage"),
            f"store `{store.name}` storage_price",
            data_region,
        ),
        request=money(
            f"requests to {store.name}",
            store.read_price or by_tier("read"),
            f"store `{store.name}` read_price",
            data_region,
        ),
        egress_gib=egress,
        unknown=tuple(unknown),
        used=tuple(used),
        substituted=tuple(substituted),
    )


def _refuse_other_currency(currency: str, wanted: str, where: str) -> None:
    if currency != wanted:
        raise ConfigError(
            f"{where} is in {currency}, but the plan is in {wanted}: Penstock does not convert currencies",
            hint=f"give all prices in {wanted}, or set currency",
        )
