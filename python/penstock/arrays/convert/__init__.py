# SPDX-License-Identifier: Apache-2.0
"""Lossless, resumable conversion of volumes between SEG-Y, Zarr and HDF5, block by block."""
