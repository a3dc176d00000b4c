# SPDX-License-Identifier: Apache-2.0
"""Rendezvous of a run's ranks with a deadline: an error lists the ranks that are missing, or that disagree.

torch's own rendezvous waits for half an hour and then reports how many processes are missing, but not which processes.
In this module, each rank registers itself in the store of rank 0 with the number of ranks that it expects.
"""

from __future__ import annotations

import json
import platform
import time
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.errors import ConfigError, RankFailed
from penstock.ranks import await_server

if TYPE_CHECKING:
    from penstock.ranks import Rank

__all__ = ["JOIN_TIMEOUT_S", "join_store"]

JOIN_TIMEOUT_S = 300.0

_POLL_S = 0.05
# Time for which rank 0 keeps its store after an error, so that the other ranks can read the reason.
_LINGER_S = 2.0
_GROUP_TIMEOUT = timedelta(minutes=30)  # torch's default, which applies again once all ranks have joined
_SHOWN = 8

# Counts the runs in this process. The count is equal on all ranks, because all ranks start the same runs.
_RUNS = count()


def join_store(rank: Rank, timeout_s: float) -> Any:
    """Connect to the store of rank 0, and wait until all ranks are registered in it; return the store for the group.

    Raises:
        RankFailed: Ranks are missing at the deadline, or rank 0 cannot be reached. The error lists the missing ranks.
        ConfigError: MASTER_PORT is not a port, ranks expect different numbers of ranks, or two processes have the same
            rank.
    """
    from torch import distributed

    found = env.read()
    address, text = found.get("MASTER_ADDR", ""), found.get("MASTER_PORT", "29500")
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ConfigError(f"MASTER_PORT is `{text}`, not a port", hint="use a free port, such as 29500")
    until_s = time.monotonic() + timeout_s
    # torchrun serves the store itself; otherwise, rank 0 does.
    is_server = rank.rank == 0 and found.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        if not is_server:
            await_server(address, int(text), until_s)
        store = distributed.TCPStore(
            address,
            int(text),
            is_master=is_server,
            timeout=timedelta(seconds=max(until_s - time.monotonic(), 1)),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (RuntimeError, OSError) as error:
        what = f"cannot serve at {address}:{text}" if is_server else f"reached no rank 0 at {address}:{text}"
        raise RankFailed(
            f"rank {rank.rank} of {rank.world} {what} within {timeout_s:g} s: {_reason(error)}",
            rank=0,
            hint="check MASTER_ADDR and MASTER_PORT, and that rank 0 has started",
        ) from error
    attempt = found.get("TORCHELASTIC_RESTART_COUNT", "0")
    mine = distributed.PrefixStore(f"penstock/join/{attempt}/{next(_RUNS)}", store)
    try:
        _register(mine, rank)
        _await_all(mine, rank, until_s, timeout_s)
    except (ConfigError, RankFailed) as error:
        if is_server:
            mine.set("error", json.dumps({"message": str(error), "hint": error.hint}))
            time.sleep(_LINGER_S)
        raise
    except RuntimeError as error:
        raise RankFailed(
            f"rank {rank.rank} of {rank.world} lost the store of rank 0 while it waited for the other ranks",
            rank=0,
            hint="look at the output of rank 0",
        ) from error
    with suppress(RuntimeError):
        store.set_timeout(_GROUP_TIMEOUT)
    return mine


def _register(store: Any, rank: Rank) -> None:
    host = platform.node()
    if store.add(f"count/{rank.rank}", 1) > 1:
        raise ConfigError(
            f"two processes are rank {rank.rank} of {rank.world}; one of them runs on {host}",
            hint="start every rank once, each with its own number",
        )
    store.set(f"rank/{rank.rank}", json.dumps({"world": rank.world, "host": host}))


def _await_all(store: Any, rank: Rank, until_s: float, timeout_s: float) -> None:
    missing = list(range(rank.world))
    while True:
        still = []
        for other in missing:
            if not store.check([f"rank/{other}"]):
                still.append(other)
                continue
            known = json.loads(store.get(f"rank/{other}"))
            if known["world"] != rank.world:
                raise ConfigError(
                    f"the ranks differ in the number of ranks: rank {rank.rank} expects {rank.world}, and rank {other} "
                    f"on {known['host']} expects {known['world']}",
                    hint="start all ranks with one launcher, or with the same WORLD_SIZE",
                )
        missing = still
        if not missing:
            return
        if rank.rank != 0 and store.check(["error"]):
            error = json.loads(store.get("error"))
            raise RankFailed(error["message"], rank=0, hint=error["hint"])
        if time.monotonic() > until_s:
            more = f" and {len(missing) - _SHOWN:,} more" if len(missing) > _SHOWN else ""
            names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing[:_SHOWN]))}{more}"
            raise RankFailed(
                f"{names} of {rank.world} did not join within {timeout_s:g} s",
                rank=missing[0],
                hint="check that the launcher has started every rank, and look at the output of these ranks",
            )
        time.sleep(_POLL_S)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.partition("\n")[0][:160]
