# SPDX-License-Identifier: Apache-2.0
"""Proof that a folder, a file, a mount or a process is Penstock's, and the only code that removes, unmounts or signals one.

Each function states its proof; docs/concepts/ownership.md lists the callers. Anything that is not provably Penstock's
is left unchanged, and NotOwned is raised. Standard library only: `penstock.node_program` sends this package to nodes
with the programs that need it.
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
    "signal_process",
    "start_time",
    "temporary_folder",
    "unmount_device",
    "wait_unreaped",
]
