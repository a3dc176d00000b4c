# SPDX-License-Identifier: Apache-2.0
"""Tests which settings `penstock.toml` in the current folder can change before and after consent. Issue 19, P2."""

from __future__ import annotations

import http.server
import json
import os
import threading
import time

import pytest

from penstock.config import allow, load, revoke
from penstock.errors import ConfigError


@pytest.fixture
def user(tmp_path):
    """Environment of a user whose home holds an identity for every cloud; each secret is a recognisable text."""
    home = tmp_path / "home"
    for name, content in {
        ".aws/credentials": "[default]\naws_access_key_id = AKIDHOME\naws_secret_access_key = s\naws_session_token = HOMESESSIONTOKEN\n",
        ".config/gcloud/application_default_credentials.json": json.dumps(
            {"type": "authorized_user", "client_id": "HOMECLIENT", "client_secret": "s", "refresh_token": "HOMEREFRESH"}
        ),
    }.items():
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text(content)
    program = tmp_path / "bin/az"
    program.parent.mkdir()
    token = {"accessToken": "HOMEAZTOKEN", "expires_on": int(time.time()) + 3600, "tokenType": "Bearer"}
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/az-ran\necho '{json.dumps(token)}'\n")
    program.chmod(0o755)
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "AWS_CONFIG_FILE": str(home / ".aws/config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws/credentials"),
        "AWS_REGION": "us-east-1",
        "PATH": f"{program.parent}:{os.environ['PATH']}",
    }


class _Listener(http.server.BaseHTTPRequestHandler):
    requests: list[str]

    def _record(self) -> None:
        self.requests.append(f"{self.command} {self.path}\n{self.headers}")
        self.send_response(403)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = do_POST = _record

    def log_message(self, *_):
        pass


