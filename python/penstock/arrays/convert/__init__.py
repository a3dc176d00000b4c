# SPDX-License-Identifier: Apache-2.0
"""Lossless conversion between SEG-Y, Zarr and HDF5: sources and destinations of volumes, resumable, cell by cell."""
