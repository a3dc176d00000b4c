# SPDX-License-Identifier: Apache-2.0
"""Measures how much a stage reads again after a kill, and how evenly it divides the objects among many nodes.

    .venv/bin/python benches/peers/stage/resume.py [--kills 20] [--seed 1] [--scratch DIR]

A dataset of 64 objects of 16 MB and four of 100 MB is staged from versitygw and killed (SIGKILL) at random moments; the
last run completes. The missing bytes before that run are computed independently: stored bytes minus complete files
minus parts listed in a state file. The bytes that the last run read are its own count; a tap on the connection counts
the bytes of all runs together. The shares are of 1,024 files with lognormal sizes (sigma 1) over 32 nodes, as
`--dry-run` reports them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import kit

PART = 8 << 20
OBJECTS = [16_000_000] * 64 + [100_000_000] * 4


class Tap:
    """A TCP forwarder that counts the bytes from the server to the client."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.removeprefix("http://").partition(":")
        self._to = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.passed = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._server.accept()
            store = socket.create_connection(self._to)
            threading.Thread(target=self._pass, args=(client, store), kwargs={"counts": False}, daemon=True).start()
            threading.Thread(target=self._pass, args=(store, client), kwargs={"counts": True}, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, *, counts: bool) -> None:
        try:
            while data := source.recv(1 << 20):
                sink.sendall(data)
                if counts:
                    with self._lock:
                        self.passed += len(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()


def missing(dst: Path, total: int) -> int:
    """Stored bytes that are in no complete file and in no part listed in a state file."""
    there = sum(path.stat().st_size for path in kit.tree(dst).values())
    for state in dst.glob(".penstock/stage/parts/*.done"):
        lines = state.read_bytes().splitlines()
        size = json.loads(lines[0])["size"] if lines else 0
        for line in lines[1:]:
            try:
                at = json.loads(line)["at"]
            except (ValueError, KeyError):
                continue  # the kill truncated this line
            there += min(PART, size - at * PART)
    return total - there


def run_kills(scratch: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    want = scratch / "want"
    want.mkdir()
    for at, size in enumerate(OBJECTS):
        (want / f"o{at:03d}.bin").write_bytes(rng.randbytes(size))
    total, dst = sum(OBJECTS), scratch / "dst"
    (scratch / "buckets/kills").mkdir(parents=True)
    with kit.versitygw(scratch / "buckets") as endpoint:
        env = kit.environment(endpoint, scratch / "home")
        argv = [str(kit.PENSTOCK), "stage", str(want), "s3://kills/set/", "--quiet"]
        subprocess.run(argv, env=env, check=True)
        tap = Tap(endpoint)
        env |= {"AWS_ENDPOINT_URL": tap.endpoint}
        argv = [str(kit.PENSTOCK), "stage", "s3://kills/set/", str(dst), "--json", "--quiet"]
        # The rate limit makes every kill hit a run that is still in progress.
        slowed = [*argv, "--max-bytes-per-s", f"{total / kills / 0.6:.0f}B/s"]
        struck = 0
        while struck < kills:
            child = subprocess.Popen(slowed, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0.4, 1.0))
            if child.poll() is not None:
                break
            child.send_signal(signal.SIGKILL)
            child.wait()
            struck += 1
        left = missing(dst, total)
        ran = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        facts = json.loads(ran.stdout.splitlines()[-1])
        for name, path in kit.tree(want).items():
            if path.read_bytes() != (dst / name).read_bytes():
                raise RuntimeError(f"{name} is not what it should be")
        print(
            f"killed {struck} times; the last run found {left / 1e6:,.1f} MB of {total / 1e6:,.1f} missing and read"
            f" {facts['bytes_in'] / 1e6:,.1f} MB: {facts['bytes_in'] / max(left, 1):.4f}x;"
            f" all {struck + 1} runs together: {tap.passed / total:.3f}x of the dataset over the wire"
        )
        row = kit.context() | {
            "bench": "resume",
            "kills": struck,
            "seed": seed,
            "missing": left,
            "read": facts["bytes_in"],
            "bytes": total,
            "wire": tap.passed,
        }
        kit.write_row(row, "peers-stage")


def run_balance(scratch: Path, seed: int) -> None:
    rng = random.Random(seed)
    folder = scratch / "sizes"
    folder.mkdir()
    for at in range(1024):
        with (folder / f"o{at:04d}").open("wb") as file:
            file.truncate(int(4e6 * rng.lognormvariate(0, 1)))
    argv = [str(kit.PENSTOCK), "stage", str(folder), str(scratch / "none"), "--dry-run", "--json"]
    ran = subprocess.run([*argv, "--node", "0", "--nodes", "32"], capture_output=True, text=True, check=True)
    shares = json.loads(ran.stdout.splitlines()[-1])["shares"]
    ratio = max(shares) / (sum(shares) / len(shares))
    print(f"shares of {len(shares)} nodes, 1,024 lognormal files (seed {seed}): max/mean {ratio:.5f}")
    kit.write_row(kit.context() | {"bench": "balance", "seed": seed, "shares": shares, "ratio": ratio}, "peers-stage")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=Path, default=None)
    chosen = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="penstock-peers-", dir=chosen.scratch) as folder:
        for seed in range(chosen.seed, chosen.seed + 5):
            (Path(folder) / str(seed)).mkdir()
            run_balance(Path(folder) / str(seed), seed)
        run_kills(Path(folder), chosen.kills, chosen.seed)


if __name__ == "__main__":
    main()
