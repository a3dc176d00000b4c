# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock stage` and `penstock index` on the command line, over a real S3 endpoint. Issue 2."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from stage_kit import await_true, facts, launch, tree

from penstock import stage

if TYPE_CHECKING:
    from pathlib import Path


def test_index_of_a_prefix_counts_and_writes_a_manifest(bucket, run_cli, tmp_path):
    ran = run_cli("index", bucket.url, "-o", tmp_path / "m.json", "--json", env=bucket.env)
    found = facts(ran)
    assert (ran.code, found["objects"], found["bytes"]) == (0, 48, bucket.stored_bytes)
    assert (found["codecs"], found["requests"]) == ({"gzip": 32, "none": 16}, 1)
    document = json.loads((tmp_path / "m.json").read_text())
    assert (document["penstock_manifest"], document["url"], len(document["objects"])) == (2, bucket.url, 48)
    assert all(entry["version"] for entry in document["objects"])


def test_index_of_a_staged_copy_has_the_fingerprint_of_its_source(bucket, run_cli, tmp_path):
    run_cli("stage", bucket.url, tmp_path / "dst", "--decompress", "--quiet", env=bucket.env)
    source = facts(run_cli("index", bucket.url, "--json", env=bucket.env))
    copy = facts(run_cli("index", tmp_path / "dst", "--json"))
    assert (copy["objects"], copy["fingerprint"]) == (48, source["fingerprint"])


def test_stage_inflates_and_a_second_run_moves_nothing(bucket, run_cli, tmp_path):
    ran = run_cli("stage", bucket.url, tmp_path / "dst", "--decompress", "--json", env=bucket.env)
    assert ran.code == 0, ran.err
    assert tree(tmp_path / "dst") == bucket.want
    assert facts(ran)["bytes_in"] == bucket.stored_bytes
    again = facts(run_cli("stage", bucket.url, tmp_path / "dst", "--decompress", "--json", env=bucket.env))
    assert (again["bytes_in"], again["bytes_out"], again["skipped"]) == (0, 0, 48)
    assert bucket.env["AWS_SECRET_ACCESS_KEY"] not in ran.out + ran.err
    state = b"".join(p.read_bytes() for p in (tmp_path / "dst/.penstock").rglob("*") if p.is_file())
    assert bucket.env["AWS_SECRET_ACCESS_KEY"].encode() not in state


@pytest.mark.needs_s3
def test_stage_from_the_strict_peer_is_whole(versitygw, run_cli, tmp_path):
    home = versitygw.bucket("stage")
    bodies = {f"k{at}": os.urandom(1000 * at) for at in range(20)} | {"large": os.urandom(20 << 20)}
    for name, body in bodies.items():
        packed = name != "large" and int(name[1:]) % 2
        (home / (name + ".gz" if packed else name)).write_bytes(gzip.compress(body) if packed else body)
    ran = run_cli("stage", "s3://stage/", tmp_path / "dst", "--decompress", "--json", env=versitygw.env)
    assert (ran.code, tree(tmp_path / "dst")) == (0, bodies), ran.err


def test_stage_from_a_folder_and_from_a_file_url(run_cli, bucket, tmp_path):
    for at, source in enumerate((bucket.folder / "set", f"file://{bucket.folder}/set/")):
        ran = run_cli("stage", source, tmp_path / f"dst{at}", "--decompress", "--json")
        assert (ran.code, tree(tmp_path / f"dst{at}")) == (0, bucket.want), ran.err


def test_stage_with_a_manifest_refuses_what_was_replaced_since(bucket, run_cli, tmp_path):
    run_cli("index", bucket.url, "-o", tmp_path / "m.json", env=bucket.env)
    (bucket.folder / "set/d/f000.bin").write_bytes(b"another")
    (bucket.folder / "set/d/f003.bin").unlink()
    ran = run_cli(
        "stage",
        bucket.url,
        tmp_path / "dst",
        "--decompress",
        "--manifest",
        tmp_path / "m.json",
        "--json",
        env=bucket.env,
    )
    failed = {failure["key"]: failure["code"] for failure in facts(ran)["failed"]}
    assert (ran.code, failed) == (1, {"d/f000.bin": "changed", "d/f003.bin": "not-found"})
    assert "f000.bin" in ran.err
    assert "f003.bin" in ran.err
    want = {name: body for name, body in bucket.want.items() if name not in ("d/f000.bin", "d/f003.bin")}
    assert tree(tmp_path / "dst") == want


