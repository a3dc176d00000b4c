// SPDX-License-Identifier: Apache-2.0
//! Volumes on any store: SEG-Y files by the byte, arrays in chunks (Zarr, HDF5) by ranges, and Zarr chunks to write.
//!
//! Owns the layout of SEG-Y, the plan of ranged reads, and the copies between chunks and boxes. Zarr's codecs are
//! encoded by `zarrs`; HDF5's metadata is read by h5py, in Python.

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
