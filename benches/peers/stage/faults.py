# SPDX-License-Identifier: Apache-2.0
"""The fault table: runs each copier through the same faulty proxy, onto the same failing disk, with random kills.

    .venv/bin/python benches/peers/stage/faults.py [penstock] [rclone] [s5cmd] [aws-crt] [aws] [--faults 1000] [--seed 1]

A round fills one destination: the copier's command runs again until it exits with 0 (at most RUNS times). Rounds
continue until `--faults` faults have been injected. After every run, whatever its result, each file under an object's
name is compared with all versions that this object has had:

- wrong: the file is not a complete version (truncated or damaged), and the run did not report success
- corrupt: the same, after a run that reported success (exit 0)
- mixed: every 4 KiB block is from some version, but no single version has them all; counted whatever the run reported
- lost: the file is missing after exit 0
- doubled: extra files, which belong to no object, are left after exit 0
- gave up: rounds in which RUNS runs were not enough

A file counts once per round and kind. Copiers that can resume run with their resuming command (`sync`). A wrong file is
written to runs/bench/wrong, with the differences from each version, its journal lines and the results of the round's
runs.

Each object is uploaded in one request, so that the store has a checksum of the whole. With `--composite`, replacements
may be multipart uploads, for which the store has no such checksum (only an ETag `...-8` and a checksum of checksums). A
copier that does not request the checksum of each part cannot detect a flipped bit in them.

Network faults come from `proxy`, ENOSPC and EIO from `faultfs` (write, fsync, rename, create; needs root), SIGKILL from
here. Half of the objects are gzip'd; no copier inflates them, so that all do the same work.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

import kit
import proxy as faulty

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 40
SMALL, LARGE = 120, 2
LARGE_BYTES = 60_000_000  # two parts for s5cmd (50 MiB), eight for Penstock
BLOCK = 4096
RATE = 0.25
DISK_RATE = 0.002
KILLS = 2
BUCKET = "faults"


class Objects:
    """The expected objects, with every version that each has had."""

    def __init__(self, seed: int, env: dict[str, str], body_file: Path, *, is_composite: bool) -> None:
        self.random = random.Random(seed)
        self.versions: dict[str, list[bytes]] = {}
        self.digests: dict[str, set[bytes]] = {}
        self.lock = threading.Lock()
        self.replaced: set[str] = set()
        for at in range(SMALL):
            body = self.random.randbytes(self.random.randrange(1, 400_000)) + bytes(self.random.randrange(200_000))
            self._add(
                f"d{at % 7}/o{at:04d}.bin" + (".gz" if at % 2 else ""), gzip.compress(body, 1) if at % 2 else body
            )
        self._add("zero.bin", b"")
        for at in range(LARGE):
            self._add(f"large{at}.bin", self.random.randbytes(LARGE_BYTES))
        self.env, self.body_file = env if is_composite else kit.uploading(env), body_file

    def _add(self, key: str, body: bytes) -> None:
        self.versions.setdefault(key, []).append(body)
        self.digests.setdefault(key, set()).add(hashlib.sha256(body).digest())

    def write(self, folder: Path) -> None:
        for key, versions in self.versions.items():
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(versions[-1])

    def replace(self, target: str) -> bool:
        """Replaces a large object while it is being read. Each is replaced once per round, so that runs can succeed."""
        key = target.partition("/set/")[2]
        with self.lock:
            if not key.startswith("large") or key in self.replaced:
                return False
            self.replaced.add(key)
            body = self.random.randbytes(LARGE_BYTES)
            self._add(key, body)
            self.body_file.write_bytes(body)
            kit.upload_one(self.body_file, BUCKET, key, self.env)
            return True

    def new_round(self) -> None:
        with self.lock:  # waits for a replacement that is still being uploaded
            self.replaced.clear()
            for versions in self.versions.values():
                del versions[:-2]  # the digests of all versions are kept

    def is_mixed(self, key: str, body: bytes) -> bool:
        versions = [version for version in self.versions[key] if len(version) == len(body)]
        return all(
            any(body[at : at + BLOCK] == version[at : at + BLOCK] for version in versions)
            for at in range(0, len(body), BLOCK)
        )

    def differences(self, key: str, body: bytes) -> list[dict[str, Any]]:
        """For each version in memory: the ranges of blocks that differ, and the first bytes that differ."""
        found = []
        for version in self.versions[key]:
            runs: list[list[int]] = []
            flips: list[tuple[int, int, int]] = []
            for at in range(0, max(len(body), len(version)), BLOCK):
                have, want = body[at : at + BLOCK], version[at : at + BLOCK]
                if have == want:
                    continue
                if runs and runs[-1][1] == at:
                    runs[-1][1] = at + BLOCK
                else:
                    runs.append([at, at + BLOCK])
                if len(flips) < 64:
                    flips += [(at + i, h, w) for i, (h, w) in enumerate(zip(have, want, strict=False)) if h != w][:64]
            found.append({"bytes": len(version), "blocks": runs[:200], "first (at, have, want)": flips[:64]})
        return found


@contextmanager
def failing_disk(folder: Path, seed: int, counts: collections.Counter[str]) -> Iterator[Path]:
    """A folder whose file system calls fail at random; adds the injected faults to `counts` at the end."""
    inner, mount = folder / "disk", folder / "mount"
    inner.mkdir()
    mount.mkdir()
    argv = [str(kit.BIN / "faultfs"), "-rate", str(DISK_RATE), "-seed", str(seed), str(inner), str(mount)]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        if server.stdout.readline().strip() != "ready":
            raise RuntimeError("faultfs did not mount; it needs root and /dev/fuse")
        yield mount
    finally:
        server.send_signal(signal.SIGTERM)
        output = ""
        try:
            output, _ = server.communicate(timeout=60)
        except subprocess.TimeoutExpired:  # on a busy machine; its faults of this round are not counted
            print("  the failing disk did not come down; its faults of this round are not counted", flush=True)
        finally:
            server.kill()
            subprocess.run(["umount", "-l", str(mount)], check=False, stderr=subprocess.DEVNULL)
    for call, count in json.loads(output.splitlines()[-1]).items() if output else ():
        counts[call.split()[1]] += count


def look(
    folder: Path,
    objects: Objects,
    *,
    is_done: bool,
    escapes: collections.Counter[str],
    seen: set[tuple[str, str]],
    notes: list[str],
    result: dict[str, Any],
) -> None:
    found = kit.tree(folder)
    for key, digests in objects.digests.items():
        path = found.pop(key, None)
        try:
            body = None if path is None else path.read_bytes()
        except OSError:
            body = None
        if body is None:
            if is_done:
                escapes["lost"] += 1
                notes.append(f"lost {key}")
        elif hashlib.sha256(body).digest() not in digests:
            kind = "mixed" if objects.is_mixed(key, body) else "corrupt" if is_done else "wrong"
            if (kind, key) in seen:
                continue
            seen.add((kind, key))
            escapes[kind] += 1
            notes.append(f"{kind} {key}: {len(body)} bytes of {[len(v) for v in objects.versions[key]]}")
            if path is not None:
                keep_evidence(kind, key, path, body, objects, result)
    if is_done and found:
        escapes["doubled"] += len(found)
        notes.append(f"left over: {sorted(found)[:3]}")


def keep_evidence(kind: str, key: str, path: Path, body: bytes, objects: Objects, result: dict[str, Any]) -> None:
    out = kit.ROOT / "runs/bench/wrong"
    out.mkdir(parents=True, exist_ok=True)
    stem = f"{result['way']}-{result['seed']}-round{result['round']}-{kind}-{key.replace('/', '_')}"
    (out / stem).write_bytes(body)
    journals = [*path.parents[key.count("/")].glob(".penstock/stage/journal-*")]
    facts = result | {
        "kind": kind,
        "key": key,
        "mtime_ns": path.stat().st_mtime_ns,
        "journal": [line for file in journals for line in file.read_text().splitlines() if f'"{key}"' in line],
        "differs": objects.differences(key, body),
    }
    (out / f"{stem}.json").write_text(json.dumps(facts, indent=1))


def one_run(name: str, dst: Path, env: dict[str, str], kill_after_s: float | None) -> tuple[int | None, str]:
    """Runs the copier once; returns its exit code (`None` if it was killed) and the end of its output."""
    argv = [word for word in kit.copy_command(name, BUCKET, dst) if word != "--recursive"]
    child = subprocess.Popen(
        [{"cp": "sync"}.get(word, word) if name in ("s5cmd", "aws", "aws-crt") else word for word in argv],
        env=kit.own_environment(name, env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=kill_after_s or 300)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return None, ""
    return child.returncode, output.decode(errors="replace")[-300:]


def contest(
    name: str, least: int, seed: int, scratch: Path, endpoint: str, limit_s: float, *, is_composite: bool
) -> dict[str, Any]:
    env = kit.environment(endpoint, scratch / "home")
    objects = Objects(seed, env, scratch / "body", is_composite=is_composite)
    objects.write(scratch / "objects")
    kit.upload(scratch / "objects", BUCKET, env)
    rng, begin = random.Random(seed), time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    escapes: collections.Counter[str] = collections.Counter()
    notes: list[str] = []
    rounds = runs = gave_up = 0
    while sum(counts.values()) < least and time.monotonic() - begin < limit_s:
        rounds += 1
        objects.new_round()
        faults = faulty.Faults(RATE, seed * 1000 + rounds, replace=objects.replace)
        home = scratch / f"round{rounds}"
        home.mkdir()
        with faulty.Proxy(endpoint, faults) as proxy, failing_disk(home, seed * 1000 + rounds, counts) as disk:
            dst = disk / "dst"
            dst.mkdir()
            through = kit.environment(proxy.endpoint, scratch / "home-proxy")
            kills, seen, before = KILLS, set[tuple[str, str]](), sum(escapes.values())
            result: dict[str, Any] = {"way": name, "seed": seed, "round": rounds, "runs": []}
            for _ in range(RUNS):
                runs += 1
                kill_after = rng.uniform(0.3, 3.0) if kills else None
                code, output = one_run(name, dst, through, kill_after)
                if code is None:
                    counts["SIGKILL"] += 1
                kills = max(0, kills - 1)
                result["runs"].append(
                    {"code": code, "killed_after_s": kill_after if code is None else None, "said": output}
                )
                look(dst, objects, is_done=code == 0, escapes=escapes, seen=seen, notes=notes, result=result)
                if code == 0:
                    break
                if sum(escapes.values()) > before and name == "penstock":
                    break  # a failure was recorded: further runs of this round add nothing
            else:
                gave_up += 1
                notes.append(f"gave up: {output}")
        counts.update(faults.counts)
        shutil.rmtree(home, ignore_errors=True)
        print(f"  {name} round {rounds}: {sum(counts.values())} faults, {runs} runs, {dict(escapes)}", flush=True)
    row = kit.context() | {
        "bench": "faults",
        "way": name,
        "seed": seed,
        "is_composite": is_composite,
        "rounds": rounds,
        "runs": runs,
        "gave_up": gave_up,
        "faults": dict(counts),
        "escapes": dict(escapes),
        "notes": notes[:40],
        "seconds": time.monotonic() - begin,
    }
    kit.write_row(row, "peers-stage-faults")
    for note in notes[:8]:
        print(f"    {note}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("which", nargs="*", default=["penstock", "rclone", "s5cmd", "aws-crt", "aws"])
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=1200)
    parser.add_argument("--scratch", type=Path, default=None)
    parser.add_argument("--composite", action="store_true")
    chosen = parser.parse_args()
    rows = []
    for name in chosen.which:
        with tempfile.TemporaryDirectory(prefix="penstock-faults-", dir=chosen.scratch) as folder:
            scratch = Path(folder)
            (scratch / "buckets" / BUCKET).mkdir(parents=True)
            with kit.versitygw(scratch / "buckets") as endpoint:
                rows.append(
                    contest(
                        name,
                        chosen.faults,
                        chosen.seed,
                        scratch,
                        endpoint,
                        chosen.limit_s,
                        is_composite=chosen.composite,
                    )
                )
    escapes = ("lost", "corrupt", "mixed", "wrong", "doubled")
    print(f"\n| copier | faults met | runs | {' | '.join(escapes)} | rounds given up |")
    print("|---|---|---|" + "---|" * (len(escapes) + 1))
    for row in rows:
        cells = " | ".join(str(row["escapes"].get(kind, 0)) for kind in escapes)
        print(
            f"| {row['way']} | {sum(row['faults'].values())} | {row['runs']} | {cells} | {row['gave_up']} of {row['rounds']} |"
        )
    print("\nfaults by kind:")
    for row in rows:
        print(f"  {row['way']}: {dict(sorted(row['faults'].items()))}")
    ours = [row for row in rows if row["way"] == "penstock"]
    sys.exit(1 if any(sum(row["escapes"].values()) or row["gave_up"] for row in ours) else 0)


if __name__ == "__main__":
    main()
