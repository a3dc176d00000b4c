# SPDX-License-Identifier: Apache-2.0
"""`penstock.stage(source, folder)` in a training script: the first rank of each node stages, and all ranks get the same
result.

All ranks of a job must call this function, as for a collective operation. If the script has initialised a process group
(torch) or MPI, the ranks use it to agree on the leader of each node, on the result, and on the first error, which every
rank raises. Otherwise, the launcher's variables determine the leader, and the other ranks read the record that the
leader writes beside its journal.
"""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import env, ranks
from penstock.deprecation import renamed_attribute, renamed_parameters
from penstock.errors import ConfigError, Deadline, PenstockError, RankFailed, from_wire, to_wire
from penstock.local_paths import is_local, local_path
from penstock.ranks import Rank
from penstock.stage import run_stage
from penstock.stage.node_progress import summed
from penstock.stage.rank_channel import RankChannel, find
from penstock.stage.run_stage import raise_for_failures
from penstock.stage.spec import ALIASES, RENAMED, StageSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock._native import StageJob

__all__ = ["Staged", "everywhere"]

_LOOK_S = 0.1
# Interval of a leader's heartbeats. If a leader sends no heartbeat within the heartbeat timeout, the first rank aborts
# the stage.
_BEAT_S = 1.0
_HEARTBEAT_TIMEOUT_S = 60.0
# Ranks may make the call at different times: the imports of a training script can take minutes on a busy file system.
_JOIN_TIMEOUT_S = 600.0
_FINAL_MESSAGE_S = 10.0
# Time for the final messages of a rank that fails. This time is shorter than `_FINAL_MESSAGE_S`, because the sender of
# a signal waits until this rank ends.
_FAIL_S = 3.0


@dataclass(frozen=True, slots=True)
class Staged:
    """Result of the stage on this rank's node. Field names contain their units. `summary` is the same as the CLI's
    JSON.

    `destination` and `manifest` are paths, or URLs if the destination is a store. `penstock.open` accepts both.
    `coordinator` is the mechanism that the ranks used to agree: `torch`, `mpi4py`, `files` or `alone`.
    """

    destination: Path | str
    manifest: Path | str
    node: int
    nodes: int
    objects: int
    bytes_read: int
    bytes_written: int
    seconds: float
    coordinator: str
    summary: dict[str, Any]

    by = renamed_attribute("by", "coordinator")

    @property
    def folder(self) -> Path:
        """Return the destination as a path.

        Raises:
            Unsupported: The destination is a store.
        """
        return Path(local_path(str(self.destination)))


@renamed_parameters({"arrive_s": "join_timeout_s", "silence_s": "heartbeat_timeout_s", **RENAMED}, aliases=ALIASES)
def everywhere(
    source: str,
    destination: str | Path,
    *,
    progress: Callable[[dict[str, Any]], None] | None = None,
    join_timeout_s: float = _JOIN_TIMEOUT_S,
    heartbeat_timeout_s: float = _HEARTBEAT_TIMEOUT_S,
    allow_partial: bool = False,
    **options: Any,
) -> Staged:
    """Stage a dataset, or this node's share of it, before training. Call this function on all ranks.

    Args:
        source: As for `penstock stage`.
        destination: A folder on each node's own disk, the same on all ranks of a node; or a store's URL.
        progress: Function that is called about once per second on the job's first rank, with the summed counters of all
            nodes.
        join_timeout_s: Time limit for all ranks to make this call.
        heartbeat_timeout_s: A leader without a heartbeat for this time counts as dead.
        allow_partial: Return although some objects could not be staged (`summary["failed"]`), instead of raising.
        options: Fields of `StageSpec`: decompress, manifest, timeout_s, ...

    Raises:
        PenstockError: The error of the leader, of the same class on every rank.
        RankFailed: A rank died, or never made the call.
    """
    spec = StageSpec(source, str(destination), **options)
    channel = find()
    if channel is not None and channel.world > 1:
        summary, rank = _together(
            channel, spec, progress, join_timeout_s=join_timeout_s, heartbeat_timeout_s=heartbeat_timeout_s
        )
        coordinator = channel.name
    else:
        rank = ranks.detect(env.read())
        coordinator = "files" if rank.world > 1 else "alone"
        summary = _by_files(
            replace(spec, rank=rank), progress, join_timeout_s=join_timeout_s, heartbeat_timeout_s=heartbeat_timeout_s
        )
    if not allow_partial:
        try:
            raise_for_failures(summary)
        except PenstockError as error:
            error.add_note("use allow_partial=True to continue without them")
            raise
    where: Path | str = summary["destination"]
    manifest: Path | str = summary["manifest"]
    if is_local(spec.destination):
        where = Path(local_path(spec.destination))
        manifest = where / ".penstock" / Path(manifest).name
    return Staged(
        where,
        manifest,
        rank.node,
        rank.nodes,
        summary["objects"],
        summary["bytes_in"],
        summary["bytes_out"],
        summary["seconds"],
        coordinator,
        summary,
    )


