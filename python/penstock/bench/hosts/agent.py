# SPDX-License-Identifier: Apache-2.0
"""Agent of a benchmark on one host: `python -m penstock.bench.hosts.agent RANK`, with `Orders` as JSON on stdin.

`fleet` starts it on every node. Rank 0 also leads, and writes messages for the user's machine on stdout, one JSON line
each.
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
from penstock.bench.hosts.leader import Leader
from penstock.bench.hosts.member import Member
from penstock.bench.hosts.orders import Objects, Orders, Storage, folder_of
from penstock.bench.hosts.wire import fault
from penstock.bench.phases import Hooks
from penstock.bench.results import as_fault, provenance
from penstock.bench.storage.ground import HOST, entries_of, sweep
from penstock.bench.storage.spec import kind_of
from penstock.errors import PenstockError, Terminated
from penstock.ownership import remove_empty_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["main"]

# Odd and large, so that no two hosts generate the same content or the same access order.
_APART = 0x9E37_79B9_7F4A_7C15


def main() -> int:
    """Carry out the orders on stdin."""
    signal.signal(signal.SIGTERM, _terminated)
    rank = int(sys.argv[1])
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=Orders)
    if orders.verb == "sweep":
        _sweep(orders)
        return 0
    return _run(orders, rank, _speaker())


def _terminated(_number: int, _frame: FrameType | None) -> None:
    # Data made on this host is removed as after any error; a second signal does not interrupt the removal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated("terminated")


def _speaker() -> Callable[[dict[str, Any]], None]:
    turn = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with turn:
            sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
            sys.stdout.buffer.flush()

    return send


def _run(orders: Orders, rank: int, send: Callable[[dict[str, Any]], None]) -> int:
    with ExitStack() as stack:
        if rank == 0:
            send({"machine": msgspec.to_builtins(provenance())})
            try:
                leader = Leader(orders, send)
            except PenstockError as error:
                send(fault(error))
                return error.exit_code
            stack.callback(leader.close)
        member = Member(orders, rank)
        stack.callback(member.close)
        try:
            _measure(orders, rank, member)
        except PenstockError as error:
            member.failed(error)
            return error.exit_code
        except Exception as error:
            member.failed(error)
            raise
    return 0


def _measure(orders: Orders, rank: int, member: Member) -> None:
    hooks = Hooks(on_row=member.on_row, look=member.look, start=member.start)
    work = orders.work
    hosts = len(orders.nodes)
    seed = (work.bench.seed + rank * _APART) % (1 << 63)
    salt = None if work.bench.salt is None else (work.bench.salt + rank * _APART) % (1 << 63)
    rate = None if work.bench.rate_per_s is None else work.bench.rate_per_s / hosts
    own = {"seed": seed, "salt": salt, "rate_per_s": rate}
    if isinstance(work, Objects):
        bench = msgspec.structs.replace(work.bench, **own)
        objects.run(work.url, bench, work.points, hooks, folder=folder_of(orders, rank))
        member.done()
        return
    path = _place(work, orders.nodes[rank])
    is_folder = kind_of(path) == "dir"
    is_made = is_folder and _made(path)
    try:
        if is_folder:
            entries_of(path, ours=HOST)
        storage.run(
            path / folder_of(orders, rank) if is_folder else path,
            msgspec.structs.replace(work.bench, **own),
            work.points,
            hooks,
            session=orders.session,
        )
        member.done()
    finally:
        if is_made:
            remove_empty_folder(path)  # unless folders of other hosts are still there


def _made(path: Path) -> bool:
    """Create a folder; False if it existed already."""
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


def _sweep(orders: Orders) -> None:
    """Remove the folders of all ranks: on a shared file system, a host that survives cleans up for one that does not."""
    work = orders.work
    for rank, node in enumerate(orders.nodes):
        if isinstance(work, Storage):
            sweep(_place(work, node) / folder_of(orders, rank), orders.session)
        elif not work.bench.existing:
            with suppress(PenstockError):
                objects.clear(objects.below(work.url, folder_of(orders, rank)))


if __name__ == "__main__":
    sys.exit(main())
