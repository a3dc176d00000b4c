# SPDX-License-Identifier: Apache-2.0
"""Removes folders and files, unmounts mounts and signals processes, after proof that they belong to Penstock.

No other code of Penstock does these operations. Each function states its proof; docs/concepts/ownership.md lists the
callers. If the proof fails, nothing is changed and NotOwned is raised. Uses only the standard library, because
`penstock.node_program` sends this package to nodes with the programs that need it.
"""

from __future__ import annotations

from penstock.ownership.folders import (
    LEASE,
    NotOwned,
    OwnedFolder,
    check_parents,
    identity_of,
    lease_of,
    leased,
    remove_below,
    remove_empty_folder,
    remove_file,
    remove_flat_folder,
    remove_made,
    temporary_folder,
)
from penstock.ownership.mounts import detach_loop, mounts_below, unmount_device
from penstock.ownership.processes import (
    end_child,
    end_processes,
    find_processes,
    has_ended,
    has_mark,
    signal_child,
    signal_on_parent_death,
    signal_process,
    start_time,
    wait_unreaped,
)

__all__ = [
    "LEASE",
    "NotOwned",
    "OwnedFolder",
    "check_parents",
    "detach_loop",
    "end_child",
    "end_processes",
    "find_processes",
    "has_ended",
    "has_mark",
    "identity_of",
    "lease_of",
    "leased",
    "mounts_below",
    "remove_below",
    "remove_empty_folder",
    "remove_file",
    "remove_flat_folder",
    "remove_made",
    "signal_child",
    "signal_on_parent_death",
    "signal_process",
    "start_time",
    "temporary_folder",
    "unmount_device",
    "wait_unreaped",
]
