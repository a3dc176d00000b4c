# SPDX-License-Identifier: Apache-2.0
"""Tables and claims of the study: what each of its parts adds to the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.study.result import Claim, Table, Text
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.study.result import Block

__all__ = ["cost_blocks", "is_same_order", "ranks", "shot_blocks", "shot_claims", "volume_blocks", "volume_claims"]

STUDY = ("segy", "hdf5", "zarr", "zarr-blosc", "zarr-blosc-s3")
NAMES = {
    "segy": "SEG-Y", "hdf5": "HDF5", "zarr": "Zarr, plain", "zarr-blosc": "Zarr, Blosc", "zarr-blosc-s3": "Zarr, Blosc, S3",
    "best": "ours: Zarr, Blosc, shards", "best-s3": "ours, S3",
}  # fmt: skip
ITEMS = {
    "netapp-standard": "NetApp Files standard, pool of 4 TiB", "netapp-ultra": "NetApp Files ultra, pool of 4 TiB",
    "files-premium": "Azure Files premium, 4 TiB provisioned", "hot-blob": "Hot blob: model and gathers kept, all requests",
    "hot-blob-with-images": "Hot blob: an image of each shot kept too", "compute": "compute",
}  # fmt: skip
MODELS = {"layered": "homogeneous layers", "seismic": "recorded-like seismic"}
LIMITED = "64 MB/s"
PUBLISHED_SHOT_S = 1340.0
SHOTS = ("zarr", "zarr-blosc", "zarr-blosc-s3")


def ranks(seconds: Mapping[str, float], tie: float) -> list[list[str]]:
    """Names from the slowest to the fastest, in groups: a time within `tie` of the group's slowest belongs to the group."""
    groups: list[list[str]] = []
    for name in sorted(seconds, key=lambda each: -seconds[each]):
        if groups and seconds[name] >= seconds[groups[-1][0]] * (1 - tie):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def is_same_order(here: Mapping[str, float], published: Mapping[str, float], tie: float) -> bool:
    """True if no pair of names is in opposite order: pairs that tie on either side agree with everything."""

    def compare(seconds: Mapping[str, float], a: str, b: str) -> int:
        if abs(seconds[a] - seconds[b]) <= tie * max(seconds[a], seconds[b]):
            return 0
        return 1 if seconds[a] > seconds[b] else -1

    names = [name for name in published if name in here]
    return all(
        compare(here, a, b) * compare(published, a, b) >= 0 for at, a in enumerate(names) for b in names[at + 1 :]
    )


def volume_claims(rows: Sequence[Mapping[str, Any]], expected: Mapping[str, Any]) -> list[Claim]:
    """Claims of the first table; `holds` is None if it was not measured. `must` claims determine the exit code."""
    wanted = expected["claims"]
    found: list[Claim] = []

    def claim(text: str, here: str, *, holds: bool | None, must: bool = False) -> None:
        found.append(Claim(text, here, holds, must))

    different = sorted({row["backend"] for row in rows if not row["is_same"]})
    claim("every backend returns the samples that were written", ", ".join(different) or f"{len(rows)} of {len(rows)}",
          holds=not different, must=True)  # fmt: skip
    ratios = {
        model: next(row for row in rows if (row["model"], row["backend"]) == (model, "zarr-blosc")) for model in MODELS
    }
    ratio = {model: row["volume_bytes"] / row["stored_bytes"] for model, row in ratios.items()}
    claim(f"layers compress {wanted['layered_ratio']:g} times or more", f"{ratio['layered']:.0f} times",
          holds=ratio["layered"] >= wanted["layered_ratio"])  # fmt: skip
    low, high = wanted["seismic_ratio"]
    claim(f"recorded-like seismic compresses {low:g} to {high:g} times", f"{ratio['seismic']:.2f} times",
          holds=low <= ratio["seismic"] <= high)  # fmt: skip
    seconds = {
        row["backend"]: row["seconds"]
        for row in rows
        if (row["disk"], row["model"]) == (LIMITED, "layered") and row["backend"] in STUDY
    }
    published = {name: each["seconds"] for name, each in expected["volumes"].items()}
    claim("under 64 MB/s no two of the five backends are in the opposite order", _order(seconds, wanted["tie"]) or "not measured",
          holds=is_same_order(seconds, published, wanted["tie"]) if seconds else None)  # fmt: skip
    ours = [
        row["seconds"] for row in rows if (row["disk"], row["model"], row["backend"]) == (LIMITED, "layered", "best")
    ]
    claim("under 64 MB/s our setting is faster than all five", f"{ours[0]:.2f} s, the next {min(seconds.values()):.2f} s" if ours else "not measured",
          holds=ours[0] < min(seconds.values()) if ours else None)  # fmt: skip
    return found