def test_stage_of_a_truncated_gzip_names_it_and_moves_the_rest(bucket, run_cli, tmp_path):
    path = bucket.folder / "set/d/f001.bin.gz"
    path.write_bytes(path.read_bytes()[:-40])
    ran = run_cli("stage", bucket.url, tmp_path / "dst", "--decompress", "--json", env=bucket.env)
    assert (ran.code, [failure["code"] for failure in facts(ran)["failed"]]) == (1, ["corrupt"])
    assert "f001.bin.gz" in ran.err
    assert "Traceback" not in ran.err
    assert tree(tmp_path / "dst") == {k: v for k, v in bucket.want.items() if k != "d/f001.bin"}
    residue = tmp_path / "dst/.penstock/stage/residue.json"
    assert json.loads(residue.read_text())["failed"] == facts(ran)["failed"]
    path.write_bytes(gzip.compress(b"mended"))
    assert run_cli("stage", bucket.url, tmp_path / "dst", "--decompress", env=bucket.env).code == 0
    assert not residue.exists()


@pytest.mark.parametrize(
    ("keys", "text"),
    [((b"../escape", b"ok"), "../escape"), ((b"A", b"a"), "use --allow-case-collisions"), ((b"fd", b"fd/x"), "folder")],
)
def test_stage_of_keys_that_cannot_be_files_is_refused_before_anything_is_written(
    keys, text, emulator, run_cli, tmp_path, put_object
):
    served = emulator()
    for key in keys:
        put_object(served, key, b"x")
    ran = run_cli("stage", served.url, tmp_path / "dst", "--json", env=served.env)
    assert ran.code == 1
    assert "error[key]" in ran.err
    assert text in ran.err
    assert not (tmp_path / "dst").exists()
    assert not (tmp_path / "escape").exists()


def test_stage_does_not_write_through_a_planted_link(bucket, run_cli, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst/d").symlink_to(outside)
    ran = run_cli("stage", bucket.url, tmp_path / "dst", "--json", env=bucket.env)
    assert (ran.code, list(outside.iterdir())) == (1, [])
    assert "symbolic link" in ran.err


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, 3, "error[denied]"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, 3, "error[unreachable]"),
    ],
)
def test_stage_from_a_store_that_refuses_is_one_error(change, code, text, bucket, run_cli, tmp_path):
    env = {**bucket.env, **change}
    ran = run_cli("stage", bucket.url, tmp_path / "dst", "--json", "--retry-timeout", "2s", env=env)
    assert (ran.code, text in ran.err, "hint:" in ran.err, "Traceback" in ran.err) == (code, True, True, False), ran.err
    assert not (tmp_path / "dst").exists()


def test_stage_of_nothing_is_not_found_with_a_hint(bucket, run_cli, tmp_path):
    ran = run_cli("stage", bucket.url + "nothing-here/", tmp_path / "dst", env=bucket.env)
    assert (ran.code, "error[not-found]" in ran.err, "hint:" in ran.err) == (3, True, True)


def test_stage_to_a_web_server_is_refused_in_one_sentence(bucket, run_cli):
    ran = run_cli("stage", bucket.url, "http://127.0.0.1:9/x", env=bucket.env)
    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "not supported" in ran.err


