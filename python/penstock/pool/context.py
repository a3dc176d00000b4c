# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job are told of its pool, by one environment variable: so a loader finds out by itself where the
dataset's objects lie, and where they came from.
"""

from __future__ import annotations

import base64
import socket
import zlib
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import ConfigError
from penstock.protocols import Pool  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["NODE", "VARIABLE", "InPool", "hear", "tell"]

VARIABLE = "PENSTOCK_JOB_POOL"
NODE = "PENSTOCK_NODE"
"""The node's name, as the launcher has it; every rank of a launcher is told."""
# A pool of 10,000 nodes takes 3 MB as JSON; more than this is no pool of ours.
_MOST_BYTES = 1 << 26


class InPool(msgspec.Struct, frozen=True):
    """A dataset in a pool.

    Attributes:
        data: Its URL there.
        source: The URL that it was staged from, by which what the pool loses is fetched again; None where nobody said.
        engine_settings: Those that the pool was brought up with.
        lost: Nodes that are gone, by name: nobody waits for them, whether the engine has noticed or not.
    """

    pool: Pool
    data: str
    source: str | None = None
    engine_settings: dict[str, str | int | float | bool] = {}
    lost: tuple[str, ...] = ()

    def node(self, environment: Mapping[str, str]) -> str:
        """The name of the node that this process is on.

        Raises:
            ConfigError: It is none of the pool's.
        """
        told = environment.get(NODE)
        if told and any(node.name == told for node in self.pool.nodes):
            return told
        mine = [node.name for node in self.pool.nodes if _is_mine(node.address)]
        if len(mine) != 1:
            raise ConfigError(
                f"pool {self.pool.name}: which of its {len(self.pool.nodes)} nodes this one is cannot be told",
                where=NODE,
                hint=f"set {NODE} to its name",
            )
        return mine[0]


def _is_mine(address: str) -> bool:
    """True where this machine has the address."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as one:
            one.bind((address, 0))
    except OSError:
        return False
    return True


def tell(told: InPool) -> dict[str, str]:
    """The variable for the ranks' environment. Packed, since a variable holds 128 KiB at most."""
    packed = zlib.compress(msgspec.json.encode(told), 9)
    return {VARIABLE: base64.b64encode(packed).decode()}


def hear(environment: Mapping[str, str]) -> InPool | None:
    """What this process was told, or None.

    Raises:
        ConfigError: The variable holds something else.
    """
    text = environment.get(VARIABLE)
    if not text:
        return None
    try:
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        if not unpacker.eof:
            raise ValueError("it ends early, or is larger than any pool")
        return msgspec.json.decode(plain, type=InPool)
    except (ValueError, zlib.error, msgspec.DecodeError) as error:
        raise ConfigError(f"{VARIABLE}: it is not what `penstock run` sets: {error}", where=VARIABLE) from error
