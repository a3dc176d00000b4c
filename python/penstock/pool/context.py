# SPDX-License-Identifier: Apache-2.0
"""Pool context: passes a job's pool to its ranks in one environment variable.

With this context, a loader finds the dataset's objects in the pool, and their source.
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


__all__ = ["NODE", "VARIABLE", "PoolContext", "from_env", "to_env"]

VARIABLE = "PENSTOCK_JOB_POOL"
NODE = "PENSTOCK_NODE"
"""Environment variable with the launcher's name for the node. Launchers set it for every rank."""
# Limit for the decompressed context; larger contexts are rejected. A pool of 10,000 nodes needs 3 MB as JSON.
_MAX_BYTES = 1 << 26


class PoolContext(msgspec.Struct, frozen=True):
    """A dataset in a pool.

    Attributes:
        data: URL of the dataset in the pool.
        source: URL from which the dataset was staged, and from which lost objects are fetched again. None if unknown.
        engine_settings: Settings with which the pool was started.
        lost: Names of lost nodes. Readers do not wait for lost nodes, even if the engine still lists these nodes.
    """

    pool: Pool
    data: str
    source: str | None = None
    engine_settings: dict[str, str | int | float | bool] = {}
    lost: tuple[str, ...] = ()

    def node(self, environment: Mapping[str, str]) -> str:
        """Name of the node on which this process runs.

        Raises:
            ConfigError: The node does not belong to the pool.
        """
        context = environment.get(NODE)
        if context and any(node.name == context for node in self.pool.nodes):
            return context
        mine = [node.name for node in self.pool.nodes if _is_local_address(node.address)]
        if len(mine) != 1:
            raise ConfigError(
                f"pool {self.pool.name}: {len(mine)} of its {len(self.pool.nodes)} nodes have an address of this "
                "machine (exactly 1 is required)",
                where=NODE,
                hint=f"set {NODE} to the name of this node",
            )
        return mine[0]


def _is_local_address(address: str) -> bool:
    """True if the address belongs to this machine."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def to_env(context: PoolContext) -> dict[str, str]:
    """Return the environment variable for the ranks. The value is compressed, because Linux limits a variable to 128
    KiB.
    """
    packed = zlib.compress(msgspec.json.encode(context), 9)
    return {VARIABLE: base64.b64encode(packed).decode()}


def from_env(environment: Mapping[str, str]) -> PoolContext | None:
    """Return the pool context of this process; None if the variable is not set.

    Raises:
        ConfigError: The variable cannot be parsed.
    """
    text = environment.get(VARIABLE)
    if not text:
        return None
    try:
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
        if not unpacker.eof:
            raise ValueError("truncated, or too large for a pool")
        return msgspec.json.decode(plain, type=PoolContext)
    except (ValueError, zlib.error, msgspec.DecodeError) as error:
        raise ConfigError(f"{VARIABLE}: not a value that `penstock run` sets: {error}", where=VARIABLE) from error
