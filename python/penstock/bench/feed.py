# SPDX-License-Identifier: Apache-2.0
"""Loader comparison: Penstock's loader and others read one dataset with the same fields, batch size and cores.

Builds the task that all participants receive, and the rows of their passes. Each participant is a process with a driver
from `penstock.bench.peers`. The first pass of a participant is not timed: it warms up the process. The samples of this
pass are hashed, so that the bytes of all participants can be compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from penstock import env
from penstock.bench import results
from penstock.bench.interleaved import Participant, abba_order, quartiles
from penstock.bench.peers import PEERS, RUNNER
from penstock.errors import ConfigError, PenstockError, RankFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.bench.peers import Peer
    from penstock.feed.dataset import Dataset

__all__ = ["CACHES", "OURS", "Contest", "Request", "run"]

OURS = "penstock"

CACHES = ("warm", "cold")
"""States of the page cache in which a pass can start."""

_CODECS = {"gz": "gzip", "zst": "zstd", "lz4": "lz4"}

_BRIGHTNESS = 0.03
"""Tolerance for the mean brightness. Decoders and resizers differ by rounding, and random crops by their random
numbers. A larger difference means different images.
"""

_HOW = {
    "warm": "an uncounted pass over the whole dataset ran before",
    "cold": "posix_fadvise(DONTNEED) on every file before each pass; for a remote store, only the contestant's own cache is cleared",
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """Settings of a comparison.

    Attributes:
        dataset: The opened dataset, with its fields.
        against: Names of `PEERS`.
        peers: Folder with the peers' environments; None uses the environment of this interpreter.
        arrays: Array type of Penstock's batches: `numpy` or `torch`.
        cores: Cores that each participant may use.
        repeats: Timed passes per participant and cache state.
    """

    dataset: Dataset
    against: tuple[str, ...] = ()
    peers: Path | None = None
    batch: int = 32
    arrays: str = "numpy"
    cores: int = 1
    repeats: int = 5
    caches: tuple[str, ...] = ("warm",)
    limit_s: float = 600.0
    scratch: Path | None = None


@dataclass
class Contest:
    """Result of a comparison.

    Attributes:
        rows: One per participant and cache state, Penstock first.
        ratios: Peer's time divided by Penstock's time; above 1 if Penstock is faster.
        not_run: Peers that were not run, and why.
        failed: Peers that failed, and why.
        is_same: Whether all participants (except rooflines) delivered the same samples.
    """

    rows: list[results.RunRecord] = field(default_factory=list)
    ratios: list[dict[str, Any]] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    begun: dict[str, dict[str, Any]] = field(default_factory=dict)
    hashed: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_same: bool = True


def task_of(request: Request) -> dict[str, Any]:
    """Return the task that every participant receives, as plain data."""
    dataset = request.dataset
    source, place = dataset.source, urlsplit(dataset.url)
    keys = [source.key(number) for number in range(source.objects)]
    suffixes = {key.rpartition(".")[2] for key in keys}
    codecs = {_CODECS.get(suffix, "none") for suffix in suffixes}
    variables = env.read()
    task: dict[str, Any] = {
        "url": dataset.url,
        "scheme": place.scheme,
        "format": dataset.format,
        "codec": codecs.pop() if len(codecs) == 1 else "mixed",
        "records_per_object": dataset.records_per_object,
        "fields": _fields(dataset),
        "batch": request.batch,
        "arrays": request.arrays,
        "cores": sorted(os.sched_getaffinity(0))[: request.cores],
        "bucket": place.netloc,
        "keys": keys,
        "files": [],
    }
    if place.scheme == "file":
        folder = Path(unquote(place.path))
        task["files"] = [str(folder / key) for key in keys]
    elif place.scheme == "s3":
        prefix = place.path.lstrip("/")
        task["keys"] = [prefix + key for key in keys]
        task["files"] = [f"s3://{place.netloc}/{key}" for key in task["keys"]]
        task["endpoint"] = variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL")
        task["region"] = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or "us-east-1"
    return task


def _fields(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """Return the fields in the form that drivers read: the core's description, flattened. For a TFRecord feature, the
    stored type is added.
    """
    held = dict(zip(dict(dataset.schema().specs), dataset.schema().holds, strict=True))
    found = {}
    for name, spec in dataset.batch_fields().items():
        facts = spec.to_dict()
        part = facts["of"][0] if facts["of"] else name
        facts |= {"shape": facts.get("shape", []), "stored_as": held.get(part, "bytes").partition("_")[0]}
        found[name] = facts | facts.pop("image", {})
    return found


def unsuited(peer: Peer, task: Mapping[str, Any]) -> str | None:
    """Return the reason why a peer cannot read the task's dataset; None if it can."""
    for what, value, known in (
        ("format", task["format"], peer.formats),
        ("codec", task["codec"], peer.codecs),
        ("scheme", task["scheme"], peer.schemes),
    ):
        if value not in known:
            return f"reads {what} {', '.join(sorted(known))}, but this is {value}"
    kinds = sorted(facts["kind"] for facts in task["fields"].values())
    if "tar" in peer.formats and kinds != ["image", "tensor"]:
        return "its driver reads only a picture and a number (jpg=image:224, cls=int64)"
    if "fixed" in peer.formats and len(task["fields"]) != 1:
        return "its driver reads only objects of one column"
    return None


