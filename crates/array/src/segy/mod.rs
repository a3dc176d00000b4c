// SPDX-License-Identifier: Apache-2.0
//! SEG-Y files: the file layout, sample formats, and reads and writes of traces.
//!
//! This module handles bytes only. Python (`penstock.arrays.segy`) handles the names of header fields and the geometry
//! of a survey.

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

/// Size of the textual file header in bytes.
pub const TEXT_HEADER: usize = 3200;

/// Size of the binary file header in bytes.
pub const BINARY_HEADER: usize = 400;

/// Size of a trace header in bytes.
pub const TRACE_HEADER: usize = 240;
