# SPDX-License-Identifier: Apache-2.0
"""Optional packages and the extras that install them: `pip install 'penstock[torch]'`. Imports none of these
packages.
"""

from __future__ import annotations

from importlib.util import find_spec

from penstock.errors import MissingPackage

__all__ = ["PACKAGES", "require"]

PACKAGES = {
    "numpy": ("numpy",),
    "torch": ("torch", "numpy"),
    "vision": ("torch", "torchvision", "numpy"),
    "jax": ("jax", "numpy"),
    "tensorflow": ("tensorflow", "numpy"),
    "fsspec": ("fsspec",),
    "hdf5": ("h5py",),
    "parquet": ("pyarrow", "numpy"),
    "report": ("altair", "vl_convert"),
    "images": ("PIL", "numpy"),
    "ssh": ("asyncssh",),
    "explain": (),
    "text": ("tokenizers", "numpy"),
    "video": ("av", "numpy"),
    "dlio": ("yaml",),
    "arrays": ("numpy", "h5py", "matplotlib", "xarray", "dask"),
    "xarray": ("xarray", "numpy"),
    "dask": ("dask", "numpy"),
    "plot": ("matplotlib", "numpy"),
    "mpi": ("mpi4py", "numpy"),
    "zarr": ("zarr", "fsspec"),
    "zfp": ("zarr", "fsspec", "zfpy"),
    "rtm": ("devito", "pyrevolve"),
    "plan": ("simpy",),
    "demo": ("torch", "numpy", "altair", "vl_convert"),
}
"""Modules of each extra, by import name. A test compares them with pyproject.toml. py-spy is a program, not a module."""


def require(what: str, extra: str) -> None:
    """Check that an extra is installed.

    Args:
        what: Name of the feature that needs the extra, for the error message, such as `penstock.torch`.
    Raises:
        MissingPackage: A package of the extra is not installed; the hint contains the command that installs the extra.
    """
    for name in PACKAGES[extra]:
        if find_spec(name) is None:
            raise MissingPackage(
                f"{what} requires {name}, which is not installed", hint=f"pip install 'penstock[{extra}]'", name=name
            )
