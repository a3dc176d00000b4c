// SPDX-License-Identifier: Apache-2.0
//! The opened source of a stage.

use std::sync::Arc;

use penstock_store::{AdaptiveLimit, LimitStore, Mirrors, Opened, Store, StoreSettings};
use penstock_types::{Key, Metrics, Result, Url};

/// The opened source: its store, and the key prefix that the manifest's keys are relative to.
pub(crate) struct Source {
    pub store: Arc<dyn Store>,
    pub prefix: Key,
    pub url: String,
    /// The mirrors, if the source has several stores.
    pub mirrors: Option<Mirrors>,
}

/// True if two URLs name the same folder. The URL of a listing of a Hub dataset also contains the commit.
pub(crate) fn is_same_folder(one: &str, other: &str) -> bool {
    let [one_url, other_url] = [one, other].map(|url| url.parse::<Url>().map(|url| url.without_revision()));
    one == other || one_url.is_ok_and(|one_url| other_url.is_ok_and(|other_url| one_url == other_url))
}

impl Source {
    /// Wraps a source that was opened with `folder_url`. `url` is the folder that the manifest's keys are relative to.
    /// If the source is a single object, `url` is the folder of that object.
    pub fn of(opened: Opened, folder_url: &str, url: String) -> Self {
        let prefix = opened.prefix.as_bytes();
        let prefix = if is_same_folder(&url, folder_url) {
            opened.prefix.as_folder()
        } else {
            // The source is one object: keys are relative to its folder.
            Key::new(prefix[..prefix.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1)].to_vec())
        };
        Self { store: opened.store, prefix, url, mirrors: None }
    }

    /// Applies the rate and concurrency limits of `governor` to the store.
    pub fn governed(self, governor: &Arc<AdaptiveLimit>) -> Self {
        Self { store: Arc::new(LimitStore::new(self.store, governor.clone())), ..self }
    }

    /// Reopens the source folder of an earlier stage.
    pub fn again(url: &str, settings: &StoreSettings, metrics: Arc<Metrics>) -> Result<Self> {
        let parsed: Url = url.parse()?;
        let opened = penstock_store::open(&parsed, settings, metrics)?;
        Ok(Self::of(opened, url, url.to_owned()))
    }
}
