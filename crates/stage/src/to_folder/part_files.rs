// SPDX-License-Identifier: Apache-2.0
//! The two files of a partly downloaded object: its data, and the list of parts that have arrived.

use crate::to_folder::write_buffer::WriteBuffer;
use penstock_store::WRITE_BYTES;
use penstock_store::owned::OwnedFile;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// A part that has been written to the data file.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Part {
    pub at: u64,
    pub crc: u32,
}

/// A partly downloaded object with its two open files.
pub(crate) struct PartialDownload {
    pub(super) data: Arc<OwnedFile>,
    /// The data file, opened a second time to bypass the page cache.
    pub(super) direct: Option<File>,
    pub(super) state: File,
    pub(super) state_name: String,
}

/// Names of both files. The lock on the data file covers both files.
#[derive(Debug, Clone)]
pub(crate) struct PartFiles {
    data: Arc<OwnedFile>,
    state_name: String,
}

impl PartFiles {
    /// Removes both files. Removes the list first, because no later run trusts data without a list.
    pub(super) fn remove(&self) {
        self.data.remove_companion(&self.state_name);
        self.data.remove();
    }

    /// Removes both files, but retains the data file if this file is `kept`.
    pub fn remove_all_but(&self, kept: &Arc<OwnedFile>) {
        match Arc::ptr_eq(&self.data, kept) {
            true => self.data.remove_companion(&self.state_name),
            false => self.remove(),
        }
    }
}

impl PartialDownload {
    pub(super) fn files(&self) -> PartFiles {
        PartFiles { data: self.data.clone(), state_name: self.state_name.clone() }
    }

    /// Writes a piece at `offset`. If the piece completes a part, also adds the part to the list.
    pub fn write(&self, piece: &WriteBuffer, offset: u64, part: Option<Part>) -> std::io::Result<()> {
        match &self.direct {
            Some(direct) if piece.is_aligned(offset) => direct.write_all_at(piece.bytes(), offset)?,
            _ => {
                for (at, bytes) in (offset..).step_by(WRITE_BYTES).zip(piece.bytes().chunks(WRITE_BYTES)) {
                    self.data.file().write_all_at(bytes, at)?;
                }
            }
        }
        let Some(part) = part else { return Ok(()) };
        let mut text = serde_json::to_vec(&part)?;
        text.push(b'\n');
        // A single write call in append mode, so that lines of several threads do not mix.
        (&self.state).write_all(&text)
    }
}
