# SPDX-License-Identifier: Apache-2.0
"""Leases: a lease is an object in a store that names the owner of a resource, and the time at which the lease expires.

A create-only write makes the lease exclusive, and the owner renews the lease. Another process can take over a lease
that has expired, or whose owner was a process on the same machine that has ended. The write that takes over a lease
succeeds only if the version of the lease did not change, so only one of several processes succeeds.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.errors import Busy, Changed, NotFound, PenstockError, PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from penstock.arrays.location import Location

__all__ = ["Holder", "Lease"]


@dataclass(frozen=True)
class Holder:
    """Owner of a lease, as recorded in the lease."""

    owner: str
    host: str
    pid: int
    expires_s: float

    @property
    def is_gone(self) -> bool:
        """True if the lease has expired, or its owner was a process on this machine that has ended."""
        if time.time() > self.expires_s:
            return True
        return self.host == _host() and not Path(f"/proc/{self.pid}").exists() and Path("/proc/self").exists()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]}"


def _host() -> str:
    """Return an identifier of this machine, its current boot and the pid namespace. Two pids can be compared only if
    this identifier is equal.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - not a path
    except OSError:
        boot, space = "", ""
    return f"{platform.node()}/{boot}/{space}"


class Lease:
    """A lease on `name` below a location. A thread renews it until it is released.

    Args:
        term_s: Time in seconds after which another process can take over a lease that is not renewed.
        on_loss: Function that the thread calls if another process has taken over the lease.
    """

    def __init__(
        self, location: Location, name: str, *, term_s: float = 60.0, on_loss: Callable[[], None] | None = None
    ) -> None:
        self._files, self._name, self._term_s, self._on_loss = location.files, os.fsencode(name), term_s, on_loss
        self._place = f"{location.url}/{name}"
        self._owner = uuid4().hex
        self._version: str | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_lost = False

    def acquire(self) -> Holder | None:
        """Acquire the lease. If the lease was taken over, return its previous owner, otherwise None.

        Raises:
            Busy: Another process holds the lease.
        """
        taken_from: Holder | None = None
        try:
            self._version = self._files.put(self._name, self._content(), create_only=True)
        except PreconditionFailed:
            holder, version = self._read()
            if holder is not None:
                if not holder.is_gone:
                    raise Busy(
                        f"{self._place}: in use by {holder}", where=self._place,
                        hint="wait until the other process ends; if it was killed, its lease expires within "
                        f"{self._term_s:.0f} s",
                    ) from None  # fmt: skip
                taken_from = holder
            try:
                self._version = self._files.put(
                    self._name, self._content(), create_only=version is None, version=version
                )
            except (PreconditionFailed, Changed):
                raise Busy(f"{self._place}: another process acquired the lease first", where=self._place) from None
        self._thread = threading.Thread(target=self._renew, name="penstock-lease", daemon=True)
        self._thread.start()
        return taken_from

    def release(self) -> None:
        """Delete the lease, unless another process has taken it over."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._version is not None and not self.is_lost:
            self._files.delete([self._name])
        self._version = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _content(self) -> bytes:
        facts = {
            "owner": self._owner, "host": _host(), "pid": os.getpid(), "expires_s": round(time.time() + self._term_s, 3),
        }  # fmt: skip
        return json.dumps(facts).encode()

    def _read(self) -> tuple[Holder | None, str | None]:
        try:
            _, size, version, _ = self._files.head(self._name)
            facts: dict[str, Any] = json.loads(self._files.read(self._name, [(0, size)], version=version)[0])
            return Holder(facts["owner"], facts["host"], facts["pid"], facts["expires_s"]), version
        except NotFound:
            return None, None
        except (ValueError, KeyError, TypeError):
            return Holder("unknown", "an unknown host", 0, 0.0), version

    def _renew(self) -> None:
        while not self._stop.wait(self._term_s / 3):
            try:
                self._version = self._files.put(self._name, self._content(), version=self._version)
            except (PreconditionFailed, Changed, NotFound):
                self.is_lost = True
                if self._on_loss is not None:
                    self._on_loss()
                return
            except PenstockError:
                # The error may be temporary, and the next attempt can succeed before the lease expires.
                continue
