# SPDX-License-Identifier: Apache-2.0
"""Engines that are attached to, never brought up: `aistore` by its S3 door, `juicefs` by its mount.

Both are services of a site, with lives longer than a job's. Every verb that would begin or end one is refused, and says
how the one that runs is used.
"""

# ruff: noqa: ARG002 - the contract's arguments, none of which can be used

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from penstock.engines._shared.agent_client import parse_settings
from penstock.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.protocols import Access, Pool, PoolSpec, Runner

__all__ = ["AttachedEngine", "aistore", "juicefs"]


class AttachedEngine:
    """A door that stays shut: `hint` is the way in."""

    def __init__(self, name: str, hint: str, settings: Mapping[str, Any]) -> None:
        parse_settings(settings, name, {})
        self.name = name
        self._hint = hint

    def _refuse(self) -> NoReturn:
        raise Unsupported(f"engine {self.name}: it is attached to where it runs, and not brought up", hint=self._hint)

    def probe(self, spec: PoolSpec, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        return [f"{self.name} is attached to, not brought up: {self._hint}"]

    def up(self, spec: PoolSpec, lease: str, runner: Runner, *, deadline_s: float) -> Pool:
        self._refuse()

    def status(self, pool: Pool, runner: Runner, *, deadline_s: float) -> dict[str, str]:
        self._refuse()

    def access(self, pool: Pool, node: str) -> Access:
        self._refuse()

    def heal(self, pool: Pool, runner: Runner, *, deadline_s: float) -> list[str]:
        self._refuse()

    def down(
        self,
        spec: PoolSpec,
        runner: Runner,
        *,
        lease: str,
        keep_data: bool,
        deadline_s: float,
    ) -> dict[str, dict[str, Any]]:
        self._refuse()

    def audit(self, spec: PoolSpec, runner: Runner, *, deadline_s: float) -> dict[str, list[str]]:
        self._refuse()


def aistore(settings: Mapping[str, Any], environment: Mapping[str, str]) -> AttachedEngine:  # noqa: ARG001
    """The entry point `penstock.engines: aistore`."""
    hint = "AWS_ENDPOINT_URL_S3=http://PROXY:51080/s3, and s3://BUCKET/ as source or destination"
    return AttachedEngine("aistore", hint, settings)


def juicefs(settings: Mapping[str, Any], environment: Mapping[str, str]) -> AttachedEngine:  # noqa: ARG001
    """The entry point `penstock.engines: juicefs`."""
    return AttachedEngine("juicefs", "--engine mount --disk /MOUNTED/JUICEFS on nodes that have it mounted", settings)
