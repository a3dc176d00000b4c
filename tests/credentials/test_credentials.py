# SPDX-License-Identifier: Apache-2.0
"""Tests credentials as users configure them: files, programs and metadata addresses. Issue 4, point 3.

Tests in `crates/store` check each token service against its recorded responses.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from uuid import uuid4

import pytest

METADATA = """
import http.server, socketserver, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open(sys.argv[1], "a") as log:
            print(self.command, self.path, file=log)
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()
    do_PUT = do_POST = do_GET
    def log_message(self, *_): pass
socketserver.ThreadingTCPServer.allow_reuse_address = True
server = socketserver.ThreadingTCPServer(("0.0.0.0", 80), Answer)
print("ready", flush=True)
server.serve_forever()
"""


@pytest.fixture
def instance(tmp_path):
    """A network namespace in which the clouds' metadata addresses respond, and the log of their requests."""
    name = f"pen{uuid4().hex[:8]}"
    run = lambda *line: subprocess.run(line, check=True)  # noqa: E731
    run("ip", "netns", "add", name)
    log = tmp_path / "asked"
    log.touch()
    try:
        run("ip", "-n", name, "link", "set", "lo", "up")
        for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200"):
            run("ip", "-n", name, "addr", "add", f"{address}/32", "dev", "lo")
        server = subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", METADATA, str(log)], stdout=subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield name, log
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
    finally:
        run("ip", "netns", "delete", name)


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("url", "leave"),
    [
        ("s3://bucket/", "PENSTOCK_S3_IMDS"),
        ("az://box/", "PENSTOCK_AZURE_IMDS"),
        ("gs://bucket/", "PENSTOCK_GS_METADATA"),
    ],
)
def test_metadata_addresses_need_opt_in(url, leave, instance, tmp_path):
    name, log = instance
    program = Path(sys.executable).with_name("penstock")
    home = tmp_path / "home"
    home.mkdir()
    env = {
        "HOME": str(home),
        "PATH": "/usr/bin:/bin",
        "AZURE_STORAGE_ACCOUNT": "account",
        "GCE_METADATA_HOST": "169.254.169.254",
    }

    def index(**more):
        line = ["ip", "netns", "exec", name, str(program), "index", url, "--retry-timeout", "1s"]
        return subprocess.run(line, env=env | more, capture_output=True, text=True, timeout=60, check=False)

    ran = index()
    assert (ran.returncode, "error[denied]" in ran.stderr) == (3, True), ran.stderr
    assert log.read_text() == ""
    assert index(**{leave: "1"}).returncode in (2, 3)
    assert log.read_text() != ""  # proves that the address was reachable


