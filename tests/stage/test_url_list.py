# SPDX-License-Identifier: Apache-2.0
"""Tests a dataset that is published as a list of URLs, on web servers with and without range support.

Issue 4, both directions.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stage_kit import facts, tree

if TYPE_CHECKING:
    from collections.abc import Iterator

BODIES = {
    "v1/train/a b.bin": os.urandom(20_000),
    "v1/train/large.bin": os.urandom(17 << 20),
    "v1/zero.bin": b"",
    "v1/test/c.bin": os.urandom(70_000),
    "v1/not listed.bin": b"x",
}
LISTED = ["v1/train/a b.bin", "v1/train/large.bin", "v1/zero.bin", "v1/test/c.bin"]


class Site:
    """A web server. Its `.url` ends in `/`; `.requests` are (method, path, Range)."""

    def __init__(self, folder: Path, *, ranges: bool) -> None:
        site = self
        self.requests: list[tuple[str, str, str | None]] = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def list_directory(self, _path: object) -> None:
                self.send_error(403)

            def do_HEAD(self) -> None:
                site.requests.append(("HEAD", self.path, None))
                super().do_HEAD()

            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                site.requests.append(("GET", self.path, asked))
                if not (ranges and asked):
                    return super().do_GET()
                with Path(self.translate_path(self.path)).open("rb") as file:
                    body = file.read()
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, end = int(first), min(int(last or len(body)), len(body) - 1)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end}/{len(body)}")
                self.send_header("Content-Length", str(end + 1 - start))
                self.end_headers()
                self.wfile.write(body[start : end + 1])
                return None

        handler = functools.partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"


@pytest.fixture(params=[True, False], ids=["ranges", "no ranges"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    for name, body in BODIES.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    served = Site(tmp_path / "site", ranges=request.param)
    yield served
    served.server.shutdown()
    served.server.server_close()


def _write(path: Path, lines: list[str]) -> Path:
    path.write_text("# a published set\n\n" + "\n".join(lines) + "\n")
    return path


def _url(site: Site, name: str) -> str:
    return site.url + name.replace(" ", "%20")


WANT = {name.removeprefix("v1/"): BODIES[name] for name in LISTED}


def test_list_of_urls_is_staged_indexed_and_diffed_like_any_source(site, run_cli, tmp_path):
    urls = _write(tmp_path / "urls.txt", [_url(site, name) for name in LISTED])
    ran = run_cli("stage", urls, tmp_path / "dst", "--json")
    assert (ran.code, tree(tmp_path / "dst") == WANT) == (0, True), ran.err
    assert facts(ran)["source"] == f"{site.url}v1/"
    again = facts(run_cli("stage", urls, tmp_path / "dst", "--json"))
    assert (again["moved"], again["skipped"], again["bytes_in"]) == (0, 4, 0)
    ran = run_cli("index", urls, "-o", tmp_path / "m.json", "--json")
    assert (ran.code, facts(ran)["objects"], facts(ran)["url"]) == (0, 4, f"{site.url}v1/"), ran.err
    assert run_cli("diff", tmp_path / "m.json", tmp_path / "dst").code == 0
    (tmp_path / "dst/train/a b.bin").write_bytes(b"rot")
    ran = run_cli("verify", tmp_path / "dst", "--repair", "--json")
    assert (ran.code, facts(ran)["repaired"]) == (0, ["train/a b.bin"]), ran.err
    some = facts(run_cli("stage", urls, tmp_path / "some", "--select", "train/*", "--dry-run", "--json"))
    assert (some["objects"], some["bytes"]) == (2, sum(len(BODIES[name]) for name in LISTED[:2]))


def test_list_of_urls_goes_into_ones_own_bucket_in_one_command(site, emulator, run_cli, tmp_path):
    urls = _write(tmp_path / "urls.txt", [_url(site, name) for name in LISTED])
    (bucket := tmp_path / "bucket").mkdir()
    served = emulator(folder=bucket)
    state = ("--journal", tmp_path / "journal")
    ran = run_cli("stage", urls, f"{served.url}mine", "--json", *state, env=served.env)
    assert (ran.code, tree(bucket / "mine") == WANT) == (0, True), ran.err
    assert run_cli("verify", f"{served.url}mine", "--quick", *state, env=served.env).code == 0


def test_list_with_sizes_and_digests_asks_for_none_and_is_held_to_them(site, run_cli, tmp_path):
    kinds = ["md5", "sha256", "md5", "sha256"]

    def line(name: str, kind: str, body: bytes) -> str:
        return f"{_url(site, name)} {len(BODIES[name])} {kind}:{hashlib.new(kind, body).hexdigest()}"

    good = [line(name, kind, BODIES[name]) for name, kind in zip(LISTED, kinds, strict=True)]
    ran = run_cli("stage", _write(tmp_path / "urls.txt", good), tmp_path / "dst", "--json")
    assert (ran.code, facts(ran)["without_checksum"], tree(tmp_path / "dst") == WANT) == (0, 0, True), ran.err
    heads = [path for method, path, _ in site.requests if method == "HEAD"]
    assert heads == ["/" + LISTED[0].replace(" ", "%20")], "the first tells what the server can"
    entries = json.loads((tmp_path / "dst/.penstock/manifest.json").read_text())["objects"]
    checked = {entry["key"]: entry["origin"]["checked"] for entry in entries}
    assert checked["train/large.bin"] == [f"sha256:{hashlib.sha256(BODIES['v1/train/large.bin']).hexdigest()}"]
    bad = [line(name, kind, BODIES[name] + b"!") for name, kind in zip(LISTED, kinds, strict=True)]
    ran = run_cli("stage", _write(tmp_path / "bad.txt", bad), tmp_path / "bad", "--json")
    assert (ran.code, {failure["code"] for failure in facts(ran)["failed"]}) == (1, {"corrupt"}), ran.err
    assert tree(tmp_path / "bad") == {}


def test_list_in_googles_format_is_read(site, run_cli, tmp_path):
    body = BODIES[LISTED[3]]
    md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
    urls = tmp_path / "list.tsv"
    urls.write_text(f"TsvHttpData-1.0\n{_url(site, LISTED[3])}\t{len(body)}\t{md5}\n")
    ran = run_cli("stage", urls, tmp_path / "dst", "--json")
    assert (ran.code, tree(tmp_path / "dst"), facts(ran)["without_checksum"]) == (0, {"c.bin": body}, 0), ran.err


@pytest.mark.parametrize(
    ("line", "code", "output"),
    [
        ("v1/none.bin", 3, "none.bin"),
        ("v1/test/c.bin 5", 1, "pinned version: 5 bytes"),
        ("v1/test/c.bin?sig=secret", 2, "line 4"),
        ("v1/test/c.bin md5:secret", 2, "line 4"),
        ("v1/train/", 2, "not a folder"),
    ],
)
def test_list_that_cannot_be_is_told_by_its_line(line, code, output, run_cli, tmp_path):
    (tmp_path / "site/v1/test").mkdir(parents=True)
    (tmp_path / "site/v1/test/c.bin").write_bytes(b"seventeen bytes..")
    site = Site(tmp_path / "site", ranges=True)
    urls = _write(
        tmp_path / "urls.txt", [f"{site.url}{line}"] if code != 2 else [f"{site.url}v1/x", f"{site.url}{line}"]
    )
    ran = run_cli("stage", urls, tmp_path / "dst", "--json")
    site.server.shutdown()
    site.server.server_close()
    assert ran.code == code, ran.err
    assert output in ran.err
    assert "secret" not in ran.err + ran.out
    assert not (tmp_path / "dst").exists()


def test_text_that_begins_with_no_url_is_an_object_like_any(run_cli, tmp_path):
    (tmp_path / "notes.txt").write_text("see http://example.invalid/x\n")
    ran = run_cli("stage", tmp_path / "notes.txt", tmp_path / "dst", "--json")
    assert (ran.code, list(tree(tmp_path / "dst"))) == (0, ["notes.txt"]), ran.err