def shot_claims(rows: Sequence[Mapping[str, Any]], expected: Mapping[str, Any]) -> list[Claim]:
    """Claims of the second table; see `volume_claims`."""
    wanted = expected["claims"]
    found: list[Claim] = []

    def claim(text: str, here: str, *, holds: bool | None, must: bool = False) -> None:
        found.append(Claim(text, here, holds, must))

    digests = {row["sha256"] for row in rows}
    claim("one image on all backends, bit for bit", f"{len(digests)} distinct in {len(rows)} runs",
          holds=len(digests) == 1, must=True)  # fmt: skip
    for count in sorted({row["workers"] for row in rows}):
        local, remote = (
            next(
                (row for row in rows if (row["disk"], row["backend"], row["workers"]) == ("local", name, count)),
                None,
            )
            for name in ("zarr-blosc", "zarr-blosc-s3")
        )
        if local and remote:
            # Compute differs by what else the machine does: the store adds the seconds of I/O alone.
            more_s = remote["io_s"] - local["io_s"]
            claim(f"{count} worker{'s' * (count > 1)}: the I/O of S3 adds at most {wanted['shot_time']:.0%} to a shot",
                  f"{more_s:+.3f} s to {local['shot_s']:.2f} s: {more_s / local['shot_s']:+.1%}",
                  holds=more_s <= wanted["shot_time"] * local["shot_s"])  # fmt: skip
    return found


def volume_blocks(
    rows: Sequence[Mapping[str, Any]], spec: Mapping[str, Any], expected: Mapping[str, Any]
) -> list[Block]:
    """First table: seconds, sizes and CPU of each backend. `spec` is the size's table."""
    size = rows[0]["volume_bytes"]
    about = (
        f"{' x '.join(map(str, spec['volume']))} float32, {format_bytes(size)}; medians of {spec['repeats']},"
        " brought to the disk. CPU is the time of the application on the local disk; the time of the S3 server has its own"
        " column."
    )
    out: list[Block] = [Text(title="Model volume creation", text=about)]
    for model, title in MODELS.items():
        found = {(row["disk"], row["backend"]): row for row in rows if row["model"] == model}
        lines = []
        for name in (backend for backend in NAMES if ("local", backend) in found):
            stated = expected["volumes"].get(name, {}) if model == "layered" else {}
            local, limited = found["local", name], found.get((LIMITED, name))
            lines.append([
                NAMES[name], _number(stated.get("seconds"), "{:,.0f}"), format_bytes(stated["bytes"]) if "bytes" in stated else "–",
                f"{local['seconds']:.2f}", _number(limited and limited["seconds"], "{:.2f}"), format_bytes(local["stored_bytes"]),
                f"{size / local['stored_bytes']:.2f}", f"{local['cpu_s']:.2f}",
                f"{local['server_cpu_s']:.2f}" if local["requests"] else "–", f"{local['objects']:,}",
            ])  # fmt: skip
        out.append(_table(
            f"{title[:1].upper()}{title[1:]}",
            ["backend", "published, s", "published, size", "here, s", f"here at {LIMITED}, s", "size", "ratio", "CPU s", "server CPU s", "objects"],
            lines,
        ))  # fmt: skip
    seconds = {
        row["backend"]: row["seconds"]
        for row in rows
        if (row["disk"], row["model"]) == (LIMITED, "layered") and row["backend"] in STUDY
    }
    tie = expected["claims"]["tie"]
    if seconds:
        published = {name: each["seconds"] for name, each in expected["volumes"].items()}
        order = f"Order, slowest first, `=` within {tie:.0%}. Published: {_order(published, tie)}."
        out.append(Text(text=f"{order} Here at {LIMITED}, layers: {_order(seconds, tie)}."))
    return out


