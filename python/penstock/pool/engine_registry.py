# SPDX-License-Identifier: Apache-2.0
"""Finds and loads engine plug-ins by name. Contacts no node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import env, plugins
from penstock.errors import Unsupported
from penstock.protocols import Engine

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GROUP", "load", "names"]

GROUP = "penstock.engines"
# Services that outlive a job. Penstock uses such a service if it runs, but does not start it. Each service has a hint
# for the user.
_SERVICES = {
    "aistore": "set AWS_ENDPOINT_URL_S3=http://PROXY:51080/s3, and use s3://BUCKET/ as source or destination",
    "juicefs": "use --engine mount --disk /MOUNTED/JUICEFS on nodes that have it mounted",
}


def names() -> list[str]:
    """Names of the installed engines, sorted."""
    return plugins.names(GROUP)


def load(name: str, settings: Mapping[str, Any]) -> Engine:
    """Load an engine by its name, with its settings.

    Raises:
        ConfigError: The engine is not installed, or it rejects a setting.
        Unsupported: The name is a service that Penstock uses but does not start.
    """
    if name in _SERVICES:
        raise Unsupported(f"engine {name}: Penstock uses a running service and does not start it", hint=_SERVICES[name])
    made: Engine = plugins.load(GROUP, name, Engine, lambda factory: factory(dict(settings), env.read()))
    return made
