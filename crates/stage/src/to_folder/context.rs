// SPDX-License-Identifier: Apache-2.0
//! Context that all downloads of a stage share.

use crate::dest_dir::DestDir;
use crate::plan::StageOptions;
use crate::source_reader::SourceReader;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

/// Fetches of an object whose bytes keep arriving damaged, and damaged differently: the line is at fault, not the object.
pub(crate) const DAMAGED_MOST: u32 = 32;

/// Context that all downloads of a stage share.
pub(crate) struct DownloadContext {
    pub reader: SourceReader,
    pub dest_dir: Arc<DestDir>,
    pub parts: Arc<OwnedFd>,
    pub cores: Arc<Semaphore>,
    pub threads: usize,
    pub whole_most: u64,
    pub buffers: Mutex<Vec<Vec<u8>>>,
    /// There are objects enough to keep the store busy with one read each.
    pub is_busy: bool,
    /// Large files are written past the page cache.
    pub is_direct: bool,
    pub options: StageOptions,
}
