# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock doctor URL`: a healthy store, and one planted fault per check."""

from __future__ import annotations

import datetime as dt
import http.server
import json
import socket
import ssl
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigError
from penstock.probe.doctor import Check, Doctor
from penstock.probe.endpoint import endpoint_of
from tests.peer_stores import azurite, fake_gcs
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_BIG = b"x" * (256 << 10)


def _by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def _doctor(url: str, variables: dict[str, str], scale: float = 0.2) -> dict[str, Check]:
    return _by_name(Doctor(url, variables, timeout_scale=scale).run())


@pytest.fixture
def store(emulator: Callable[..., Any], tmp_path: Path) -> Any:
    folder = tmp_path / "bucket"
    folder.mkdir()
    (folder / "a.bin").write_bytes(_BIG)
    (folder / "b.bin").write_bytes(b"small")
    return emulator(folder)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers as an S3 store with planted headers; as a proxy, it passes the request on."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def _answer(self) -> None:
        planted = self.server
        if planted.login and self.headers.get("proxy-authorization") != planted.login:
            self.send_response_only(407)  # without a date, which `clock` needs
            self.send_header("content-length", "0")
            self.end_headers()
            return
        if planted.stalls and self.command == "GET" and self.headers.get("range") != "bytes=0-0":
            self.send_response_only(206)
            self.send_header("content-length", str(len(_BIG)))
            self.send_header("content-range", f"bytes 0-{len(_BIG) - 1}/{len(_BIG)}")
            self.send_header("etag", '"1"')
            self.end_headers()
            self.wfile.write(_BIG[:1000])  # as if all later packets were lost
            planted.ended.wait(10)
            return
        moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=planted.skew_s)
        body = b"" if self.command == "HEAD" else b"x"
        self.send_response_only(planted.status if self.command == "HEAD" else 206)
        self.send_header("date", format_datetime(moment, usegmt=True))
        for name, value in planted.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(_BIG) if self.command == "HEAD" else 1))
        if self.command == "GET":
            self.send_header("content-range", f"bytes 0-0/{len(_BIG)}")
        self.send_header("etag", '"1"')
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = _answer

    def log_message(self, *_: object) -> None:
        """Keeps stderr quiet."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.skew_s, self.status, self.stalls, self.login = 0.0, 200, False, ""
        self.headers: dict[str, str] = {}
        self.ended = threading.Event()


@contextmanager
def _serving(server: _Server) -> Iterator[_Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def planted() -> Iterator[_Server]:
    with _serving(_Server()) as server:
        yield server


def _s3(server: _Server) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "planted",
        "AWS_SECRET_ACCESS_KEY": "planted-secret",
        "AWS_REGION": "eu-west-1",
        "PENSTOCK_GIVE_UP_AFTER_S": "1",
    }


def test_doctor_of_a_healthy_store_is_all_ok(store: Any) -> None:
    found = _doctor(store.url, store.env)
    assert list(found) == [
        "endpoint", "proxy", "dns", "tcp", "tls", "clock", "region", "credentials", "list", "read", "mtu",
    ]  # fmt: skip
    assert {check.state for check in found.values()} == {"ok"}
    assert "environment (AWS_ACCESS_KEY_ID)" in found["credentials"].text
    assert found["mtu"].facts["send_mss"] > 500
    everything = json.dumps([check.text + check.hint for check in found.values()])
    assert store.secret_key not in everything
    assert store.access_key not in everything


def test_doctor_command_prints_lines_and_json(run_cli: Callable[..., Any], store: Any) -> None:
    ran = run_cli("doctor", store.url, env=store.env)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0].startswith("ok    endpoint    http://127.0.0.1:")
    ran = run_cli("doctor", store.url, "--json", env={**store.env, "AWS_SECRET_ACCESS_KEY": "wrong"})
    assert ran.code == 3
    document = json.loads(ran.out)
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert document["schema_version"] == 1
    assert states["credentials"] == "ok"
    assert states["list"] == "fail"


def test_doctor_wrong_key_fails_the_listing_with_advice(store: Any) -> None:
    found = _doctor(store.url, {**store.env, "AWS_SECRET_ACCESS_KEY": "wrong"})
    assert found["tcp"].state == "ok"
    assert found["list"].state == "fail"
    assert found["list"].hint
    assert "wrong" not in found["list"].text


def test_doctor_missing_bucket_or_prefix_is_named(store: Any) -> None:
    assert _doctor("s3://no-such-bucket/", store.env)["list"].state == "fail"
    found = _doctor(store.url + "no-such-folder/", store.env)
    assert found["list"].state in ("warn", "fail")
    assert "prefix" in found["list"].hint
    assert found["read"].state == "skip"


def test_doctor_of_a_signed_url_prints_no_signature(run_cli: Callable[..., Any], planted: _Server) -> None:
    url = f"http://127.0.0.1:{planted.server_port}/big.bin?sv=1&sig=hunter2"
    for options in ((), ("--json",)):
        ran = run_cli("doctor", url, *options)
        assert ran.code == 3
        assert "signed URLs are not supported" in ran.out
        assert "correct the URL" in ran.out
        assert "hunter2" not in ran.out + ran.err


def test_doctor_closed_port_fails_tcp_and_skips_the_rest(store: Any) -> None:
    found = _doctor(store.url, {**store.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"})
    assert found["tcp"].state == "fail"
    assert "listens on port" in found["tcp"].hint
    assert {found[name].state for name in ("tls", "clock", "region", "list", "read")} == {"skip"}


def test_doctor_unknown_host_fails_dns(store: Any) -> None:
    found = _doctor(store.url, {**store.env, "AWS_ENDPOINT_URL": "https://store.invalid"})
    assert found["dns"].state == "fail"
    assert "resolv.conf" in found["dns"].hint


def test_doctor_slow_and_silent_dns_are_told_apart(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, waits, delay_s = socket.getaddrinfo, threading.Event(), 0.35

    def slow(*arguments: Any, **options: Any) -> Any:
        waits.wait(delay_s)
        return answer(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    assert _doctor(store.url, store.env, scale=0.2)["dns"].state == "warn"
    delay_s = 30.0  # silent: until the end of the test
    found = _doctor(store.url, store.env, scale=0.02)
    waits.set()
    assert found["dns"].state == "fail"
    assert "no answer within 0.2 s" in found["dns"].text


@pytest.mark.parametrize(("skew_s", "state"), [(0, "ok"), (120, "warn"), (-120, "warn"), (3600, "fail")])
def test_doctor_clock_skew_is_measured_against_the_store(planted: _Server, skew_s: float, state: str) -> None:
    planted.skew_s = skew_s
    found = _doctor("s3://b/k", _s3(planted))["clock"]
    assert found.state == state
    assert found.facts["skew_s"] == pytest.approx(-skew_s, abs=2)
    if skew_s:
        assert ("behind" if skew_s > 0 else "ahead of") in found.text


def test_doctor_wrong_region_says_which_is_right(planted: _Server) -> None:
    planted.headers, planted.status = {"x-amz-bucket-region": "ap-south-1"}, 301
    found = _doctor("s3://b/k", _s3(planted))["region"]
    assert found.state == "fail"
    assert found.hint == "export AWS_REGION=ap-south-1"
    planted.headers = {"x-amz-bucket-region": "eu-west-1"}
    assert _doctor("s3://b/k", _s3(planted))["region"].state == "ok"


def test_doctor_large_read_that_stalls_is_a_suspected_black_hole(planted: _Server) -> None:
    planted.stalls = True
    url = f"http://127.0.0.1:{planted.server_port}/big.bin"
    found = _doctor(url, {"PENSTOCK_GIVE_UP_AFTER_S": "1"}, scale=0.07)
    assert found["read"].state == "ok", found["read"]
    assert found["mtu"].state == "fail", found["mtu"]
    assert "black hole" in found["mtu"].text


def test_doctor_reports_the_proxy_without_its_password(planted: _Server) -> None:
    # The planted server is the proxy: it answers requests in absolute form.
    proxy = f"http://user:hunter2@127.0.0.1:{planted.server_port}"
    variables = {"HTTP_PROXY": proxy, "PENSTOCK_ALLOW_HTTP": "1"}
    found = _doctor("http://store.example/big.bin", variables)
    assert found["proxy"].text == f"requests go through 127.0.0.1:{planted.server_port} (HTTP_PROXY)"
    assert found["dns"].text.startswith("127.0.0.1")
    assert found["clock"].state == "ok"
    assert "hunter2" not in json.dumps([check.text + check.hint for check in found.values()])
    direct = _doctor("http://127.0.0.1:9/x", {**variables, "NO_PROXY": "127.0.0.1"})
    assert "none, the connection is direct" in direct["proxy"].text


def test_doctor_logs_in_to_the_proxy_as_the_store_layer_does(planted: _Server) -> None:
    login = "Basic dXNlcjpodW50ZXIgMg=="  # user:hunter 2
    proxy = f"http://user:hunter%202@127.0.0.1:{planted.server_port}"
    planted.login = login
    found = _doctor("http://store.example/big.bin", {"HTTP_PROXY": proxy, "PENSTOCK_ALLOW_HTTP": "1"})
    assert found["clock"].state == "ok", found["clock"]
    doctor = Doctor("https://store.example/big.bin", {"HTTPS_PROXY": proxy})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        doctor._socket = ours
        theirs.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        doctor._tunnel(endpoint_of(doctor.url, doctor.variables))
        sent = theirs.recv(4096).decode()
    assert sent.startswith("CONNECT store.example:443 HTTP/1.1\r\nHost: store.example:443\r\n")
    assert f"\r\nProxy-Authorization: {login}\r\n" in sent


@pytest.mark.parametrize(
    ("url", "authority", "host_and_port"),
    [
        ("https://host/x", "host", "host:443"),
        ("http://host:443/x", "host:443", "host:443"),
        ("http://[::1]/x", "[::1]", "[::1]:80"),
        ("http://[::1]:9000/x", "[::1]:9000", "[::1]:9000"),
    ],
)
def test_endpoint_names_its_host_as_http_does(url: str, authority: str, host_and_port: str) -> None:
    found = endpoint_of(url, {})
    assert (found.authority, found.host_and_port) == (authority, host_and_port)


def test_doctor_tls_untrusted_and_expiring_certificates(tmp_path: Path) -> None:
    key, pem = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(pem)]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    server = _Server()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with _serving(server):
        variables = {**_s3(server), "AWS_ENDPOINT_URL": f"https://localhost:{server.server_port}"}
        found = _doctor("s3://b/k", variables)
        assert found["tls"].state == "fail"
        assert "AWS_CA_BUNDLE" in found["tls"].hint
        found = _doctor("s3://b/k", {**variables, "AWS_CA_BUNDLE": str(pem)})
        assert found["tls"].state == "warn"  # it ends within 14 days
        assert found["clock"].state == "ok"


def test_doctor_expired_and_missing_credentials(planted: _Server, tmp_path: Path) -> None:
    old = "2020-01-01T00:00:00Z"
    expired = {**_s3(planted), "AWS_SESSION_TOKEN": "planted", "AWS_CREDENTIAL_EXPIRATION": old}
    found = _doctor("s3://b/k", expired)["credentials"]
    assert found.state == "fail"
    assert "expired at 2020-01-01" in found.text
    nothing = {name: value for name, value in _s3(planted).items() if "KEY" not in name} | {"HOME": str(tmp_path)}
    found = _doctor("s3://b/k", nothing)["credentials"]
    assert found.state == "fail"
    assert "AWS_PROFILE" in found.hint
    half = _doctor("s3://b/k", {**nothing, "AWS_ACCESS_KEY_ID": "planted"})["credentials"]
    assert "AWS_SECRET_ACCESS_KEY is not" in half.text


@pytest.mark.parametrize("kind", ["az", "gs"])
def test_doctor_of_other_clouds_on_their_emulators(tmp_path: Path, kind: str) -> None:
    with ExitStack() as stack:
        if kind == "az":
            peer: Any = stack.enter_context(azurite(tmp_path))
            peer.put("big.bin", _BIG)
        else:
            peer = stack.enter_context(fake_gcs(tmp_path, {"big.bin": _BIG}))
        found = _doctor(f"{kind}://data/", {**peer.env, "HOME": str(tmp_path)}, scale=0.5)
        assert {check.state for check in found.values()} == {"ok"}, found
        assert {"dns", "tcp", "clock", "credentials", "list", "read", "mtu"} <= set(found)


def test_doctor_of_azure_without_an_account_names_the_variable(tmp_path: Path) -> None:
    found = _doctor("az://data/", {"HOME": str(tmp_path)})
    assert found["endpoint"].state == "fail"
    assert "AZURE_STORAGE_ACCOUNT" in found["endpoint"].hint


def test_doctor_of_a_path_and_of_an_unknown_scheme(tmp_path: Path) -> None:
    found = _doctor(str(tmp_path), {})
    assert {found[name].state for name in ("path", "read")} == {"ok"}
    assert _doctor(str(tmp_path / "missing"), {})["path"].state == "fail"
    with pytest.raises(ConfigError, match="gopher"):
        _doctor("gopher://x/", {})
