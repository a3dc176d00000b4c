// SPDX-License-Identifier: Apache-2.0
//! Manifests in a destination store. A stage reads the manifests at the start, and writes one at the end.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_codec::Codec;
use penstock_store::{Meta, ObjectRef, Precondition, PutOptions, read_whole};
use penstock_types::{Deadline, Error, Key, Result, unix_now};
use xxhash_rust::xxh3::xxh3_64;

use crate::blocking::blocking;
use crate::journal::{Journal, Line};
use crate::plan::Item;
use crate::to_folder::manifests::{Document, is_manifest_name, latest, manifest_name};
use crate::to_store::target::Target;
use penstock_dataset::manifest::{Entry, Manifest, ManifestFormat};

/// Maximum number of attempts to write a manifest while other stages write a manifest with the same name.
const MAX_ATTEMPTS: u32 = 8;

pub(crate) fn is_manifest(key: &Key) -> bool {
    key.as_bytes().strip_prefix(b".penstock/").is_some_and(is_manifest_name)
}

/// Reads the manifests with these names in a store; returns those of the last launch of each source.
pub(crate) async fn documents(to: &Target, names: Vec<Key>, deadline: Deadline) -> Result<Vec<Document>> {
    Ok(latest(read(to, names, deadline).await?))
}

/// Reads the manifests with these names; returns an error if a manifest does not parse.
async fn read(to: &Target, names: Vec<Key>, deadline: Deadline) -> Result<Vec<Document>> {
    let mut found = Vec::new();
    for name in names {
        let object = ObjectRef::current(to.key(&name));
        let (meta, bytes) = match read_whole(&*to.store, &object, None, deadline).await {
            Ok(read) => read,
            Err(Error::NotFound { .. }) => continue, // deleted after it was listed
            Err(error) => return Err(error),
        };
        let place = format!("{}{name}", to.url);
        let document = blocking(move || {
            let name = name.as_bytes().strip_prefix(b".penstock/").unwrap_or(name.as_bytes());
            Ok(Document::parse(name, &bytes, &place))
        });
        if let Some(document) = document.await? {
            let mut document = document?;
            document.version = meta.version;
            found.push(document);
        }
    }
    Ok(found)
}

/// Names of the manifests in a destination.
pub(crate) async fn manifest_names(to: &Target, deadline: Deadline) -> Result<Vec<Key>> {
    let prefix = to.key(&Key::from(".penstock/manifest"));
    let listed: Result<Vec<Meta>> = to.store.list(&prefix, None, deadline).try_collect().await;
    let names = listed?.into_iter().filter_map(|meta| meta.key.strip_prefix(&to.prefix));
    Ok(names.filter(is_manifest).collect())
}

/// Builds the manifest of the destination's current content.
pub(crate) fn staged_manifest<'a>(
    url: &str,
    journal: &Journal,
    source: &Manifest,
    items: impl Iterator<Item = &'a Item>,
) -> Manifest {
    let objects = items.filter_map(|item| {
        let line = journal.line(&item.target)?;
        let from = &source.objects[item.object];
        line.is_of(from).then(|| {
            let entry = Entry::new(item.target.clone(), line.size);
            let is_kept = line.origin.decoded == Codec::None;
            Entry {
                version: line.version.clone(),
                modified_s: Some(line.mtime_ns as f64 / 1e9),
                digests: line.digests.clone(),
                records: from.records,
                encoding: match line.origin.encoded {
                    Codec::None => line.origin.encoding.clone().filter(|_| is_kept),
                    codec => Some(codec.name().to_owned()),
                },
                codec: if line.origin.encoded == Codec::None { entry.codec } else { line.origin.encoded },
                format: from.format,
                origin: Some(Box::new(line.origin.clone())),
                ..entry
            }
        })
    });
    Manifest::new(url.to_owned(), objects.collect())
}

