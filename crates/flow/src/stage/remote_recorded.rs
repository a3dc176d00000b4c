// SPDX-License-Identifier: Apache-2.0
//! The manifests that stages leave in a destination store: read before, written at the end.

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_codec::Codec;
use penstock_store::{Meta, ObjectRef, PutOptions, read_whole};
use penstock_types::{Deadline, Error, Key, Result, unix_now};

use super::journal::{Journal, Line};
use super::object::blocking;
use super::plan::Item;
use super::recorded::{Document, is_manifest_name, latest, manifest_name};
use super::remote::Target;
use crate::manifest::{Entry, Manifest, ManifestFormat};

pub(crate) fn is_manifest(key: &Key) -> bool {
    key.as_bytes().strip_prefix(b".penstock/").is_some_and(is_manifest_name)
}

/// The manifests that stages have left in a store; one that is none is none of ours.
pub(crate) async fn documents(to: &Target, names: Vec<Key>, deadline: Deadline) -> Result<Vec<Document>> {
    let mut found = Vec::new();
    for name in names {
        let object = ObjectRef::current(to.key(&name));
        let (_, bytes) = match read_whole(&*to.store, &object, None, deadline).await {
            Ok(read) => read,
            Err(Error::NotFound { .. }) => continue, // taken away since it was listed
            Err(error) => return Err(error),
        };
        let place = format!("{}{name}", to.url);
        let document = blocking(move || {
            let name = name.as_bytes().strip_prefix(b".penstock/").unwrap_or(name.as_bytes());
            Ok(Document::parse(name, &bytes, &place))
        });
        let document = document.await?;
        if let Some(document) = document {
            found.push(document?);
        }
    }
    Ok(latest(found))
}

/// The names of manifests in a destination.
pub(crate) async fn manifest_names(to: &Target, deadline: Deadline) -> Result<Vec<Key>> {
    let prefix = to.key(&Key::from(".penstock/manifest"));
    let listed: Result<Vec<Meta>> = to.store.list(&prefix, None, deadline).try_collect().await;
    let names = listed?.into_iter().filter_map(|meta| meta.key.strip_prefix(&to.prefix));
    Ok(names.filter(is_manifest).collect())
}

/// The manifest of what now stands in the destination.
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
            let is_kept = line.origin.undone == Codec::None;
            Entry {
                version: line.version.clone(),
                modified_s: Some(line.mtime_ns as f64 / 1e9),
                digests: line.digests.clone(),
                records: from.records,
                encoding: match line.origin.packed {
                    Codec::None => line.origin.encoding.clone().filter(|_| is_kept),
                    codec => Some(codec.name().to_owned()),
                },
                codec: if line.origin.packed == Codec::None { entry.codec } else { line.origin.packed },
                format: from.format,
                origin: Some(Box::new(line.origin.clone())),
                ..entry
            }
        })
    });
    Manifest::new(url.to_owned(), objects.collect())
}

/// Writes this node's manifest into the destination, unless the same stands there. Returns its URL.
pub(crate) async fn record(
    to: &Target,
    staged: Manifest,
    share: (u32, u32),
    recorded: &[Document],
    deadline: Deadline,
) -> Result<String> {
    let node = format!("{}-of-{}", share.0, share.1);
    let same = |document: &&Document| document.node == node;
    let name = |format: ManifestFormat| format!(".penstock/{}", manifest_name(share, format));
    let is_same = recorded
        .iter()
        .find(same)
        .filter(|document| document.manifest.objects == staged.objects && document.manifest.source == staged.source);
    if let Some(document) = is_same {
        return Ok(format!("{}{}", to.url, name(document.format)));
    }
    let format = ManifestFormat::for_objects(staged.objects.len());
    let key = |format: ManifestFormat| to.key(&Key::from(name(format).as_str()));
    let written = blocking(move || match format {
        ManifestFormat::Json => staged.to_json(),
        ManifestFormat::Parquet => staged.to_parquet(),
    });
    let bytes = vec![Bytes::from(written.await?)];
    to.store.put(&key(format), bytes, &PutOptions::default(), deadline).await?;
    // An earlier stage of more or fewer objects left one of the other format.
    let others = recorded.iter().filter(|document| same(document) && document.format != format);
    let others: Vec<Key> = others.map(|document| key(document.format)).collect();
    if !others.is_empty() {
        to.store.delete(&others, deadline).await?;
    }
    Ok(format!("{}{}", to.url, name(format)))
}

impl Line {
    /// What a destination's manifest says of an object, as the journal of the stage that sent it would.
    pub(crate) fn of_recorded(entry: &Entry) -> Option<Self> {
        let origin = entry.origin.clone()?;
        Some(Self {
            target: entry.key.clone(),
            size: entry.size,
            mtime_ns: (entry.modified_s.unwrap_or_else(|| unix_now().as_secs_f64()) * 1e9) as i64,
            digests: entry.digests.clone(),
            inflate: origin.undone != Codec::None,
            modified_s: origin.modified_s,
            version: entry.version.clone(),
            origin: *origin,
        })
    }
}
