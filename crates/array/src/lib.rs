// SPDX-License-Identifier: Apache-2.0
//! Seismic volumes on any store: reads and writes SEG-Y traces, reads boxes of chunked arrays (Zarr, HDF5), and writes
//! Zarr chunks.
//!
//! Owns the SEG-Y file layout, the planning of ranged reads, and the copies between chunks and boxes. `zarrs` encodes
//! Zarr chunks. h5py reads HDF5 metadata, in Python.

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