class _Azure(http.server.BaseHTTPRequestHandler):
    """Lists an empty container for a new token; each token is valid for one listing."""

    seen: list[str]

    def do_GET(self):
        token = self.headers["authorization"]
        good = token not in self.seen
        self.seen.append(token)
        body = b"<EnumerationResults><Blobs><Blob><Name>k</Name><Properties><Content-Length>1</Content-Length><Etag>x</Etag></Properties></Blob></Blobs></EnumerationResults>"
        body = body if good else b"<Error><Code>InvalidAuthenticationInfo</Code></Error>"
        self.send_response(200 if good else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def azure():
    handler = type("Answer", (_Azure,), {"seen": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], handler.seen
    server.shutdown()
    server.server_close()


def _az(folder: Path, text: str) -> str:
    folder.mkdir()
    program = folder / "az"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_login_of_az_gives_the_token(azure, run_cli, tmp_path):
    port, seen = azure
    result = json.dumps({"accessToken": "cli-token", "expires_on": int(time.time()) + 3600, "tokenType": "Bearer"})
    path = _az(tmp_path / "bin", f'[ "$5" = json ] || [ "$6" = json ] && echo \'{result}\'')
    env = {"PATH": path, "AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/acc"}
    ran = run_cli("index", "az://box/", "--json", env=env)
    assert ran.code == 0, ran.err
    assert seen == ["Bearer cli-token"]


def test_azure_expired_login_hides_az_output(azure, run_cli, tmp_path):
    port, seen = azure
    path = _az(tmp_path / "bin", "echo secret-of-az >&2; exit 1")
    env = {"PATH": path, "AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/acc"}
    ran = run_cli("index", "az://box/", env=env)
    assert (ran.code, "az login" in ran.err, "secret" in ran.err, seen) == (3, True, False, [])


def test_other_tenants_bucket_is_read_with_its_own_profile(versitygw, run_cli, tmp_path):
    name = f"theirs-{uuid4().hex[:8]}"
    (versitygw.bucket(name) / "k").write_bytes(b"x")
    keys = tmp_path / "keys"
    keys.write_text(
        f"[guest]\naws_access_key_id = {versitygw.access_key}\naws_secret_access_key = {versitygw.secret_key}\n"
    )
    env = versitygw.env | {
        "AWS_ACCESS_KEY_ID": "ours",
        "AWS_SECRET_ACCESS_KEY": "ours-secret",
        "AWS_SHARED_CREDENTIALS_FILE": str(keys),
    }
    url = f"s3://{name}/"
    without = run_cli("index", url, env=env, cwd=tmp_path)
    assert (without.code, "ours-secret" in without.err) == (3, False)
    by_variables = run_cli(
        "index", url, env=env | {"PENSTOCK_STORE_LAB_URL": url, "PENSTOCK_STORE_LAB_AWS_PROFILE": "guest"}, cwd=tmp_path
    )
    assert by_variables.code == 0, by_variables.err
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[stores."{url}"]\nprofile = "guest"\n')
    assert run_cli("--config", settings, "index", url, env=env, cwd=tmp_path).code == 0
    settings.write_text(f'[stores."{url}"]\nprofile = "nobody"\n')
    wrong = run_cli("--config", settings, "index", url, env=env, cwd=tmp_path)
    assert (wrong.code, "nobody" in wrong.err) == (2, True), wrong.err
    settings.write_text(f'[stores."{url}"]\npassword = "x"\n')
    assert run_cli("--config", settings, "index", url, env=env, cwd=tmp_path).code == 2


def test_key_that_expires_mid_stage_is_renewed_and_the_stage_goes_on(emulator, run_cli, tmp_path):
    # The emulator's keys are fixed, so a credential program returns them with a lifetime of some seconds, and logs each
    # call.
    folder = tmp_path / "bucket"
    (folder / "set").mkdir(parents=True)
    for at in range(64):
        (folder / f"set/f{at:02d}").write_bytes(os.urandom(200_000))
    served = emulator(folder=folder, tier="azure-hot", scale=0.0003)
    program = tmp_path / "keys"
    program.write_text(
        f"""#!{sys.executable}
import datetime, json
with open({str(tmp_path / "asked")!r}, "a") as log: print("asked", file=log)
ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=24)
print(json.dumps(dict(Version=1, AccessKeyId={served.env["AWS_ACCESS_KEY_ID"]!r}, SecretAccessKey={served.env["AWS_SECRET_ACCESS_KEY"]!r}, Expiration=ends.strftime("%Y-%m-%dT%H:%M:%SZ"))))
"""
    )
    program.chmod(0o755)
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {program}\n")
    env = {k: v for k, v in served.env.items() if not k.startswith("AWS_") or "ENDPOINT" in k or "REGION" in k}
    url = f"{served.url.rstrip('/')}/set/"
    ran = run_cli("stage", url, tmp_path / "dst", "--json", env=env | {"AWS_CONFIG_FILE": str(config)}, timeout_s=110)
    assert ran.code == 0, ran.err
    seconds = json.loads(ran.out.splitlines()[-1])["seconds"]
    asked = len((tmp_path / "asked").read_text().splitlines())
    assert 1 < asked <= seconds + 2, (asked, seconds)
