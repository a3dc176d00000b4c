// SPDX-License-Identifier: Apache-2.0
//! Existing objects in a destination store, and the work that remains for a stage.

use std::collections::{HashMap, HashSet};

use futures::TryStreamExt;
use penstock_codec::Codec;
use penstock_store::Meta;
use penstock_types::{Deadline, Error, Key, Result};

use crate::journal::{Journal, Line};
use crate::plan::{Item, StageOptions};
use crate::progress::Progress;
use crate::to_folder::manifests::Document;
use crate::to_store::manifests::is_manifest;
use crate::to_store::target::Target;
use crate::to_store::upload_types::UploadItem;
use penstock_dataset::manifest::{Entry, Manifest};

/// Existing objects that have the target name of an object of this stage, and the names of existing manifests.
pub(crate) struct Existing {
    pub objects: HashMap<Key, Meta>,
    pub own: Vec<Key>,
}

pub(crate) async fn existing(to: &Target, items: &[Item], deadline: Deadline) -> Result<Existing> {
    let wanted: HashSet<&[u8]> = items.iter().map(|item| item.target.as_bytes()).collect();
    let mut found = Existing { objects: HashMap::new(), own: Vec::new() };
    if !to.store.capabilities().list {
        return Ok(found);
    }
    let mut listing = to.store.list(&to.prefix, None, deadline);
    loop {
        match listing.try_next().await {
            Ok(Some(meta)) => {
                let Some(key) = meta.key.strip_prefix(&to.prefix) else { continue };
                if is_manifest(&key) {
                    found.own.push(key);
                } else if wanted.contains(key.as_bytes()) {
                    found.objects.insert(key, meta);
                }
            }
            // If the store creates folders on the first write, an empty destination gives `NotFound`. A missing bucket
            // gives an error for the first object.
            Err(Error::NotFound { .. }) if to.store.root().authority.is_empty() => break,
            Ok(None) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Objects that earlier runs finished, and objects that remain.
pub(crate) struct WorkList {
    pub journal: Journal,
    pub missing: Vec<UploadItem>,
    pub done: Vec<Item>,
}

impl WorkList {
    #[expect(clippy::too_many_arguments, reason = "one caller")]
    pub fn sort(
        &mut self,
        items: Vec<Item>,
        manifest: &Manifest,
        mut existing: HashMap<Key, Meta>,
        recorded: &[Document],
        source: &str,
        options: &StageOptions,
        progress: &Progress,
    ) -> Result<()> {
        // If an object has no line in the local journal, its entry in the destination's manifest is used.
        let mut known: HashMap<&Key, &Entry> = HashMap::new();
        for document in recorded.iter().filter(|document| document.manifest.source.as_deref() == Some(source)) {
            for entry in &document.manifest.objects {
                known.entry(&entry.key).or_insert(entry);
            }
        }
        let mut adopted = Vec::new();
        for item in items {
            let entry = &manifest.objects[item.object];
            let there = existing.remove(&item.target);
            let is_ours = |line: &&Line| {
                there.as_ref().is_some_and(|there| {
                    there.size == line.size
                        && (line.version.is_none() || there.version.is_none() || there.version == line.version)
                })
            };
            // The manifest may be newer than the local journal, because another machine may have repaired objects that
            // this machine had sent.
            let journaled = self.journal.line(&item.target);
            let recorded = || known.get(&item.target).and_then(|entry| Line::of_recorded(entry));
            let journaled = journaled.filter(|line| is_ours(&line));
            let is_journaled = journaled.is_some();
            let line = journaled.or_else(recorded);
            let ours = line.as_ref().filter(is_ours);
            let is_done = ours.is_some_and(|line| line.is_of(entry) && line.origin.transform == options.transform_id());
            if is_done {
                progress.skip(entry.size);
                adopted.extend(line.filter(|_| !is_journaled));
                self.done.push(item);
            } else {
                let is_ours = ours.is_some();
                self.missing.push(UploadItem { item, existing: there, is_ours });
            }
        }
        // Copy the adopted manifest entries to the local journal, because the final manifest is created from the
        // journal.
        if !adopted.is_empty() {
            for (line, place) in adopted.iter().zip(self.journal.append(&adopted)?) {
                self.journal.remember(&line.target, place);
            }
        }
        Ok(())
    }

    /// Checks the existing objects from other sources before the first byte is sent. Returns an error if an existing
    /// object has a size that the copy cannot have.
    pub fn refuse_foreign(&self, manifest: &Manifest, to: &Target, source: &str, options: &StageOptions) -> Result<()> {
        if options.overwrite {
            return Ok(());
        }
        let mut foreign = self.missing.iter().filter(|upload| {
            let is_copy = upload.item.decode == Codec::None && options.compression.is_none() && !options.decompress;
            let size = manifest.objects[upload.item.object].size;
            !upload.is_ours && upload.existing.as_ref().is_some_and(|there| is_copy && there.size != size)
        });
        let Some(first) = foreign.next() else { return Ok(()) };
        let others = match foreign.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Err(Error::Precondition {
            place: format!("{}{}", to.url, first.item.target),
            reason: format!("an object that was not staged from {source} already exists{others}"),
        })
    }
}
