# SPDX-License-Identifier: Apache-2.0
"""Optional packages, and the extra that installs each: `pip install 'penstock[torch]'`. Imports none of them."""

from __future__ import annotations

from importlib.util import find_spec

from penstock.errors import MissingPackage

__all__ = ["PACKAGES", "require"]

PACKAGES = {
    "numpy": ("numpy",),
    "torch": ("torch", "numpy"),
    "jax": ("jax", "numpy"),
    "tensorflow": ("tensorflow", "numpy"),
    "fsspec": ("fsspec",),
    "hdf5": ("h5py",),
    "report": ("altair", "vl_convert"),
    "ssh": ("asyncssh",),
    "dlio": ("yaml",),
    "demo": ("torch", "numpy", "altair", "vl_convert"),
}
"""The modules of each extra, as they are imported. A test compares them with pyproject.toml."""


def require(what: str, extra: str) -> None:
    """Checks that an extra is installed.

    Args:
        what: The name of what needs it, for the message: `penstock.torch`.
    Raises:
        MissingPackage: A package of the extra is not installed; the hint has the command that installs all of it.
    """
    for name in PACKAGES[extra]:
        if find_spec(name) is None:
            raise MissingPackage(
                f"{what} needs {name}, which is not installed", hint=f"pip install 'penstock[{extra}]'", name=name
            )
