# SPDX-License-Identifier: Apache-2.0
"""Messages through torch.distributed: Gloo (host buffers) and NCCL (GPU buffers; experimental, never run on a GPU)."""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.bench.net.memory import Memory
from penstock.errors import ConfigError, Deadline, Unreachable
from penstock.extras import require
from penstock.ranks import await_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.ranks import Rank

__all__ = ["TorchTransport"]

_POLL_S = 0.02
_OPERATION_LIMIT = timedelta(hours=2)


def _go_on() -> None:
    """Do not wait for the GPU."""


class TorchTransport:
    """Ranks that meet at MASTER_ADDR and MASTER_PORT."""

    def __init__(self, rank: Rank, backend: str, device: str, *, join_s: float, waits_each_call: bool) -> None:
        """Join the other ranks.

        Args:
            waits_each_call: Whether a collective waits for the GPU.

        Raises:
            ConfigError: The rendezvous address is not set.
            Deadline: Ranks are missing after `join_s`; the error contains their numbers.
            Unreachable: The first rank cannot be reached.
        """
        require(f"--backend {backend}", "torch")
        import torch
        from torch import distributed

        self._dist, self._torch = distributed, torch
        self.rank, self.world, self.memory = rank.rank, rank.world, Memory(device)
        self._finish = self.synchronize if waits_each_call else _go_on
        self.library = f"{backend} of torch {torch.__version__}"
        store = self._store(join_s)
        address = env.read()["MASTER_ADDR"]
        # If all ranks are on one machine, the host name may still resolve to another interface.
        loopback = {"GLOO_SOCKET_IFNAME": "lo"} if address in ("127.0.0.1", "localhost", "::1") else {}
        with env.override({**loopback, **{k: v for k, v in env.read().items() if k in loopback}}):
            distributed.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.world, timeout=_OPERATION_LIMIT
            )
            distributed.barrier()

    def _store(self, join_s: float) -> Any:
        """Connect to the store of the first rank, and wait until all ranks have registered in it."""
        found = env.read()
        try:
            address, port = found["MASTER_ADDR"], int(found["MASTER_PORT"])
        except (KeyError, ValueError):
            raise ConfigError(
                "MASTER_ADDR and MASTER_PORT: not set, so the ranks cannot meet",
                hint="start the ranks with torchrun or with --launcher local or ssh, or export both variables",
            ) from None
        began = time.monotonic()
        serves = self.rank == 0 and found.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            if not serves:
                await_server(address, port, began + join_s)
            store = self._dist.TCPStore(
                address, port, self.world, serves, timedelta(seconds=join_s), wait_for_workers=False
            )
        except (OSError, RuntimeError) as error:
            raise Unreachable(
                f"rank {self.rank}: no response from rank 0 at {address}:{port} within {join_s:g} s",
                hint="check that rank 0 has started, and that the port is open",
            ) from error
        own = self._dist.PrefixStore(f"penstock-net-{found.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        own.set(f"rank-{self.rank}", "1")
        missing = list(range(self.world))
        while missing := [each for each in missing if not own.check([f"rank-{each}"])]:
            if time.monotonic() - began > join_s:
                shown = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
                raise Deadline(
                    f"rank{'s' if len(missing) > 1 else ''} {shown} of {self.world}: did not join within {join_s:g} s",
                    limit_s=join_s,
                    hint="check that the launcher has started every rank, and look at the output of these ranks",
                )
            time.sleep(_POLL_S)
        return own

    def gather(self, value: Any) -> list[Any]:
        everyone: list[Any] = [None] * self.world
        self._dist.all_gather_object(everyone, value)
        return everyone

    def agree(self, value: int, peer: int, *, is_first: bool) -> int:
        box = self._torch.tensor([value], device=self.memory.device)
        if is_first:
            self._dist.send(box, peer)
        else:
            self._dist.recv(box, peer)
        return int(box.item())

    def rest(self) -> None:
        self._dist.barrier()

    def barrier(self) -> None:
        self._dist.barrier()

    def synchronize(self) -> None:
        if self.memory.device != "cpu":
            self._torch.cuda.synchronize()

    def close(self) -> None:
        self._dist.destroy_process_group()

    # ------------------------------------------------------------ messages

    def _tensor(self, name: str, size_bytes: int, dtype: Any = None) -> Any:
        raw = self.memory.take(name, size_bytes)
        tensor = self._torch.from_numpy(raw) if self.memory.device == "cpu" else raw
        return tensor if dtype is None else tensor.view(dtype)

    def point_to_point(
        self, operation: str, peer: int, size_bytes: int, window: int, *, is_first: bool
    ) -> Callable[[int], None]:
        dist, finish = self._dist, self.synchronize
        out, into, ack = self._tensor("send", size_bytes), self._tensor("recv", size_bytes), self._tensor("ack", 4)
        send, receive, isend, ireceive = dist.send, dist.recv, dist.isend, dist.irecv

        def times(count: int) -> Iterator[None]:
            yield from repeat(None, count)
            finish()

        def ping(count: int) -> None:
            for _ in times(count):
                send(out, peer)
                receive(into, peer)

        def pong(count: int) -> None:
            for _ in times(count):
                receive(into, peer)
                send(out, peer)

        def stream(count: int) -> None:
            for _ in times(count):
                for request in [isend(out, peer) for _ in range(window)]:
                    request.wait()
                receive(ack, peer)

        def drain(count: int) -> None:
            for _ in times(count):
                for request in [ireceive(into, peer) for _ in range(window)]:
                    request.wait()
                send(ack, peer)

        def both(count: int) -> None:
            for _ in times(count):
                arriving = [ireceive(into, peer) for _ in range(window)]
                for request in [*(isend(out, peer) for _ in range(window)), *arriving]:
                    request.wait()

        if operation == "latency":
            return ping if is_first else pong
        if operation == "bibw":
            return both
        return stream if is_first else drain

    def collective(self, operation: str, size_bytes: int, *, in_place: bool = False) -> Callable[[], None] | None:
        dist, world = self._dist, self.world
        finish = self._finish
        if operation == "barrier":
            return dist.barrier  # type: ignore[no-any-return]
        if operation == "bcast":
            message = self._tensor("recv", size_bytes)
            return lambda: (dist.broadcast(message, 0), finish())[1]
        if operation == "sendrecv":
            return None if in_place else self._exchange(size_bytes)
        if operation == "allreduce":
            # torch reduces only in place. For an out-of-place reduction, users of torch copy the input first, and so
            # does this code.
            into, out = (
                self._tensor("recv", size_bytes, self._torch.float32),
                self._tensor("send", size_bytes, self._torch.float32),
            )
            if in_place:
                return lambda: (dist.all_reduce(into), finish())[1]
            return lambda: (into.copy_(out), dist.all_reduce(into), finish())[2]
        if operation == "reduce-scatter":
            if size_bytes // 4 % world or in_place:
                return None  # torch scatters equal parts only
            into = self._tensor("recv", size_bytes // world, self._torch.float32)
            out = self._tensor("send", size_bytes, self._torch.float32)
            return lambda: (dist.reduce_scatter_tensor(into, out), finish())[1]
        into = self._tensor("recv", size_bytes * world)
        if operation == "allgather":
            own = into[self.rank * size_bytes : (self.rank + 1) * size_bytes]
            out = own if in_place else self._tensor("send", size_bytes)
            return lambda: (dist.all_gather_into_tensor(into, out), finish())[1]
        if in_place:
            return None
        out = self._tensor("send", size_bytes * world)
        return lambda: (dist.all_to_all_single(into, out), finish())[1]

    def _exchange(self, size_bytes: int) -> Callable[[], None]:
        dist = self._dist
        finish = self._finish
        out, into = self._tensor("send", size_bytes), self._tensor("recv", size_bytes)
        operations = [
            dist.P2POp(dist.isend, out, (self.rank + 1) % self.world),
            dist.P2POp(dist.irecv, into, (self.rank - 1) % self.world),
        ]

        def exchange() -> None:
            for request in dist.batch_isend_irecv(operations):
                request.wait()
            finish()

        return exchange
