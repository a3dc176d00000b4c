# SPDX-License-Identifier: Apache-2.0
"""Compiles the small MPI program of the tests of `bench app`; see app_kit.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_LIBRARY = "libmpi.so.40"
FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")


def build(folder: Path) -> Path:
    """The program, linked with Open MPI 4 of this machine."""
    library = next((Path(each, _LIBRARY) for each in FOLDERS if Path(each, _LIBRARY).exists()), None)
    if library is None:
        pytest.fail(f"{_LIBRARY} is not here; `make setup-peers` installs Open MPI", pytrace=False)
    made = folder / "app_kit"
    source = Path(__file__).with_name("app_kit.c")
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-o", str(made), str(source), str(library)], check=True)
    return made
