# SPDX-License-Identifier: Apache-2.0
"""Tests objects whose names do not show their compression, and stores that report few checksums. Issue 4."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from stage_kit import facts, tree

if TYPE_CHECKING:
    from pathlib import Path


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    document = json.loads((folder / ".penstock/manifest.json").read_text())
    return {entry["key"]: entry for entry in document["objects"]}


@pytest.fixture
def encoded(emulator, put_object):
    """Objects whose names, headers and bytes agree or disagree; one is large enough for several parts."""
    served, large = emulator(), os.urandom(9 << 20)
    body = b"some plain content" * 100
    for key, content, header in (
        (b"header.bin", gzip.compress(body), "gzip"),
        (b"large.bin", gzip.compress(large, 1), "gzip"),
        (b"lie.bin", body, "gzip"),
        (b"claims.npy", gzip.compress(body), None),
        (b"kept.tgz", gzip.compress(body), None),
        (b"both.bin.gz", gzip.compress(body), "gzip"),
        (b"plain.bin", body, None),
    ):
        put_object(served, key, content, *(("--content-encoding", header) if header else ()))
    inflated = dict.fromkeys(("header.bin", "lie.bin", "claims.npy", "both.bin", "plain.bin"), body)
    return served, inflated | {"large.bin": large}, body


def test_stage_inflates_by_header_and_content_and_says_who_said_so(encoded, run_cli, tmp_path):
    served, inflated, body = encoded
    ran = run_cli("stage", served.url, tmp_path / "dst", "--decompress", "--json", env=served.env)
    have = tree(tmp_path / "dst")
    assert (ran.code, gzip.decompress(have.pop("kept.tgz")), have == inflated) == (0, body, True), ran.err
    output = {key: entry["origin"].get("codec_source") for key, entry in _entries(tmp_path / "dst").items()}
    by_header = {"header.bin": "header", "large.bin": "header", "claims.npy": "content", "both.bin": "suffix"}
    assert output == by_header | {"lie.bin": None, "plain.bin": None, "kept.tgz": None}
    again = facts(run_cli("stage", served.url, tmp_path / "dst", "--decompress", "--json", env=served.env))
    assert (again["bytes_in"], again["skipped"]) == (0, 7)


def test_stage_with_and_without_inflate_in_turn_gives_what_was_asked(encoded, run_cli, tmp_path):
    served, inflated, body = encoded
    dst = tmp_path / "dst"
    assert run_cli("stage", served.url, dst, "--quiet", env=served.env).code == 0
    assert gzip.decompress((dst / "header.bin").read_bytes()) == body
    assert _entries(dst)["header.bin"]["encoding"] == "gzip"
    ran = run_cli("stage", served.url, dst, "--decompress", "--json", env=served.env)
    assert {name: content for name, content in tree(dst).items() if name in inflated} == inflated
    assert facts(ran)["moved"] == 4, "header, large, claims and both"
    ran = run_cli("stage", served.url, dst, "--json", env=served.env)
    assert facts(ran)["moved"] == 3
    assert gzip.decompress((dst / "claims.npy").read_bytes()) == body


def test_verify_repairs_what_was_inflated_by_its_header(encoded, run_cli, tmp_path):
    served, _, body = encoded
    dst = tmp_path / "dst"
    assert run_cli("stage", served.url, dst, "--decompress", "--quiet", env=served.env).code == 0
    for name in ("header.bin", "claims.npy", "kept.tgz", "lie.bin"):
        (dst / name).write_bytes(b"")
    ran = run_cli("verify", dst, "--repair", "--json", env=served.env)
    assert (ran.code, len(facts(ran)["repaired"]), (dst / "header.bin").read_bytes()) == (0, 4, body), ran.err


@pytest.mark.needs_s3
def test_stage_from_a_store_without_crcs_checks_its_md5(versitygw, run_cli, tmp_path):
    home = versitygw.bucket("md5")
    served = _Served("s3://md5/", versitygw.env)
    bodies = {"small.bin": os.urandom(1000), "large.bin": os.urandom(9 << 20)}
    for name, body in bodies.items():
        (home / name).write_bytes(body)
        # The gateway stores this for an object uploaded without a checksum, in versions that did not compute one
        # themselves.
        os.setxattr(home / name, "user.etag", _md5(body).encode())
    ran = run_cli("stage", served.url, tmp_path / "dst", "--json", env=served.env)
    assert (ran.code, facts(ran)["without_checksum"], tree(tmp_path / "dst") == bodies) == (0, 0, True), ran.err
    checked = {key: entry["origin"]["checked"] for key, entry in _entries(tmp_path / "dst").items()}
    assert checked == {name: [f"md5:{hashlib.md5(body).hexdigest()}"] for name, body in bodies.items()}
    ran = run_cli("stage", served.url, tmp_path / "off", "--json", env=served.env | {"PENSTOCK_S3_MD5": "0"})
    assert (ran.code, facts(ran)["without_checksum"]) == (0, 2)
    assert all(entry["origin"]["checked"] == [] for entry in _entries(tmp_path / "off").values())
    # The stored bytes are damaged, but the stored ETag is unchanged.
    for name, body in bodies.items():
        with (home / name).open("r+b") as file:
            file.write(bytes([body[0] ^ 1]))
    ran = run_cli("stage", served.url, tmp_path / "rot", "--json", env=served.env)
    assert (ran.code, {failure["code"] for failure in facts(ran)["failed"]}) == (1, {"corrupt"}), ran.err
    assert tree(tmp_path / "rot") == {}


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


class _Served:
    def __init__(self, url: str, env: dict[str, str]) -> None:
        self.url, self.env = url, env