def shot_blocks(rows: Sequence[Mapping[str, Any]], spec: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Block]:
    """Second table: seconds of a shot by backend, and by number of workers."""
    found = {(row["disk"], row["backend"], row["workers"]): row for row in rows}
    about = (
        f"{' x '.join(map(str, spec['model']))} points, {spec['shots']} shots; medians over the shots, in seconds. I/O is the"
        " time to claim the shot, read and write. CPU is the time of a worker in a shot; the rest of compute is waiting for a"
        " core."
    )
    out: list[Block] = [Text(title="Imaging", text=about)]
    published: dict[str, list[str]] = {}
    for each in expected["shots"]:
        published.setdefault(each["backend"], []).append(f"{each['seconds']:,.0f} ({each['machines']})")
    lines = [
        [
            NAMES[name],
            ", ".join(published.get(name, ["–"])),
            *_shot(found["local", name, 1]),
            *_shot(found.get((LIMITED, name, 1))),
        ]
        for name in STUDY
        if ("local", name, 1) in found
    ]
    head = ["shot", "I/O", "compute", "CPU"]
    out.append(_table(
        "Backends, one worker",
        ["backend", "published, s (machines)", f"here, {head[0]}", *head[1:], f"here at {LIMITED}, shot", *head[1:]],
        lines,
    ))  # fmt: skip
    counts = [count for count in spec["workers"] if ("local", "zarr-blosc", count) in found]
    lines = [
        [str(count), *_shot(found["local", "zarr-blosc", count]), *_shot(found["local", "zarr-blosc-s3", count])]
        for count in counts
    ]
    columns = ["workers", "local disk, shot", *head[1:], "S3 tier, shot", *head[1:]]
    out.append(_table("Workers", columns, lines))
    one = found["local", "zarr-blosc-s3", 1]
    requests = ", ".join(f"{each:g} {name}" for name, each in one["requests_per_shot"].items() if each)
    about = (
        f"A shot on S3 makes {requests}. Its I/O of {one['io_s']:.2f} s would be {one['io_s'] / PUBLISHED_SHOT_S:.3%} of the"
        f" published shot of {PUBLISHED_SHOT_S:,.0f} s, whose objects are larger: 100 MB and a few 100 MB."
    )
    return [*out, Text(text=about)]


def cost_blocks(costs: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Block]:
    """Third table: the published migration, and the prices that it uses."""
    lines = [
        [str(row["runs"]), ITEMS[row["item"]], _number(row["published_usd"], "{:,.0f}"), f"{row['here_usd']:,.2f}"]
        for row in costs["rows"]
    ]
    usd = {(row["runs"], row["item"]): row["here_usd"] for row in costs["rows"]}
    table = _table("USD", ["runs", "item", "published", "here"], lines, left=2)
    shares = []
    for runs, pool in ((1, "netapp-standard"), (40, "netapp-ultra")):
        stated = expected["cost"].get(str(runs), {})
        if (runs, pool) in usd:
            share, compute = usd[runs, "hot-blob"] / usd[runs, pool], usd[runs, "compute"]
            shares.append(
                f"{runs} run{'s' * (runs > 1)}: blob costs {stated['hot-blob'] / stated[pool]:.1%} of NetApp as published, {share:.1%} here;"
                f" it is {stated['hot-blob'] / stated['compute']:.2%} of the compute as published, {usd[runs, 'hot-blob'] / compute:.2%} here."
            )
    about = (
        f"Requests cost {costs['requests_usd_per_run']:,.2f} USD per run: at most {costs['reads_per_run']:,.0f} reads and"
        f" {costs['writes_per_run']:,.0f} writes, of parts of 8 MiB. All blob rows include the writes of images, even if the"
        " images are not kept."
    )
    lines = [
        [
            each["item"],
            f"{each['usd_per_unit']:.4g}",
            *(each[name] for name in ("unit", "region", "as_of", "confidence", "source")),
        ]
        for each in costs["prices"]
    ]
    prices = _table("Prices", ["price", "USD", "unit", "region", "as of", "confidence", "source"], lines, left=7)
    title = Text(
        title="Cost",
        text="Cost of the published migration: 4,000 shots per run; all stored data is kept for a month.",
    )
    return [title, table, Text(text=about, items=tuple(shares)), prices]


def _order(seconds: Mapping[str, float], tie: float) -> str:
    return " > ".join(" = ".join(NAMES[name] for name in group) for group in ranks(seconds, tie))


def _shot(row: Mapping[str, Any] | None) -> list[str]:
    return [_number(row[name] if row else None, "{:.3f}") for name in ("shot_s", "io_s", "compute_s", "cpu_s")]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Table:
    return Table(title, tuple(head), tuple(tuple(row) for row in rows), left)
