# SPDX-License-Identifier: Apache-2.0
"""Tests index, stage, feed and put over a real HDFS, including while a DataNode dies or hangs."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def tree(folder: Path) -> dict[str, bytes]:
    return {
        name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith(".penstock")
    }


@pytest.fixture(scope="module")
def dataset(hdfs) -> dict[str, bytes]:
    """Ten objects under /set, two thirds of them gzip'd, one with many blocks; returns their inflated content."""
    want = {}
    for at in range(10):
        body = random.Random(at).randbytes(9_000_000 if at == 5 else 40_000 * at)
        name = f"part {at % 3}/f{at:02d}.bin"
        want[name] = body
        is_plain = at % 3 == 0
        hdfs.put(f"/set/{name}" + ("" if is_plain else ".gz"), body if is_plain else gzip.compress(body, 1, mtime=0))
    return want


def test_stage_from_hdfs_inflates_verifies_and_resumes(hdfs, dataset, run_cli, tmp_path):
    ran = run_cli("stage", f"{hdfs.url}/set/", tmp_path / "d", "--decompress", "--json", env=hdfs.env)
    assert ran.code == 0, ran.err
    assert tree(tmp_path / "d") == dataset
    again = run_cli("stage", f"{hdfs.url}/set/", tmp_path / "d", "--decompress", "--json", env=hdfs.env)
    assert again.code == 0, again.err
    assert json.loads(again.out.strip().splitlines()[-1])["bytes_in"] == 0


def test_default_file_system_is_that_of_the_hadoop_configuration(hdfs, dataset, run_cli, tmp_path):
    ran = run_cli("index", "hdfs:///set/", "-o", tmp_path / "m.json", env=hdfs.default_env)
    assert ran.code == 0, ran.err
    assert len(json.loads((tmp_path / "m.json").read_text())["objects"]) == len(dataset)


def test_object_replaced_after_the_index_is_told_of(hdfs, run_cli, tmp_path):
    hdfs.put("/moving/a", b"one")
    assert run_cli("index", f"{hdfs.url}/moving/", "-o", tmp_path / "m.json", env=hdfs.env).code == 0
    hdfs.put("/moving/a", b"two")
    ran = run_cli(
        "stage", f"{hdfs.url}/moving/", tmp_path / "d", "--manifest", tmp_path / "m.json", "--json", env=hdfs.env
    )
    assert ran.code == 1, ran.err
    assert "was replaced" in ran.out + ran.err
    assert tree(tmp_path / "d") == {}