# ---------------------------------------------------------------- through files beside the journal


def _by_files(
    spec: StageSpec,
    progress: Callable[[dict[str, Any]], None] | None,
    *,
    join_timeout_s: float,
    heartbeat_timeout_s: float,
) -> dict[str, Any]:
    import json

    if spec.rank.local_rank == 0:
        on_progress = (
            None
            if progress is None
            else _throttled(lambda now: progress(summed({spec.rank.node: now}, spec.rank.nodes)))
        )
        return run_stage.wait(run_stage.start(spec), on_progress=on_progress)
    reported = json.loads(spec.request().leader_ends(start_s=join_timeout_s, silence_s=max(heartbeat_timeout_s, 2.0)))
    if "failed" in reported:
        raise _cause(from_wire(reported["failed"]), spec.rank.rank - spec.rank.local_rank)
    summary: dict[str, Any] = reported["summary"]
    return summary


# ---------------------------------------------------------------- through a channel


def _who() -> dict[str, Any]:
    try:
        found = ranks.detect(env.read())
        launcher = [found.node, found.nodes, found.local_rank, found.world] if found.launcher != "none" else None
    except ConfigError:
        launcher = None
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {"host": f"{platform.node()} {boot}", "launcher": launcher}


def _assign_nodes(who: list[dict[str, Any]]) -> list[list[int]]:
    """Return the node, number of nodes and local rank of each rank. These values come from the launcher if they are
    consistent, otherwise from host names.
    """
    world = len(who)
    reported = [one["launcher"] for one in who]
    if all(reported) and all(one[3] == world for one in reported) and len({one[1] for one in reported}) == 1:
        nodes = reported[0][1]
        leaders = [one[0] for one in reported if one[2] == 0]
        places = {(one[0], one[2]) for one in reported}
        if sorted(leaders) == list(range(nodes)) and len(places) == world:
            return [[one[0], nodes, one[2]] for one in reported]
    hosts = list(dict.fromkeys(one["host"] for one in who))
    seen = dict.fromkeys(hosts, 0)
    assignments = []
    for one in who:
        assignments.append([hosts.index(one["host"]), len(hosts), seen[one["host"]]])
        seen[one["host"]] += 1
    return assignments


