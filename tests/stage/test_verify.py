# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock verify` on the command line, over folders that `penstock stage` filled. Issue 4."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from stage_kit import Bucket, await_true, facts, launch, tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def staged(bucket: Bucket, run_cli: Callable[..., Any], tmp_path: Path) -> Path:
    ran = run_cli("stage", bucket.url, tmp_path / "dst", "--decompress", "--quiet", env=bucket.env)
    assert ran.code == 0, ran.err
    return tmp_path / "dst"


def _flip(path: Path) -> None:
    """Flips one bit; the file's size and mtime stay the same."""
    was, body = path.stat(), bytearray(path.read_bytes())
    body[len(body) // 2] ^= 8
    path.write_bytes(body)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def _problems(found: dict[str, Any]) -> dict[str, str]:
    return {wrong["file"]: wrong["problem"] for wrong in found["failed"]}


def test_verify_of_a_whole_copy_is_yes(staged, bucket, run_cli):
    ran = run_cli("verify", staged, "--json")
    found = facts(ran)
    assert (ran.code, found["objects"], found["ok"]) == (0, 48, 48), ran.err
    assert (found["failed"], found["unexpected"], found["requests"]) == ([], [], 0)
    assert found["bytes"] == sum(map(len, bucket.want.values()))
    assert "48 right, 0 wrong" in run_cli("verify", staged).out


def test_verify_names_each_wrong_file_and_what_is_wrong(staged, bucket, run_cli, tmp_path):
    _flip(staged / "d/f000.bin")
    (staged / "d/f001.bin").write_bytes(b"short")
    (staged / "d/f002.bin").unlink()
    (staged / "d/f003.bin").unlink()
    (staged / "d/f003.bin").symlink_to(tmp_path / "elsewhere")
    (staged / "d/f004.bin").unlink()
    os.mkfifo(staged / "d/f004.bin")
    (staged / "mine.txt").write_text("mine")
    ran = run_cli("verify", staged, "--json")
    found = facts(ran)
    want = ["digest", "size", "missing", "not-a-file", "not-a-file"]
    assert (ran.code, _problems(found)) == (1, {f"d/f00{at}.bin": word for at, word in enumerate(want)}), ran.err
    assert (found["unexpected"], found["unexpected_total"], found["ok"]) == (["mine.txt"], 1, 43)
    assert "d/f000.bin" in ran.err
    assert "--repair" in ran.err


def test_verify_repair_fetches_exactly_what_is_wrong(staged, bucket, run_cli, tmp_path):
    _flip(staged / "d/f000.bin")
    (staged / "d/f001.bin").write_bytes(b"short")
    (staged / "d/f002.bin").unlink()
    (staged / "d/f003.bin").unlink()
    (staged / "d/f003.bin").symlink_to(tmp_path / "elsewhere")
    stored = sum(next((bucket.folder / "set/d").glob(f"f00{at}.bin*")).stat().st_size for at in range(4))
    ran = run_cli("verify", staged, "--repair", "--json", env=bucket.env)
    found = facts(ran)
    assert (ran.code, found["failed"], tree(staged) == bucket.want) == (0, [], True), ran.err
    assert (found["repaired"], found["bytes_in"]) == ([f"d/f00{at}.bin" for at in range(4)], stored)
    assert not (tmp_path / "elsewhere").exists()
    assert run_cli("verify", staged, "--json").code == 0
    again = facts(run_cli("stage", bucket.url, staged, "--decompress", "--json", env=bucket.env))
    assert (again["bytes_in"], again["skipped"]) == (0, 48)


def test_verify_repair_from_a_source_that_is_gone_or_replaced_changes_nothing(staged, bucket, run_cli):
    for name in ("f000", "f003", "f006"):
        _flip(staged / f"d/{name}.bin")
    before = tree(staged)
    (bucket.folder / "set/d/f000.bin").unlink()
    (bucket.folder / "set/d/f003.bin").write_bytes(b"replaced")
    ran = run_cli("verify", staged, "--repair", "--json", env=bucket.env)
    found = facts(ran)
    assert (ran.code, _problems(found)) == (1, {"d/f000.bin": "digest", "d/f003.bin": "digest"}), ran.err
    reasons = [wrong["repair_error"] for wrong in found["failed"]]
    assert "does not exist" in reasons[0]
    assert "replaced" in reasons[1]
    assert found["repaired"] == ["d/f006.bin"]
    assert tree(staged) == before | {"d/f006.bin": bucket.want["d/f006.bin"]}


def test_verify_repair_with_an_unreachable_source_says_so_and_ends_with_1(staged, bucket, run_cli):
    _flip(staged / "d/f000.bin")
    env = bucket.env | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    ran = run_cli("verify", staged, "--repair", "--json", "--retry-timeout", "2s", env=env)
    assert (ran.code, "cannot be reached" in facts(ran)["failed"][0]["repair_error"]) == (1, True), ran.err


def test_verify_of_a_folder_without_versions_repairs_by_digest(run_cli, bucket, tmp_path):
    """A source file that was written again with the same bytes is another version, but has the same content."""
    dst = tmp_path / "dst"
    run_cli("stage", bucket.folder / "set", dst, "--quiet")
    _flip(dst / "d/f000.bin")
    assert run_cli("verify", dst, "--repair", "--quiet").code == 0
    _flip(dst / "d/f001.bin.gz")
    source = bucket.folder / "set/d/f001.bin.gz"
    source.write_bytes(gzip.compress(b"replaced"))
    ran = run_cli("verify", dst, "--repair", "--json")
    assert (ran.code, list(_problems(facts(ran)))) == (1, ["d/f001.bin.gz"]), ran.err


@pytest.mark.parametrize("there", [False, True])
def test_verify_where_nothing_was_staged_is_refused(there, run_cli, tmp_path):
    if there:
        (tmp_path / "dst").mkdir()
        (tmp_path / "dst/a").write_text("a")
    ran = run_cli("verify", tmp_path / "dst", "--json")
    assert (ran.code, "error[not-found]" in ran.err, "Traceback" in ran.err) == (3, True, False), ran.err
    assert (tmp_path / "dst").exists() == there
    assert not (tmp_path / "dst/.penstock").exists()


def test_verify_of_two_nodes_shares_in_one_folder_covers_both(bucket, run_cli, tmp_path):
    dst = tmp_path / "dst"
    for node in range(2):
        ran = run_cli("stage", bucket.url, dst, "--node", node, "--nodes", 2, "--quiet", env=bucket.env)
        assert ran.code == 0, ran.err
    assert facts(run_cli("verify", dst, "--json"))["ok"] == 48
    for path in (dst / "d").iterdir():
        _flip(path)
    found = facts(run_cli("verify", dst, "--repair", "--json", env=bucket.env))
    assert (len(found["repaired"]), found["failed"]) == (48, [])
    again = facts(run_cli("stage", bucket.url, dst, "--node", 1, "--nodes", 2, "--json", env=bucket.env))
    assert (again["bytes_in"], again["moved"]) == (0, 0)


@pytest.mark.parametrize("lost", ["stage", "manifest.json"])
def test_verify_works_from_the_manifest_or_from_the_journal_alone(lost, staged, bucket, run_cli):
    path = staged / ".penstock" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    _flip(staged / "d/f001.bin")
    ran = run_cli("verify", staged, "--repair", "--json", env=bucket.env)
    found = facts(ran)
    assert (ran.code, found["objects"], found["repaired"]) == (0, 48, ["d/f001.bin"]), ran.err


def test_verify_repair_of_an_object_in_parts_fetches_it_again(emulator, run_cli, tmp_path):
    folder = tmp_path / "bucket"
    folder.mkdir()
    body = os.urandom(20 << 20)
    (folder / "large.bin.gz").write_bytes(gzip.compress(body, 1))
    served = emulator(folder=folder)
    assert run_cli("stage", served.url, tmp_path / "dst", "--decompress", "--quiet", env=served.env).code == 0
    _flip(tmp_path / "dst/large.bin")
    ran = run_cli("verify", tmp_path / "dst", "--repair", "--json", env=served.env)
    assert (ran.code, facts(ran)["repaired"]) == (0, ["large.bin"]), ran.err
    assert tree(tmp_path / "dst") == {"large.bin": body}


def test_verify_after_the_source_grew_and_shrank_checks_what_stands(staged, bucket, run_cli):
    """A staged file whose source object is gone is still checked if it exists, but may also be missing."""
    (bucket.folder / "set/d/f000.bin").unlink()
    (bucket.folder / "set/d/new.bin").write_bytes(b"new")
    assert run_cli("stage", bucket.url, staged, "--decompress", "--quiet", env=bucket.env).code == 0
    assert facts(run_cli("verify", staged, "--json"))["objects"] == 49
    _flip(staged / "d/f000.bin")
    assert _problems(facts(run_cli("verify", staged, "--json"))) == {"d/f000.bin": "digest"}
    (staged / "d/f000.bin").unlink()
    assert run_cli("verify", staged, "--json").code == 0


def test_verify_with_a_damaged_manifest_is_one_error(staged, run_cli):
    (staged / ".penstock/manifest.json").write_text('{"penstock_manifest":1,"url":')
    ran = run_cli("verify", staged, "--json")
    assert (ran.code, "error[corrupt]" in ran.err, "Traceback" in ran.err) == (1, True, False), ran.err


def test_verify_of_a_hostile_manifest_reads_nothing_outside(run_cli, tmp_path):
    (tmp_path / "secret").write_text("kept")
    own = tmp_path / "dst/.penstock"
    own.mkdir(parents=True)
    keys = ["../secret", str(tmp_path / "secret").lstrip("/"), "a/../../secret", ".."]
    objects = [{"key": key, "size": 4, "codec": "none", "format": "raw"} for key in keys]
    document = {"penstock_manifest": 1, "url": "file:///x/", "created_s": 1.0, "objects": objects}
    (own / "manifest.json").write_text(json.dumps(document))
    found = facts(run_cli("verify", tmp_path / "dst", "--json"))
    assert (found["ok"], set(_problems(found).values())) == (0, {"missing", "not-a-file"})


def test_verify_of_what_is_selected_reads_repairs_and_reports_nothing_else(bucket, run_cli, tmp_path):
    dst = tmp_path / "dst"
    assert run_cli("stage", bucket.url, dst, "--decompress", "--quiet", env=bucket.env).code == 0
    for name in ("d/f001.bin", "d/f002.bin"):
        (dst / name).write_bytes(b"rot")
    (dst / "stranger").write_bytes(b"x")
    ran = run_cli("verify", dst, "--select", "d/f00[13].bin", "--json")
    result = facts(ran)
    assert (ran.code, result["objects"], [wrong["file"] for wrong in result["failed"]]) == (1, 2, ["d/f001.bin"]), (
        ran.err
    )
    assert result["unexpected_total"] == 0
    assert run_cli("verify", dst, "--exclude", "f00[12].bin", "--json").code == 0
    ran = run_cli("verify", dst, "--select", "f001.*", "--repair", "--json", env=bucket.env)
    assert (ran.code, facts(ran)["repaired"]) == (0, ["d/f001.bin"]), ran.err
    assert (dst / "d/f002.bin").read_bytes() == b"rot"
    ran = run_cli("verify", dst, "--select", "nothing*")
    assert ran.code == 3
    assert "--select nothing*" in ran.err


def test_verify_of_a_killed_stage_reports_that_objects_are_missing(slow_bucket, run_cli, tmp_path):
    dst = tmp_path / "dst"
    arguments = ("stage", slow_bucket.url, dst, "--decompress", "--quiet")
    job = launch(*arguments, env=slow_bucket.env, log=tmp_path / "log")
    await_true(lambda: len(tree(dst)) > 3 or job.poll() is not None)
    running = run_cli("verify", dst, "--json")
    job.kill()
    job.wait()
    assert 3 < len(tree(dst)) < 96
    killed = run_cli("verify", dst, "--json")
    for ran in (running, killed):
        found = facts(ran)
        assert (ran.code, found["failed"]) == (1, []), ran.err
        assert found["unfinished"] == [{"source": slow_bucket.url, "share": "0-of-1", "failed": None}]
    assert f"the last stage from {slow_bucket.url} has not finished" in killed.err
    assert run_cli(*arguments, env=slow_bucket.env).code == 0
    ran = run_cli("verify", dst, "--json")
    assert (ran.code, facts(ran)["ok"], facts(ran)["unfinished"]) == (0, 96, []), ran.err


def test_verify_of_a_stage_that_could_not_bring_an_object_says_so(bucket, run_cli, tmp_path):
    packed = bucket.folder / "set/d/f001.bin.gz"
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-9])
    dst = tmp_path / "dst"
    assert run_cli("stage", bucket.url, dst, "--decompress", "--quiet", env=bucket.env).code == 1
    ran = run_cli("verify", dst, "--json")
    assert (ran.code, facts(ran)["ok"]) == (1, 47), ran.err
    assert facts(ran)["unfinished"] == [{"source": bucket.url, "share": "0-of-1", "failed": 1}]
    packed.write_bytes(whole)
    assert run_cli("stage", bucket.url, dst, "--decompress", "--quiet", env=bucket.env).code == 0
    assert run_cli("verify", dst, "--json").code == 0


