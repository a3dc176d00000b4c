// SPDX-License-Identifier: Apache-2.0
//! The opened source of a stage.

use std::sync::Arc;

use penstock_store::{AdaptiveLimit, LimitStore, Mirrors, Opened, Store, StoreSettings};
use penstock_types::{Key, Metrics, Result, Url};

/// The opened source: its store, and the prefix that the manifest's keys are relative to.
pub(crate) struct Source {
    pub store: Arc<dyn Store>,
    pub prefix: Key,
    pub url: String,
    /// The mirrors, if the source consists of several stores.
    pub mirrors: Option<Mirrors>,
}

impl Source {
    /// Source opened with `folder_url`, with keys as in a manifest of `url` (that folder, or the folder of one object).
    pub fn of(opened: Opened, folder_url: &str, url: String) -> Self {
        let prefix = opened.prefix.as_bytes();
        let prefix = if url == folder_url {
            opened.prefix.as_folder()
        } else {
            // One object: keys are relative to its folder.
            Key::new(prefix[..prefix.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1)].to_vec())
        };
        Self { store: opened.store, prefix, url, mirrors: None }
    }

    /// Limits the requests in flight to what the governor allows.
    pub fn governed(self, governor: &Arc<AdaptiveLimit>) -> Self {
        Self { store: Arc::new(LimitStore::new(self.store, governor.clone())), ..self }
    }

    /// Opens the folder that an earlier stage read from.
    pub fn again(url: &str, settings: &StoreSettings, metrics: Arc<Metrics>) -> Result<Self> {
        let parsed: Url = url.parse()?;
        let opened = penstock_store::open(&parsed, settings, metrics)?;
        Ok(Self::of(opened, url, url.to_owned()))
    }
}
