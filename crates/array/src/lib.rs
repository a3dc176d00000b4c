// SPDX-License-Identifier: Apache-2.0
//! Reads and writes volumes on any store: reads SEG-Y files and chunked arrays (Zarr, HDF5), writes SEG-Y and Zarr.
//!
//! Owns the layout of SEG-Y, the plan of ranged reads, and the copies between chunks and boxes. The `zarrs` crate
//! encodes Zarr chunks. h5py reads HDF5 metadata, in Python.

mod chunked;
mod fetch;
mod out_buffer;
mod region;
pub mod segy;
mod strided;
mod zarr_writer;

pub use chunked::{ChunkRef, ChunkTable, ChunkedArray};
pub use fetch::{FetchStats, MergePolicy};
pub use out_buffer::OutBuffer;
pub use region::Region;
pub use strided::StridedBytes;
pub use zarr_writer::ZarrWriter;
