# SPDX-License-Identifier: Apache-2.0
"""Compares a stage with other copiers that produce the same files: CPU seconds per GB and wall time, interleaved.

    .venv/bin/python benches/peers/stage/speed.py [inflate] [plain] [small] [md5] [verification] [--repeats 5] [--objects 32]
        [--copiers s5cmd rclone aws-crt aws] [--scratch DIR]

`inflate`: gzip'd objects to plain files. `plain`: objects of 16 MB, unchanged. `small`: objects of 100 KB. `md5`: a
store whose only checksum is MD5. `verification`: the cost of checking the store's checksums, on plain objects of 16 MB.
Rows go to runs/bench/peers-stage.jsonl. The printed table has ratios of medians, peer over Penstock: above 1, Penstock
is faster or cheaper. CPU seconds cover the copier and its children, not the server. Each contestant writes to a new
folder on the same file system, and its output is compared with the expected files, byte for byte, every time.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

import kit

if TYPE_CHECKING:
    from collections.abc import Callable

COPIERS = ("s5cmd", "rclone", "aws-crt", "aws")
AFTER = ("s5cmd", "rclone")  # copiers whose output is then decompressed with gunzip
Command = tuple[list[str], dict[str, str]]


def shell(*steps: str) -> list[str]:
    return ["bash", "-c", " && ".join(steps)]


def volumes(folder: Path, count: int) -> None:
    """Makes CosmoFlow-like gzip'd TFRecords: 16.8 MB each when inflated."""
    argv = [
        str(kit.PENSTOCK),
        "dataset",
        "cosmoflow",
        str(folder),
        "--samples",
        str(count),
        "--cubes-per-universe",
        "8",
    ]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.endswith(".gz"):
            path.unlink()


def noise(folder: Path, count: int, size: int) -> None:
    rng = random.Random(5)
    for at in range(count):
        path = folder / f"d{at % 8}/o{at:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(size))


def check(dst: Path, want: Path, *, keeps_suffix: bool) -> None:
    """Raises RuntimeError unless `dst` holds exactly the files of `want`."""
    have = {name.removesuffix(".gz") if keeps_suffix else name: path for name, path in kit.tree(dst).items()}
    names = kit.tree(want)
    if sorted(have) != sorted(names):
        raise RuntimeError(f"{dst} holds {len(have)} files, want {len(names)}")
    for name, path in names.items():
        if not filecmp.cmp(path, have[name], shallow=False):
            raise RuntimeError(f"{dst}/{name} is not what it should be")


def contest(
    title: str,
    participants: dict[str, Callable[[Path], Command]],
    want: Path,
    scratch: Path,
    repeats: int,
    *,
    keep_suffix: tuple[str, ...] = (),
) -> None:
    total = sum(path.stat().st_size for path in kit.tree(want).values())
    spent: dict[str, list[kit.Spent]] = {name: [] for name in participants}
    for turn in range(repeats + 1):  # the first turn warms caches and is not counted
        order = list(participants)
        random.Random(turn).shuffle(order)
        for name in order:
            # The output files stay until the end. After many deletions a file system may search long for a free inode
            # (ext4 without a journal does), which would not happen to a copier's user.
            dst = scratch / f"dst/{turn}-{name.replace('/', '-')}"
            dst.mkdir(parents=True)
            os.sync()
            argv, env = participants[name](dst)
            ran = kit.measure(argv, env)
            if ran.code != 0:
                raise RuntimeError(f"{name}: exit {ran.code}: {shlex.join(argv)}\n{ran.said}")
            check(dst, want, keeps_suffix=name in keep_suffix)
            for path in kit.tree(dst).values():
                os.truncate(path, 0)  # frees the disk space although the file stays
            if turn:
                spent[name].append(ran)
    shutil.rmtree(scratch / "dst", ignore_errors=True)
    base = spent["penstock"]
    print(f"\n{title}: {total / 1e9:.2f} GB of files, {repeats} repeats, load {os.getloadavg()[0]:.1f}")
    print(f"| {'way':44} | CPU ratio | wall ratio | CPU-s/GB | wall s |")
    print("|---|---|---|---|---|")
    cpu = lambda runs: statistics.median(run.cpu_s for run in runs)  # noqa: E731 - two one-line medians
    wall = lambda runs: statistics.median(run.wall_s for run in runs)  # noqa: E731
    for name, runs in sorted(spent.items(), key=lambda item: cpu(item[1])):
        print(
            f"| {name:44} | {cpu(runs) / cpu(base):9.2f} | {wall(runs) / wall(base):10.2f} |"
            f" {cpu(runs) / total * 1e9:8.2f} | {wall(runs):6.2f} |",
            flush=True,
        )
        row = kit.context() | {
            "bench": title,
            "way": name,
            "bytes": total,
            "repeats": repeats,
            "statistic": "median",
            "cpu_s": [run.cpu_s for run in runs],
            "wall_s": [run.wall_s for run in runs],
        }
        kit.write_row(row, "peers-stage")


