# SPDX-License-Identifier: Apache-2.0
"""Tests faults during a pass: stores that become unreachable, keys that expire, full disks, compression bombs."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time

import pytest

import penstock
from penstock.emulator import Emulator
from penstock.errors import Changed, Corrupt, PenstockError

from .conftest import dataset, record, samples

LIMIT_S = 60


class Served:
    """A folder behind an endpoint that can stop and start again at the same address."""

    def __init__(self, folder, **arguments):
        self.folder, self.arguments = folder, arguments
        self.server = Emulator(folder, **arguments)
        self.server.__enter__()
        self.env, self.url = dict(self.server.env), self.server.url
        self.arguments |= {
            "bind": self.server.endpoint.removeprefix("http://"),
            "access_key": self.env["AWS_ACCESS_KEY_ID"],
            "secret_key": self.env["AWS_SECRET_ACCESS_KEY"],
        }

    def down(self):
        self.server.__exit__(None, None, None)

    def up(self):
        self.server = Emulator(self.folder, **self.arguments)
        self.server.__enter__()


@pytest.fixture
def served(made, monkeypatch):
    server = Served(made([1] * 24))
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    yield server
    server.down()


def opened(server, **arguments):
    return dataset(server.url, records_per_object=1, **arguments)


def test_endpoint_that_is_away_for_a_while_is_waited_for(served):
    loader = penstock.Loader(opened(served), batch_size=2, max_in_flight=2, read_ahead=0)
    walk = iter(loader)
    seen = samples(next(walk))
    served.down()
    back = threading.Timer(4.0, served.up)
    back.start()
    try:
        for batch in walk:
            seen += samples(batch)
    finally:
        back.join()
    assert seen == list(range(24))
    assert loader.report()["retries"] > 0


def test_endpoint_that_is_gone_for_good_is_one_error_in_time(served):
    loader = penstock.Loader(opened(served), batch_size=2, max_in_flight=2, read_ahead=0, object_timeout_s=3.0)
    walk = iter(loader)
    assert samples(next(walk)) == [0, 1]
    served.down()
    began = time.monotonic()
    with pytest.raises(PenstockError) as caught:
        list(walk)
    assert time.monotonic() - began < LIMIT_S
    assert caught.value.code in ("unreachable", "deadline")
    assert "\n" not in str(caught.value)
    state = loader.state_dict()
    served.up()
    again = penstock.Loader(opened(served), batch_size=2)
    again.load_state_dict(state)
    assert [sample for batch in again for sample in samples(batch)] == list(range(state["cursor"], 24))


def test_consumer_that_stops_asks_the_store_for_nothing_more(served):
    loader = penstock.Loader(opened(served), batch_size=2, max_in_flight=2, read_ahead=0)
    for batch in loader:
        assert samples(batch) == [0, 1]
        break
    # Requests in flight complete first.
    asked, before, until = served.server.stats()["gets"], -1, time.monotonic() + 20
    while asked != before and time.monotonic() < until:
        time.sleep(0.3)
        asked, before = served.server.stats()["gets"], asked
    assert asked == before < 24
    time.sleep(1)
    assert served.server.stats()["gets"] == asked
    # The same epoch again, from its start.
    assert [sample for batch in loader for sample in samples(batch)] == list(range(24))


def test_object_replaced_during_the_epoch_is_told_and_never_mixed_in(served):
    loader = penstock.Loader(opened(served), batch_size=2, max_in_flight=1, read_ahead=0)
    walk = iter(loader)
    assert samples(next(walk)) == [0, 1]
    # Same length and same record as before: only the object's version differs.
    path = served.folder / "part-0020.tfrecord.gz"
    content = bytearray(path.read_bytes())
    content[4] ^= 1  # gzip's time stamp
    path.write_bytes(content)
    seen = []
    with pytest.raises(Changed, match="part-0020"):
        seen.extend(sample for batch in walk for sample in samples(batch))
    assert seen == list(range(2, 20))


def test_credentials_that_expire_during_the_epoch_are_renewed(served, monkeypatch, tmp_path):
    asked, program, config = tmp_path / "asked", tmp_path / "keys", tmp_path / "config"
    program.write_text(
        f"""#!{sys.executable}
