# SPDX-License-Identifier: Apache-2.0
"""Cases for `penstock explain`: ordinary programs, each with one planted limit, and healthy programs.

A seed draws the parameters of a case: rates, sizes, libraries, number of workers. `planted` provides the data, the S3
emulator or the throttled disk, and the command line. With `limited=False` it removes the limit and changes nothing else,
so that a test can show that the limit is what binds.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.loop_disk import LoopDisk, Rate
from penstock.demo.mount_tier import as_toml
from penstock.emulator import Emulator
from penstock.tiers import Limit, Number, Throttle, Tier, TierLatency

PROGRAMS = Path(__file__).parent / "programs"
KIB, MIB = 1 << 10, 1 << 20
_SOURCED: Any = {"source": "tests/explain/planted.py", "as_of": "2026-11", "confidence": "ours"}


@dataclass
class Scene:
    """State while a case is built. `parameters` records everything that was drawn."""

    folder: Path
    seconds: float
    is_limited: bool
    draw: random.Random
    stack: ExitStack
    env: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)

    def pick(self, name: str, *choices: Any) -> Any:
        self.parameters[name] = self.draw.choice(choices)
        return self.parameters[name]

    def between(self, name: str, low: float, high: float) -> float:
        self.parameters[name] = round(self.draw.uniform(low, high), 3)
        return self.parameters[name]

    def bucket(
        self,
        object_bytes: int,
        *,
        count: int = 24,
        bytes_per_s: float | None = None,
        requests_per_s: float | None = None,
        latency_ms: float | None = None,
    ) -> str:
        """Serve `count` objects with these limits, unless the limit is removed; return the bucket's name."""
        folder = self.folder / "bucket"
        folder.mkdir()
        for i in range(count):
            rows = np.random.default_rng(i).standard_normal(object_bytes // 4, np.float32)
            (folder / f"sample-{i:04}.bin").write_bytes(rows.tobytes())
        limits, latency = [], ()
        if self.is_limited and bytes_per_s:
            limits.append(Limit(what="read-bytes", scope="account", value=bytes_per_s, unit="bytes/s", **_SOURCED))
        if self.is_limited and requests_per_s:
            limits.append(
                Limit(what="read-requests", scope="account", value=requests_per_s, unit="requests/s", **_SOURCED)
            )
        if self.is_limited and latency_ms:
            latency = (TierLatency(what="read", p50_ms=latency_ms, p99_ms=1.3 * latency_ms, **_SOURCED),)
        tier = Tier(
            name="planted",
            year=2026,
            title="a planted limit",
            limits=tuple(limits),
            latency=latency,
            queue=Number(value=3600.0, unit="s", **_SOURCED),
            burst=Number(value=0.05, unit="s", **_SOURCED),
            throttle=Throttle(),
        )
        book = self.folder / "tiers.toml"
        book.write_text(as_toml(tier))
        store = self.stack.enter_context(Emulator(folder, tier="planted", tiers=book))
        self.env |= store.env
        return store.url.removeprefix("s3://").strip("/")

    def make(self, name: str) -> Path:
        (self.folder / name).mkdir()
        return self.folder / name


def _program(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]


def _bucket_program(scene: Scene, bucket: str) -> list[str]:
    """One of the two programs that read a bucket ahead."""
    if scene.pick("program", "bucket_workers", "bucket_threads") == "bucket_workers":
        workers, batch = scene.pick("workers", 1, 2, 3), scene.pick("batch", 2, 4)
        return _program("bucket_workers", bucket, "--workers", workers, "--batch", batch)
    library, threads = scene.pick("library", "boto3", "urllib3"), scene.pick("threads", 2, 4, 8)
    return _program("bucket_threads", bucket, "--library", library, "--threads", threads)


def slow_endpoint(scene: Scene) -> list[str]:
    size = scene.pick("object_KiB", 256, 512, 1024) * KIB
    return _bucket_program(scene, scene.bucket(size, bytes_per_s=scene.between("MB_per_s", 3, 10) * 1e6))


def throttled_endpoint(scene: Scene) -> list[str]:
    size = scene.pick("object_KiB", 64, 128) * KIB
    return _bucket_program(scene, scene.bucket(size, requests_per_s=scene.between("requests_per_s", 12, 30)))


def one_reader(scene: Scene) -> list[str]:
    size = scene.pick("object_KiB", 64, 128, 256) * KIB
    bucket = scene.bucket(size, latency_ms=scene.between("latency_ms", 40, 150))
    if scene.pick("program", "bucket_workers", "bucket_threads") == "bucket_workers":
        return _program("bucket_workers", bucket, "--workers", 1, "--batch", scene.pick("batch", 1, 2, 4))
    library, threads = scene.pick("library", "boto3", "urllib3"), scene.pick("threads", 0, 1)
    return _program("bucket_threads", bucket, "--library", library, "--threads", threads)


def gzip_one_thread(scene: Scene) -> list[str]:
    folder = scene.make("arrays")
    voxels = scene.pick("array_MiB", 2, 4, 8) * MIB // 2
    level = scene.pick("level", 1, 6)
    for i in range(4):
        # Counts with a skewed distribution, which gzip compresses about threefold, as it does scientific volumes.
        array = np.random.default_rng(i).poisson(3.0, voxels).astype(np.int16)
        if scene.is_limited:
            held = io.BytesIO()
            np.save(held, array)
            (folder / f"array-{i}.npy.gz").write_bytes(gzip.compress(held.getvalue(), level))
        else:
            np.save(folder / f"array-{i}.npy", array)
    return _program("gzip_files", folder, "--ahead", scene.pick("ahead", 0, 2, 8))


def pil_one_worker(scene: Scene) -> list[str]:
    from PIL import Image

    folder = scene.make("images")
    side, kind = scene.pick("side", 512, 768, 1024), scene.pick("format", "jpg", "jpg", "png")
    for i in range(8):
        draw = np.random.default_rng(i)
        coarse = Image.fromarray(draw.integers(0, 256, (side // 8, side // 8, 3), np.uint8))
        if scene.is_limited:
            coarse.resize((side, side)).save(folder / f"image-{i}.{kind}")
        else:
            np.save(folder / f"image-{i}.npy", np.array(coarse.resize((64, 64))))
    return _program("images", folder, "--workers", 1, "--batch", scene.pick("batch", 4, 8, 16))


def pickling(scene: Scene) -> list[str]:
    tokens, batch = scene.pick("tokens", 10_000, 20_000, 40_000), scene.pick("batch", 4, 8)
    argv = _program("token_lists", "--tokens", tokens, "--batch", batch, "--workers", scene.pick("workers", 1, 2))
    return argv if scene.is_limited else [*argv, "--tensors"]


def no_workers(scene: Scene) -> list[str]:
    """A DataLoader without workers, whose loading takes about as long as the step: it computes, or it reads a bucket."""
    if scene.pick("program", "masked_tokens", "bucket_workers") == "bucket_workers":
        bucket = scene.bucket(64 * KIB)
        batch, width = scene.pick("batch", 4, 8), scene.pick("width", 1024, 1536)
        workers = 0 if scene.is_limited else 2
        return _program("bucket_workers", bucket, "--batch", batch, "--width", width, "--workers", workers)
    folder = scene.make("tokens")
    tokens = scene.pick("tokens", 4096, 8192)
    for i in range(16):
        np.save(folder / f"tokens-{i:02}.npy", np.random.default_rng(i).integers(0, 50_000, tokens, np.int32))
    batch, width = scene.pick("batch", 8, 16), scene.pick("width", 128, 256)
    workers = 0 if scene.is_limited else 2
    return _program(
        "masked_tokens", folder, "--tokens", tokens, "--batch", batch, "--width", width, "--workers", workers
    )


def slow_model(scene: Scene) -> list[str]:
    file = scene.folder / "rows.npy"
    np.save(file, np.random.default_rng(0).standard_normal((512, 512), np.float32))
    width, layers = scene.pick("width", 768, 1024, 1536), scene.pick("layers", 2, 4)
    if not scene.is_limited:
        width, layers = 64, 1
    workers, batch = scene.pick("workers", 1, 2), scene.pick("batch", 32, 64)
    return _program("large_model", file, "--width", width, "--layers", layers, "--workers", workers, "--batch", batch)


def slow_peer(scene: Scene) -> list[str]:
    factor, slow = scene.pick("factor", 4, 6, 8), scene.pick("slow", "batch", "device")
    sync, batch = scene.pick("sync", "ddp", "allreduce"), scene.pick("batch", 64, 128)
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(PROGRAMS / "two_ranks.py"), "--slow", slow, "--sync", sync, "--batch", str(batch),
        "--factor", str(factor if scene.is_limited else 1),
    ]  # fmt: skip


def small_disk(scene: Scene) -> list[str]:
    """Files on a loop device with a limit of bytes/s or I/Os per second, none of them in the page cache."""
    mount = scene.make("disk")
    access = scene.pick("access", "files", "random", "mmap")
    if access == "files" or scene.pick("limit", "bytes", "ios") == "bytes":
        rate = scene.between("MB_per_s", 6, 16) * 1e6
        ios, moved = None, Rate(rate)
    else:
        ios, moved = Rate(scene.between("ios_per_s", 60, 150)), None
        rate = 16e6
    size = scene.pick("file_MiB", 1, 2, 4) * MIB
    needed = int(rate * (scene.seconds + 15))  # start-up and the run, without reading a file twice
    images = scene.make("images")
    disk = scene.stack.enter_context(
        LoopDisk(mount, size_bytes=needed + needed // 4 + 64 * MIB, ios=None, moved=None, images=images)
    )
    block = os.urandom(size)
    for i in range(needed // size):
        with (mount / f"file-{i:04}.bin").open("wb") as out:
            out.write(block)
            out.flush()
            os.fsync(out.fileno())
            os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if scene.is_limited:
        disk.limit(ios=ios, moved=moved)
    return _program("local_files", mount, "--access", access, "--ahead", scene.pick("ahead", 0, 4))


def healthy_bucket_threads(scene: Scene) -> list[str]:
    bucket = scene.bucket(scene.pick("object_KiB", 64, 256) * KIB, latency_ms=scene.pick("latency_ms", None, 10))
    library, threads = scene.pick("library", "boto3", "urllib3"), scene.pick("threads", 2, 4)
    passes = scene.pick("passes", 60, 120)
    return _program("bucket_threads", bucket, "--library", library, "--threads", threads, "--passes", passes)


def healthy_bucket_workers(scene: Scene) -> list[str]:
    bucket = scene.bucket(64 * KIB, latency_ms=scene.pick("latency_ms", None, 10))
    # One worker takes 26 ms for 2 objects with 10 ms of latency; a step of width 2048 takes 18 ms, and would wait.
    width, workers = scene.pick("width", 3072, 4096), scene.pick("workers", 1, 2)
    return _program("bucket_workers", bucket, "--width", width, "--workers", workers, "--batch", 2)


def healthy_files(scene: Scene) -> list[str]:
    folder = scene.make("files")
    for i in range(16):
        (folder / f"file-{i:02}.bin").write_bytes(os.urandom(MIB))
    access, passes = scene.pick("access", "files", "random", "mmap"), scene.pick("passes", 20, 60)
    return _program("local_files", folder, "--access", access, "--ahead", 4, "--passes", passes)


def healthy_tar(scene: Scene) -> list[str]:
    folder = scene.make("shards")
    for i in range(4):
        with tarfile.open(folder / f"shard-{i}.tar", "w") as shard:
            for j in range(64):
                sample = np.random.default_rng(64 * i + j).standard_normal(1024, np.float32).tobytes()
                member = tarfile.TarInfo(f"{j:04}.bin")
                member.size = len(sample)
                shard.addfile(member, io.BytesIO(sample))
    width, workers = scene.pick("width", 2048, 3072), scene.pick("workers", 1, 2)
    return _program("tar_shards", folder, "--width", width, "--workers", workers)


@dataclass(frozen=True)
class Case:
    """A planted limit or a healthy program. `kinds` are the verdicts that are right."""

    name: str
    kinds: tuple[str, ...]
    build: Callable[[Scene], list[str]]


# A healthy program may have idle loaders (`model`) or loaders that are busy but keep up (`healthy`). Both verdicts say
# that nothing is wrong with its input.
_NOTHING_WRONG = ("healthy", "model")
LIMITS = (
    Case("slow_endpoint", ("storage-bandwidth",), slow_endpoint),
    Case("throttled_endpoint", ("storage-throttled",), throttled_endpoint),
    Case("one_reader", ("storage-latency",), one_reader),
    Case("gzip_one_thread", ("decompression",), gzip_one_thread),
    Case("pil_one_worker", ("decoding",), pil_one_worker),
    Case("pickling", ("python-workers",), pickling),
    Case("no_workers", ("no-workers",), no_workers),
    Case("slow_model", ("model",), slow_model),
    Case("slow_peer", ("other-ranks",), slow_peer),
    Case("small_disk", ("disk",), small_disk),  # needs root
)
HEALTHY = (
    Case("healthy_bucket_threads", _NOTHING_WRONG, healthy_bucket_threads),
    Case("healthy_bucket_workers", _NOTHING_WRONG, healthy_bucket_workers),
    Case("healthy_files", _NOTHING_WRONG, healthy_files),
    Case("healthy_tar", _NOTHING_WRONG, healthy_tar),
)
CASES = {case.name: case for case in (*LIMITS, *HEALTHY)}


@dataclass(frozen=True)
class Planted:
    """A program that is ready to run: its command line, variables and drawn parameters."""

    case: Case
    argv: tuple[str, ...]
    env: dict[str, str]
    parameters: dict[str, Any]


@contextmanager
def planted(case: Case, folder: Path, *, seed: int, seconds: float, limited: bool = True) -> Iterator[Planted]:
    """Build a case in a new folder below `folder`; everything is removed at the end of the block."""
    place = folder / f"{case.name}-{seed}-{os.urandom(3).hex()}"
    place.mkdir(parents=True)
    try:
        with ExitStack() as stack:
            scene = Scene(place, seconds, limited, random.Random(f"{case.name}:{seed}"), stack)
            argv = [*case.build(scene), "--seconds", f"{seconds:g}"]
            # One thread per library, as launchers set it; two cores leave no room for more.
            env = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                "PYTHONUNBUFFERED": "1",
                **scene.env,
            }
            yield Planted(case, tuple(argv), env, scene.parameters)
    finally:
        shutil.rmtree(place, ignore_errors=True)
