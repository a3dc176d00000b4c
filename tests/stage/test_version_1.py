# SPDX-License-Identifier: Apache-2.0
"""Tests a folder staged when manifests and journals were of version 1: `--decompress --compress zstd`. Issue 14."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from stage_kit import facts

STORED = Path(__file__).parent / "version_1"
STATE = ["manifest.json", "stage/journal-0-of-1.jsonl"]


@pytest.fixture
def copy(run_cli, tmp_path) -> Path:
    """The staged folder; its recorded source paths and versions are replaced with those of this test's source."""
    source, copy = tmp_path / "set", tmp_path / "copy"
    shutil.copytree(STORED / "source", source)
    (source / "b.txt").write_bytes(b"as stored\n" * 3000)
    shutil.copytree(STORED / "staged", copy)
    (copy / ".penstock/stage").mkdir(parents=True)
    listed = run_cli("index", source, "-o", tmp_path / "now.json")
    assert listed.code == 0, listed.err
    now = {each["key"]: each["version"] for each in json.loads((tmp_path / "now.json").read_text())["objects"]}
    then = {each["origin"]["key"]: each["origin"]["version"] for each in _entries(STORED / "manifest.json")}
    for name in STATE:
        text = (STORED / Path(name).name).read_text().replace("s3://bucket/set/", f"file://{source}/")
        for key, version in then.items():
            text = text.replace(json.dumps(version), json.dumps(now[key]))
        (copy / ".penstock" / name).write_text(text)
    for line in map(json.loads, (STORED / "journal-0-of-1.jsonl").read_text().splitlines()):
        if "mtime_ns" in line:
            os.utime(copy / line["key"], ns=(line["mtime_ns"], line["mtime_ns"]))
    return copy


def _entries(manifest: Path) -> list[dict]:
    return json.loads(manifest.read_text())["objects"]


def _stage(run_cli, copy):
    return run_cli("stage", copy.parent / "set", copy, "--decompress", "--compress", "zstd", "--json")


@pytest.mark.parametrize("without", STATE)
def test_copy_of_version_1_verifies_and_is_repaired(without, run_cli, copy):
    (copy / ".penstock" / without).unlink()
    assert run_cli("verify", copy).code == 0
    whole = (copy / "a0.txt.zst").read_bytes()
    (copy / "a0.txt.zst").unlink()
    ran = run_cli("verify", copy, "--repair")
    assert (ran.code, (copy / "a0.txt.zst").read_bytes()) == (0, whole), ran.err


def test_copy_of_version_1_resumes_and_becomes_version_2(run_cli, copy):
    (copy / "b.txt.zst").unlink()
    ran = _stage(run_cli, copy)
    assert (ran.code, facts(ran)["skipped"], facts(ran)["moved"]) == (0, 2, 1), ran.err
    document = json.loads((copy / ".penstock/manifest.json").read_text())
    origins = {each["key"]: each["origin"] for each in document["objects"]}
    assert document["penstock_manifest"] == 2
    first, last = origins["a0.txt.zst"], origins["b.txt.zst"]
    assert (first["decoded"], first["codec_source"], first["encoded"]) == ("gzip", "suffix", "zstd")
    assert (first["transform"], last["transform"]) == ("decompress,zstd:3", "decompress,zstd:3")


def test_copy_of_version_1_is_a_manifest_of_its_source(run_cli, copy):
    flags = ("--decompress", "--manifest", copy / ".penstock/manifest.json", "--json")
    ran = run_cli("stage", copy.parent / "set", copy.parent / "again", *flags)
    assert (ran.code, facts(ran)["moved"]) == (0, 3), ran.err


def test_manifest_of_version_3_is_one_error(run_cli, copy):
    manifest = copy / ".penstock/manifest.json"
    manifest.write_text(manifest.read_text().replace('"penstock_manifest":1', '"penstock_manifest":3'))
    ran = run_cli("stage", copy.parent / "set", copy.parent / "again", "--manifest", manifest)
    assert (ran.code, ran.err.count("error[")) == (3, 1), ran.err
    assert "manifest version 3" in ran.err
    assert "reads versions 1 to 2" in ran.err


def _downgrade(file: Path) -> None:
    """Rewrites the file as version 1 would have written it."""
    text = file.read_text()
    names = {
        '"decoded"': '"undone"',
        '"codec_source"': '"undone_by"',
        '"encoded"': '"packed"',
        '"transform"': '"asked"',
    }
    names |= {'"decompress,': '"inflate,', '"penstock_manifest":2': '"penstock_manifest":1'}
    names |= {'"penstock_journal":2': '"penstock_journal":1'}
    for new, old in names.items():
        text = text.replace(new, old)
    assert '"undone":"gzip"' in text
    file.write_text(text)


def test_copy_of_version_1_in_a_store_resumes_and_is_repaired(emulator, run_cli, tmp_path):
    (tmp_path / "bucket").mkdir()
    served = emulator(folder=tmp_path / "bucket")
    url, env = f"{served.url}run/", served.env | {"XDG_STATE_HOME": str(tmp_path / "state")}
    shutil.copytree(STORED / "source", tmp_path / "set")
    flags = ("--decompress", "--compress", "zstd", "--json")
    assert run_cli("stage", tmp_path / "set", url, *flags, env=env).code == 0
    (journal,) = (tmp_path / "state").rglob("journal-0-of-1.jsonl")
    for more in ([], ["--journal", tmp_path / "other"]):
        _downgrade(tmp_path / "bucket/run/.penstock/manifest.json")
        if not more:
            _downgrade(journal)
        ran = run_cli("stage", tmp_path / "set", url, *flags, *more, env=env)
        assert (ran.code, facts(ran)["skipped"], facts(ran)["bytes_in"]) == (0, 2, 0), ran.err
    _downgrade(tmp_path / "bucket/run/.penstock/manifest.json")
    (tmp_path / "bucket/run/a0.txt").write_bytes(b"other")
    ran = run_cli("verify", url, "--repair", "--json", env=env)
    assert (ran.code, facts(ran)["repaired"]) == (0, ["a0.txt"]), ran.err