import datetime, json
with open({str(asked)!r}, "a") as log: print("asked", file=log)
ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=24)
print(json.dumps(dict(Version=1, AccessKeyId={served.env["AWS_ACCESS_KEY_ID"]!r}, SecretAccessKey={served.env["AWS_SECRET_ACCESS_KEY"]!r}, Expiration=ends.strftime("%Y-%m-%dT%H:%M:%SZ"))))
"""
    )
    program.chmod(0o755)
    config.write_text(f"[default]\ncredential_process = {program}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    data = opened(served)
    loader = penstock.Loader(data, batch_size=2, max_in_flight=1, read_ahead=0)
    walk = iter(loader)
    seen = samples(next(walk))
    before = len(asked.read_text().splitlines())
    # Waits until the credential counts as about to expire.
    time.sleep(10)
    for batch in walk:
        seen += samples(batch)
    assert seen == list(range(24))
    assert len(asked.read_text().splitlines()) > before


DISK = """
import json, sys
import penstock as ps
url, folder = sys.argv[1:]
ds = ps.open(url, records_per_object=1).fields(y=ps.tensor("float32", (4,))).cache(folder, limit_bytes=1 << 30)
loader = ps.Loader(ds, batch_size=4)
seen = [[int(y) for batch in loader for y in batch["y"][:, 0]] for _ in range(2)]
print(json.dumps([seen, loader.report()["cache_failures"]]))
"""


@pytest.mark.needs_root
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_cache_on_a_full_disk_costs_requests_alone_and_on_a_read_only_one_is_refused_at_the_start(
    served, tmp_path, how
):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=True)
    try:
        if how == "full":
            (disk / "ballast").write_bytes(bytes(56 << 10))
        else:
            (disk / "penstock-cache-1").mkdir()
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        ran = subprocess.run(
            [sys.executable, "-c", DISK, served.url, str(disk)],
            env={**os.environ, **served.env},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    if how == "read-only":
        # The error comes at the start, and names the folder.
        assert ran.returncode != 0
        assert "errors.Denied: " in ran.stderr
        assert "/disk cannot be accessed: Read-only file system" in ran.stderr
        return
    assert ran.returncode == 0, ran.stderr
    seen, failures = json.loads(ran.stdout)
    assert seen == [list(range(24))] * 2
    assert failures > 0


def tar_of(name: str, size: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = size
        archive.addfile(info, io.BytesIO(bytes(size)))
    return out.getvalue()


@pytest.mark.parametrize("kind", ["tfrecord", "tar"])
def test_bomb_is_refused_at_the_stated_limit(tmp_path, kind):
    folder = tmp_path / "d"
    folder.mkdir()
    size = 200 << 20
    content = tar_of("a.bin", size) if kind == "tar" else record(0) + bytes(size)
    (folder / f"a.{kind}.gz").write_bytes(gzip.compress(content, 9))
    output = {"x": penstock.raw().of("bin")} if kind == "tar" else {"y": penstock.tensor("float32", (4,))}
    data = penstock.open(folder, records_per_object=1).fields(**output)
    with pytest.raises(Corrupt, match=r"a\.(tar|tfrecord)\.gz decompresses to more than .*bytes"):
        list(penstock.Loader(data, batch_size=1, memory_bytes=64 << 20))


def test_tar_that_claims_more_than_it_has_is_refused_by_its_numbers(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    content = bytearray(tar_of("a.bin", 600))
    content[124:136] = b"77777777777\0"
    content[148:156] = b"        "
    content[148:156] = b"%06o\0 " % sum(content[:512])
    (folder / "a.tar").write_bytes(content)
    with pytest.raises(Corrupt, match=r"a\.tar ends inside member 0 .*want 8,589,934,591 bytes"):
        penstock.open(folder).counted()
