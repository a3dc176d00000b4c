# SPDX-License-Identifier: Apache-2.0
"""Launches a training run: in this process, as a rank of an outer launcher, or under torchrun."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import env, ranks
from penstock.bench import machine_card, results
from penstock.child_process import child_process
from penstock.errors import ConfigError, PenstockError, RankFailed, from_wire
from penstock.feed.checkpoint.folder import CheckpointFolder
from penstock.train import rank_files
from penstock.train.archive import archive
from penstock.train.driver import Driver
from penstock.train.progress import Progress
from penstock.train.rank_files import ALONE
from penstock.train.summarize import summarize
from penstock.train.torchrun import FirstFailure
from penstock.train.trace import write_trace

if TYPE_CHECKING:
    from penstock.ranks import Rank
    from penstock.train.peers import OnLost
    from penstock.train.progress import Report
    from penstock.train.source import FeedFactory
    from penstock.train.spec import TrainSpec

__all__ = ["run", "run_as_rank", "run_under_torchrun"]

_POLL_S = 0.1
# Time from SIGTERM to SIGKILL when torchrun ends its ranks.
_RANK_GRACE_S = 3
# Time from SIGTERM to SIGKILL for torchrun itself: the time for its ranks, plus some seconds to exit. All processes end
# within 10 s.
_GRACE_S = 7.0
_FIRST = "first-failure.json"
# Matches the last line of a traceback, with or without torchrun's prefix `[rank1]:`.
_RAISED = re.compile(r"(?:\[rank\d+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b: .+)")


def run(
    spec: TrainSpec, *, source: FeedFactory | None = None, report: Report | None = None, on_lost: OnLost | None = None
) -> dict[str, Any]:
    """Run the training of a spec; return the result as plain values, in the schema of `bench.results`.

    Args:
        source: Creates the feeds instead of `open_feed`. Only for runs of one rank in this process.
        report: Called with the progress a few times per second, on rank 0.
        on_lost: Called from another thread if another rank has ended, and this rank is still waiting for that rank in
            gloo or NCCL after 4 s. The argument is the original error. The function should end the process. Only for
            ranks of a launcher.

    Raises:
        ConfigError: The spec is invalid, and nothing was started. Or the ranks differ in their spec, data or
            checkpoint.
        RankFailed: Another rank ended; the message contains its number and the original error.
        PenstockError: An error of the store, the data or the outputs.
    """
    spec.check()
    if spec.runs is not None:
        from penstock import _native

        results.refuse_debug(_native.__profile__, allow_debug=spec.allow_debug)
    here = ranks.detect(env.read())
    if here.world > 1:
        if source is not None:
            raise ConfigError("a custom source supports only one rank")
        with env.override(_rendezvous(here)):
            return run_as_rank(spec, here, report=report, on_lost=on_lost)
    if spec.ranks == 1:
        return run_as_rank(spec, here, source=source, report=report)
    if source is not None:
        raise ConfigError("a custom source supports only one rank")
    return run_under_torchrun(spec, report)


def _rendezvous(here: Rank) -> dict[str, str]:
    """Variables for the rendezvous of a launcher's ranks; empty if the launcher or the user has set them.

    Raises:
        ConfigError: The ranks are on several nodes, and MASTER_ADDR is not set.
    """
    found = env.read()
    if "MASTER_ADDR" in found:
        return {}
    meeting = ranks.local_rendezvous(here)
    if meeting is not None:
        address, port = meeting
        # As in `run_under_torchrun`: the host name may resolve to another interface.
        chosen = {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        return {"MASTER_ADDR": address, **{name: found.get(name, value) for name, value in chosen.items()}}
    host, where = "HOST", ", where HOST is the node of rank 0"
    if "SLURM_JOB_NODELIST" in found:
        host, where = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"', ""
    elif "PBS_NODEFILE" in found:
        host, where = '"$(head -n 1 "$PBS_NODEFILE")"', ""
    raise ConfigError(
        f"{here.launcher} started {here.world} ranks on {here.nodes} nodes, but MASTER_ADDR is not set for their rendezvous",
        # mpirun of Open MPI does not send the variables of the shell to other nodes.
        hint=f"run mpirun with -x MASTER_ADDR={host} -x MASTER_PORT=29500{where}"
        if here.launcher == "openmpi"
        else f"run export MASTER_ADDR={host} MASTER_PORT=29500 before the launcher{where}",
    )


def run_as_rank(
    spec: TrainSpec,
    rank: Rank,
    *,
    source: FeedFactory | None = None,
    report: Report | None = None,
    on_lost: OnLost | None = None,
) -> dict[str, Any]:
    """Run one rank in this process. All ranks return the same result, which rank 0 has saved."""
    created_s, began = time.time(), time.perf_counter()
    driver = Driver(spec, rank, source=source, report=report, on_lost=on_lost)
    try:
        driver.run()
        shares = driver.group.gather(driver.share)
        finished: list[dict[str, Any] | str] = []
        if rank.rank == 0:
            record = summarize(spec, driver, shares, created_s=created_s, wall_s=time.perf_counter() - began)
            finished = [_keep(spec, record)]
            if spec.trace is not None:
                facts = {"workload": spec.workload, "data": spec.data, "global_batch": spec.global_batch}
                write_trace(spec.trace, shares, {**facts, "created": record.created, "id": record.id})
        return driver.group.gather(finished[0] if finished else {})[0]  # type: ignore[no-any-return]
    except BaseException as error:
        cause = driver.group.cause_of(error)
        if cause is error:
            raise
        raise cause from error
    finally:
        driver.group.leave()


def _keep(spec: TrainSpec, record: results.RunRecord) -> dict[str, Any]:
    """Save the result, and archive the outputs if requested; return the result as plain values."""
    if spec.runs is not None:
        folder = results.save(record, Path(spec.runs), allow_debug=spec.allow_debug).parent
        record = results.load(folder)
        if spec.archive is not None:
            # Checkpoints in a store are not copied.
            kept = None if spec.checkpoint is None else CheckpointFolder(spec.checkpoint).path
            extra = [] if kept is None else [kept]
            record = msgspec.structs.replace(record, archive=archive(folder, spec.archive, extra=extra))
            results.save(record, Path(spec.runs), allow_debug=spec.allow_debug)
    plain: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(record)
    )  # plain JSON types (lists, not tuples), for any number of ranks
    return plain


# ---------------------------------------------------------------- under torchrun


def run_under_torchrun(spec: TrainSpec, report: Report | None) -> dict[str, Any]:
    """Run the ranks of a spec in separate processes on this node; return the result of rank 0."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise ConfigError(
            f"{spec.ranks} ranks require torch, which is not installed", hint="pip install 'penstock[torch]'"
        )
    with tempfile.TemporaryDirectory(prefix="penstock-train-") as name:
        folder = Path(name)
        (folder / rank_files.SPEC).write_bytes(msgspec.json.encode(spec))
        argv = [sys.executable, "-m", "penstock.train.torchrun", str(folder / _FIRST)]
        argv += ["--standalone", "--nproc-per-node", str(spec.ranks)]
        argv += ["--module", "penstock.train.worker", str(folder)]
        environment = {
            **env.read(),
            "OMP_NUM_THREADS": str(spec.threads or _threads(spec.ranks)),
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_RANK_GRACE_S),
        }
        # All ranks are on one node, so gloo and NCCL use the loopback. The host name may resolve to another interface.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
        log = folder / "ranks.log"
        streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
        # `child_process` terminates torchrun on an error, and torchrun then ends its ranks.
        with (
            log.open("wb") as out,
            child_process(argv, grace_s=_GRACE_S, stdout=out, env=environment, **streams) as child,
        ):
            _follow(child, folder, report)
        result = folder / rank_files.RESULT
        if child.returncode == 0 and result.exists():
            record: dict[str, Any] = msgspec.json.decode(result.read_bytes())
            return record
        raise _failure(folder, log, child.returncode)