def test_verify_after_a_launch_of_another_size_forgets_the_killed_one(slow_bucket, run_cli, tmp_path):
    dst = tmp_path / "dst"
    node = ("stage", slow_bucket.url, dst, "--decompress", "--quiet", "--node", 1, "--nodes", 2)
    job = launch(*node, env=slow_bucket.env, log=tmp_path / "log")
    await_true(lambda: len(tree(dst)) > 3 or job.poll() is not None)
    job.kill()
    job.wait()
    assert [share["share"] for share in facts(run_cli("verify", dst, "--json"))["unfinished"]] == ["1-of-2"]
    assert run_cli("stage", slow_bucket.url, dst, "--decompress", "--quiet", env=slow_bucket.env).code == 0
    ran = run_cli("verify", dst, "--json")
    assert (ran.code, facts(ran)["ok"]) == (0, 96), ran.err


@pytest.mark.parametrize("promised", [[], ["xxh3:" + "0" * 32], ["crc32c:00000000"]])
def test_verify_repair_copies_nothing_that_the_record_does_not_recognise(promised, run_cli, tmp_path):
    """A manifest written by another user may name any file that this user can read as the origin of a harmless file."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "id_rsa").write_text("private")
    own = tmp_path / "shared/.penstock"
    own.mkdir(parents=True)
    origin = {"key": "id_rsa", "size": 7, "digests": promised, "checked": []}
    entry = {"key": "data.bin", "size": 7, "codec": "none", "format": "raw", "origin": origin}
    document = {"penstock_manifest": 1, "url": "file:///x/", "source": f"file://{home}/", "created_s": 1.0}
    (own / "manifest.json").write_text(json.dumps(document | {"objects": [entry]}))
    ran = run_cli("verify", tmp_path / "shared", "--repair", "--json")
    assert (ran.code, _problems(facts(ran))) == (1, {"data.bin": "missing"}), ran.err
    assert "CRC-32C" in ran.err or "crc32c" in ran.err
    assert tree(tmp_path / "shared") == {}