def copiers(names: tuple[str, ...], bucket: str, env: dict[str, str]) -> dict[str, Callable[[Path], Command]]:
    return {
        name: lambda dst, name=name: (kit.copy_command(name, bucket, dst), kit.own_environment(name, env))
        for name in names
    }


def run_inflate(env: dict[str, str], scratch: Path, repeats: int, objects: int, peers: list[str]) -> None:
    stored, want = scratch / "stored", scratch / "want"
    volumes(stored, objects)
    shutil.copytree(stored, want)
    subprocess.run(["gunzip", "-r", str(want)], check=True)
    kit.upload(stored, "packed", env, "--content-encoding", "gzip")
    ways: dict[str, Callable[[Path], Command]] = {
        "penstock": lambda dst: (kit.copy_command("penstock", "packed", dst, options=["--decompress"]), env),
        "rclone --s3-decompress": lambda dst: (
            kit.copy_command("rclone", "packed", dst, options=["--s3-decompress"]),
            env,
        ),
    }
    cores = os.cpu_count() or 1
    after = {
        "gunzip -r": "gunzip -r {dst}",
        f"xargs -P{cores} gunzip": "find {dst} -name '*.gz' -print0 | xargs -0 -n4 -P" + str(cores) + " gunzip",
        f"xargs -P{cores} igzip -d": "find {dst} -name '*.gz' -print0 | xargs -0 -n4 -P"
        + str(cores)
        + " igzip -d --rm",
    }
    for copier in peers:
        for name, step in after.items():

            def way(dst: Path, copier: str = copier, step: str = step) -> Command:
                copy = shlex.join(kit.copy_command(copier, "packed", dst))
                return shell(copy, step.format(dst=shlex.quote(str(dst)))), env

            ways[f"{copier} + {name}"] = way
    contest("gzip at rest to plain files", ways, want, scratch, repeats, keep_suffix=("rclone --s3-decompress",))


def run_plain(
    env: dict[str, str],
    scratch: Path,
    repeats: int,
    count: int,
    size: int,
    title: str,
    bucket: str,
    peers: list[str],
    *,
    checksum: bool,
) -> None:
    want = scratch / "want"
    noise(want, count, size)
    kit.upload(want, bucket, env, checksum=checksum)
    contest(title, copiers(("penstock", *peers), bucket, env), want, scratch, repeats)


def run_verification(env: dict[str, str], scratch: Path, repeats: int, count: int) -> None:
    """Compares the store with checksums and the same store without them; the latter's MD5 is not requested either."""
    want = scratch / "want"
    noise(want, count, 16_000_000)
    kit.upload(want, "checked", env)
    kit.upload(want, "unchecked", env, checksum=False)
    off = env | {"PENSTOCK_S3_MD5": "0"}
    ways: dict[str, Callable[[Path], Command]] = {
        "penstock": lambda dst: (kit.copy_command("penstock", "unchecked", dst), off),
        "penstock, the store's CRC64NVME checked": lambda dst: (kit.copy_command("penstock", "checked", dst), env),
        "penstock, the store's MD5 checked": lambda dst: (kit.copy_command("penstock", "unchecked", dst), env),
    }
    contest("verification on against off", ways, want, scratch, repeats)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("which", nargs="*", default=["inflate", "plain", "small", "md5", "verification"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--objects", type=int, default=32)
    parser.add_argument("--copiers", nargs="*", default=list(COPIERS), choices=COPIERS)
    parser.add_argument("--scratch", type=Path, default=None)
    chosen = parser.parse_args()
    print(kit.versions())
    for which in chosen.which:
        with tempfile.TemporaryDirectory(prefix="penstock-peers-", dir=chosen.scratch) as folder:
            scratch = Path(folder)
            for name in ("packed", "plain", "small", "md5", "checked", "unchecked"):
                (scratch / "buckets" / name).mkdir(parents=True)
            with kit.versitygw(scratch / "buckets") as endpoint:
                env = kit.environment(endpoint, scratch / "home")
                if which == "inflate":
                    run_inflate(
                        env, scratch, chosen.repeats, chosen.objects, [name for name in chosen.copiers if name in AFTER]
                    )
                elif which == "plain":
                    run_plain(
                        env,
                        scratch,
                        chosen.repeats,
                        chosen.objects,
                        16_000_000,
                        "plain objects of 16 MB",
                        "plain",
                        chosen.copiers,
                        checksum=True,
                    )
                elif which == "small":
                    run_plain(
                        env,
                        scratch,
                        chosen.repeats,
                        chosen.objects * 50,
                        100_000,
                        "plain objects of 100 KB",
                        "small",
                        chosen.copiers,
                        checksum=True,
                    )
                elif which == "md5":
                    run_plain(
                        env,
                        scratch,
                        chosen.repeats,
                        chosen.objects,
                        16_000_000,
                        "16 MB, MD5 alone",
                        "md5",
                        chosen.copiers,
                        checksum=False,
                    )
                elif which == "verification":
                    run_verification(env, scratch, chosen.repeats, chosen.objects)
                else:
                    parser.error(f"{which} is no bench")


if __name__ == "__main__":
    main()
