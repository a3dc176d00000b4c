# SPDX-License-Identifier: Apache-2.0
"""Tests of the study of an HPC application on object storage: it runs end to end at tiny sizes, its costs are correct,
and its claims follow from its rows.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from penstock.price.book import load
from penstock.study.run import load_module
from penstock.study.spec import find_study

STUDY = Path(__file__).resolve().parents[2] / "studies/seismic-object-store"
EXPECTED = tomllib.loads((STUDY / "expected.toml").read_text())
GIB = 1 << 30


FOUND = find_study("seismic-object-store", STUDY.parent)
costs, report = load_module(FOUND, "costs"), load_module(FOUND, "report")

BOOK = load(
    "schema_version = 1\n"
    + "".join(
        f'[[price]]\nitem = "{item}"\nvalue = {value}\nunit = "{unit}"\nregion = "R"\nsource = "S"\nas_of = "2026-01"\n'
        for item, value, unit in (
            ("azure-netapp-standard", 0.1, "GiB-month"),
            ("azure-netapp-ultra", 0.3, "GiB-month"),
            ("azure-files-premium", 0.2, "GiB-month"),
            ("azure-hot-storage", 0.02, "GiB-month"),
            ("azure-hot-read", 0.001, "request"),
            ("azure-hot-write", 0.01, "request"),
            ("azure-vm-rtm", 2.0, "hour"),
        )
    )
)
COST = {
    "shots": 10, "runs": [1, 2], "shot_s": 1800.0, "model_bytes": GIB, "gather_bytes": GIB, "image_bytes": 2 * GIB,
    "pool_bytes": 1024 * GIB, "kept_hours": 365.0, "part_bytes": GIB,
}  # fmt: skip


def test_cost_is_what_a_hand_computes():
    found = costs.measure(
        COST, {"gets": 3, "heads": 2, "puts": 4, "lists": 1, "deletes": 9}, {"2": {"hot-blob": 5.0}}, BOOK
    )
    usd = {(row["runs"], row["item"]): row["here_usd"] for row in found["rows"]}
    # Half a month: 1,024 GiB x 0.1 / 2, for any number of runs.
    assert usd[1, "netapp-standard"] == usd[2, "netapp-standard"] == 51.2
    assert (usd[1, "netapp-ultra"], usd[1, "files-premium"]) == (153.6, 102.4)
    # A shot reads 3 + 2 and a part each of gather and model: 7. It writes 4 + 1 and 2 x 2 parts: 9. Deletes are free.
    assert (found["reads_per_run"], found["writes_per_run"]) == (70, 90)
    assert found["requests_usd_per_run"] == 0.97
    # 1 + 10 GiB x 0.02 / 2 = 0.11; with images 31 GiB: 0.31.
    assert (usd[1, "hot-blob"], usd[2, "hot-blob"]) == (1.08, 2.16)
    assert usd[1, "hot-blob-with-images"] == 1.28
    # 10 shots of half an hour at 2 USD an hour.
    assert (usd[1, "compute"], usd[2, "compute"]) == (10.0, 20.0)
    assert {row["published_usd"] for row in found["rows"] if row["item"] == "hot-blob"} == {None, 5.0}


def test_cost_of_the_published_migration_is_the_published_one():
    cost = tomllib.loads((STUDY / "spec.toml").read_text())["cost"]
    rows = costs.measure(cost, {}, EXPECTED["cost"])["rows"]
    stated = {(row["runs"], row["item"]): row for row in rows if row["published_usd"] is not None}
    assert set(stated) == {
        (1, "netapp-standard"),
        (40, "netapp-ultra"),
        *((n, i) for n in (1, 40) for i in ("hot-blob", "compute")),
    }
    for (_, item), row in stated.items():
        # The bytes that the article stores are not stated: blob agrees within a tenth.
        assert row["here_usd"] == pytest.approx(row["published_usd"], rel=0.1 if item == "hot-blob" else 0.001)


def test_order_groups_ties_and_finds_an_opposite_pair():
    published = {name: each["seconds"] for name, each in EXPECTED["volumes"].items()}
    assert report.ranks(published, 0.1) == [["segy", "hdf5"], ["zarr"], ["zarr-blosc", "zarr-blosc-s3"]]
    # All plain formats tie: no pair is in the opposite order.
    assert report.is_same_order({"segy": 2.0, "hdf5": 1.9, "zarr": 1.95, "zarr-blosc": 0.2}, published, 0.1)
    assert not report.is_same_order({"segy": 1.0, "hdf5": 1.9, "zarr": 1.95, "zarr-blosc": 0.2}, published, 0.1)


def rows_of(*, same: bool = True, digest: str = "a"):
    volumes = [
        {"disk": "local", "model": model, "backend": "zarr-blosc", "volume_bytes": 1000, "stored_bytes": size, "is_same": same, "seconds": 1.0}
        for model, size in (("layered", 10), ("seismic", 900))
    ]  # fmt: skip
    shots = [
        {"disk": "local", "backend": name, "workers": 1, "sha256": sha, "shot_s": total, "io_s": total - 1}
        for name, sha, total in (("zarr-blosc", "a", 1.5), ("zarr-blosc-s3", digest, 2.0))
    ]  # fmt: skip
    return {"volumes": volumes, "shots": shots}


@pytest.mark.parametrize(("changed", "broken"), [({}, 0), ({"same": False}, 1), ({"digest": "b"}, 1)])
def test_claims_that_must_hold_are_those_of_bytes(changed, broken):
    rows = rows_of(**changed)
    found = [*report.volume_claims(rows["volumes"], EXPECTED), *report.shot_claims(rows["shots"], EXPECTED)]
    assert sum(each.must and not each.holds for each in found) == broken
    added = next(each for each in found if "adds at most" in each.claim)
    assert (added.holds, added.must) == (False, False)
    assert "+0.500 s to 1.50 s: +33.3%" in added.here
    assert next(each for each in found if "opposite" in each.claim).holds is None


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_study_runs_end_to_end_with_the_same_bytes_and_images_on_all_backends(run_cli, tmp_path):
    done = run_cli(
        "study", "run", "seismic-object-store", "--size", "tiny", "-o", tmp_path / "out", "--scratch", tmp_path,
        timeout_s=490,
    )  # fmt: skip
    assert done.code == 0, done.err
    parts = json.loads((tmp_path / "out/results.json").read_text())["parts"]
    found = {part["name"]: part["result"]["data"] for part in parts}
    disks = {"local", "64 MB/s"} if os.geteuid() == 0 else {"local"}
    five = {"segy", "hdf5", "zarr", "zarr-blosc", "zarr-blosc-s3"}
    written = {(row["disk"], row["model"], row["backend"]): row for row in found["volumes"]}
    assert set(written) == {
        (d, m, b) for d in disks for m in ("layered", "seismic") for b in five | {"best", "best-s3"}
    }
    assert all(row["is_same"] for row in written.values())
    assert all(
        row["stored_bytes"] >= row["volume_bytes"]
        for (_, _, name), row in written.items()
        if name in ("segy", "hdf5", "zarr")
    )
    assert written["local", "layered", "zarr-blosc"]["stored_bytes"] < 32 * 32 * 64 * 4 / 20
    shots = {(row["backend"], row["workers"]): row for row in found["shots"]}
    assert set(shots) == {*((name, 1) for name in five), ("zarr-blosc", 2), ("zarr-blosc-s3", 2)}
    assert len({row["sha256"] for row in shots.values()}) == 1
    assert all(min(row[name] for name in ("io_s", "compute_s", "cpu_s")) > 0 for row in shots.values())
    assert shots["zarr-blosc-s3", 1]["requests_per_shot"]["puts"] >= 4
    assert {row["item"] for row in found["costs"]["rows"]} >= {
        "netapp-standard",
        "files-premium",
        "hot-blob",
        "compute",
    }
    text = (tmp_path / "out/report.md").read_text()
    assert "published, s" in text
    assert "Yes: blob storage costs 1.6% of NetApp Files" in text
    assert "| 1 | NetApp Files standard, pool of 4 TiB | 602 | 602.11 |" in text
    assert not [path for path in tmp_path.iterdir() if path.name != "out"]
