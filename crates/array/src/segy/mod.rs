// SPDX-License-Identifier: Apache-2.0
//! SEG-Y, byte for byte: layout of a file, sample formats, reads and writes of traces.
//!
//! Owns the bytes. Names of header fields and the geometry of a survey are Python's (`penstock.arrays.segy`).

mod ibm;
mod layout;
mod read;
mod sample_format;
mod write;

pub use ibm::{f32_to_ibm, ibm_to_f32, ibm_to_f32_exact};
pub use layout::{Layout, Overrides};
pub use read::{IbmException, SegyReader, TraceBuffers};
pub use sample_format::{ByteOrder, SampleFormat, decode, encode};
pub use write::Traces;

/// Bytes of the textual file header.
pub const TEXT_HEADER: usize = 3200;

/// Bytes of the binary file header.
pub const BINARY_HEADER: usize = 400;

/// Bytes of a trace header.
pub const TRACE_HEADER: usize = 240;
