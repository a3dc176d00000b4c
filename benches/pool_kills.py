# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a pool many times with random kills, and audits what is left after each round.

    python benches/pool_kills.py --times 50 --engine hdfs --hadoop .tools/hadoop/lib

Needs root: it makes three hosts (network namespaces) on this machine. A seed selects one of three kinds for each round:
`penstock pool up` is killed (-9) at a random moment; a host's daemons are killed once the pool is up; or nothing is
killed. After `pool down` nothing may be left, and every undisturbed `up` must end before its deadline. The exit status
is 1 if a round breaks either rule.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock.launchers.netns_hosts import Hosts

_PROGRAM = str(Path(sys.executable).with_name("penstock"))
_DAEMONS = "java mfsmaster mfschunkserver mfsmount"


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--times", type=int, default=50)
    asked.add_argument("--engine", default="hdfs")
    asked.add_argument("--hadoop", default=".tools/hadoop/lib")
    asked.add_argument("--timeout", type=float, default=120.0)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--limit", type=float, default=3600.0, help="seconds after which no new round begins")
    given = asked.parse_args()
    draw, rows, began = random.Random(given.seed), [], time.monotonic()
    with Hosts.up(f"kills-{os.getpid()}", 3) as hosts, tempfile.TemporaryDirectory() as state:
        rounds = _Rounds(hosts, given, state)
        for number in range(given.times):
            if time.monotonic() - began > given.limit:
                break
            row = {"round": number, **rounds.one(draw)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    ready = [row["up_s"] for row in rows if row.get("up_s") is not None]
    summary = {
        "engine": given.engine, "seed": given.seed, "rounds": len(rows), "load": os.getloadavg()[0],
        "leftovers": sum(len(row["left"]) for row in rows), "late": sum(row.get("late", False) for row in rows),
        "broken": [row["round"] for row in rows if row["left"] or row.get("late") or row.get("wrong")],
        "ready_s_median": statistics.median(ready) if ready else None, "ready_s_most": max(ready, default=None),
    }  # fmt: skip
    print(json.dumps(summary))
    return 1 if summary["broken"] else 0


class _Rounds:
    def __init__(self, hosts: Hosts, given: argparse.Namespace, state: str) -> None:
        self.hosts, self.given = hosts, given
        self.env = {**os.environ, "XDG_STATE_HOME": state}
        self.where = ["--set", f"hosts={hosts.name}", "--disk", hosts.own_disk, "--engine", given.engine]
        settings = ["--engine-set", f"hadoop={Path(given.hadoop).resolve()}"] if given.engine == "hdfs" else []
        self.up_line = [_PROGRAM, "pool", "up", *self.where, *settings, "--timeout", f"{given.timeout:g}s"]
        self.typical_s = {"hdfs": 15.0, "moosefs": 4.0}.get(given.engine, 1.5)

    def call(self, *line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=600
        )

    def one(self, draw: random.Random) -> dict:
        kind = draw.choice(["killed on its way", "daemon killed", "left alone"])
        row: dict = {"kind": kind, "up_s": None}
        began = time.monotonic()
        if kind == "killed on its way":
            after = draw.uniform(0, self.typical_s)
            process = subprocess.Popen(
                self.up_line,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                process.wait(after)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            row["killed_after_s"] = round(after, 2)
            if (
                draw.random() < 0.5
            ):  # `pool up` removes nothing, so `pool down` first clears what the killed command left
                self.call(_PROGRAM, "pool", "down")
                self._up(row)
        else:
            self._up(row)
            if kind == "daemon killed":
                host = draw.choice(self.hosts.nodes()).name
                self.call(*self.hosts.enter(host, ["sh", "-c", f"kill -9 $(pidof {_DAEMONS}) 2>/dev/null; true"]))
                status = self.call(_PROGRAM, "pool", "status", "--json")
                if self.given.engine in ("hdfs", "moosefs") and status.returncode != 1:
                    row["wrong"] = f"status ended with {status.returncode} after {host} had lost its daemons"
        down = self.call(_PROGRAM, "pool", "down")
        if down.returncode != 0:
            row["wrong"] = down.stderr[-300:]
        audit = self.call(_PROGRAM, "pool", "audit", "--json", *self.where)
        left = json.loads(audit.stdout)["leftovers"] if audit.stdout else {"?": [audit.stderr[-300:]]}
        row["left"] = [f"{node} {word}" for node, words in left.items() for word in words]
        row["round_s"] = round(time.monotonic() - began, 2)
        return row

    def _up(self, row: dict) -> None:
        began = time.monotonic()
        ended = self.call(*self.up_line)
        took = time.monotonic() - began
        row["late"] = took > self.given.timeout + 1  # one second for the command's own start
        if ended.returncode == 0:
            row["up_s"] = round(took, 2)
        else:
            row["wrong"] = ended.stderr[-300:]


if __name__ == "__main__":
    sys.exit(main())
