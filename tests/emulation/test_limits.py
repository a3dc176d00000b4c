# SPDX-License-Identifier: Apache-2.0
"""Tests the endpoint against untrusted clients: headers outside the signature, and idle connections. Issue 19, P15."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest


@pytest.fixture
def s3(served):
    return served.client()


def test_request_with_an_unsigned_amz_header_is_refused(s3, served):
    s3.put_object(Bucket="bucket", Key="secret", Body=b"secret")

    def add(request, **_):
        request.headers["x-amz-copy-source"] = "/bucket/secret"

    s3.meta.events.register("before-send.s3.PutObject", add)
    with pytest.raises(s3.exceptions.ClientError, match="not signed") as refused:
        s3.put_object(Bucket="bucket", Key="copy", Body=b"")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    assert refused.value.response["Error"]["Code"] == "AccessDenied"
    assert not (served.folder / "copy").exists()


def test_presigned_url_with_an_unsigned_amz_header_is_refused(served):
    import urllib.error
    import urllib.request

    url = served.client(signature_version="s3v4").generate_presigned_url(
        "put_object", Params={"Bucket": "bucket", "Key": "k"}
    )
    plain = urllib.request.Request(url, data=b"x", method="PUT", headers={"content-type": ""})
    with urllib.request.urlopen(plain, timeout=20) as answer:
        assert answer.status == 200
    added = urllib.request.Request(
        url, data=b"y", method="PUT", headers={"content-type": "", "x-amz-meta-owner": "stranger"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(added, timeout=20)
    with refused.value as answer:
        assert (answer.code, b"<HeadersNotSigned>x-amz-meta-owner" in answer.read()) == (403, True)
    assert (served.folder / "k").read_bytes() == b"x"


@pytest.mark.parametrize("sends", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["nothing", "one request"])
def test_idle_connections_give_way_to_clients_that_ask(sends, tmp_path):
    """Opens 600 connections against a limit of 256 open files; the next ten clients must all get a response."""
    program = Path(sys.executable).with_name("penstock")
    (tmp_path / "bucket").mkdir()
    with subprocess.Popen(
        [program, "emulate", tmp_path / "bucket", "--bind", "127.0.0.1:0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
    ) as process:
        try:
            assert process.stdout is not None
            at = urlsplit(json.loads(process.stdout.readline())["endpoint"])
            idle = []
            for _ in range(600):
                connection = socket.create_connection((at.hostname, at.port), timeout=20)
                connection.sendall(sends)
                if sends:
                    assert b" 403 " in connection.recv(200)
                idle.append(connection)
            for _ in range(10):
                # Far below the minute that a connection may take to send a request's head.
                with socket.create_connection((at.hostname, at.port), timeout=20) as client:
                    client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                    assert b" 403 " in client.recv(200)
            for connection in idle:
                connection.close()
        finally:
            process.terminate()