def _interpreter(peer: Peer, folder: Path | None) -> tuple[str | None, str]:
    """Return the Python interpreter that has a peer installed, or the reason why it is missing."""
    python = folder / peer.environment / "bin/python" if folder and peer.environment else Path(sys.executable)
    if not python.exists():
        return None, f"not installed: no {python}"
    asked = f"import importlib.util as u, sys; sys.exit(u.find_spec({peer.module!r}) is None)"
    found = subprocess.run([str(python), "-P", "-c", asked], capture_output=True, check=False, timeout=120)
    return (str(python), "") if found.returncode == 0 else (None, f"not installed: {python} has no {peer.module}")


def run(request: Request, *, log: Callable[[str], None] = lambda _: None) -> Contest:
    """Run the comparison. A peer that cannot run is reported in the result; only a failure of Penstock's own loader
    raises.

    Raises:
        ConfigError: A peer's name is unknown.
        PenstockError: Penstock's own loader failed.
    """
    unknown = [name for name in request.against if name not in PEERS]
    if unknown:
        raise ConfigError(f"--against: unknown peer `{unknown[0]}`", hint=f"use one of {', '.join(PEERS)}")
    contest, task = Contest(), task_of(request)
    if not task["keys"]:
        raise ConfigError(f"{task['url']} contains no objects", where="URL")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-feed-", dir=request.scratch) as scratch:
        running: dict[str, Participant] = {}
        try:
            _enter(request, task, Path(scratch), contest, running, log)
            measured = _measure(request, contest, running, log)
        finally:
            for participant in running.values():
                participant.end()
    contest.is_same = _is_same(contest)
    _rows(request, task, contest, measured)
    return contest


