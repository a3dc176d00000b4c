# SPDX-License-Identifier: Apache-2.0
"""Checks that crates depend on each other only in the allowed direction (DESIGN: direction rules 1 and 2).

Cargo already rejects cycles. Only dependencies that are linked into the product count: a crate's tests may use any
crate as a peer.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAY_KNOW", "breaches_of", "find"]

_ALL = {"types", "store", "codec", "record", "dataset", "stage", "feed", "bench", "array", "emulator"}
MAY_KNOW = {
    "types": set(),
    "store": {"types"},
    "codec": {"types"},
    "record": {"types", "codec"},
    "dataset": {"types", "codec", "store", "record"},
    "stage": {"types", "codec", "store", "record", "dataset"},
    "feed": {"types", "codec", "store", "record", "dataset"},
    "bench": {"types", "codec", "store", "record", "dataset"},
    "array": {"types", "codec", "store", "record"},
    "mount": {"types", "codec", "store", "record", "dataset", "feed"},
    "emulator": {"types", "codec", "store"},
    "python": _ALL,
}


def find(root: Path) -> list[str]:
    result = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return breaches_of(json.loads(result)["packages"])


def breaches_of(packages: list[dict[str, object]]) -> list[str]:
    """One line for each dependency in the wrong direction, from the output of `cargo metadata`."""
    breaches = []
    for package in packages:
        crate = str(package["name"]).removeprefix("penstock-")
        if crate not in MAY_KNOW:
            breaches.append(f"crates/{crate}: no direction rule for it; add it to DESIGN and to {__name__}")
            continue
        linked = [d["name"] for d in package["dependencies"] if d["kind"] != "dev"]  # type: ignore[attr-defined]
        ours = {name.removeprefix("penstock-") for name in linked if name.startswith("penstock-")}
        breaches += [f"crates/{crate} may not know crates/{other}" for other in sorted(ours - MAY_KNOW[crate])]
        if crate != "python":
            breaches += [f"crates/{crate} may not know Python ({name})" for name in linked if name.startswith("pyo3")]
    return breaches
