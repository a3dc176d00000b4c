# SPDX-License-Identifier: Apache-2.0
"""S3 emulator inside this process: serves a folder as an S3 endpoint, for tests, demonstrations and rehearsals.

The server is `penstock._native.Emulator`, which has its own threads. This module adds the tier book and the variables
that S3 clients read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.tiers import find

if TYPE_CHECKING:
    from types import TracebackType

    from penstock._native import Emulator as _Core

__all__ = ["Emulator"]


class Emulator:
    """Context manager that serves `folder` as a bucket.

    Args:
        folder: Root folder of the bucket; it must exist.
        tier: Name of a tier in the tier book, with or without its year (`azure-hot`, `azure-hot@2021`).
        scale: Factor F that multiplies the tier's rates, but not its latency.
        bind: ADDRESS:PORT; port 0 selects a free port.
        tiers: Path of a tier book to use instead of the bundled one.
        access_key, secret_key: The accepted key pair; by default generated for this run.
    Raises:
        ConfigError: The tier is unknown, the scale is invalid, or the address is in use.
        NotFound: The folder does not exist.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        tier: str = "none",
        scale: float = 1.0,
        bind: str = "127.0.0.1:0",
        tiers: str | Path | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        from penstock._native import Emulator as Core

        self._core: _Core = Core(
            Path(folder),
            msgspec.json.encode(find(tier, tiers)).decode(),
            bind,
            scale,
            access_key=access_key,
            secret_key=secret_key,
        )

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return self._core.endpoint

    @property
    def url(self) -> str:
        """URL of the bucket, `s3://BUCKET/`, whose root is the folder."""
        return self._core.url

    @property
    def tier(self) -> str:
        """Name of the tier with its year."""
        return self._core.tier

    @property
    def scale(self) -> float:
        """The scale F."""
        return self._core.scale

    @property
    def access_key(self) -> str:
        """Access key of the accepted pair."""
        return self._core.access_key

    @property
    def secret_key(self) -> str:
        """Secret key of the accepted pair."""
        return self._core.secret_key

    @property
    def region(self) -> str:
        """The region that the server reports."""
        return self._core.region

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for an S3 client."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }

    def stats(self) -> dict[str, int]:
        """Return the numbers of requests, throttled requests and bytes so far, by name."""
        return self._core.stats()

    def stop(self) -> None:
        """Stop the server and close its open connections. Safe to call twice."""
        self._core.stop()

    def __enter__(self) -> Emulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return repr(self._core)
