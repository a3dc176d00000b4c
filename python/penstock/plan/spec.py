# SPDX-License-Identifier: Apache-2.0
"""Sections of a plan file, as frozen structs: a dataset, a workload, machines, stores and paths.

Sizes, rates, durations and prices are written with units (`5.1TB`, `50Gbit/s`, `435ms`, `26.438 USD`) and are plain
numbers in the structs. `plan.spec_file` reads a file, `plan.scenario` combines the sections, and `plan.predict`
predicts.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from penstock.errors import ConfigError
from penstock.plan.simulation_input import SimulationSpec  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "SCHEMA_VERSION",
    "Dataset",
    "Form",
    "Kind",
    "Machine",
    "PathSpec",
    "Place",
    "PlanSpec",
    "Spot",
    "Store",
    "Workload",
    "nearest",
    "parse_counts",
]

SCHEMA_VERSION = 1
MAX_NODES = 65_536

Rate = Annotated[float, msgspec.Meta(extra={"quantity": "rate"})]
Size = Annotated[float, msgspec.Meta(extra={"quantity": "size"})]
Duration = Annotated[float, msgspec.Meta(extra={"quantity": "duration"})]

Kind = Literal["stream", "stage", "pool", "mount", "node-cache"]
Form = Literal["plain", "gzip", "planes"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Dataset(_Section, frozen=True):
    """`[dataset]`: sizes of the whole dataset, training and held-out samples together.

    Attributes:
        samples, held_out: Samples of an epoch, and samples that are staged and stored but not read in epochs.
        raw_bytes: Size of all samples after decompression.
        stored_bytes: Size of all objects in the store, compressed with `codec`. Required unless `codec` is `plain`.
        planes_bytes: Size as transposed copies (bit and byte planes, zstd). Required by paths with this form.
        objects: Number of objects; by default one per sample.
    """

    samples: int
    raw_bytes: Size = msgspec.field(name="raw")
    stored_bytes: Size | None = msgspec.field(name="stored", default=None)
    planes_bytes: Size | None = msgspec.field(name="planes", default=None)
    codec: Form = "plain"
    objects: int | None = None
    held_out: int = 0

    @property
    def total_samples(self) -> int:
        """Training and held-out samples."""
        return self.samples + self.held_out

    def bytes_as(self, form: Form) -> float | None:
        """Size of the whole dataset in one form; None if the plan file does not state it."""
        if form == "plain":
            return self.raw_bytes
        if form == self.codec:
            return self.stored_bytes
        return self.planes_bytes if form == "planes" else None


class Workload(_Section, frozen=True):
    """`[workload]`: the demand of one accelerator. Exactly one of `step`, `samples_per_s`, `reference` and `run` is
    required, here or in each `[[machine]]`.

    Attributes:
        batch: Samples per accelerator and step.
        step_s: Duration of one step if data is always ready, without the exposed allreduce.
        samples_per_s: Alternative to `step`: rate of one accelerator.
        reference: Alternative to `step`: a reference rate, such as `cosmoflow/v100` (`plan.reference_steps`).
        run: Alternative to `step`: folder of a run of `penstock train`, relative to the plan file. The run's
            computation and exposed communication are used; the run needs the same batch per accelerator.
        allreduce_s: Part of the allreduce that does not overlap with computation.
        inflate_bytes_per_s, planes_bytes_per_s: Rate at which one core decompresses gzip and planes, in raw bytes.
        decode_bytes_per_s: Rate at which one core frames, checks and decodes, in raw bytes; with None, the model leaves
            this work out.
        unit: Name of a sample in the output.
    """

    epochs: int
    batch: int
    step_s: Duration | None = msgspec.field(name="step", default=None)
    samples_per_s: float | None = None
    reference: str | None = None
    run: str | None = None
    allreduce_s: Duration = msgspec.field(name="allreduce", default=0.0)
    # libdeflate on one core, CRC included; DESIGN section 5 (2 to 2.6 GB/s).
    inflate_bytes_per_s: Rate = msgspec.field(name="inflate", default=2.0e9)
    planes_bytes_per_s: Rate | None = msgspec.field(name="inflate_planes", default=None)
    decode_bytes_per_s: Rate | None = msgspec.field(name="decode", default=None)
    unit: str = "samples"


class Machine(_Section, frozen=True):
    """`[[machine]]`: a class of nodes (a VM type).

    Attributes:
        accelerators: Accelerators of one node that train, or a list of numbers, in which case the plan covers each of
            them.
        nic_bytes_per_s: Rate of one node's network card towards the store.
        payload_share: Share of the network card's rate that is payload; the rest is protocol headers.
        fabric_bytes_per_s: Rate of one node's network towards other nodes; by default `nic_bytes_per_s`.
        disk_read_bytes_per_s, disk_write_bytes_per_s, disk_bytes: Local disks of one node. Paths that stage or cache
            require them.
        price: Item of the price book, or a price per node-hour such as `26.438 USD`.
        spot_price: Price of a spot machine, for `[spot]`; by default the item `<price>-spot`, if the price book has it.
        step_s, samples_per_s, reference: Override the values of `[workload]` for this machine's accelerators.
    """

    name: str
    accelerators: int | tuple[int, ...]
    cores: int
    nic_bytes_per_s: Rate = msgspec.field(name="nic")
    payload_share: float = 1.0
    fabric_bytes_per_s: Rate | None = msgspec.field(name="fabric", default=None)
    disk_read_bytes_per_s: Rate | None = msgspec.field(name="disk_read", default=None)
    disk_write_bytes_per_s: Rate | None = msgspec.field(name="disk_write", default=None)
    disk_bytes: Size | None = msgspec.field(name="disk", default=None)
    price: str | None = None
    spot_price: str | None = None
    step_s: Duration | None = msgspec.field(name="step", default=None)
    samples_per_s: float | None = None
    reference: str | None = None

    def variants(self) -> list[tuple[Machine, int]]:
        """One machine for each number of accelerators. If there are several machines, their names contain the number of
        accelerators.
        """
        if isinstance(self.accelerators, int):
            return [(self, self.accelerators)]
        return [
            (
                msgspec.structs.replace(self, name=f"{self.name} ({count} of its accelerators)", accelerators=count),
                count,
            )
            for count in self.accelerators
        ]


class Store(_Section, frozen=True):
    """`[[store]]`: limits and prices of one store. A key in this section replaces the key of the tier.

    Attributes:
        tier: Entry of the tier book, or a card that `penstock probe` wrote.
        account_bytes_per_s: Bandwidth of one account (or bucket) to all nodes together.
        connection_bytes_per_s: Rate of one connection.
        requests_per_s: Request limit of one account.
        latency_s: Median time to the first byte of a request.
        accounts: Number of accounts that share the dataset.
        storage_price, read_price, egress_price: Items of the price book, or prices per GiB-month, per request and per
            GiB. By default `<tier>-storage` and `<tier>-read` of the price book, if it has them.
    """

    name: str
    tier: str | None = None
    account_bytes_per_s: Rate | None = msgspec.field(name="account", default=None)
    connection_bytes_per_s: Rate | None = msgspec.field(name="connection", default=None)
    requests_per_s: float | None = msgspec.field(name="requests", default=None)
    latency_s: Duration | None = msgspec.field(name="latency", default=None)
    accounts: int = 1
    storage_price: str | None = None
    read_price: str | None = None
    egress_price: str | None = None


class PathSpec(_Section, frozen=True):
    """`[[path]]`: a route from the store to the accelerators.

    Attributes:
        kind: `stream` reads ahead from the store. `stage` copies the whole dataset to every node first. `pool` copies
            one share to each node, and nodes read each other's disks. `mount` reads one file at a time per rank
            through FUSE, without read-ahead. `node-cache` streams, and keeps what a node has read on its disk.
        form: Form of the objects that are read from the store.
        keep: Form on the nodes' disks; by default `plain` for `stage` and `pool`, and `form` for `node-cache`.
        in_flight: Concurrent requests of one rank; by default 16, and 1 for `mount`.
        reader_bytes_per_s: Rate of one reader, if the path itself limits it, such as a FUSE mount.
        overlaps: Whether reads overlap with computation; by default true, and false for `mount`.
        part_bytes: Size of the largest read. A larger object takes several requests. By default, each object takes one
            request.
        copies: Copies of every object in a pool.
        ready_s: Time to start the pool.
        steps_per_s: Measured or published rate of this path, which replaces the modelled reads.
        staged_in_s: Measured or published duration of staging, which replaces the modelled duration.
    """

    kind: Kind
    store: str
    name: str | None = None
    form: Form = "plain"
    keep: Form | None = None
    in_flight: int | None = None
    reader_bytes_per_s: Rate | None = msgspec.field(name="reader", default=None)
    overlaps: bool | None = None
    part_bytes: Size | None = msgspec.field(name="part", default=None)
    copies: int = 1
    ready_s: Duration = msgspec.field(name="ready", default=0.0)
    steps_per_s: float | None = None
    staged_in_s: Duration | None = msgspec.field(name="staged_in", default=None)

    @property
    def title(self) -> str:
        """The path's name, or its kind, form and store."""
        return self.name or f"{self.kind} {self.form}, {self.store}"


