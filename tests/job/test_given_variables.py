# SPDX-License-Identifier: Apache-2.0
"""Tests which environment variables are sent to other machines: credentials, but no paths of this user's folders."""

from __future__ import annotations

from penstock.engines.fuse import FuseEngine
from penstock.env import for_nodes, for_stores

_HERE = {
    "HOME": "/u/me",
    "PATH": "/opt/mine",
    "XDG_STATE_HOME": "/u/me/state",
    "XDG_CONFIG_HOME": "/u/me/config",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
}


def test_credentials_cross_to_nodes_and_folders_of_this_user_stay(monkeypatch):
    for name, value in _HERE.items():
        monkeypatch.setenv(name, value)
    there = for_nodes()
    assert there["AWS_ENDPOINT_URL_S3"] == _HERE["AWS_ENDPOINT_URL_S3"]
    assert {"HOME", "PATH", "XDG_STATE_HOME", "XDG_CONFIG_HOME"} & there.keys() == set()
    assert for_stores()["HOME"] == "/u/me"
    engine = FuseEngine({"client": "rclone", "source": "s3://b/x"}, _HERE)
    assert engine._environment == {"AWS_ENDPOINT_URL_S3": _HERE["AWS_ENDPOINT_URL_S3"]}
