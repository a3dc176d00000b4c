# SPDX-License-Identifier: Apache-2.0
"""Runs a job that loses a host in mid-epoch: a pool on four hosts, a dataset staged into it in shares, and four ranks.

    python benches/pool_loss.py --engine hdfs --copies 1 --bytes 2000000000

Needs root: it makes five hosts (network namespaces) on this machine, joined by links of a given rate; the fifth serves
the bucket. The job runs three epochs: one undisturbed, one in which a host is killed halfway, and one after the loss.
After the kill, the three remaining ranks continue from the last step that all four had taken. Every rank records the
samples of each of its steps. The exit status is 1 if an epoch did not deliver every sample exactly once. Prints one
JSON line: times, the store's egress, and the bytes read from each source.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
import numpy

from penstock.cluster import Cluster, raise_for_failures
from penstock.launchers.netns_hosts import Hosts
from penstock.pool import lifecycle
from penstock.pool.context import PoolContext, to_env
from penstock.protocols import PoolSpec

_SAMPLES = 8  # an object
_KEYS = {"HADOOP_USER_NAME": "penstock"}
_STORE = """
import json, sys
from penstock.emulator import Emulator
with Emulator(sys.argv[1], bind=sys.argv[2] + ":0") as store:
    print(json.dumps({"url": store.url, "env": store.env}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(store.stats()), flush=True)
"""


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--engine", default="hdfs")
    asked.add_argument("--hadoop", default=".tools/hadoop/lib")
    asked.add_argument("--copies", type=int, default=1)
    asked.add_argument("--bytes", type=int, default=2_000_000_000, help="of the dataset, inflated")
    asked.add_argument("--objects", type=int, default=240)
    asked.add_argument("--batch", type=int, default=24, help="samples of all ranks in a step")
    asked.add_argument(
        "--step", type=float, default=0.05, help="seconds that a sample's training is taken to last on a rank"
    )
    asked.add_argument("--epochs", type=int, choices=(2, 3), default=3, help="2 leaves out the one after the loss")
    asked.add_argument("--rate", type=float, default=125e6, help="bytes/s of a host's link")
    given = asked.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Hosts.up(f"loss-{os.getpid()}", 5, rate_bytes_per_s=given.rate) as hosts,
    ):
        os.environ["XDG_STATE_HOME"] = folder
        row = _Loss(given, hosts, Path(folder)).run()
    print(json.dumps(row))
    return 0 if row["exactly_once"] else 1


class _Store:
    """The bucket server, on the last host."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        host = hosts.nodes()[-1]
        self._process = subprocess.Popen(
            hosts.enter(host.name, [sys.executable, "-c", _STORE, str(folder), host.address]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        result = self._line()
        self.url, self.env = result["url"], result["env"] | {"PENSTOCK_ALLOW_HTTP": "1"}

    def _line(self) -> dict:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def sent_bytes(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line()["bytes_out"]


class _Loss:
    def __init__(self, given: argparse.Namespace, hosts: Hosts, folder: Path) -> None:
        self.given, self.hosts, self.folder = given, hosts, folder
        (folder / "set").mkdir()
        self.stored_bytes = _make(folder / "set", given.objects, given.bytes // given.objects // _SAMPLES)
        self.samples = given.objects * _SAMPLES
        self.store = _Store(hosts, folder / "set")
        self.row: dict = {
            "engine": given.engine, "copies": given.copies, "nodes": 4, "bytes": given.bytes, "stored_bytes": self.stored_bytes,
            "objects": given.objects, "link_bytes_per_s": given.rate, "step_s": given.step, "load": os.getloadavg()[0],
        }  # fmt: skip

    def run(self) -> dict:
        given, row = self.given, self.row
        names = [node.name for node in self.hosts.nodes()[:4]]
        settings = {"hadoop": str(Path(given.hadoop).resolve())} if given.engine == "hdfs" else {}
        spec = PoolSpec("loss", self.hosts.own_disk, given.copies)
        with Cluster.open("local", {"hosts": self.hosts.name}, only=names) as cluster:
            began = time.monotonic()
            pool, _ = lifecycle.up(cluster, spec, given.engine, settings, timeout_s=240)
            row["ready_s"] = round(time.monotonic() - began, 2)
            data = f"{pool.url.rstrip('/')}/data"
            result = PoolContext(pool, data, source=self.store.url)
            env = {**self.store.env, **_KEYS, **to_env(result)}
            began = time.monotonic()
            line = [sys.executable, "-m", "penstock", "stage", self.store.url, data, "--decompress", "--quiet"]
            raise_for_failures(
                cluster.run([*line, "--journal", f"{self.hosts.own_disk}/journal"], env=env, timeout_s=900), "stage"
            )
            row["stage_s"] = round(time.monotonic() - began, 2)
            row["egress_after_stage"] = round(self.store.sent_bytes() / self.stored_bytes, 4)
            # The variables that `penstock run` gives to restarted ranks.
            again = env | to_env(msgspec.structs.replace(result, lost=(names[-1],)))
            self._epochs(cluster, names, data, env, again)
            row["egress_of_job"] = round(self.store.sent_bytes() / self.stored_bytes, 4)
            record = lifecycle.find("loss")
            assert record is not None
            row["unreached"] = lifecycle.down(cluster, record, timeout_s=120).unreached
            left = lifecycle.audit(cluster, record, timeout_s=60)
            row["left"] = sum(len(found["left"]) for found in left.receipts.values())
        return row

    def _epochs(
        self, cluster: Cluster, names: list[str], data: str, env: dict[str, str], again: dict[str, str]
    ) -> None:
        out = self.folder / "out"
        (out / "go").mkdir(parents=True)
        steps = -(-self.samples // self.given.batch)
        kill = threading.Thread(target=self._kill, args=(out, names[-1], steps // 2), daemon=True)
        kill.start()
        exits = self._ranks(cluster, "first", 0, 2, data, env, out)
        kill.join(60)
        lost = [ended.node for ended in exits if ended.code is None]
        assert lost == [names[-1]], [(ended.node, ended.code, ended.err[-1500:]) for ended in exits]
        raise_for_failures([ended for ended in exits if ended.node not in lost], "ranks")
        # In the epoch with the loss, the steps that all four ranks completed are kept; later ones are repeated.
        taken = _taken(out, "first", 1)
        last = min(max(steps) for steps in taken.values())
        with Cluster.open("local", {"hosts": self.hosts.name}, only=names[:-1]) as rest:
            raise_for_failures(self._ranks(rest, f"again-{last}", 1, self.given.epochs, data, again, out), "ranks")
        self.row |= self._told(out, last)

    def _ranks(
        self, cluster: Cluster, phase: str, first: int, end: int, data: str, env: dict[str, str], out: Path
    ) -> list:
        line = [
            sys.executable, __file__, "rank", data, str(out), phase, str(first), str(end), str(self.given.batch), str(self.given.step),
        ]  # fmt: skip
        return cluster.run(line, env=env, timeout_s=900)

    def _kill(self, out: Path, host: str, step: int) -> None:
        until = time.monotonic() + 800
        while not (out / f"states/1-{step}.json").exists() and time.monotonic() < until:
            time.sleep(0.02)
        self.hosts.kill(host)
        (out / "stop").touch()

    def _told(self, out: Path, last: int) -> dict:
        first, second = _taken(out, "first", 0), _taken(out, "first", 1)
        again, after = _taken(out, f"again-{last}", 1), _taken(out, f"again-{last}", 2)
        middle = [ids for steps in second.values() for step, ids in steps.items() if step <= last]
        middle += [ids for steps in again.values() for ids in steps.values()]
        epochs = [
            [ids for steps in first.values() for ids in steps.values()], middle,
            [ids for steps in after.values() for ids in steps.values()],
        ][: self.given.epochs]  # fmt: skip
        once = [Counter(one for ids in epoch for one in ids) == Counter(range(self.samples)) for epoch in epochs]
        reports = {
            epoch: [json.loads(path.read_text()) for path in sorted(out.glob(f"report-{phase}-{epoch}-*.json"))]
            for phase, epoch in (("first", 0), (f"again-{last}", 1), (f"again-{last}", 2))[: self.given.epochs]
        }
        walls = {epoch: max(one["wall_s"] for one in rows) for epoch, rows in reports.items()}
        whole, broken, span = walls[0], walls.get(2), self._span(out, last)
        return {
            "exactly_once": all(once), "steps_before_loss": last, "epoch_s": round(whole, 2),
            "epoch_with_loss_s": round(span, 2), "with_loss_over_whole": round(span / whole, 3),
            "epoch_after_loss_s": broken and round(broken, 2), "after_loss_over_whole": broken and round(broken / whole, 3),
            "read": {at: {way: round(sum(one[f"pool_{way}_bytes"] for one in rows) / 1e6, 1) for way in ("own", "engine", "bucket")} for at, rows in reports.items()},
            "put_back": sum(one["pool_refills"] for rows in reports.values() for one in rows),
            "local_share_expected": reports[0][0]["locality"]["expected_local_share"],
        }  # fmt: skip

    def _span(self, out: Path, last: int) -> float:
        """Seconds of the epoch with the loss, from its first start to the last sample after the restart."""
        begun = json.loads((out / "begun-first-1.json").read_text())
        ended = json.loads((out / f"ended-again-{last}-1.json").read_text())
        return ended - begun


def _make(folder: Path, objects: int, sample_bytes: int) -> int:
    """Writes gzip'd objects of eight samples each; returns their stored size in bytes."""
    draw, stored = numpy.random.default_rng(1), 0
    for at in range(objects):
        body = numpy.zeros((_SAMPLES, sample_bytes), numpy.uint8)
        body[:, : sample_bytes // 4] = draw.integers(0, 255, (_SAMPLES, sample_bytes // 4), numpy.uint8)
        body[:, :8] = numpy.arange(at * _SAMPLES, (at + 1) * _SAMPLES).view(numpy.uint8).reshape(_SAMPLES, 8)
        packed = gzip.compress(body.tobytes(), 1, mtime=0)
        (folder / f"{at:05d}.bin.gz").write_bytes(packed)
        stored += len(packed)
    (folder / "size").write_text(str(sample_bytes))
    (folder / "size").rename(folder.parent / "size")
    return stored


def _taken(out: Path, phase: str, epoch: int) -> dict[str, dict[int, list[int]]]:
    """The samples of every step, by rank."""
    found: dict[str, dict[int, list[int]]] = {}
    for path in out.glob(f"ledger-{phase}-*"):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            if one["epoch"] == epoch:
                found.setdefault(path.name, {})[one["step"]] = one["ids"]
    return found


# ---------------------------------------------------------------- a rank


def rank(data: str, folder: str, phase: str, first: str, end: str, batch: str, sample_s: str) -> int:
    """Reads epochs `first` to `end` in step with the other ranks; resumes from a saved state if `phase` names a step."""
    import penstock
    from penstock.feed import Loader
    from penstock.formats import fixed

    out = Path(folder)
    size = int((out.parent / "size").read_text())
    form = fixed(id=penstock.tensor("int64", ()), body=penstock.tensor("uint8", (size - 8,)))
    loader = Loader(
        penstock.open(data, format=form).shuffle(seed=7), global_batch=int(batch), prefetch_next_epoch=False
    )
    (out / "states").mkdir(exist_ok=True)
    _, _, last = phase.partition("-")
    if last:
        loader.load_state_dict(json.loads((out / f"states/{first}-{last}.json").read_text()))
    meeting = _Meeting(out, phase, loader.rank, loader.world)
    with (out / f"ledger-{phase}-{loader.rank}").open("a") as ledger:
        for epoch in range(int(first), int(end)):
            meeting.wait((epoch, -1))
            loader.set_epoch(epoch)
            (out / f"begun-{phase}-{epoch}.json").write_text(json.dumps(time.time()))
            for step, one in enumerate(loader, int(last) + 1 if last and epoch == int(first) else 0):
                time.sleep(float(sample_s) * len(one["id"]))
                ledger.write(json.dumps({"epoch": epoch, "step": step, "ids": one["id"].tolist()}) + "\n")
                ledger.flush()
                if loader.rank == 0:
                    part = out / "states/.part"
                    part.write_text(json.dumps(loader.state_dict()))
                    part.replace(out / f"states/{epoch}-{step}.json")
                if not meeting.wait((epoch, step)):
                    return 0  # a rank was lost
            (out / f"ended-{phase}-{epoch}.json").write_text(json.dumps(time.time()))
            report = dict(loader.report())
            (out / f"report-{phase}-{epoch}-{loader.rank}.json").write_text(json.dumps(report, default=str))
    return 0


class _Meeting:
    """Keeps the ranks in lock step, as an allreduce would."""

    def __init__(self, out: Path, phase: str, rank: int, world: int) -> None:
        self._mine = out / f"at-{phase}-{rank}"
        self._others = [out / f"at-{phase}-{other}" for other in range(world) if other != rank]
        self._stop = out / "stop" if phase == "first" else out / "never"

    def wait(self, at: tuple[int, int]) -> bool:
        """Returns True when all ranks have reached `at`; False if a rank was lost."""
        part = self._mine.with_suffix(".part")
        part.write_text(json.dumps(at))
        part.replace(self._mine)
        until = time.monotonic() + 120
        while any(not other.exists() or tuple(json.loads(other.read_text())) < at for other in self._others):
            if self._stop.exists():
                return False
            if time.monotonic() > until:
                sys.exit("the other ranks did not come within 120 s")
            time.sleep(0.003)
        return True


if __name__ == "__main__":
    sys.exit(rank(*sys.argv[2:]) if sys.argv[1:2] == ["rank"] else main())