def test_stage_dry_run_says_every_share_and_touches_nothing(bucket, run_cli, tmp_path):
    ran = run_cli(
        "stage", bucket.url, tmp_path / "dst", "--dry-run", "--node", 1, "--nodes", 3, "--json", env=bucket.env
    )
    found = facts(ran)
    assert (sum(found["shares"]), found["bytes"]) == (bucket.stored_bytes, found["shares"][1])
    assert not (tmp_path / "dst").exists()
    assert (
        "node 1 of 3" in run_cli("stage", bucket.url, "x", "--dry-run", "--node", 1, "--nodes", 3, env=bucket.env).out
    )


def test_stage_with_more_nodes_than_objects_says_that_there_is_nothing_to_do(bucket, run_cli, tmp_path):
    ran = run_cli("stage", bucket.url + "d/f000.bin", tmp_path / "dst", "--node", 5, "--nodes", 9, env=bucket.env)
    assert (ran.code, "nothing to do: 1 objects for 9 nodes" in ran.out) == (0, True), ran.err


@contextmanager
def _read_only(folder: Path):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.needs_root
def test_stage_into_an_unwritable_destination_is_denied(bucket, run_cli, tmp_path):
    with _read_only(tmp_path / "dst"):
        ran = run_cli("stage", bucket.url, tmp_path / "dst", env=bucket.env)
    assert (ran.code, "error[denied]" in ran.err, str(tmp_path / "dst") in ran.err) == (3, True, True), ran.err


@pytest.mark.needs_root
@pytest.mark.parametrize("size", ["300k", "1700k"])
def test_stage_onto_a_full_disk_says_so_and_goes_on_later(size, bucket, run_cli, tmp_path):
    """300 kB cannot hold the stored bytes, which is found at plan time; 1.7 MB can, but not the inflated bytes."""
    for at in range(3):
        (bucket.folder / f"set/d/z{at}.bin.gz").write_bytes(gzip.compress(bytes(700_000)))
    want = bucket.want | {f"d/z{at}.bin": bytes(700_000) for at in range(3)}
    folder = tmp_path / "dst"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        ran = run_cli("stage", bucket.url, folder, "--decompress", "--json", env=bucket.env)
        assert (ran.code, "error[no-space]" in ran.err, "hint:" in ran.err) == (3, True, True), ran.err
        assert all(want[name] == body for name, body in tree(folder).items())
        subprocess.run(["mount", "-o", "remount,size=16m", folder], check=True)
        ran = run_cli("stage", bucket.url, folder, "--decompress", "--json", env=bucket.env)
        assert (ran.code, tree(folder) == want) == (0, True), ran.err
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.needs_root
def test_stage_from_a_folder_onto_a_disk_too_small_for_what_it_inflates_to_moves_nothing(run_cli, tmp_path):
    source, folder = tmp_path / "source", tmp_path / "dst"
    source.mkdir()
    folder.mkdir()
    for at in range(4):
        (source / f"z{at}.bin.gz").write_bytes(gzip.compress(os.urandom(40_000) + bytes(400_000)))
    (source / "cut.bin.gz").write_bytes(gzip.compress(os.urandom(9_000))[:8_000])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        ran = run_cli("stage", source, folder, "--decompress", "--json")
        assert (ran.code, "error[no-space]" in ran.err, tree(folder)) == (3, True, {}), ran.err
        subprocess.run(["mount", "-o", "remount,size=4m", folder], check=True)
        ran = run_cli("stage", source, folder, "--decompress", "--json")
        assert (ran.code, len(tree(folder)), [f["key"] for f in facts(ran)["failed"]]) == (1, 4, ["cut.bin.gz"]), (
            ran.err
        )
    finally:
        subprocess.run(["umount", folder], check=True)