def test_open_reads_records_over_hdfs(hdfs, run_cli, tmp_path):
    made = run_cli("dataset", "cosmoflow", tmp_path / "data", "--samples", "8", "--voxels", "16")
    assert made.code == 0, made.err
    for name, body in tree(tmp_path / "data").items():
        hdfs.put(f"/cosmo/{name}", body)
    code = """if True:
        import sys, penstock
        dataset = penstock.open(sys.argv[1], records_per_object=1)
        fields = {"x": penstock.tensor("int16", (16, 16, 16, 4)), "y": penstock.tensor("float32", (4,))}
        loader = penstock.Loader(dataset.fields(**fields).shuffle(seed=7), batch_size=4, rank=0, world=1)
        print(sum(len(batch["x"]) for batch in loader))
    """
    done = subprocess.run(
        [sys.executable, "-c", code, f"{hdfs.url}/cosmo/"],
        env={**os.environ, **hdfs.env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 8


def test_stage_to_hdfs_is_seen_whole_by_a_foreign_client(hdfs, run_cli, tmp_path):
    body = random.Random(1).randbytes(3_000_000)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model é+%.bin").write_bytes(body)
    argv = ("stage", tmp_path / "run", f"{hdfs.url}/runs/one", "--quiet", "--journal", tmp_path / "journal")
    assert run_cli(*argv, env=hdfs.env).code == 0
    assert hdfs.get("/runs/one/model é+%.bin") == body


def test_key_that_hdfs_refuses_is_named(hdfs, run_cli, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/a:b").write_bytes(b"x")
    argv = ("stage", tmp_path / "run", f"{hdfs.url}/runs/two", "--json", "--journal", tmp_path / "journal")
    ran = run_cli(*argv, env=hdfs.env)
    assert ran.code == 1
    assert "HDFS names cannot contain `:`" in ran.err


def test_tenant_of_hdfs_acts_as_its_own_user_and_never_as_ours(hdfs, run_cli, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/x").write_bytes(b"x")
    tenant = {"HADOOP_USER_NAME": "stranger", "PENSTOCK_STORE_LAB_URL": hdfs.url}
    argv = ("stage", tmp_path / "run", f"{hdfs.url}/runs/three", "--quiet", "--journal", tmp_path / "journal")
    ran = run_cli(*argv, env=tenant)
    assert ran.code == 2
    assert "HADOOP_USER_NAME" in ran.err
    assert run_cli(*argv, env=tenant | {"PENSTOCK_STORE_LAB_HADOOP_USER_NAME": "penstock"}).code == 0
    assert hdfs.owner("/runs/three/x") == "penstock"


def test_address_where_no_namenode_is_gives_up_and_says_so(run_cli, tmp_path):
    ran = run_cli("stage", "hdfs://127.0.0.1:9/set/", tmp_path / "d", env={"HADOOP_USER_NAME": "penstock"})
    assert ran.code == 3
    assert "cannot be reached" in ran.err


@pytest.mark.parametrize(("node", "name"), [(1, signal.SIGSTOP), (0, signal.SIGKILL)])
def test_stage_goes_on_while_a_datanode_is_lost(hdfs, dataset, tmp_path, node, name):
    with (tmp_path / "log").open("wb") as log:
        stage = subprocess.Popen(
            [Path(sys.executable).with_name("penstock"), "stage", f"{hdfs.url}/set/", tmp_path / "d", "--decompress"],
            env={**os.environ, **hdfs.env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        pid = hdfs.nodes[node]
        try:
            while stage.poll() is None and not tree(tmp_path / "d"):
                time.sleep(0.001)
            os.kill(pid, name)
            # hdfs-native alone would wait more than a minute at every hung read.
            assert stage.wait(55) == 0, (tmp_path / "log").read_text()
        finally:
            stage.kill()
            stage.wait()
            if name == signal.SIGKILL:
                hdfs.start_node(node)
            else:
                os.kill(pid, signal.SIGCONT)
    assert tree(tmp_path / "d") == dataset


def test_stage_to_hdfs_tells_what_inflates_beyond_memory_before_it_is_all_there(hdfs, tmp_path):
    source = tmp_path / "run"
    source.mkdir()
    with gzip.open(source / "zeros.bin.gz", "wb", compresslevel=1) as zeros:
        for _ in range(600):
            zeros.write(bytes(1 << 20))
    env = {**os.environ, **hdfs.env, "XDG_STATE_HOME": str(tmp_path / "state")}
    penstock = Path(sys.executable).with_name("penstock")
    argv = [penstock, "stage", source, f"{hdfs.url}/up/bomb", "--decompress", "--memory", "64MiB"]
    with (tmp_path / "log").open("wb") as log:
        stage = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    # Measured here, since the kernel's peak of an ended child includes its parent's memory at the fork.
    peak = 0
    while stage.poll() is None:
        lines = Path(f"/proc/{stage.pid}/status").read_text().splitlines()
        peak = max([peak, *(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))])
        time.sleep(0.005)
    output = (tmp_path / "log").read_text()
    assert (stage.returncode, "in one request" in output) == (3, True), output
    assert 0 < peak < 400 << 20


def test_stage_to_hdfs_is_whole_and_what_memory_cannot_hold_is_refused(hdfs, run_cli, tmp_path):
    """HDFS stores an object in one piece, and names gain the suffix of their compression."""
    source = tmp_path / "run"
    source.mkdir()
    (source / "small +é.csv").write_bytes(b"1,2\n" * 5000)
    (source / "large.bin").write_bytes(random.Random(1).randbytes(20_000_000))
    env = {**hdfs.env, "XDG_STATE_HOME": str(tmp_path / "state")}
    url = f"{hdfs.url}/up/run"
    little = run_cli("stage", source, url, "--memory", "32MiB", "--json", env=env)
    assert (little.code, "large.bin" in little.err, "in one request" in little.err) == (3, True, True), little.err
    ran = run_cli("stage", source, url, "--json", env=env)
    assert ran.code == 0, ran.err
    assert hdfs.get("/up/run/large.bin") == (source / "large.bin").read_bytes()
    again = run_cli("stage", source, url, "--json", env=env)
    assert json.loads(again.out.strip().splitlines()[-1])["bytes_in"] == 0
    assert run_cli("verify", url, env=env).code == 0
    packed = run_cli("stage", source, f"{hdfs.url}/up/packed", "--compress", "gzip", "--json", env=env)
    assert packed.code == 0, packed.err
    assert gzip.decompress(hdfs.get("/up/packed/small +é.csv.gz")) == b"1,2\n" * 5000