def _together(
    channel: RankChannel,
    spec: StageSpec,
    progress: Callable[[dict[str, Any]], None] | None,
    *,
    join_timeout_s: float,
    heartbeat_timeout_s: float,
) -> tuple[dict[str, Any], Rank]:
    limit_s = _FAIL_S
    try:
        assignments = _agree(channel, join_timeout_s)
        node, nodes, local_rank = assignments[channel.rank]
        # The launch id is None, because the other ranks get the result through the channel, not from a record.
        rank = Rank(node, nodes, local_rank, channel.rank, channel.world, None, channel.name)
        leaders = {slot[0]: at for at, slot in enumerate(assignments) if slot[2] == 0}
        watch = _Monitor(channel, leaders, heartbeat_timeout_s, spec.timeout_s, progress)
        if local_rank == 0:
            _lead(channel, replace(spec, rank=Rank(node, nodes)), watch)
        ended = watch.end()
        limit_s = _FINAL_MESSAGE_S
    except BaseException as error:
        with suppress(PenstockError):
            channel.fail(to_wire(_cause(error, channel.rank)))
        raise
    finally:
        channel.close(limit_s)
    if "failed" in ended:
        raise from_wire(ended["failed"])
    summary: dict[str, Any] = ended["summaries"][str(node)]
    return summary, rank


def _cause(error: BaseException, rank: int) -> BaseException:
    """Return the error that the other ranks raise: the stage's error unchanged, or RankFailed if a signal ends this
    rank.
    """
    if isinstance(error, PenstockError) and not isinstance(error, KeyboardInterrupt):
        return error
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return RankFailed(f"rank {rank} failed: penstock.stage raised {text}", rank=rank)


def _agree(channel: RankChannel, join_timeout_s: float) -> list[list[int]]:
    until = time.monotonic() + join_timeout_s
    channel.meet(join_timeout_s)
    channel.send_to_root("who", _who())
    if channel.rank == 0:
        who: list[Any] = [None] * channel.world
        while missing := [at for at, one in enumerate(who) if one is None]:
            for at in missing:
                who[at] = channel.recv_from(at, "who")
            if None in who:
                if time.monotonic() > until:
                    raise RankFailed(
                        f"rank {missing[0]} failed: did not call penstock.stage within {join_timeout_s:.0f} s"
                        f" ({len(missing):,} of {channel.world:,} ranks did not)",
                        rank=missing[0],
                        hint="call penstock.stage on all ranks, the same number of times",
                    )
                if (left := channel.failed()) is not None:
                    raise from_wire(left)
                time.sleep(_LOOK_S / 4)
        channel.broadcast("assignments", _assign_nodes(who))
    while (assignments := channel.recv_broadcast("assignments")) is None:
        # If a short stage ends within one poll, its assignments arrive just before its end.
        if "failed" in (end := channel.recv_broadcast("end") or {}):
            raise from_wire(end["failed"])
        if time.monotonic() > until + _FINAL_MESSAGE_S:
            raise RankFailed(f"rank 0 failed: did not call penstock.stage within {join_timeout_s:.0f} s", rank=0)
        time.sleep(_LOOK_S)
    found: list[list[int]] = assignments
    return found


def _lead(channel: RankChannel, spec: StageSpec, watch: _Monitor) -> None:
    """Run the stage of this node and report its result. Stops if the other ranks have already ended the stage."""
    job: StageJob | None = None
    try:
        job = run_stage.start(spec)
        last = 0.0

        def on_progress(now: dict[str, int]) -> None:
            nonlocal last
            if time.monotonic() - last >= _BEAT_S:
                last = time.monotonic()
                channel.send_to_root("now", {**now, "beat": last})
            if watch.check() is not None:
                raise _Ended

        channel.send_to_root("ended", {"summary": run_stage.wait(job, on_progress=on_progress)})
    except _Ended:
        assert job is not None
        job.cancel()
        with suppress(PenstockError):
            job.wait(1.0)
    except PenstockError as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        channel.send_to_root("ended", {"failed": to_wire(error)})


class _Ended(Exception):
    pass


