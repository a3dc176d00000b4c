// SPDX-License-Identifier: Apache-2.0
//! Types for an upload: the object, the context that all uploads share, the transform, and the result.

use crate::dest_dir::DestDir;
use crate::plan::{Item, StageOptions};
use crate::source_reader::SourceReader;
use crate::to_store::target::Target;
use penstock_codec::Codec;
use penstock_store::owned::OwnedFile;
use penstock_store::{Meta, UploadId};
use penstock_types::{Digest, Key};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

/// An object to send, and the existing object with the same name, if any.
#[derive(Debug, Clone)]
pub(crate) struct UploadItem {
    pub item: Item,
    pub existing: Option<Meta>,
    /// True if an earlier stage of this source wrote the existing object.
    pub is_ours: bool,
}

/// Context that all uploads of a stage share.
pub(crate) struct UploadContext {
    pub reader: SourceReader,
    pub to: Target,
    pub state: Arc<OwnedFd>,
    pub dest_dir: Arc<DestDir>,
    pub cores: Arc<Semaphore>,
    pub threads: usize,
    pub options: StageOptions,
    /// Open uploads, by the names of their journals.
    pub open: Mutex<HashMap<String, (Key, UploadId)>>,
}

/// Transform of an object's content, chosen from its first bytes.
#[derive(Debug, Clone)]
pub(crate) struct Transform {
    pub item: Item,
    pub compression: Option<crate::compress::Compression>,
    /// Content-Encoding of the written object.
    pub encoding: Option<String>,
    /// Content-Encoding of the object that was read.
    pub source_encoding: Option<String>,
}

impl Transform {
    pub fn is_copy(&self) -> bool {
        self.item.decode == Codec::None && self.compression.is_none()
    }
}

/// A written object, with the facts for its journal line.
pub(crate) struct Written {
    pub change: Transform,
    pub stored: Vec<Digest>,
    pub checked: Vec<Digest>,
    pub size: u64,
    pub digests: Vec<Digest>,
    pub meta: Meta,
    /// Upload journal, which can be removed once the object is in the journal of the stage.
    pub leftover: Option<Arc<OwnedFile>>,
}
