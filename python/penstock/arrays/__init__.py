# SPDX-License-Identifier: Apache-2.0
"""Volumes on any store: `open` reads SEG-Y, HDF5, NetCDF-4, Zarr and MDIO.

volume = penstock.arrays.open("s3://surveys/north.zarr")
section = volume[120]                                  # NumPy indexing; only the needed chunks are read
"""

from penstock.arrays.array import Array, Coordinate
from penstock.arrays.opening import open  # noqa: A004 - the field's word
from penstock.arrays.writer import ArrayWriter, create_array, open_writer

__all__ = ["Array", "ArrayWriter", "Coordinate", "create_array", "open", "open_writer"]
