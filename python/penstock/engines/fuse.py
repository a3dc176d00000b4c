# SPDX-License-Identifier: Apache-2.0
"""`fuse`: a bucket mounted on every node by an installed FUSE client.

A mount does not copy data to the nodes as a pool does; it is the path that most users have today. This engine starts
and stops a mount like a pool, so that a job on a mount can be compared with a job on a real pool.

Settings: `client` (rclone, s3fs, mount-s3, gcsfuse, blobfuse2), `source` (s3://, gs:// or az:// folder). Read only.
rclone and s3fs are tested. The command lines of mount-s3, gcsfuse and blobfuse2 have never been run.
"""

from __future__ import annotations

import time
from glob import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.engines._shared.agent_client import (
    AgentClient,
    AgentManagedEngine,
    node_states,
    pool_root,
)
from penstock.engines._shared.folder_access import FolderAccess
from penstock.errors import ConfigError, Deadline, Unsupported
from penstock.plugins import parse_settings
from penstock.protocols import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.protocols import PoolSpec, Runner

__all__ = ["CLIENTS", "FuseEngine", "engine"]

_POLL_S = 0.3
_AGENT_TIMEOUT_S = 10.0
# Prefixes of environment variables with credentials and endpoints for the clients. These variables are sent to the
# nodes on stdin.
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")


class _BucketFolder:
    """A folder in a bucket, and the store's endpoint if it is not the cloud's default."""

    def __init__(self, source: str, environment: Mapping[str, str]) -> None:
        parts = urlsplit(source)
        self.scheme, self.bucket, self.folder = parts.scheme, parts.netloc, parts.path.strip("/")
        self.endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""


def _rclone(at: _BucketFolder, mount: str, cache: str) -> list[str]:
    kind = {"s3": ":s3", "gs": ":gcs", "az": ":azureblob"}[at.scheme]
    auth = {"s3": ["--s3-env-auth"], "gs": ["--gcs-env-auth"], "az": ["--azureblob-env-auth"]}[at.scheme]
    other = ["--s3-provider", "Other", "--s3-endpoint", at.endpoint] if at.scheme == "s3" and at.endpoint else []
    return [
        "rclone", "mount", f"{kind}:{at.bucket}/{at.folder}", mount, "--config", "/dev/null", *auth, *other,
        "--read-only", "--vfs-cache-mode", "full", "--cache-dir", cache,
    ]  # fmt: skip


def _s3fs(at: _BucketFolder, mount: str, cache: str) -> list[str]:
    options = ["ro", f"use_cache={cache}"]
    options += [f"url={at.endpoint}", "use_path_request_style"] if at.endpoint else []
    return ["s3fs", f"{at.bucket}:/{at.folder}", mount, "-f", "-o", ",".join(options)]


def _mount_s3(at: _BucketFolder, mount: str, cache: str) -> list[str]:
    other = ["--endpoint-url", at.endpoint, "--force-path-style"] if at.endpoint else []
    prefix = ["--prefix", f"{at.folder}/"] if at.folder else []
    return ["mount-s3", at.bucket, mount, "--read-only", "--foreground", "--cache", cache, *prefix, *other]


def _gcsfuse(at: _BucketFolder, mount: str, cache: str) -> list[str]:
    only = ["--only-dir", at.folder] if at.folder else []
    return ["gcsfuse", "--foreground", "-o", "ro", "--cache-dir", cache, *only, at.bucket, mount]


def _blobfuse2(at: _BucketFolder, mount: str, cache: str) -> list[str]:
    only = [f"--subdirectory={at.folder}"] if at.folder else []
    return [
        "blobfuse2", "mount", mount, "--foreground=true", "--read-only=true", f"--container-name={at.bucket}",
        f"--tmp-path={cache}", *only,
    ]  # fmt: skip