def _enter(
    request: Request,
    task: dict[str, Any],
    scratch: Path,
    contest: Contest,
    running: dict[str, Participant],
    log: Callable[[str], None],
) -> None:
    """Start the participants one after another, and wait for each one's hashed pass."""
    ours = {OURS: (sys.executable, "penstock_loader", dict[str, Any]())}
    peers = {}
    for name in dict.fromkeys(request.against):
        why = unsuited(PEERS[name], task)
        python, missing = (None, "") if why else _interpreter(PEERS[name], request.peers)
        if python is None:
            contest.not_run[name] = why or missing
            log(f"{name}: {contest.not_run[name]}")
        else:
            peers[name] = (python, PEERS[name].driver, PEERS[name].options)
    variables = dict(env.read()) | {"PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    for name, (python, driver, options) in (ours | peers).items():
        work = scratch / name
        work.mkdir()
        isolated = [] if name == OURS else ["-P"]
        participant = Participant(name, [python, *isolated, str(RUNNER)], variables, limit_s=request.limit_s)
        running[name] = participant
        try:
            begun = participant.ask(
                {"do": "begin", "driver": driver, "task": task | {"work": str(work), "options": options}}
            )
            hashed = participant.ask({"do": "pass", "hash": True})
        except RankFailed as error:
            _leave(name, error, contest, running, log)
            continue
        contest.begun[name], contest.hashed[name] = begun, hashed
        log(f"{name}: {hashed['samples']:,} samples in the first pass, {hashed['wall_s']:.2f} s")


def _leave(
    name: str, error: PenstockError, contest: Contest, running: dict[str, Participant], log: Callable[[str], None]
) -> None:
    if name == OURS:
        raise error
    running.pop(name).end()
    contest.failed[name] = str(error)
    log(f"{name}: failed: {error}")


def _measure(
    request: Request, contest: Contest, running: dict[str, Participant], log: Callable[[str], None]
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Run the timed passes. Return the passes by cache state and participant."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for cache in request.caches:
        passes: dict[str, list[dict[str, Any]]] = {name: [] for name in running}
        for name in abba_order(list(running), request.repeats):
            if name not in running:
                continue
            try:
                made = running[name].ask({"do": "pass", "evict": cache == "cold"})
            except RankFailed as error:
                _leave(name, error, contest, running, log)
                continue
            passes[name].append(made | {"load": os.getloadavg()[0]})
        found[cache] = {name: made for name, made in passes.items() if name in running}
    return found


def _is_same(contest: Contest) -> bool:
    """Whether every participant (except rooflines) delivered the same samples as Penstock's loader."""
    mine = contest.hashed[OURS]
    for name, theirs in contest.hashed.items():
        if name != OURS and PEERS[name].is_roofline:
            continue
        if (theirs["samples"], theirs["digest"]) != (mine["samples"], mine["digest"]):
            return False
        bright, other = mine["brightness"], theirs["brightness"]
        if bright is not None and abs(other - bright) > _BRIGHTNESS * bright:
            return False
    return True


def _rows(
    request: Request,
    task: dict[str, Any],
    contest: Contest,
    measured: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
) -> None:
    spec = {
        "bench": "feed",
        "fingerprint": request.dataset.fingerprint,
        "repeats": request.repeats,
        **{name: task[name] for name in ("format", "codec", "scheme", "fields", "batch", "arrays")},
        "cores": len(task["cores"]),
    }
    machine, created = results.provenance(), time.time()
    for cache, passes in measured.items():
        mine = passes[OURS]
        for name, made in passes.items():
            contest.rows.append(_row(request, name, cache, made, contest, spec, machine, created))
            if name != OURS:
                contest.ratios.append({"peer": name, "cache": cache} | _ratio(made, mine))


def _ratio(theirs: Sequence[Mapping[str, Any]], mine: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the peer's median time divided by Penstock's: above 1 if the peer takes longer."""
    found = {}
    for what in ("cpu_s", "wall_s"):
        top, bottom = (quartiles([one[what] for one in passes])[0] for passes in (theirs, mine))
        found[what.removesuffix("_s")] = top / max(bottom, 1e-9)
    return found


def _row(
    request: Request,
    name: str,
    cache: str,
    passes: Sequence[Mapping[str, Any]],
    contest: Contest,
    spec: dict[str, Any],
    machine: results.Provenance,
    created: float,
) -> results.RunRecord:
    (wall, wall_iqr), (cpu, cpu_iqr) = (quartiles([one[what] for one in passes]) for what in ("wall_s", "cpu_s"))
    first = [one["first_batch_s"] for one in passes if one["first_batch_s"] is not None]
    begun, hashed, last = contest.begun[name], contest.hashed[name], passes[-1]
    facts = last["report"]
    return results.RunRecord(
        id=results.new_id("feed", created),
        kind="feed",
        label=name,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
        spec=spec,
        spec_hash=results.spec_hash(spec),
        provenance=machine,
        seed=0,
        cache=results.CacheState(cache, _HOW[cache]),
        repeats=len(passes),
        epochs=1,
        samples=last["samples"],
        samples_per_s=last["samples"] / wall,
        first_batch_s=quartiles(first)[0] if first else 0.0,
        wall_s=wall,
        cpu_s=cpu,
        bytes=request.dataset.source.size_bytes,
        bytes_delivered=last["bytes"],
        requests=int(facts.get("requests", 0)),
        retries=int(facts.get("retries", 0)),
        throttles=int(facts.get("throttles", 0)),
        workload={
            "participant": name,
            "versions": {OURS: machine.version} if name == OURS else begun["versions"],
            "wall_iqr_s": wall_iqr,
            "cpu_iqr_s": cpu_iqr,
            "passes": [{what: one[what] for what in ("wall_s", "cpu_s", "load")} for one in passes],
            "peak_rss_bytes": max(one["peak_rss_bytes"] for one in passes),
            "begin_s": begun["begin_s"],
            "begin_cpu_s": begun["begin_cpu_s"],
            "converted_bytes": begun["converted_bytes"],
            "digest": hashed["digest"],
            "brightness": hashed["brightness"],
        },
        loader=json.loads(msgspec.json.encode(facts)),
    )
