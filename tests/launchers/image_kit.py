# SPDX-License-Identifier: Apache-2.0
"""Builds a Charliecloud image without a download: an empty root folder into which this machine's /usr is
bind-mounted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MARK = "inside"
PROGRAMS = "/usr:/usr"


def make_image(folder: Path) -> Path:
    """A folder that ch-run accepts as an image; only this root has `/inside`. PROGRAMS must be bound into it."""
    for name in ("usr", "etc", "dev", "proc", "sys", "tmp", "run", "home", "root", "mnt/0", "data"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("hosts", "resolv.conf", "passwd", "group"):
        (folder / "etc" / name).touch()
    (folder / MARK).touch()
    return folder