CLIENTS: dict[str, tuple[tuple[str, ...], Callable[[_BucketFolder, str, str], list[str]]]] = {
    "rclone": (("s3", "gs", "az"), _rclone),
    "s3fs": (("s3",), _s3fs),
    "mount-s3": (("s3",), _mount_s3),
    "gcsfuse": (("gs",), _gcsfuse),
    "blobfuse2": (("az",), _blobfuse2),
}
"""FUSE clients by name: URL schemes, and a function that builds the command line from the bucket folder, the mount
point and the cache folder."""


class FuseEngine(AgentManagedEngine):
    """Engine with one mount per node, which ends with the pool. A lost node loses no data: the bucket has every object."""

    name = "fuse"

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        parsed = parse_settings(f"engine {self.name}", settings, {"client": "rclone", "source": ""})
        self._client, self._source = parsed["client"], parsed["source"]
        self._environment = {name: value for name, value in environment.items() if name.startswith(_VARIABLES)}
        if self._client not in CLIENTS:
            raise ConfigError(
                f"engine fuse: client `{self._client}` is not one of {', '.join(CLIENTS)}", where="client"
            )

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:  # noqa: ARG002
        lacks = []
        for node, found in facts.items():
            if not found["programs"].get(self._client):
                lacks.append(f"{node}: {self._client} is not installed")
            if not found["fuse"]:
                lacks.append(f"{node}: /dev/fuse cannot be opened")
        return lacks

    def up(self, spec: PoolSpec, lease: str, runner: Runner, *, timeout_s: float) -> Pool:
        schemes, line = CLIENTS[self._client]
        at = _BucketFolder(self._source, self._environment)
        if at.scheme not in schemes or not at.bucket:
            raise Unsupported(
                f"engine fuse: {self._client} supports only {', '.join(f'{s}://' for s in schemes)} (got "
                f"`{self._source}`)"
            )
        until, agents = time.monotonic() + timeout_s, AgentClient(spec, runner)
        agents.call("prepare", timeout_s, lease=lease, of=self.name, need_bytes=spec.need_bytes)
        roots = {node.name: pool_root(spec, node) for node in runner.nodes}
        requests = {
            name: {
                "folders": ["mnt/data", "cache"],
                "env": self._environment,
                "daemons": [
                    {"name": "mount", "argv": line(at, f"{root}/mnt/data", f"{root}/cache"), "log": "logs/mount.log"}
                ],
            }
            for name, root in roots.items()
        }
        agents.call("start", until - time.monotonic(), lease=lease, each=requests)
        url = f"{spec.disk.rstrip('/')}/penstock-pool-{spec.name}/mnt"
        pool = Pool(spec.name, self.name, lease, url, tuple(runner.nodes), spec.copies, {"roots": roots})
        while missing := [
            name for name, state in self._states(pool, agents, _AGENT_TIMEOUT_S).items() if state != "up"
        ]:
            agents.raise_if_dead(_AGENT_TIMEOUT_S)
            if time.monotonic() > until:
                text = f"pool {spec.name}: {self._client} shows no files within {timeout_s:g} s on {', '.join(missing[:4])}"
                raise Deadline(text, limit_s=timeout_s, hint=f"check that {self._source} is not empty")
            time.sleep(_POLL_S)
        return pool

    def _states(self, pool: Pool, agents: AgentClient, limit_s: float) -> dict[str, str]:
        """State of each node. A node is up if the mount point contains a file, because the mount point is empty without
        the mount.
        """
        each = {name: {"patterns": [f"{escape(root)}/mnt/data/*"]} for name, root in pool.facts["roots"].items()}
        answers = agents.try_call("has", limit_s, on=pool.nodes, each=each)
        return node_states(answers, lambda _, is_seen: bool(is_seen))

    def status(self, pool: Pool, runner: Runner, *, timeout_s: float) -> dict[str, str]:
        return self._states(pool, AgentClient.of(pool, runner), timeout_s)

    def access(self, pool: Pool, node: str) -> FolderAccess:
        from pathlib import Path

        return FolderAccess(Path(pool.facts["roots"][node], "mnt"), node, is_own=False)


def engine(settings: Mapping[str, Any], environment: Mapping[str, str]) -> FuseEngine:
    """Entry point `penstock.engines: fuse`."""
    return FuseEngine(settings, environment)
