# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock stage` to stores: our emulator, versitygw, Azurite, fake-gcs-server. Issue 4, both directions."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

import boto3
import pytest
from stage_kit import await_true, facts, launch, tree
from tap import Tap
from test_sources import azure, google  # noqa: F401 - fixtures

from tests.peer_stores import KEY

LARGE = 40_000_000


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Outputs of a run: odd names, an empty file, a file in several parts, and one that is already compressed."""
    folder = tmp_path / "outputs"
    rng = random.Random(5)
    bodies = {
        "loss.csv": b"step,loss\n" * 5000,
        "empty": b"",
        "d e/é+%20&?#.txt": b"odd " * 300,
        "model/large.bin": bytes(LARGE // 2) + rng.randbytes(LARGE // 2),
        "done.gz": gzip.compress(b"once " * 9000, mtime=0),
        "noise.bin": rng.randbytes(90_000),
    }
    for name, body in bodies.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    return folder


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """Environment with a state folder of the test's own, where stages store their journals."""
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def client(served):
    env = served.env
    return boto3.client(
        "s3",
        endpoint_url=env["AWS_ENDPOINT_URL"],
        region_name=env["AWS_REGION"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
    )


def bucket_of(served) -> str:
    return served.url.removeprefix("s3://").strip("/")


@pytest.mark.parametrize("kind", ["emulator", "versitygw", "azure", "google"])
def test_stage_to_a_store_is_whole_recorded_and_again_moves_nothing(kind, request, run_cli, tmp_path, outputs, state):
    if kind == "emulator":
        peer = request.getfixturevalue("emulator")()
        url, env = f"{peer.url.rstrip('/')}/run 17/", peer.env
    elif kind == "versitygw":
        peer = request.getfixturevalue("versitygw")
        peer.bucket("upload")
        url, env = "s3://upload/run 17/", peer.env
    else:
        peer = request.getfixturevalue(kind)
        url, env = peer.url.removesuffix("set/") + "run 17", peer.env
    env = {**env, **state}
    ran = run_cli("stage", outputs, url, "--json", env=env)
    assert ran.code == 0, ran.err
    assert (facts(ran)["moved"], facts(ran)["failed"]) == (6, [])
    assert KEY not in ran.out + ran.err
    again = run_cli("stage", outputs, url, "--json", env=env)
    assert (again.code, facts(again)["bytes_in"], facts(again)["bytes_out"], facts(again)["skipped"]) == (0, 0, 0, 6)
    # Without a journal, a machine uses the manifest beside the objects.
    elsewhere = run_cli("stage", outputs, url, "--json", "--journal", tmp_path / "other", env=env)
    assert (elsewhere.code, facts(elsewhere)["bytes_in"], facts(elsewhere)["skipped"]) == (0, 0, 6), elsewhere.err
    for more in ([], ["--quick"]):
        found = run_cli("verify", url, "--json", *more, env=env)
        assert (found.code, facts(found)["ok"], facts(found)["unexpected"]) == (0, 6, []), found.err
    compared = run_cli("diff", outputs, url, "--json", env=env)
    assert (compared.code, facts(compared)["same"]) == (0, 6), compared.out
    back = run_cli("stage", url, tmp_path / "back", "--json", env=env)
    assert (back.code, tree(tmp_path / "back")) == (0, tree(outputs)), back.err


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_stage_deflate_says_its_encoding_and_comes_back(codec, emulator, run_cli, tmp_path, outputs, state):
    served = emulator()
    env = {**served.env, **state}
    ran = run_cli("stage", outputs, served.url + "a", "--compress", codec, "--json", env=env)
    assert ran.code == 0, ran.err
    bucket = bucket_of(served)
    for name, encoding in [("loss.csv", codec), ("model/large.bin", codec), ("done.gz", None), ("noise.bin", None)]:
        head = client(served).head_object(Bucket=bucket, Key=f"a/{name}")
        assert head.get("ContentEncoding") == encoding, name
    assert facts(ran)["bytes_out"] < facts(ran)["bytes_in"] * 0.6
    again = run_cli("stage", outputs, served.url + "a", "--compress", codec, "--json", env=env)
    assert (facts(again)["bytes_in"], facts(again)["skipped"]) == (0, 6)
    # The compressed bytes are the same on any machine and any number of cores.
    one = tmp_path / "one"
    one.write_text("#!/bin/sh\nexec taskset -c 0 " + str(Path(sys.executable).with_name("penstock")) + ' "$@"\n')
    one.chmod(0o755)
    subprocess.run(
        [one, "stage", outputs, served.url + "b", "--compress", codec, "--quiet"],
        env={**os.environ, **env}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    folder = Path(served.folder) if hasattr(served, "folder") else None
    for name in tree(outputs):
        tags = {client(served).head_object(Bucket=bucket, Key=f"{p}/{name}")["ETag"].split("-")[0] for p in "ab"}
        assert len(tags) == 1, (name, folder)
    assert run_cli("verify", served.url + "a", "--json", env=env).code == 0
    assert run_cli("diff", outputs, served.url + "a", "--json", env=env).code == 0
    back = run_cli("stage", served.url + "a", tmp_path / "back", "--decompress", "--json", env=env)
    assert back.code == 0, back.err
    want = tree(outputs)
    want["done"] = gzip.decompress(want.pop("done.gz"))
    assert tree(tmp_path / "back") == want
    kept = run_cli("stage", outputs, tmp_path / "folder", "--compress", codec, "--json")
    assert kept.code == 0, kept.err
    suffix = {"gzip": ".gz", "zstd": ".zst"}[codec]
    assert sorted(tree(tmp_path / "folder")) == sorted(n if n == "done.gz" else n + suffix for n in tree(outputs))
    assert run_cli("verify", tmp_path / "folder", "--json").code == 0
    restored = run_cli("stage", tmp_path / "folder", tmp_path / "restored", "--decompress", "--json")
    assert (restored.code, tree(tmp_path / "restored")) == (0, want), restored.err


def test_stage_deflate_is_undone_by_other_tools(google, run_cli, tmp_path, outputs, state):  # noqa: F811
    env = {**google.env, **state}
    ran = run_cli("stage", outputs, "gs://data/packed", "--compress", "gzip", "--quiet", env=env)
    assert ran.code == 0, ran.err
    host = google.env["STORAGE_EMULATOR_HOST"]
    for name in ("loss.csv", "model/large.bin"):
        # curl, like browsers, reads only a single gzip member.
        url = f"http://{host}/storage/v1/b/data/o/{urllib.parse.quote('packed/' + name, safe='')}?alt=media"
        got = subprocess.run(["curl", "-sf", "--compressed", url], capture_output=True, check=True).stdout
        assert got == (outputs / name).read_bytes(), name


def test_stage_killed_amid_an_upload_sends_the_rest(emulator, run_cli, tmp_path, state):
    served, source = emulator(), tmp_path / "big"
    source.mkdir()
    body = random.Random(3).randbytes(120_000_000)
    (source / "one.bin").write_bytes(body)
    with Tap(served.env["AWS_ENDPOINT_URL"]) as tap:
        tap.rate_bytes_per_s = 15e6
        env = {**served.env, **state, "AWS_ENDPOINT_URL": tap.endpoint}
        process = launch("stage", source, served.url, env=env, log=tmp_path / "log")
        await_true(lambda: tap.sent > 75_000_000)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert client(served).list_objects_v2(Bucket=bucket_of(served)).get("KeyCount", 0) == 0
        time.sleep(0.3)
        tap.rate_bytes_per_s, before = 0.0, tap.sent
        ran = run_cli("stage", source, served.url, "--json", env=env)
        assert ran.code == 0, ran.err
        # Parts that are already in the store are neither read nor sent again.
        resumed = facts(ran)["resumed_bytes"]
        assert resumed >= 16 << 20
        assert facts(ran)["bytes_in"] <= len(body) - resumed + (1 << 20)
        assert tap.sent - before <= (len(body) - resumed) * 1.05
    assert run_cli("verify", served.url, env=env | served.env).code == 0


def test_stage_interrupted_takes_its_parts_back(emulator, tmp_path, state):
    served, source = emulator(), tmp_path / "big"
    source.mkdir()
    (source / "one.bin").write_bytes(random.Random(3).randbytes(80_000_000))
    with Tap(served.env["AWS_ENDPOINT_URL"]) as tap:
        tap.rate_bytes_per_s = 4e6
        env = {**served.env, **state, "AWS_ENDPOINT_URL": tap.endpoint}
        process = launch("stage", source, served.url, env=env, log=tmp_path / "log")
        await_true(lambda: tap.sent > 10_000_000)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    left = client(served).list_multipart_uploads(Bucket=bucket_of(served)).get("Uploads", [])
    assert left == []
    assert client(served).list_objects_v2(Bucket=bucket_of(served)).get("KeyCount", 0) == 0


def test_stage_through_refusals_and_resets_is_whole(emulator, run_cli, tmp_path, outputs, state):
    served = emulator()
    with Tap(served.env["AWS_ENDPOINT_URL"]) as tap:
        tap.refuses_until, tap.breaks = time.monotonic() + 2, 5
        env = {**served.env, **state, "AWS_ENDPOINT_URL": tap.endpoint}
        ran = run_cli("stage", outputs, served.url, "--json", env=env, timeout_s=120)
        assert (ran.code, facts(ran)["failed"]) == (0, []), ran.err
        assert tap.refused > 0
        assert tap.breaks < 5
        assert facts(ran)["throttles"] > 0
    assert run_cli("verify", served.url, "--json", env={**served.env, **state}).code == 0


def test_stage_to_what_refuses_is_told_in_one_line(emulator, run_cli, outputs, state):
    served = emulator()
    for url, change, code in [
        ("s3://no-such-bucket/x", {}, "not-found"),
        (served.url, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "denied"),
        ("http://127.0.0.1:9/x", {}, "unsupported"),
    ]:
        ran = run_cli("stage", outputs, url, env={**served.env, **state, **change})
        assert ran.code == 3 if code != "unsupported" else ran.code in (2, 3), (url, ran.err)
        assert f"error[{code}]" in ran.err, ran.err
        assert "wrong" not in ran.err


def test_stage_leaves_strangers_alone_and_takes_over_what_is_the_same(
    emulator, run_cli, tmp_path, outputs, state, put_object
):
    served = emulator()
    env = {**served.env, **state}
    put_object(served, b"loss.csv", b"another's")
    ran = run_cli("stage", outputs, served.url, "--json", env=env)
    assert (ran.code, "error[precondition]" in ran.err) == (3, True), ran.err
    # The size is the same, so only the bytes can show the difference.
    put_object(served, b"loss.csv", bytes(50_000))
    put_object(served, b"noise.bin", (outputs / "noise.bin").read_bytes())
    ran = run_cli("stage", outputs, served.url, "--json", env=env)
    assert (ran.code, [f["key"] for f in facts(ran)["failed"]]) == (1, ["loss.csv"]), ran.err
    ran = run_cli("stage", outputs, served.url, "--overwrite", "--json", env=env)
    assert (ran.code, facts(ran)["skipped"], facts(ran)["moved"]) == (0, 5, 1), ran.err
    assert run_cli("verify", served.url, env=env).code == 0


def test_verify_of_a_store_finds_what_is_wrong_and_mends_it(emulator, run_cli, tmp_path, outputs, state, put_object):
    served = emulator()
    env = {**served.env, **state}
    assert run_cli("stage", outputs, served.url, "--compress", "zstd", "--quiet", env=env).code == 0
    was = tmp_path / "was.json"
    client(served).download_file(bucket_of(served), ".penstock/manifest.json", str(was))
    bad = bytearray((outputs / "noise.bin").read_bytes())
    bad[777] ^= 4
    put_object(served, b"noise.bin", bytes(bad))
    client(served).delete_object(Bucket=bucket_of(served), Key="loss.csv")
    put_object(served, b"stranger", b"x")
    for more in ([], ["--quick"]):
        found = run_cli("verify", served.url, "--json", *more, env=env)
        assert found.code == 1, found.err
        wrong = {w["file"]: w["problem"] for w in facts(found)["failed"]}
        assert wrong == {"noise.bin": "digest", "loss.csv": "missing"}
        assert facts(found)["unexpected"] == ["stranger"]
    changed = facts(run_cli("diff", was, served.url, "--json", env=env))
    assert (changed["removed"], changed["added"], [c["name"] for c in changed["changed"]]) == (
        ["loss.csv"],
        ["stranger"],
        ["noise.bin"],
    )
    mended = run_cli("verify", served.url, "--repair", "--json", env=env)
    assert (mended.code, sorted(facts(mended)["repaired"])) == (0, ["loss.csv", "noise.bin"]), mended.err
    assert run_cli("verify", served.url, "--quick", env=env).code == 0


@pytest.mark.parametrize("promised", [[], ["crc32c:00000000"]])
def test_verify_repair_sends_nothing_that_the_record_does_not_recognise(promised, emulator, run_cli, tmp_path, state):
    """A manifest by an attacker with write access to the bucket names a private local file as an object's origin."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "id_rsa").write_text("private")
    folder = tmp_path / "bucket"
    (folder / "set/.penstock").mkdir(parents=True)
    origin = {"key": "id_rsa", "size": 7, "digests": promised, "checked": []}
    entry = {"key": "data.bin", "size": 7, "codec": "none", "format": "raw", "origin": origin}
    document = {"penstock_manifest": 1, "url": "s3://x/", "source": f"file://{home}/", "created_s": 1.0}
    (folder / "set/.penstock/manifest.json").write_text(json.dumps(document | {"objects": [entry]}))
    served = emulator(folder=folder)
    ran = run_cli("verify", f"{served.url}set/", "--repair", "--json", env=served.env | state)
    assert (ran.code, [wrong["file"] for wrong in facts(ran)["failed"]]) == (1, ["data.bin"]), ran.err
    assert not (folder / "set/data.bin").exists()


def test_verify_of_a_store_says_what_its_stage_could_not_bring(emulator, run_cli, tmp_path, state):
    source = tmp_path / "source"
    source.mkdir()
    (source / "good.bin").write_bytes(b"good")
    (source / "bad.gz").write_bytes(gzip.compress(b"bad")[:-9])
    served = emulator()
    env = served.env | state
    assert run_cli("stage", source, f"{served.url}set/", "--decompress", "--quiet", env=env).code == 1
    ran = run_cli("verify", f"{served.url}set/", "--json", env=env)
    assert (ran.code, facts(ran)["ok"]) == (1, 1), ran.err
    assert facts(ran)["unfinished"] == [{"source": f"file://{source}/", "share": "0-of-1", "failed": 1}]
    (source / "bad.gz").write_bytes(gzip.compress(b"bad"))
    assert run_cli("stage", source, f"{served.url}set/", "--decompress", "--quiet", env=env).code == 0
    ran = run_cli("verify", f"{served.url}set/", "--json", env=env)
    assert (ran.code, facts(ran)["ok"], facts(ran)["unfinished"]) == (0, 2, []), ran.err


@pytest.mark.parametrize("kind", ["emulator", "versitygw"])
def test_stages_of_two_sources_to_one_prefix_keep_both_manifests(kind, request, run_cli, tmp_path, state):
    """Two stages, together and in turn: earlier, the last replaced the other's manifest, and verify missed its objects."""
    sources = [tmp_path / "a", tmp_path / "b"]
    for source in sources:
        source.mkdir()
        for at in range(5):
            (source / f"{source.name}{at}.bin").write_bytes(os.urandom(2000))
    if kind == "emulator":
        served = request.getfixturevalue("emulator")(folder=tmp_path)
        url, env = f"{served.url}runs/", served.env | state
    else:
        peer = request.getfixturevalue("versitygw")
        peer.bucket("two-sources")
        url, env = "s3://two-sources/runs/", peer.env | state
    jobs = [launch("stage", source, url, env=env, log=tmp_path / f"log-{source.name}") for source in sources]
    assert [job.wait(60) for job in jobs] == [0, 0]
    for source in sources:
        again = facts(run_cli("stage", source, url, "--json", env=env))
        assert (again["moved"], again["failed"]) == (0, [])
    found = facts(run_cli("verify", url, "--json", env=env))
    assert (found["ok"], found["unexpected_total"]) == (10, 0)
    if kind == "emulator":
        for name in ("a1.bin", "b1.bin"):
            (tmp_path / "runs" / name).write_bytes(b"other bytes")
        ran = run_cli("verify", url, "--repair", "--json", env=env)
        assert (ran.code, facts(ran)["repaired"]) == (0, ["a1.bin", "b1.bin"]), ran.err
        assert facts(run_cli("verify", url, "--quick", "--json", env=env))["ok"] == 10


def test_stage_by_two_nodes_gives_shares_and_two_manifests(emulator, run_cli, tmp_path, outputs, state):
    served = emulator()
    env = {**served.env, **state}
    moved = []
    for node in (0, 1):
        ran = run_cli("stage", outputs, served.url, "--node", node, "--nodes", 2, "--json", env=env)
        assert ran.code == 0, ran.err
        moved.append(facts(ran)["moved"])
    assert (sum(moved), min(moved) > 0) == (6, True)
    found = facts(run_cli("verify", served.url, "--json", env=env))
    assert (found["objects"], found["ok"]) == (6, 6)


def test_stage_of_a_file_that_is_replaced_midway_writes_nothing_of_it(emulator, tmp_path, state):
    served, source = emulator(), tmp_path / "big"
    source.mkdir()
    # Larger than the read-ahead.
    for name in ("new", "big/one.bin"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(300_000_000)
    with Tap(served.env["AWS_ENDPOINT_URL"]) as tap:
        tap.rate_bytes_per_s = 8e6
        env = {**served.env, **state, "AWS_ENDPOINT_URL": tap.endpoint}
        process = launch("stage", source, served.url, "--json", env=env, log=tmp_path / "log")
        await_true(lambda: tap.sent > 5_000_000)
        (tmp_path / "new").rename(source / "one.bin")
        tap.rate_bytes_per_s = 0.0
        assert process.wait(60) == 1
    result = json.loads((tmp_path / "log").read_text().strip().splitlines()[-1])
    assert [f["code"] for f in result["failed"]] == ["changed"]
    assert client(served).list_multipart_uploads(Bucket=bucket_of(served)).get("Uploads", []) == []
    keys = [o["Key"] for o in client(served).list_objects_v2(Bucket=bucket_of(served)).get("Contents", [])]
    assert "one.bin" not in keys


def test_stage_whose_journal_cannot_be_written_sends_nothing(emulator, run_cli, tmp_path, outputs):
    served = emulator()
    (tmp_path / "file").write_bytes(b"")
    ran = run_cli("stage", outputs, served.url, "--journal", tmp_path / "file/x", env=served.env)
    assert (ran.code, "error[config]: --journal: " in ran.err) == (2, True), ran.err
    assert client(served).list_objects_v2(Bucket=bucket_of(served)).get("KeyCount", 0) == 0
    if shutil.which("mount") and os.geteuid() == 0:
        full = tmp_path / "full"
        full.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", full], capture_output=True, check=False
        )
        if mounted.returncode == 0:
            try:
                (full / "filler").write_bytes(bytes(12 << 10))
                ran = run_cli("stage", outputs, served.url, "--journal", full, env=served.env)
                assert (ran.code, "error[no-space]" in ran.err) == (3, True), ran.err
            finally:
                subprocess.run(["umount", full], check=True)


def test_ingest_of_a_published_folder_takes_one_command(emulator, run_cli, tmp_path, state):
    """An index page: read from one server and written to a bucket; plain files are compressed on the way."""
    import http.server
    import threading
    from functools import partial

    site = tmp_path / "site/set"
    site.mkdir(parents=True)
    (site / "a.csv").write_bytes(b"1,2,3\n" * 20_000)
    (site / "b.tfrecord.gz").write_bytes(gzip.compress(b"x" * 5000))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "site")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        served = emulator()
        url = f"http://127.0.0.1:{server.server_address[1]}/set/"
        ran = run_cli("stage", url, served.url, "--compress", "gzip", "--json", env={**served.env, **state})
        assert (ran.code, facts(ran)["moved"]) == (0, 2), ran.err
        again = run_cli("stage", url, served.url, "--compress", "gzip", "--json", env={**served.env, **state})
        assert (facts(again)["skipped"], facts(again)["bytes_in"]) == (2, 0)
    finally:
        server.shutdown()
        server.server_close()


def test_stage_without_a_home_wants_a_journal(emulator, run_cli, tmp_path, outputs):
    served = emulator()
    ran = run_cli("stage", outputs, served.url, env={**served.env, "HOME": "", "XDG_STATE_HOME": "state"}, cwd=tmp_path)
    assert (ran.code, "the stage's journal cannot be stored" in ran.err, "--journal DIR" in ran.err) == (2, True, True)
    assert not (tmp_path / "state").exists()
