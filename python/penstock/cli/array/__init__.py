# SPDX-License-Identifier: Apache-2.0
"""`penstock array`: operations on volumes in any store. One module per subcommand, loaded when it is called."""

from __future__ import annotations

import click

from penstock.cli.group import LazyGroup

__all__ = ["VERBS", "command"]

# Subcommands and their descriptions. A table, so that `penstock array --help` does not import any of them.
VERBS: dict[str, str] = {
    "info": "Describe a volume; rank the geometries that a SEG-Y file's headers allow.",
    "convert": "Convert between SEG-Y, Zarr and HDF5 without loss, resumable.",
    "verify": "Certify that a converted volume can be converted back to the same bytes.",
    "diff": "Compare the samples and coordinates of two volumes.",
    "slice": "Write a slice as a picture, a NumPy file or a SEG-Y file.",
    "create": "Create a synthetic volume for experiments.",
    "rtm": "Image a volume by reverse time migration, shot by shot.",
}


@click.group("array", cls=LazyGroup, package=__name__, verbs=VERBS)
def command() -> None:
    """Open, convert and image volumes: SEG-Y, HDF5, NetCDF-4, Zarr and MDIO, on any store."""