/// Writes the manifest of a share (`0-of-4`) to the destination, unless the same manifest exists there. Returns its
/// URL.
///
/// Never replaces a manifest of another source. If such a manifest already has the share's name, the new name gets a
/// suffix: a digest of the source of the new manifest. Conditional writes prevent stages that end at the same time from
/// overwriting each other's manifest.
pub(crate) async fn write_manifest(to: &Target, staged: Manifest, share: &str, deadline: Deadline) -> Result<String> {
    let of_source = format!("{share}-{:016x}", xxh3_64(staged.source.as_deref().unwrap_or_default().as_bytes()));
    let path = |node: &str, format: ManifestFormat| format!(".penstock/{}", manifest_name(node, format));
    let key = |node: &str, format: ManifestFormat| to.key(&Key::from(path(node, format).as_str()));
    let nodes = [share, &of_source];
    let format = ManifestFormat::for_objects(staged.objects.len());
    let staged = Arc::new(staged);
    let mut written: Option<Bytes> = None;
    for _ in 0..MAX_ATTEMPTS {
        let mut names = manifest_names(to, deadline).await?;
        names.retain(|name| {
            let is_of = |format| nodes.iter().any(|node| *name == Key::from(path(node, format).as_str()));
            is_of(ManifestFormat::Json) || is_of(ManifestFormat::Parquet)
        });
        let existing = read(to, names, deadline).await?;
        let is_taken = existing.iter().any(|other| other.node == share && other.manifest.source != staged.source);
        let node = nodes[usize::from(is_taken)];
        let mine: Vec<&Document> = existing.iter().filter(|document| document.node == node).collect();
        let is_same = |document: &&&Document| {
            let Manifest { objects, source, failed, .. } = &document.manifest;
            (objects, source, failed) == (&staged.objects, &staged.source, &staged.failed)
        };
        if let Some(document) = mine.iter().find(is_same) {
            return Ok(format!("{}{}", to.url, path(node, document.format)));
        }
        let precondition = match mine.iter().find(|document| document.format == format) {
            _ if !to.store.capabilities().preconditions => Precondition::None,
            None => Precondition::Absent,
            Some(document) => document.version.clone().map_or(Precondition::None, Precondition::Matches),
        };
        let bytes = match &written {
            Some(bytes) => bytes.clone(),
            None => {
                let staged = staged.clone();
                let bytes = blocking(move || match format {
                    ManifestFormat::Json => staged.to_json(),
                    ManifestFormat::Parquet => staged.to_parquet(),
                });
                written.insert(bytes.await?.into()).clone()
            }
        };
        let options = PutOptions { precondition, ..PutOptions::default() };
        match to.store.put(&key(node, format), vec![bytes], &options, deadline).await {
            // Another stage wrote an object with this name after the listing.
            Err(Error::Precondition { .. }) => continue,
            put => put?,
        };
        // An earlier stage with more or fewer objects may have left a manifest in the other format.
        let others = mine.iter().filter(|document| document.format != format);
        let others: Vec<Key> = others.map(|document| key(node, document.format)).collect();
        if !others.is_empty() {
            to.store.delete(&others, deadline).await?;
        }
        return Ok(format!("{}{}", to.url, path(node, format)));
    }
    let holder = format!("other stages wrote manifests to it {MAX_ATTEMPTS} times in a row");
    Err(Error::Busy { place: format!("{}.penstock/", to.url), holder })
}

impl Line {
    /// Converts a manifest entry to a journal line.
    pub(crate) fn of_recorded(entry: &Entry) -> Option<Self> {
        let origin = entry.origin.clone()?;
        Some(Self {
            target: entry.key.clone(),
            size: entry.size,
            mtime_ns: (entry.modified_s.unwrap_or_else(|| unix_now().as_secs_f64()) * 1e9) as i64,
            digests: entry.digests.clone(),
            decompress: origin.decoded != Codec::None,
            modified_s: origin.modified_s,
            version: entry.version.clone(),
            origin: *origin,
        })
    }
}
