# SPDX-License-Identifier: Apache-2.0
"""`pbs`: runs commands on the nodes of this PBS job, through ssh or mpirun. The job's node file lists the nodes.

PBS's own `pbsdsh` and `pbs_tmrsh` are not used, because they write the ranks' output to the job's files, where the
caller cannot read the output. Settings: `via` (`ssh` or `mpi`, [ssh]), and all settings of that launcher except
`nodes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.launchers import mpi, ssh
from penstock.launchers._shared.allocation import pbs_hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.protocols import Launcher

__all__ = ["launcher"]

_VIA: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, str]], Launcher]] = {
    "ssh": ssh.launcher,
    "mpi": mpi.launcher,
}


def launcher(settings: Mapping[str, Any], environment: Mapping[str, str]) -> Launcher:
    """Entry point `penstock.launchers: pbs`."""
    given = dict(settings)
    via = given.pop("via", "ssh")
    if via not in _VIA:
        raise ConfigError(f"launcher pbs: via = {via!r} is neither ssh nor mpi")
    if "nodes" in given:
        raise ConfigError(
            "launcher pbs: --nodes is not supported; the nodes of the PBS job are used", hint="omit --nodes"
        )
    return _VIA[via]({**given, "nodes": ",".join(pbs_hosts(environment))}, environment)
