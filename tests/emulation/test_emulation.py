# SPDX-License-Identifier: Apache-2.0
"""Tests the Emulator class: its variables, counters and errors. The only client is a socket."""

from __future__ import annotations

import contextlib
import gc
import http.client
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.emulator import Emulator
from penstock.errors import ConfigError, NotFound


def _ask(server, path="/", method="GET"):
    at = urlsplit(server.endpoint)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def test_emulator_env_is_what_clients_read(tmp_path):
    with Emulator(tmp_path, tier="azure-hot@2021", scale=0.5) as server:
        assert server.env["AWS_ENDPOINT_URL"] == server.endpoint
        assert set(server.env) == {
            "AWS_ENDPOINT_URL",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
        }
        assert (server.tier, server.scale) == ("azure-hot@2021", 0.5)
        assert server.secret_key not in repr(server)


def test_emulator_unsigned_request_is_denied_and_counted(tmp_path):
    with Emulator(tmp_path) as server:
        status, text, _ = _ask(server)
        assert status == 403
        assert "<Code>AccessDenied</Code>" in text
        counted = server.stats()
    assert (counted["requests"], counted["denied"], counted["throttles"]) == (1, 1, 0)
    assert counted["bytes_out"] == len(text)


def test_emulator_above_its_rate_answers_slow_down(tmp_path):
    # 20,000 requests/s x 1e-6: one token at the start, and 50 s until the next.
    with Emulator(tmp_path, tier="azure-hot", scale=1e-6) as server:
        _ask(server)
        status, text, _ = _ask(server)
        assert status == 503
        assert "<Code>SlowDown</Code>" in text
        assert _ask(server, method="HEAD")[0] == 503
        assert server.stats()["throttles"] == 2


def test_emulator_answer_without_100_continue_closes_the_connection(tmp_path):
    # On an open connection, botocore would take the next response for a part of this one, and wait for ever.
    with Emulator(tmp_path, tier="azure-hot", scale=1e-6) as server:
        for _ in ("denied", "refused"):
            at = urlsplit(server.endpoint)
            connection = http.client.HTTPConnection(at.hostname, at.port, timeout=20)
            connection.putrequest("PUT", "/bucket/k")
            connection.putheader("Expect", "100-continue")
            connection.putheader("Content-Length", "5")
            connection.endheaders()
            answer = connection.getresponse()
            assert (answer.status in (403, 503), answer.getheader("connection")) == (True, "close")
            connection.close()
        assert server.stats()["throttles"] == 1


def test_emulator_unknown_tier_lists_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"`warm` is not one of azure-hot, azure-hot@2021"):
        Emulator(tmp_path, tier="warm")


@pytest.mark.parametrize(
    "wrong", [{"scale": 0.0}, {"scale": float("nan")}, {"bind": "nowhere"}, {"access_key": "only"}]
)
def test_emulator_setting_that_cannot_be_is_refused(tmp_path, wrong):
    with pytest.raises(ConfigError):
        Emulator(tmp_path, **wrong)


def test_emulator_missing_folder_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        Emulator(tmp_path / "no")


def test_emulator_own_tier_book_is_read(tmp_path):
    book = tmp_path / "tiers.toml"
    book.write_text('schema_version = 1\n[[tier]]\nname = "mine"\nyear = 2020\ntitle = "Mine"\n')
    with Emulator(tmp_path, tier="mine", tiers=book) as server:
        assert server.tier == "mine@2020"
    with pytest.raises(ConfigError, match="cannot be read"):
        Emulator(tmp_path, tier="mine", tiers=tmp_path / "none.toml")
    book.write_text("schema_version = 2\ntier = []")
    with pytest.raises(ConfigError, match="tier book"):
        Emulator(tmp_path, tier="mine", tiers=book)


def _threads():
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may end before its name is read
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith("penstock-emul")]


def _until(holds):
    # This waits, since a thread sets its name some time after its start, and leaves the table some time after its join.
    for _ in range(500):
        if holds():
            return True
        time.sleep(0.01)
    return False


def test_emulator_dropped_without_stop_ends_its_threads(tmp_path):
    server = Emulator(tmp_path)
    assert _until(_threads)
    del server
    gc.collect()
    assert _until(lambda: not _threads())