class Place(_Section, frozen=True):
    """`[place]`: where the nodes and the data are.

    Attributes:
        region: Region of the nodes, which selects the prices of machines. By default, the first region that the price
            book lists.
        data_region: Region of the stores; by default the nodes' region.
        is_cross_zone: Whether nodes and store are in different zones of one region.
        distance_s: Round-trip time that every request to another region or zone adds.
        link_bytes_per_s: Total rate between the two regions, if known.
        replicates: Copy the data to the nodes' region first, instead of reading them from the other region.
        egress_price: Item of the price book, or a price per GiB, for bytes that cross a border; by default the price of
            the store's cloud for traffic between regions. The `egress_price` of a store takes precedence.
    """

    region: str | None = None
    data_region: str | None = None
    is_cross_zone: bool = msgspec.field(name="cross_zone", default=False)
    distance_s: Duration = msgspec.field(name="distance", default=0.0)
    link_bytes_per_s: Rate | None = msgspec.field(name="link", default=None)
    replicates: bool = msgspec.field(name="replicate", default=False)
    egress_price: str | None = None

    @property
    def crosses(self) -> Literal["none", "zone", "region"]:
        """Border that the reads cross."""
        if self.data_region is not None and self.data_region != self.region:
            return "region"
        return "zone" if self.is_cross_zone else "none"


