# SPDX-License-Identifier: Apache-2.0
"""Hadoop for the `hdfs` engine: installs the jars and writes the configuration of the daemons."""

from __future__ import annotations

import glob
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from penstock.engines._shared.agent_client import pool_root
from penstock.errors import ConfigError, Deadline, NotFound, PreconditionFailed
from penstock.ownership import NotOwned, OwnedFolder, check_parents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.engines._shared.agent_client import AgentClient
    from penstock.protocols import PoolSpec, Runner

__all__ = ["configured", "data_options", "install_jars", "installed_class_path", "required_files"]

_OWN_JARS = "set --engine-set hadoop=DIR to an installed Hadoop or a folder of its jars"
_POM = Path(__file__).with_name("hadoop.pom.xml")
_SERVER = "hadoop-client-minicluster-*.jar"
_LOG = """log4j.rootLogger=WARN,A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d %p %c: %m%n
"""


def installed_class_path(given: str, environment: Mapping[str, str]) -> str | None:
    """Class path of the user's own Hadoop (`given` or HADOOP_HOME); None if Penstock must install the jars."""
    home = given or environment.get("HADOOP_HOME", "")
    if not home:
        return None
    if (Path(home) / "share/hadoop/hdfs").is_dir() or not given:
        return ":".join(f"{home}/share/hadoop/{part}/*" for part in ("common", "common/lib", "hdfs", "hdfs/lib"))
    return f"{home}/*"


def required_files(path: str) -> list[str]:
    """Patterns of files that must exist on a node so that the class path contains HDFS."""
    return [
        f"{glob.escape(part[:-1])}{_SERVER if ':' not in path else 'hadoop-hdfs-*.jar'}"
        for part in path.split(":")[:3:2]
    ]


def install_jars(
    environment: Mapping[str, str], runner: Runner, agents: AgentClient, spec: PoolSpec, until: float
) -> dict[str, str]:
    """Install Penstock's Hadoop jars on every node; return each node's class path.

    Maven downloads the jars once to this machine. Nodes that lack the jars get copies of them.

    Raises:
        ConfigError: This user has no cache folder for the jars.
        NotFound: The jars are missing, and Maven is not installed or cannot download them.
        PreconditionFailed: Another user can write to the jars' folder.
    """
    # The XDG specification ignores relative paths.
    places = environment.get("XDG_CACHE_HOME", ""), f"{environment.get('HOME', '')}/.cache"
    base = next((Path(place) for place in places if place.startswith("/") and place != "/.cache"), None)
    if base is None:
        raise ConfigError("HOME and XDG_CACHE_HOME are not set, so Hadoop's jars cannot be stored", hint=_OWN_JARS)
    cache = base / "penstock/hadoop"
    if not list(cache.glob(_SERVER)):
        _fetch(cache, until)
    try:
        OwnedFolder(check_parents(str(cache))).close()
    except NotOwned as error:
        raise PreconditionFailed(f"Hadoop's jars: {error}", hint=error.hint or _OWN_JARS) from None
    # A node gets a copy unless it has the jars in a folder that only root or this user can write.
    has = agents.call(
        "has", until - time.monotonic(), patterns=[f"{glob.escape(str(cache))}/{_SERVER}"], folder=str(cache)
    )
    paths = {}
    for node in runner.nodes:
        if has[node.name]:
            paths[node.name] = f"{cache}/*"
            continue
        there = f"{pool_root(spec, node)}/jars"
        [ended] = runner.copy_to_all(cache, there, on=[node], timeout_s=max(1.0, until - time.monotonic()))
        if ended.code != 0:
            raise ended.fault or NotFound(
                f"{node.name}: Hadoop's jars could not be copied: {ended.err.decode(errors='replace').strip()[-300:]}"
            )
        paths[node.name] = f"{there}/*"
    return paths


def _fetch(cache: Path, until: float) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        line = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(_POM),
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={folder}/lib",
        ]
        left = max(1.0, until - time.monotonic())
        try:
            done = subprocess.run(
                line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=left, check=False
            )
        except FileNotFoundError:
            raise NotFound(
                "Hadoop's jars are missing, and Maven, which downloads them, is not installed",
                hint=_OWN_JARS,
            ) from None
        except subprocess.TimeoutExpired:
            raise Deadline(f"Maven did not download Hadoop's jars (91 MB) within {left:.0f} s", limit_s=left) from None
        if done.returncode != 0:
            raise NotFound(
                "Maven could not download Hadoop's jars: "
                f"{done.stdout.strip().splitlines()[0][:300] if done.stdout.strip() else 'no output'}"
            )
        jars = Path(folder) / "lib"
        jars.chmod(0o755)
        try:
            jars.rename(cache)
        except OSError:  # another command created it first
            if not list(cache.glob(_SERVER)):
                raise


def configured(root: str, leader: str, rpc: int, http: int, *, copies: int, block_bytes: int) -> dict[str, str]:
    """Return the configuration files for a node: path and text."""
    core = {"fs.defaultFS": f"hdfs://{leader}:{rpc}", "hadoop.tmp.dir": f"{root}/data/tmp"}
    site = {
        "dfs.replication": copies,
        "dfs.blocksize": block_bytes,
        "dfs.namenode.fs-limits.min-block-size": 1 << 20,
        "dfs.permissions.enabled": "false",
        "dfs.namenode.name.dir": f"{root}/data/name",
        "dfs.namenode.http-address": f"{leader}:{http}",
        # Only the pool's own nodes may register: the NameNode rejects a foreign DataNode that finds its port.
        "dfs.hosts": f"{root}/conf/hosts",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.namenode.safemode.extension": 0,
        # A node counts as lost after 2 x 2 s + 10 x 1 s, not after ten minutes. If a node is silent for 3 s, its copies
        # are read only if no other copy exists.
        "dfs.heartbeat.interval": 1,
        "dfs.namenode.heartbeat.recheck-interval": 2000,
        "dfs.namenode.stale.datanode.interval": 3000,
        "dfs.namenode.avoid.read.stale.datanode": "true",
        "dfs.namenode.avoid.write.stale.datanode": "true",
        # Store the first copy on the writer's own disk even if its node is busy.
        "dfs.namenode.redundancy.considerLoad": "false",
        # If the number of copies equals the number of nodes, no node can replace a lost node. A write must succeed
        # without the lost node.
        "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
        "dfs.client.socket-timeout": 5000,
        "dfs.datanode.socket.write.timeout": 5000,
    }
    return {
        "conf/core-site.xml": _xml(core),
        "conf/hdfs-site.xml": _xml(site),
        "conf/log4j.properties": _LOG,
    }


def data_options(root: str, address: str, ports: list[int]) -> list[str]:
    """Command-line options of a DataNode that differ between nodes."""
    data, http, ipc = ports
    options = {
        "dfs.datanode.data.dir": f"{root}/data/blocks",
        "dfs.datanode.address": f"{address}:{data}",
        "dfs.datanode.http.address": f"{address}:{http}",
        "dfs.datanode.ipc.address": f"{address}:{ipc}",
        "dfs.datanode.hostname": address,
    }
    return [option for name, value in options.items() for option in ("-D", f"{name}={value}")]


def _xml(settings: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>\n"
        for name, value in settings.items()
    )
    return f"<configuration>\n{rows}</configuration>\n"
