# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock peek`: its facts, the little that it reads, and that the printed code runs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def tars(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "d"
    folder.mkdir()
    for shard in range(3):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(4 + shard):
                for name, data in (("cls", str(number).encode()), ("txt", b"caption %d" % number)):
                    info = tarfile.TarInfo(f"{shard}-{number}.{name}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
    (folder / "notes.md").write_text("hello")
    return folder


def test_peek_shows_facts_records_cost_and_code(tars, run_cli, emulator):
    server = emulator(folder=tars)
    done = run_cli("peek", server.url, "-n", "2", "--json", env=server.env)
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["format"], facts["objects"], facts["records"], facts["ignored"]) == ("tar", 3, None, 1)
    assert "a scan" in facts["counts"]
    assert {each["name"] for each in facts["fields"]} == {"cls", "txt", "__key__"}
    assert [record["cls"].split()[0] for record in facts["first_records"]] == ["0", "1"]
    assert facts["first_records"][1]["txt"] == "'caption 1'"
    assert facts["epoch_cost"]["without_cache"]["requests_usd"] > 0
    text = run_cli("peek", server.url, env=server.env).out
    assert "records  unknown until counted, by a scan" in text
    assert text.splitlines()[-3:] == facts["python"]


@pytest.mark.parametrize(("wanted", "shown"), [(1, 1), (50, 4)])
def test_peek_reads_one_object(tars, run_cli, emulator, wanted, shown):
    for name in ("1.tar", "2.tar"):
        (tars / name).write_bytes(b"damaged" * 1000)
    server = emulator(folder=tars)
    before = server.stats()["gets"]
    done = run_cli("peek", server.url, "-n", str(wanted), "--json", env=server.env)
    assert (done.code, len(json.loads(done.out)["first_records"])) == (0, shown)
    assert "are read once" not in done.err
    assert server.stats()["gets"] - before <= 4
    assert not (tars.parent / "cache/records").exists() or not list((tars.parent / "cache/records").iterdir())


def test_peek_of_arrow_files_counts_none_of_them(tmp_path, run_cli):
    good = (Path(__file__).parent.parent / "feed/arrow/types.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(good)
    (tmp_path / "b.arrow").write_bytes(good[:-200])
    facts = json.loads(run_cli("peek", str(tmp_path), "-n", "9", "--json").out)
    assert (facts["records"], len(facts["first_records"])) == (None, 5)


def test_peek_shows_the_first_object_that_is_not_empty(tars, run_cli):
    (tars / "0.tar").write_bytes(b"")
    facts = json.loads(run_cli("peek", str(tars), "-n", "1", "--json").out)
    assert [record["txt"] for record in facts["first_records"]] == ["'caption 0'"]


def test_peek_code_runs_as_printed(tars, run_cli, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype="float32").reshape(3, 2))
    (tmp_path / "ragged.jsonl").write_text('{"tokens": [1]}\n{"tokens": []}\n{"tokens": [2, 3]}\n')
    for url, samples in ((str(tars), 15), (f"{tmp_path}/*.npy", 1), (f"{tmp_path}/*.jsonl", 3)):
        facts = json.loads(run_cli("peek", url, "--json").out)
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(facts["python"])], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert len([1 for word in done.stdout.split() if word.strip("(,)}") == str(samples)]) >= len(facts["fields"])


def test_peek_of_nothing_or_an_unknown_format_is_an_error(tmp_path, run_cli):
    assert run_cli("peek", str(tmp_path / "none")).code == 3
    (tmp_path / "x.bin").write_bytes(b"\x00" * 100)
    assert run_cli("peek", str(tmp_path / "x.bin")).code != 0
    assert run_cli("peek", str(tmp_path), "--format", "nonsense").code == 2