def test_stage_killed_again_and_again_ends_as_if_undisturbed(slow_bucket, run_cli, tmp_path):
    dst, env = tmp_path / "dst", slow_bucket.env
    kept = 0
    for share in (0.15, 0.4, 0.7):
        child = launch("stage", slow_bucket.url, dst, "--decompress", env=env, log=tmp_path / "log")
        await_true(lambda at=share, child=child: child.poll() is not None or len(tree(dst)) >= at * 96)
        assert child.poll() is None, (tmp_path / "log").read_text()
        child.send_signal(signal.SIGKILL)
        child.wait()
        partial = tree(dst)
        assert all(slow_bucket.want[name] == body for name, body in partial.items())
        assert len(partial) >= kept
        kept = len(partial)
    last = facts(run_cli("stage", slow_bucket.url, dst, "--decompress", "--json", env=env))
    assert tree(dst) == slow_bucket.want
    assert last["skipped"] >= kept
    # It read only the missing bytes.
    assert last["bytes_in"] + sum(_stored(slow_bucket, name) for name in partial) <= 1.05 * slow_bucket.stored_bytes
    assert not any((dst / ".penstock/stage/parts").iterdir())


def _stored(bucket, name: str) -> int:
    path = bucket.folder / "set" / name
    return (path if path.exists() else path.with_name(path.name + ".gz")).stat().st_size


def test_stage_killed_inside_a_large_object_goes_on_inside_it(emulator, run_cli, tmp_path):
    folder = tmp_path / "bucket"
    folder.mkdir()
    body = os.urandom(48 << 20)
    (folder / "large.bin.gz").write_bytes(stored := gzip.compress(body, 1))
    served = emulator(folder=folder, tier="azure-hot", scale=0.002)
    dst, parts = tmp_path / "dst", tmp_path / "dst/.penstock/stage/parts"
    # One part at a time, so that some parts are complete when the stage is killed.
    child = launch("stage", served.url, dst, "--decompress", "--concurrency", 1, env=served.env, log=tmp_path / "log")
    await_true(lambda: child.poll() is not None or any(p.read_bytes().count(b"\n") >= 3 for p in parts.glob("*.done")))
    assert child.poll() is None, (tmp_path / "log").read_text()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert tree(dst) == {}
    last = facts(run_cli("stage", served.url, dst, "--decompress", "--json", env=served.env))
    assert last["resumed_bytes"] > 8 << 20  # at least two parts, of which one may be the short last one
    assert last["bytes_in"] + last["resumed_bytes"] == len(stored)
    assert tree(dst) == {"large.bin": body}


@pytest.mark.parametrize("asked", [signal.SIGINT])
def test_stage_interrupted_ends_with_130_and_goes_on_later(asked, slow_bucket, run_cli, tmp_path):
    dst, env = tmp_path / "dst", slow_bucket.env
    child = launch("stage", slow_bucket.url, dst, "--decompress", env=env, log=tmp_path / "log")
    await_true(lambda: child.poll() is not None or len(tree(dst)) >= 10)
    child.send_signal(asked)
    assert child.wait(20) == 130
    output = (tmp_path / "log").read_text()
    assert "resumes from there" in output
    assert "Traceback" not in output
    kept = tree(dst)
    assert all(slow_bucket.want[name] == body for name, body in kept.items())
    last = facts(run_cli("stage", slow_bucket.url, dst, "--decompress", "--json", env=env))
    assert (last["skipped"] >= len(kept), tree(dst) == slow_bucket.want) == (True, True)


def test_index_of_an_empty_text_is_refused(run_cli, tmp_path):
    (tmp_path / "mine").write_text("not to be listed")
    for arguments in (("index", ""), ("stage", "", tmp_path / "dst")):
        ran = run_cli(*arguments, cwd=tmp_path)
        assert (ran.code, ran.out, "must not be empty" in ran.err) == (2, "", True)
    assert not (tmp_path / "dst").exists()


def test_stage_from_and_to_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a").write_bytes(b"content")
    stage.run("~/src", "~/dst")
    assert ((tmp_path / "dst/a").read_bytes(), (tmp_path / "~").exists()) == (b"content", False)


def test_index_into_a_folder_that_is_not_there_says_so(run_cli, tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"x")
    ran = run_cli("index", tmp_path, "-o", tmp_path / "no" / "m.json")
    assert (ran.code, ran.out) == (3, "")
    assert f"the folder {tmp_path / 'no'} does not exist" in ran.err
