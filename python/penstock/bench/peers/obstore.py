# SPDX-License-Identifier: Apache-2.0
"""Driver for obstore: one process fetches whole objects with concurrent requests, and copies the bytes into batch
tensors.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("obstore", "torch")

IN_FLIGHT = 16

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:
    """Makes the store."""
    import torch
    from obstore.store import S3Store

    torch.set_num_threads(1)
    _made["store"] = S3Store(
        task["bucket"],
        endpoint=task["endpoint"],
        region=task["region"],
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    )


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Runs one epoch, batch after batch, with a fixed number of objects in flight."""
    import torch

    torch_batches = importlib.import_module("torch_batches")
    name, spec = torch_batches.only(task)
    loop = asyncio.new_event_loop()
    store, size, keys = _made["store"], task["batch"], task["keys"]
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def fetch(key: str, out: Any) -> None:
        async with gate:
            answer = await store.get_async(key)
            data = await answer.bytes_async()
        out.copy_(torch_batches.tensor(data, spec))

    def start(at: int) -> tuple[Any, Any]:
        some = keys[at : at + size]
        batch = torch.empty((len(some), *spec["shape"]), dtype=getattr(torch, spec["dtype"]))
        return batch, asyncio.gather(*(fetch(key, batch[row]) for row, key in enumerate(some)))

    async def started(at: int) -> tuple[Any, Any]:
        return start(at)

    ahead: list[tuple[Any, Any]] = []
    for at in range(0, len(keys), size):
        ahead.append(loop.run_until_complete(started(at)))
        if len(ahead) > max(1, IN_FLIGHT // size):
            batch, wait = ahead.pop(0)
            loop.run_until_complete(wait)
            yield {name: batch}
    for batch, wait in ahead:
        loop.run_until_complete(wait)
        yield {name: batch}
    loop.close()
