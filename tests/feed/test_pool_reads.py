# SPDX-License-Identifier: Apache-2.0
"""Tests reads in a pool: a node reads its own files first, then from the engine, then from the bucket.

Also tests a node's own part. tests/job/test_lost_host.py covers lost hosts and HDFS. Issue 5, point 4.
"""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import msgspec
import numpy
import pytest

import penstock
from penstock.errors import ConfigError
from penstock.feed import Loader
from penstock.formats import fixed
from penstock.pool import engine_registry
from penstock.pool.context import NODE, VARIABLE, PoolContext, from_env, to_env
from penstock.protocols import Located, Node, Pool

_FORM = fixed(id=penstock.tensor("int64", ()))
_OBJECTS, _EACH = 8, 5


class _Access:
    """Objects alternate between two nodes; each node stores its objects as block files."""

    def __init__(self, node: str, files: Path) -> None:
        self.node, self.files = node, files

    def locate(self, names):
        return {name: [Located(0, _EACH * 8, ("ab"[_number(name) % 2],))] for name in names}

    def fast_path(self, name):
        return self.files / f"blk_{_number(name)}" if _number(name) % 2 == "ab".index(self.node) else None


def _number(name: str) -> int:
    return int(Path(name).stem)


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """A dataset in a pool of two nodes, its block files, and the bucket; this process is on node `a`."""
    for folder in ("pool/data", "blocks", "bucket"):
        (tmp_path / folder).mkdir(parents=True)
    for at in range(_OBJECTS):
        body = numpy.arange(at * _EACH, (at + 1) * _EACH).tobytes()
        for name in (f"pool/data/{at}.bin", f"blocks/blk_{at}", f"bucket/{at}.bin"):
            (tmp_path / name).write_bytes(body)
    nodes = (Node("a", "10.0.0.1"), Node("b", "10.0.0.2"))
    made = Pool("p", "fake", "lease", f"{tmp_path}/pool", nodes, 1)
    result = PoolContext(made, f"{tmp_path}/pool/data", source=f"{tmp_path}/bucket")
    monkeypatch.setenv(VARIABLE, to_env(result)[VARIABLE])
    monkeypatch.setenv(NODE, "a")

    class Engine:
        def access(self, pool, node):
            assert pool == made
            return _Access(node, tmp_path / "blocks")

    monkeypatch.setattr(engine_registry, "load", lambda name, settings: Engine())
    return tmp_path


def _read(dataset, **world) -> tuple[list[int], Loader]:
    loader = Loader(dataset, batch_size=4, **world)
    return [one for batch in loader for one in batch["id"].tolist()], loader


def test_own_files_are_read_first_and_the_report_counts_where_bytes_came_from(pool):
    ids, loader = _read(penstock.open(pool / "pool/data", format=_FORM).shuffle(3))
    assert sorted(ids) == list(range(_OBJECTS * _EACH))
    report = loader.report()
    assert report["pool_own_bytes"] == report["pool_engine_bytes"] > 0
    assert report["pool_bucket_bytes"] == 0
    assert report["locality"] == {
        "node": "a", "nodes": 2, "copies": 1, "expected_local_share": 0.5, "local_share": 0.5,
    }  # fmt: skip
    assert "50.0 % of the bytes from this node's own files" in str(report)
    assert "50.0 % would be local in a global order (1 of 2)" in str(report)


def test_what_the_pool_has_lost_comes_from_the_bucket_and_is_put_back(pool):
    dataset = penstock.open(pool / "pool/data", format=_FORM).shuffle(3)
    lost = [pool / f"pool/data/{at}.bin" for at in (1, 3)]
    for path in lost:
        path.unlink()
    ids, loader = _read(pickle.loads(pickle.dumps(dataset)))
    assert sorted(ids) == list(range(_OBJECTS * _EACH))
    assert loader.report()["pool_bucket_bytes"] == 2 * _EACH * 8
    # The refill runs in the background and may outlast the epoch.
    until = time.monotonic() + 30
    while not all(path.exists() for path in lost) and time.monotonic() < until:
        time.sleep(0.02)
    again, loader = _read(dataset)
    assert again == ids
    assert loader.report()["pool_bucket_bytes"] == 0


def test_what_is_known_to_be_lost_is_asked_of_nobody(pool, monkeypatch):
    here = from_env(dict(os.environ))
    assert here is not None
    monkeypatch.setenv(VARIABLE, to_env(msgspec.structs.replace(here, lost=("b",)))[VARIABLE])
    dataset = penstock.open(pool / "pool/data", format=_FORM)
    ids, loader = _read(dataset.shuffle(3))
    assert sorted(ids) == list(range(_OBJECTS * _EACH))
    report = loader.report()
    # The lost node's objects are still readable here, as in a pool whose engine has not yet noticed a lost host.
    assert (report["pool_engine_bytes"], report["pool_bucket_bytes"]) == (0, report["pool_own_bytes"])
    assert sorted(_read(dataset.shuffle(3, scope="node"))[0]) == list(range(_OBJECTS * _EACH))


def test_local_reach_gives_each_node_its_own_part_and_all_nodes_everything(pool, monkeypatch):
    parts = {}
    for node in "ab":
        monkeypatch.setenv(NODE, node)
        local = penstock.open(pool / "pool/data", format=_FORM).shuffle(3, scope="node")
        parts[node], loader = _read(local)
        assert loader.report()["pool_engine_bytes"] == 0
    assert sorted(parts["a"] + parts["b"]) == list(range(_OBJECTS * _EACH))
    assert {one // _EACH % 2 for one in parts["a"]} == {0}


def test_local_reach_shares_a_nodes_part_among_its_own_ranks(pool, monkeypatch):
    for name, value in {"WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    seen: list[int] = []
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        ids, loader = _read(penstock.open(pool / "pool/data", format=_FORM).shuffle(3, scope="node"))
        assert (loader.rank, loader.world) == (rank, 2)
        seen += ids
    assert sorted(seen) == [one for one in range(_OBJECTS * _EACH) if one // _EACH % 2 == 0]


def test_dataset_outside_the_pool_is_read_as_ever(pool):
    dataset = penstock.open(pool / "bucket", format=_FORM)
    assert dataset.locality is None
    with pytest.raises(ConfigError, match="this process has no pool that contains this dataset"):
        dataset.shuffle(1, scope="node")
    with pytest.raises(ConfigError, match="neither global nor node"):
        dataset.shuffle(1, scope="near")  # type: ignore[arg-type]


def test_what_a_rank_is_told_survives_and_else_is_refused(pool, monkeypatch):
    nodes = tuple(Node(f"n{at}", f"10.1.{at // 250}.{at % 250}") for at in range(2000))
    facts = {"nodes": {node.name: {"data": f"{node.address}:40001", "root": "/local/x"} for node in nodes}}
    result = PoolContext(Pool("p", "hdfs", "l", "hdfs://n0:1/", nodes, 2, facts), "hdfs://n0:1/data")
    variable = to_env(result)
    assert len(variable[VARIABLE]) < 128 << 10
    assert from_env(variable) == result
    assert from_env({}) is None
    for text in ("%", "AAAA", variable[VARIABLE][:-8]):
        with pytest.raises(ConfigError, match="not a value that `penstock run` sets"):
            from_env({VARIABLE: text})
    monkeypatch.delenv(NODE)
    with pytest.raises(ConfigError, match="0 of its 2 nodes have an address of this machine"):
        penstock.open(pool / "pool/data", format=_FORM)