@pytest.fixture
def listener():
    """A third party's endpoint: its URL, and the text of every request that it received."""
    handler = type("Listener", (_Listener,), {"requests": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler.requests
    server.shutdown()
    server.server_close()


CLOUDS = {
    "s3://data": "AWS_ENDPOINT_URL",
    "az://data": "AZURE_STORAGE_ENDPOINT",
    "gs://data": "STORAGE_EMULATOR_HOST",
}
HOSTILE = {
    **{url: f'[stores."{url}"]\n{variable} = "@AT@/acc"\n' for url, variable in CLOUDS.items()},
    "s3://program": '[stores."s3://program"]\nAWS_ENDPOINT_URL = "@AT@"\nAWS_CONFIG_FILE = "aws.ini"\n',
}


@pytest.mark.parametrize("url", HOSTILE)
def test_folder_file_without_consent_reaches_no_endpoint_and_runs_no_program(url, user, listener, run_cli, tmp_path):
    endpoint, requests = listener
    folder = tmp_path / "cloned"
    folder.mkdir()
    (folder / "penstock.toml").write_text(HOSTILE[url].replace("@AT@", endpoint))
    (folder / "evil.sh").write_text(f"#!/bin/sh\ntouch {tmp_path}/evil-ran\n")
    (folder / "evil.sh").chmod(0o755)
    (folder / "aws.ini").write_text(f"[default]\ncredential_process = {folder}/evil.sh\n")
    done = run_cli("index", f"{url}/", env=user, cwd=folder)
    assert (done.code, requests) == (2, [])
    assert "penstock.toml sets stores" in done.err
    assert "penstock config allow" in done.err
    assert not (tmp_path / "evil-ran").exists()
    assert not (tmp_path / "az-ran").exists()


@pytest.mark.parametrize("url", CLOUDS)
@pytest.mark.parametrize("way", ["consent", "variables"])
def test_tenant_endpoint_receives_no_identity_of_the_users(url, way, user, listener, run_cli, tmp_path):
    endpoint, requests = listener
    folder = tmp_path / "cloned"
    folder.mkdir()
    env = dict(user)
    if way == "consent":
        (folder / "penstock.toml").write_text(HOSTILE[url].replace("@AT@", endpoint))
        assert run_cli("config", "allow", env=env, cwd=folder).code == 0
    else:
        env |= {"PENSTOCK_STORE_LAB_URL": url, f"PENSTOCK_STORE_LAB_{CLOUDS[url]}": f"{endpoint}/acc"}
    done = run_cli("index", f"{url}/", env=env, cwd=folder)
    assert done.code != 0
    assert "HOME" not in "".join(requests), requests
    assert not (tmp_path / "az-ran").exists()


def test_users_own_identity_still_reaches_the_users_own_endpoint(user, listener, run_cli):
    # Same home and listener: this shows that the tests above do not pass only because an identity is missing.
    endpoint, requests = listener
    run_cli("index", "s3://data/", env=user | {"AWS_ENDPOINT_URL": endpoint})
    run_cli("index", "az://data/", env=user | {"AZURE_STORAGE_ENDPOINT": f"{endpoint}/acc"})
    text = "".join(requests)
    assert "HOMESESSIONTOKEN" in text
    assert "HOMEAZTOKEN" in text


@pytest.mark.parametrize("line", ["journal = '/etc'", "overwrite = true", "price-tier = 'x'"])
def test_folder_file_may_not_set_texts_paths_or_flags_without_consent(line, user, run_cli, tmp_path):
    (tmp_path / "penstock.toml").write_text(f"[stage]\n{line}\n")
    done = run_cli("stage", "src", "dst", "--dry-run", env=user, cwd=tmp_path)
    assert done.code == 2
    assert f"sets [stage] {line.split(' ')[0]}" in done.err
    shown = run_cli("config", "show", "--origin", "--json", env=user, cwd=tmp_path)
    rows = [row for row in json.loads(shown.out)["settings"] if not row["is_allowed"]]
    assert [row["key"] for row in rows] == [line.split(" ")[0]]


def test_folder_file_sets_quantities_and_choices_without_consent(user, run_cli, tmp_path):
    (tmp_path / "penstock.toml").write_text("[stage]\nconcurrency = 3\nprogress = 'none'\n")
    shown = run_cli("config", "show", "--json", env=user, cwd=tmp_path)
    rows = {row["key"]: row for row in json.loads(shown.out)["settings"] if row["verb"] == "stage"}
    assert (rows["concurrency"]["value"], rows["concurrency"]["is_allowed"]) == (3, True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a").write_bytes(b"x")
    assert run_cli("stage", "src", "dst", env=user, cwd=tmp_path).code == 0


def test_consent_holds_for_the_content_it_was_given_to(tmp_path):
    env = {"HOME": str(tmp_path / "home")}
    path = tmp_path / "penstock.toml"
    path.write_text("[stage]\noverwrite = true\n")

    def is_trusted() -> bool:
        return load(env, tmp_path).layers[0].is_trusted

    assert not is_trusted()
    allow(env, path)
    assert is_trusted()
    path.write_text("[stage]\noverwrite = false\n")
    assert not is_trusted()
    allow(env, path)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "penstock.toml").write_text("[stage]\noverwrite = false\n")
    assert not load(env, moved).layers[0].is_trusted
    assert revoke(env, path) == 2
    assert not is_trusted()


def test_consent_is_not_taken_from_a_record_that_others_can_write(tmp_path):
    env = {"HOME": str(tmp_path / "home")}
    path = tmp_path / "penstock.toml"
    path.write_text("")
    folder = allow(env, path).parent
    folder.chmod(0o777)
    assert not load(env, tmp_path).layers[0].is_trusted
    with pytest.raises(ConfigError, match="writable by others"):
        allow(env, path)


@pytest.mark.parametrize("env", [{}, {"XDG_STATE_HOME": "state"}, {"HOME": "."}])
def test_consent_is_not_looked_for_in_the_folder_itself(env, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "penstock.toml"
    path.write_text("")
    own = allow({"HOME": str(tmp_path)}, path)
    for planted in (tmp_path / "state", tmp_path / ".local/state"):
        (planted / "penstock/allowed").mkdir(parents=True, exist_ok=True)
        (planted / "penstock/allowed" / own.name).touch()
    assert not load(env, tmp_path).layers[0].is_trusted
    with pytest.raises(ConfigError, match="consent cannot be recorded"):
        allow(env, path)