def _threads(ranks_here: int) -> int:
    """Number of torch threads per rank: this machine's number of cores divided by the number of ranks. torchrun's
    default is one thread.
    """
    return max(1, machine_card.read().cores // ranks_here)


def _follow(child: subprocess.Popen[bytes], folder: Path, report: Report | None) -> None:
    seen = b""
    while child.poll() is None:
        time.sleep(_POLL_S)
        if report is not None:
            try:
                now = (folder / rank_files.PROGRESS).read_bytes()
            except OSError:
                continue
            if now != seen:
                seen = now
                report(msgspec.json.decode(now, type=Progress))


def _failure(folder: Path, log: Path, code: int | None) -> PenstockError:
    """Return the original error: a rank's own error, or a signal that ended a rank, or a report about another rank."""
    reported = [
        (json.loads(file.read_bytes()), file.stem.removeprefix("error-")) for file in folder.glob("error-*.json")
    ]
    reported.sort(key=lambda one: (one[0]["code"] == RankFailed.code, one[0]["seen_s"]))
    first = folder / _FIRST
    ended = msgspec.json.decode(first.read_bytes(), type=FirstFailure) if first.exists() else None
    is_effect = not reported or reported[0][0]["code"] == RankFailed.code
    if ended is not None and ended.code < 0 and is_effect:
        name = signal.Signals(-ended.code).name
        return RankFailed(
            f"rank {ended.rank} failed: killed by {name}",
            rank=ended.rank,
            hint="look for the kernel's out-of-memory message (dmesg)" if name == "SIGKILL" else None,
        )
    if reported:
        failure, rank = reported[0]
        names_ranks = failure["message"].startswith(("rank ", "the ranks "))
        return from_wire(failure, prefix="" if names_ranks else f"rank {rank}: ")
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    raised = [found.group(1) for line in lines if (found := _RAISED.match(line))]
    why = raised[0] if raised else next((line for line in reversed(lines) if line.strip("=-")), "no output")
    return RankFailed(f"the ranks ended with code {code}: {why[:300]}", hint=ALONE)
