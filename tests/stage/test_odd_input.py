# SPDX-License-Identifier: Apache-2.0
"""Tests unusual external input: each case ends with one clear error and the right exit code. Issue 4."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import threading

import pytest
from stage_kit import facts, tree

from tests.ports import free_port


def _errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("error[")]


def test_key_of_a_manifest_that_is_gone_is_named_and_the_rest_is_staged(bucket, run_cli, tmp_path):
    manifest = tmp_path / "manifest"
    assert run_cli("index", bucket.url, "-o", manifest, env=bucket.env).code == 0
    gone = next((bucket.folder / "set/d").glob("f000.bin*"))
    gone.unlink()
    ran = run_cli(
        "stage", bucket.url, tmp_path / "dst", "--decompress", "--manifest", manifest, "--json", env=bucket.env
    )
    assert ran.code == 1
    (line,) = _errors(ran.err)
    assert line.startswith("error[not-found]")
    assert "f000.bin" in line
    assert [one["code"] for one in facts(ran)["failed"]] == ["not-found"]
    assert len(tree(tmp_path / "dst")) == 47
    residue = json.loads((tmp_path / "dst/.penstock/stage/residue.json").read_text())
    assert len(residue["failed"]) == 1


def test_garbage_behind_a_member_is_corrupt_and_leaves_no_file(run_cli, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "good.gz").write_bytes(gzip.compress(b"good"))
    (folder / "tail.gz").write_bytes(gzip.compress(b"body" * 1000) + b"garbage that is no member")
    ran = run_cli("stage", folder, tmp_path / "dst", "--decompress", "--json")
    assert ran.code == 1
    (line,) = _errors(ran.err)
    assert line.startswith("error[corrupt]")
    assert "tail.gz" in line
    assert tree(tmp_path / "dst") == {"good": b"good"}


@pytest.fixture
def site():
    """A web server whose index page lists the names that a test sets."""
    names: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            page = "".join(f'<a href="{name}">x</a>' for name in names) if self.path.endswith("/") else "body"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(page.encode())

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/set/", names
    server.shutdown()
    server.server_close()


def test_name_longer_than_a_file_system_takes_is_refused_before_anything_moves(site, run_cli, tmp_path):
    url, names = site
    names += ["short", "n" * 256]
    ran = run_cli("stage", url, tmp_path / "dst")
    assert ran.code == 1, ran.err
    (line,) = _errors(ran.err)
    assert line.startswith("error[key]")
    assert "255" in line
    assert tree(tmp_path / "dst") == {}
    names[1] = "n" * 255
    assert run_cli("stage", url, tmp_path / "dst").code == 0


def test_index_without_credentials_or_a_store_is_one_error_each(run_cli, tmp_path):
    nobody = f"http://127.0.0.1:{free_port()}"
    home = {"HOME": str(tmp_path), "AWS_ENDPOINT_URL": nobody}
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for env, code in ((home, "denied"), (home | keys, "unreachable")):
        ran = run_cli("index", "s3://bucket/", "--retry-timeout", "1s", env=env)
        assert ran.code == 3
        (line,) = _errors(ran.err)
        assert line.startswith(f"error[{code}]")
        assert ran.err.count("hint:") <= 1


def test_manifest_that_names_a_pipe_does_not_wait_for_its_other_end(run_cli, tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    os.mkfifo(folder / "a.gz")
    entry = {"key": "a.gz", "size": 300, "codec": "gzip", "format": "raw"}
    document = {"penstock_manifest": 1, "url": f"file://{folder}/", "created_s": 1.0, "objects": [entry]}
    (tmp_path / "m.json").write_text(json.dumps(document))
    ran = run_cli("stage", f"{folder}/", tmp_path / "dst", "--decompress", "--manifest", tmp_path / "m.json", "--json")
    assert (ran.code, [failure["code"] for failure in facts(ran)["failed"]]) == (1, ["not-found"]), ran.err
