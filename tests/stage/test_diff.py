# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock diff` on the command line: listings, manifests and staged folders against each other. Issue 4."""

from __future__ import annotations

import pytest
from stage_kit import facts


def test_diff_of_a_source_and_its_copy_rests_on_versions(bucket, run_cli, tmp_path):
    run_cli("stage", bucket.url, tmp_path / "dst", "--decompress", "--quiet", env=bucket.env)
    ran = run_cli("diff", bucket.url, tmp_path / "dst", "--json", env=bucket.env)
    found = facts(ran)
    assert (ran.code, found["is_same"], found["same"], found["same_by_version"]) == (0, True, 48, 48), ran.err
    assert (found["a"]["read_as"], found["b"]["read_as"]) == ("listing", "stage")


def test_diff_names_what_was_added_removed_and_changed(bucket, run_cli, tmp_path):
    run_cli("index", bucket.url, "-o", tmp_path / "m.json", env=bucket.env)
    folder = bucket.folder / "set/d"
    (folder / "f000.bin").unlink()
    (folder / "f001.bin.gz").write_bytes((folder / "f002.bin.gz").read_bytes())
    (folder / "new.bin").write_bytes(b"new")
    ran = run_cli("diff", tmp_path / "m.json", bucket.url, "--json", env=bucket.env)
    found = facts(ran)
    assert (ran.code, found["removed"], found["added"]) == (1, ["d/f000.bin"], ["d/new.bin"]), ran.err
    assert ([change["name"] for change in found["changed"]], found["same"]) == (["d/f001.bin.gz"], 46)
    assert found["a"]["read_as"] == "manifest"
    output = run_cli("diff", tmp_path / "m.json", bucket.url, env=bucket.env).out
    assert "- d/f000.bin" in output
    assert "+ d/new.bin" in output
    assert "1 added, 1 removed, 1 changed, 46 the same" in output


def test_diff_of_two_copies_compares_digests_of_stored_and_of_inflated_bytes(bucket, run_cli, tmp_path):
    run_cli("stage", bucket.url, tmp_path / "a", "--decompress", "--quiet", env=bucket.env)
    run_cli("stage", bucket.folder / "set", tmp_path / "b", "--quiet")
    found = facts(run_cli("diff", tmp_path / "a", tmp_path / "b", "--json"))
    assert (found["is_same"], found["same_by_digest"]) == (True, 48)
    (bucket.folder / "set/d/f000.bin").write_bytes(b"another")
    run_cli("stage", bucket.folder / "set", tmp_path / "b", "--quiet")
    ran = run_cli("diff", tmp_path / "a", tmp_path / "b", "--json")
    assert (ran.code, [change["name"] for change in facts(ran)["changed"]]) == (1, ["d/f000.bin"])


def test_diff_of_listings_of_different_stores_says_that_only_sizes_speak(bucket, run_cli):
    found = facts(run_cli("diff", bucket.url, bucket.folder / "set", "--json", env=bucket.env))
    assert (found["is_same"], found["same_by_size"]) == (True, 48)


@pytest.mark.parametrize(("at", "code"), [(0, 3), (1, 3)])
def test_diff_with_a_side_that_is_not_there_is_refused(at, code, bucket, run_cli, tmp_path):
    sides = [bucket.url, bucket.url]
    sides[at] = str(tmp_path / "nothing")
    ran = run_cli("diff", *sides, "--json", env=bucket.env)
    assert (ran.code, "error[not-found]" in ran.err, "Traceback" in ran.err) == (code, True, False), ran.err
