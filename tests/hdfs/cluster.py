# SPDX-License-Identifier: Apache-2.0
"""A real HDFS for tests: one NameNode and two DataNodes on loopback. They stop when the process that started them ends.

The Rust tests and pytest both run it: `python3 tests/hdfs/cluster.py`. It uses only the standard library. It prints one
line of JSON when all DataNodes are live, and reads commands on stdin (`start N` restarts DataNode N; a line confirms
it). At the end of stdin it stops all JVMs and ends.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

LIB = Path(__file__).resolve().parents[2] / ".tools" / "hadoop" / "lib"
NODES = 2
TRIES = 3
UP_S = 90.0
# Small heaps and only the C1 compiler: three JVMs start in seconds and leave CPU time for the tests.
JAVA = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
LOG = """log4j.rootLogger=WARN,A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d %p %c: %m%n
"""


class NotUp(Exception):
    """The cluster did not start, or the NameNode belongs to another cluster."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def dies_with_parent() -> None:
    """Runs in the child before it becomes a JVM, so that no JVM stays behind if this script is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rpc, self.http, *rest = free_ports(2 + 3 * NODES)
        self.authority = f"127.0.0.1:{rpc}"
        self.ports = [rest[3 * n : 3 * n + 3] for n in range(NODES)]
        self.conf = folder / "conf"
        self.namenode: subprocess.Popen[bytes] | None = None
        self.nodes: list[subprocess.Popen[bytes] | None] = [None] * NODES

    def java(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as out:
            return subprocess.Popen(
                ["java", *JAVA, "-cp", f"{self.conf}:{LIB}/*", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=dies_with_parent,
            )

    def configure(self) -> None:
        self.conf.mkdir(parents=True)
        site = {
            "dfs.replication": NODES,
            "dfs.permissions.enabled": "false",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": 0,
            "dfs.heartbeat.interval": 1,
            # A DataNode counts as dead after 2 x 30 s + 10 heartbeats, so a test that hangs one ends before that.
            "dfs.namenode.heartbeat.recheck-interval": 30000,
            "dfs.namenode.name.dir": self.folder / "name",
            "dfs.namenode.http-address": f"127.0.0.1:{self.http}",
            "dfs.namenode.fs-limits.min-block-size": 1024,
            # Small blocks, so that a test's file has several.
            "dfs.blocksize": 1 << 20,
        }
        core = {"fs.defaultFS": f"hdfs://{self.authority}", "hadoop.tmp.dir": self.folder / "tmp"}
        for name, settings in (("core-site.xml", core), ("hdfs-site.xml", site)):
            rows = "".join(f"<property><name>{k}</name><value>{v}</value></property>\n" for k, v in settings.items())
            (self.conf / name).write_text(f"<configuration>\n{rows}</configuration>\n")
        (self.conf / "log4j.properties").write_text(LOG)

    def start_node(self, node: int) -> int:
        data, http, ipc = self.ports[node]
        options = {
            "dfs.datanode.data.dir": self.folder / f"data{node}",
            "dfs.datanode.address": f"127.0.0.1:{data}",
            "dfs.datanode.http.address": f"127.0.0.1:{http}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{ipc}",
            "dfs.datanode.hostname": "127.0.0.1",
        }
        flat = [text for name, value in options.items() for text in ("-D", f"{name}={value}")]
        started = self.nodes[node] = self.java(DATANODE, *flat, log=f"datanode{node}.log")
        return started.pid

    def restart_node(self, node: int) -> None:
        """Returns when the DataNode listens; meanwhile the NameNode considers it alive and sends writers to it."""
        self.start_node(node)
        end = time.monotonic() + UP_S
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.ports[node][0]), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise NotUp(f"DataNode {node} does not listen: " + self.log(f"datanode{node}.log"))

    def bean(self, name: str) -> dict[str, object]:
        url = f"http://127.0.0.1:{self.http}/jmx?qry=Hadoop:service=NameNode,name={name}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=5) as answer:
            beans = json.load(answer)["beans"]
        return dict(beans[0]) if beans else {}

    def up(self) -> None:
        self.configure()
        format_it = self.java(NAMENODE, "-format", "-force", "-nonInteractive", log="format.log")
        if format_it.wait(60) != 0:
            raise NotUp("the NameNode could not be formatted: " + self.log("format.log"))
        self.namenode = self.java(NAMENODE, log="namenode.log")
        for node in range(NODES):
            self.start_node(node)
        self.wait_live()

    def wait_live(self) -> None:
        """Waits until every DataNode is live in *this* name space.

        If a NameNode cannot bind its port, it ends, and the DataNodes join whichever NameNode owns the port.
        """
        version = (self.folder / "name" / "current" / "VERSION").read_text()
        ours = next(line.split("=", 1)[1] for line in version.splitlines() if line.startswith("clusterID="))
        end = time.monotonic() + UP_S
        while time.monotonic() < end:
            if self.namenode is None or self.namenode.poll() is not None:
                raise NotUp("the NameNode ended: " + self.log("namenode.log"))
            try:
                info, state = self.bean("NameNodeInfo"), self.bean("FSNamesystemState")
            except (OSError, ValueError):
                info = state = {}
            if info and info.get("ClusterId") != ours:
                raise NotUp("another NameNode answers on our port")
            if state.get("NumLiveDataNodes") == NODES and info.get("Safemode") == "":
                return
            time.sleep(0.1)
        raise NotUp(f"not live in {UP_S:.0f} s: " + self.log("namenode.log") + self.log("datanode0.log"))

    def log(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""

    def down(self) -> None:
        for process in [*self.nodes, self.namenode]:
            if process is not None and process.poll() is None:
                process.kill()  # SIGKILL also ends a stopped process.
                process.wait()

    def result(self) -> dict[str, object]:
        pids = [node.pid if node else 0 for node in self.nodes]
        return {"authority": self.authority, "conf": str(self.conf), "nodes": pids, "http": self.http}


def serve(cluster: Cluster) -> None:
    print(json.dumps(cluster.result()), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["start", node]:
                cluster.restart_node(int(node))
                print(json.dumps(cluster.result()), flush=True)
            case _:
                print(json.dumps({"error": f"no such command: {line.strip()}"}), flush=True)


def main() -> int:
    if not any(LIB.glob("hadoop-client-minicluster-*.jar")) or shutil.which("java") is None:
        print("Hadoop's jars or Java are not here: `make setup-peers`", file=sys.stderr)
        return 3
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: sys.exit(130))
    for last in [False] * (TRIES - 1) + [True]:
        with tempfile.TemporaryDirectory(prefix="penstock-hdfs-") as folder:
            cluster = Cluster(Path(folder))
            try:
                cluster.up()
                serve(cluster)
            except NotUp as error:
                if last:
                    print(error, file=sys.stderr)
            else:
                return 0
            finally:
                cluster.down()
    return 1


if __name__ == "__main__":
    sys.exit(main())
