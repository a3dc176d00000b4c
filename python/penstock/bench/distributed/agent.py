# SPDX-License-Identifier: Apache-2.0
"""Benchmark agent of one host: `python -m penstock.bench.distributed.agent RANK`, with `AgentConfig` as JSON on stdin.

`launch` starts an agent on every node. Rank 0 also runs the leader, and writes messages for the user's machine to
stdout, as JSON lines.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench import objects, storage
from penstock.bench.distributed.config import AgentConfig, Objects, Storage, folder_of
from penstock.bench.distributed.follower import Follower
from penstock.bench.distributed.leader import Leader
from penstock.bench.phases import Hooks
from penstock.bench.results import as_fault, provenance
from penstock.bench.storage.scratch_dir import HOST, entries_of, sweep
from penstock.bench.storage.spec import kind_of
from penstock.errors import PenstockError, Terminated, to_wire
from penstock.ownership import remove_empty_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["main"]

# Offset between the seeds of two hosts. An odd and large offset makes hosts generate different content and access
# orders.
_APART = 0x9E37_79B9_7F4A_7C15


def main() -> int:
    """Run the agent with the `AgentConfig` on stdin."""
    signal.signal(signal.SIGTERM, _terminated)
    rank = int(sys.argv[1])
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=AgentConfig)
    if config.verb == "sweep":
        _sweep(config)
        return 0
    return _run(config, rank, _speaker())


def _terminated(_number: int, _frame: FrameType | None) -> None:
    # The exception triggers the same clean-up as any error. A second signal must not interrupt the clean-up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated("terminated")


def _speaker() -> Callable[[dict[str, Any]], None]:
    turn = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with turn:
            sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
            sys.stdout.buffer.flush()

    return send


def _run(config: AgentConfig, rank: int, send: Callable[[dict[str, Any]], None]) -> int:
    with ExitStack() as stack:
        if rank == 0:
            send({"machine": msgspec.to_builtins(provenance())})
            try:
                leader = Leader(config, send)
            except PenstockError as error:
                send({"fault": to_wire(error)})
                return error.exit_code
            stack.callback(leader.close)
        follower = Follower(config, rank)
        stack.callback(follower.close)
        try:
            _measure(config, rank, follower)
        except PenstockError as error:
            follower.failed(error)
            return error.exit_code
        except Exception as error:
            follower.failed(error)
            raise
    return 0


def _measure(config: AgentConfig, rank: int, follower: Follower) -> None:
    hooks = Hooks(on_row=follower.on_row, on_progress=follower.on_progress, start=follower.start)
    work = config.work
    hosts = len(config.nodes)
    seed = (work.bench.seed + rank * _APART) % (1 << 63)
    salt = None if work.bench.salt is None else (work.bench.salt + rank * _APART) % (1 << 63)
    rate = None if work.bench.rate_per_s is None else work.bench.rate_per_s / hosts
    own = {"seed": seed, "salt": salt, "rate_per_s": rate}
    if isinstance(work, Objects):
        bench = msgspec.structs.replace(work.bench, **own)
        objects.run(work.url, bench, work.points, hooks, folder=folder_of(config, rank))
        follower.done()
        return
    path = _place(work, config.nodes[rank])
    is_folder = kind_of(path) == "dir"
    is_made = is_folder and _made(path)
    try:
        if is_folder:
            entries_of(path, ours=HOST)
        storage.run(
            path / folder_of(config, rank) if is_folder else path,
            msgspec.structs.replace(work.bench, **own),
            work.points,
            hooks,
            session=config.session,
        )
        follower.done()
    finally:
        if is_made:
            remove_empty_folder(path)  # fails harmlessly while folders of other hosts exist


def _made(path: Path) -> bool:
    """Create a folder; return False if it existed already."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError:
        return False
    except OSError as error:
        raise as_fault(error, str(path)) from None
    return True


def _place(work: Storage, node: str) -> Path:
    return Path(work.path.replace("{node}", node))


def _sweep(config: AgentConfig) -> None:
    """Remove the folders of all ranks. On a shared file system, a surviving host thus cleans up for a failed host."""
    work = config.work
    for rank, node in enumerate(config.nodes):
        if isinstance(work, Storage):
            sweep(_place(work, node) / folder_of(config, rank), config.session)
        elif not work.bench.existing:
            with suppress(PenstockError):
                objects.clear(objects.below(work.url, folder_of(config, rank)))


if __name__ == "__main__":
    sys.exit(main())
