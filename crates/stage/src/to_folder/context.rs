// SPDX-License-Identifier: Apache-2.0
//! Context that all downloads of a stage share.

use crate::dest_dir::DestDir;
use crate::plan::StageOptions;
use crate::source_reader::SourceReader;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

/// Context that all downloads of a stage share.
pub(crate) struct DownloadContext {
    pub reader: SourceReader,
    pub dest_dir: Arc<DestDir>,
    pub parts: Arc<OwnedFd>,
    pub cores: Arc<Semaphore>,
    pub threads: usize,
    pub max_whole: u64,
    pub buffers: Mutex<Vec<Vec<u8>>>,
    /// True if the stage has enough objects to keep the store busy with one read per object.
    pub is_busy: bool,
    /// True if writes of large files bypass the page cache.
    pub is_direct: bool,
    pub options: StageOptions,
}