class _Monitor:
    """Wait loop of every rank. The first rank collects the leaders' reports and broadcasts the result; all ranks poll
    for it.
    """

    def __init__(
        self,
        channel: RankChannel,
        leaders: dict[int, int],
        heartbeat_timeout_s: float,
        timeout_s: float | None,
        progress: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self._channel, self._leaders, self._heartbeat_timeout_s = channel, leaders, heartbeat_timeout_s
        began = time.monotonic()
        self._until = None if timeout_s is None else began + timeout_s + _FINAL_MESSAGE_S
        self._limit_s = timeout_s
        self._ended: dict[int, Any] = {}
        self._now: dict[int, dict[str, Any]] = {}
        self._signs = dict.fromkeys(leaders, (None, began))
        self._progress = progress
        self._shown = 0.0
        self._alive_at_s = began
        # Ranks poll ten times per second. With thousands of ranks, they poll less often, to limit the load on the first
        # rank.
        self._every_s = min(_LOOK_S * max(1.0, channel.world / 256), 2.0)
        self._checked_s = 0.0

    def check(self) -> dict[str, Any] | None:
        """Return the result, or None while it is missing. Cheap enough to be called ten times per second."""
        if self._channel.rank == 0:
            self._gather()
            if self._channel.recv_broadcast("alive") is None or time.monotonic() - self._alive_at_s > _BEAT_S:
                self._alive_at_s = time.monotonic()
                self._channel.broadcast("alive", self._alive_at_s)
        elif time.monotonic() - self._checked_s < self._every_s:
            return None
        self._checked_s = time.monotonic()
        end: dict[str, Any] | None = self._channel.recv_broadcast("end")
        return end

    def _gather(self) -> None:
        channel = self._channel
        if channel.recv_broadcast("end") is not None:
            return
        if (left := channel.failed()) is not None:
            channel.broadcast("end", {"failed": left})
            return
        moment = time.monotonic()
        for node, leader in self._leaders.items():
            if node in self._ended:
                continue
            if (ended := channel.recv_from(leader, "ended")) is not None:
                self._ended[node] = ended
                if "failed" in ended:
                    channel.broadcast("end", ended)
                    return
                continue
            if (now := channel.recv_from(leader, "now")) is not None:
                self._now[node] = now
            sign = now and now["beat"]
            if sign != self._signs[node][0]:
                self._signs[node] = (sign, moment)
            elif moment - self._signs[node][1] > self._heartbeat_timeout_s:
                lost = RankFailed(
                    f"rank {leader} failed: this rank stages for node {node}, and sent no heartbeat for "
                    f"{self._heartbeat_timeout_s:.0f} s",
                    rank=leader,
                )
                channel.broadcast("end", {"failed": to_wire(lost)})
                return
        if len(self._ended) == len(self._leaders):
            channel.broadcast("end", {"summaries": {str(node): one["summary"] for node, one in self._ended.items()}})
        elif self._progress is not None and moment - self._shown >= _BEAT_S and self._now:
            self._shown = moment
            self._progress(summed(self._now, len(self._leaders)))

    def end(self) -> dict[str, Any]:
        """Wait for the result. Stops waiting if the first rank is dead or the deadline has passed."""
        sign, since = None, time.monotonic()
        while (end := self.check()) is None:
            moment = time.monotonic()
            if self._channel.rank != 0:
                alive = self._channel.recv_broadcast("alive")
                if alive != sign:
                    sign, since = alive, moment
                elif moment - since > self._heartbeat_timeout_s:
                    raise RankFailed(f"rank 0 failed: sent no heartbeat for {self._heartbeat_timeout_s:.0f} s", rank=0)
            if self._until is not None and moment > self._until:
                raise Deadline(f"the stage did not finish in {self._limit_s:.1f} s", limit_s=self._limit_s)
            time.sleep(_LOOK_S)
        return end


def _throttled(show: Callable[[dict[str, int]], None]) -> Callable[[dict[str, int]], None]:
    shown = 0.0

    def on_progress(now: dict[str, int]) -> None:
        nonlocal shown
        if time.monotonic() - shown >= _BEAT_S and now["objects"]:
            shown = time.monotonic()
            show(now)

    return on_progress