class Spot(_Section, frozen=True):
    """`[spot]`: interruptible nodes. An interruption of any node stops the whole job until it restarts.

    Attributes:
        interruptions_per_hour: Mean rate for one node.
        checkpoint_every_s, checkpoint_s: Interval between checkpoints, and duration of one checkpoint.
        restart_s: Time from an interruption to the first step, without staging.
    """

    interruptions_per_hour: float
    checkpoint_every_s: Duration = msgspec.field(name="checkpoint_every")
    checkpoint_s: Duration = msgspec.field(name="checkpoint", default=0.0)
    restart_s: Duration = msgspec.field(name="restart", default=300.0)


class PlanSpec(_Section, frozen=True):
    """A whole plan file. `nodes` is a number, a list, or text such as `1..64` or `1,2,4..8`.

    Attributes:
        simulation: Conditions of `penstock plan --simulate`; predictions ignore it.
    """

    name: str
    dataset: Dataset
    workload: Workload
    machines: tuple[Machine, ...] = msgspec.field(name="machine")
    stores: tuple[Store, ...] = msgspec.field(name="store")
    paths: tuple[PathSpec, ...] = msgspec.field(name="path")
    nodes: int | str | tuple[int, ...] = 1
    place: Place = Place()
    spot: Spot | None = None
    simulation: SimulationSpec | None = None
    currency: str = "USD"
    schema_version: int = SCHEMA_VERSION

    def counts(self) -> tuple[int, ...]:
        """Numbers of nodes to plan for."""
        return parse_counts(self.nodes)

    def store(self, name: str) -> Store:
        """The store with this name."""
        return next(store for store in self.stores if store.name == name)


def nearest(word: str, known: Iterable[str]) -> str:
    """Hint with the nearest known names; all known names if no name is near."""
    names = sorted(set(known))
    near = get_close_matches(word, names)
    return f"did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else f"use one of {', '.join(names)}"


def parse_counts(text: int | str | tuple[int, ...]) -> tuple[int, ...]:
    """Parse numbers of nodes: 4, [1, 2], `1..64` or `1,2,4..8`.

    Raises:
        ConfigError: A number is not between 1 and 65,536, or a range runs backwards.
    """
    if isinstance(text, int):
        counts = [text]
    elif isinstance(text, tuple):
        counts = list(text)
    else:
        counts = []
        for part in text.split(","):
            found = re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", part)
            if found is None:
                raise ConfigError(f"nodes: `{part}` is not a number or a range", hint="write 4, 1..64 or 1,2,4..8")
            first, last = int(found[1]), int(found[2] or found[1])
            if last < first:
                raise ConfigError(
                    f"nodes: the range `{part.strip()}` must go from the smaller to the larger number",
                    hint=f"write {last}..{first}",
                )
            if last > MAX_NODES:
                raise ConfigError(f"nodes: {last:,} is above the maximum of {MAX_NODES:,}")
            counts += range(first, last + 1)
    if not counts or min(counts) < 1 or max(counts) > MAX_NODES:
        raise ConfigError(f"nodes: must be between 1 and {MAX_NODES:,} (got {text})")
    return tuple(dict.fromkeys(counts))
