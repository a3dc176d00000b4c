// SPDX-License-Identifier: Apache-2.0
//! Creates a manifest from a store listing. Skips keys that are not objects of the dataset: Penstock's own state and
//! folder markers. Opens no object.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::TryStreamExt;
use penstock_store::{Meta, ObjectRef, Store, StoreSettings, read_whole};
use penstock_types::{Deadline, Error, Key, Metrics, Result, Scheme, Url};
use serde::Deserialize;

use super::{Entry, Manifest};
use crate::glob::split_glob;
use crate::key_filter::KeyFilter;
use crate::key_names::last_component;
use crate::url_list::UrlList;

/// Name prefix of Penstock's own state (journal, manifest, locks), which is never part of a dataset.
pub const OWN_PREFIX: &[u8] = b".penstock";

/// Manifest that a stage or a writer stores in the folder of the dataset.
const OWN_MANIFEST: &[u8] = b".penstock/manifest.json";

/// Settings that a writer stores in the folder before its first shard. The manifest follows its last shard.
const OWN_WRITE: &[u8] = b".penstock/write/settings.json";

/// Penstock's own state that a listing met.
#[derive(Default)]
struct Own {
    manifest: Option<Meta>,
    has_writer: bool,
}

/// Maximum size of a folder's own manifest that is read with its listing. Manifests of many objects are Parquet files.
const MAX_OWN_BYTES: u64 = 64 << 20;

/// Lists all objects under `prefix` (a folder or one object) once, and returns a manifest. Opens no object: codec and
/// format come from the names. Skips Penstock's own state in any folder, and empty objects that mark folders.
///
/// `url` is the URL that the user wrote; the manifest's URL is its folder. Returns `NotFound` if no object exists.
pub async fn index(store: &dyn Store, prefix: &Key, url: &Url, deadline: Deadline) -> Result<Manifest> {
    index_selected(store, prefix, url, &KeyFilter::default(), deadline).await
}

/// Like [`index`], for the objects that `select` selects. If the patterns have a literal prefix, the store lists only
/// that prefix.
pub async fn index_selected(
    store: &dyn Store,
    prefix: &Key,
    url: &Url,
    select: &KeyFilter,
    deadline: Deadline,
) -> Result<Manifest> {
    index_and_own(store, prefix, url, select, &mut Own::default(), deadline).await
}

/// Like [`index`], with what the manifest in the folder itself states: the record counts of objects that are unchanged
/// since it was written, and the default fields as JSON, if a writer stored them. A manifest that cannot be read is
/// ignored, because the dataset can be read without it.
///
/// Unless `accepts_incomplete`, a dataset that its writer did not complete is a `Config` error, and one that lacks an
/// object of its writer's manifest is `Corrupt`.
pub async fn index_written(
    store: &dyn Store,
    prefix: &Key,
    url: &Url,
    accepts_incomplete: bool,
    deadline: Deadline,
) -> Result<(Manifest, Option<String>)> {
    let mut own = Own::default();
    let mut listed = index_and_own(store, prefix, url, &KeyFilter::default(), &mut own, deadline).await?;
    if own.manifest.is_none() && own.has_writer && !accepts_incomplete {
        let problem =
            "is not complete: its writer stopped before the manifest; run the same write again to complete it";
        return Err(Error::config("dataset", format!("{url} {problem}")));
    }
    let Some(own) = own.manifest.filter(|meta| meta.size <= MAX_OWN_BYTES) else { return Ok((listed, None)) };
    let object = ObjectRef { key: own.key.clone(), version: own.version };
    let json = match read_whole(store, &object, None, deadline).await {
        Ok((_, json)) => json,
        Err(Error::NotFound { .. } | Error::Changed { .. }) => return Ok((listed, None)),
        Err(error) => return Err(error),
    };
    let Ok(written) = Manifest::from_json(&json, "the manifest of the dataset") else { return Ok((listed, None)) };
    let known: HashMap<&Key, &Entry> = written.objects.iter().map(|entry| (&entry.key, entry)).collect();
    let is_same_place = written.url == listed.url;
    let fields = written_fields(&json);
    if fields.is_some() && !accepts_incomplete {
        let present: HashSet<&Key> = listed.objects.iter().map(|entry| &entry.key).collect();
        let mut missing = written.objects.iter().filter(|entry| !present.contains(&entry.key));
        if let Some(first) = missing.next() {
            let (missing, all) = (1 + missing.count(), written.objects.len());
            let mut problem =
                format!("lacks {missing} of the {all} objects in its manifest; the first is {}", first.key);
            if !is_same_place {
                // A copy may be meant to be a part.
                problem.push_str(
                    "; copy them too or, to read only the others, delete the copy of .penstock/manifest.json",
                );
            }
            return Err(Error::corrupt(listed.url.clone(), problem));
        }
    }
    for entry in &mut listed.objects {
        let Some(known) = known.get(&entry.key).filter(|known| known.size == entry.size) else { continue };
        // A copy of the dataset in another place has other versions.
        if !is_same_place || entry.version.is_none() || known.version.is_none() || known.version == entry.version {
            entry.records = known.records;
        }
    }
    Ok((listed, fields))
}

/// Returns the default fields, as JSON, that a writer stored in a JSON manifest.
pub fn written_fields(manifest: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Written {
        fields: Option<serde_json::Value>,
    }
    serde_json::from_slice::<Written>(manifest).ok()?.fields.map(|fields| fields.to_string())
}

async fn index_and_own(
    store: &dyn Store,
    prefix: &Key,
    url: &Url,
    select: &KeyFilter,
    own: &mut Own,
    deadline: Deadline,
) -> Result<Manifest> {
    let folder = prefix.as_folder();
    let mut objects = Vec::new();
    let mut met = false;
    let mut named = select.named_keys();
    // Local, HTTP and HDFS listings must start at a folder. Object stores can list any key prefix.
    let begin = match url.scheme {
        Scheme::S3 | Scheme::Azure | Scheme::Gcs | Scheme::Memory => folder.join(select.literal_prefix()),
        Scheme::File | Scheme::Http | Scheme::Https | Scheme::Hdfs | Scheme::Hub => folder.clone(),
    };
    let url = &penstock_store::pinned(store, url, deadline).await?;
    let mut listing = store.list(&begin, None, deadline);
    loop {
        match listing.try_next().await {
            Ok(Some(meta)) => {
                let Some(key) = meta.key.strip_prefix(&folder) else {
                    return Err(Error::bug(format!("a listing of `{folder}` returned `{}`", meta.key)));
                };
                met = true;
                named.found(key.as_bytes());
                if key.as_bytes() == OWN_MANIFEST {
                    own.manifest = Some(meta);
                } else if key.as_bytes() == OWN_WRITE {
                    own.has_writer = true;
                } else if !is_own(&key) && !is_folder_marker(&key, meta.size) && select.takes(&key) {
                    objects.push(Entry::of_meta(key, meta));
                }
            }
            Ok(None) => break,
            // `prefix` may be a single object rather than a folder; the `head` request below checks whether it exists.
            Err(Error::NotFound { .. }) if objects.is_empty() && folder != *prefix => break,
            Err(error) => return Err(error),
        }
    }
    drop(listing);
    if met {
        named.check(url)?;
    }
    if !objects.is_empty() {
        return Ok(Manifest::new(url.as_folder().to_string(), objects));
    }
    if !select.is_all() && (met || folder == *prefix) {
        return Err(select.none_of(format_args!("any object under {url}")));
    }
    if folder != *prefix {
        match store.head(prefix, deadline).await {
            Ok(meta) => {
                let name = last_component(prefix.as_bytes());
                let parent = url.key.head(url.key.as_bytes().len() - name.len());
                let object = Entry::of_meta(Key::new(name.to_vec()), meta);
                return Ok(Manifest::new(url.with_key(parent).to_string(), vec![object]));
            }
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    // The store returns an error for a missing local folder, so this folder exists and is empty.
    let place = if url.scheme == Scheme::File { format!("any object under {url}") } else { url.to_string() };
    Err(Error::NotFound { place })
}

/// Splits a URL such as `s3://b/train/*.gz` into its folder and a filter for its pattern. The path of an existing local
/// file is not treated as a pattern.
pub fn without_pattern(url: &Url, select: KeyFilter) -> (Url, KeyFilter) {
    match split_glob(url).filter(|_| !url.to_path().is_some_and(|path| path.exists())) {
        Some((folder, pattern)) => (folder, select.within(pattern)),
        None => (url.clone(), select),
    }
}

/// Lists the selected objects of a dataset URL, of a URL with a pattern, or of a local file that lists URLs.
pub async fn list(
    url: &Url,
    select: KeyFilter,
    settings: &StoreSettings,
    metrics: Arc<Metrics>,
    deadline: Deadline,
) -> Result<Manifest> {
    if let Some(list) = UrlList::load(url)? {
        let opened = penstock_store::open(&list.folder, settings, metrics)?;
        return list.manifest(&*opened.store, &opened.prefix, &select, deadline).await;
    }
    let (url, select) = without_pattern(url, select);
    let opened = penstock_store::open(&url, settings, metrics)?;
    index_selected(&*opened.store, &opened.prefix, &url, &select, deadline).await
}

/// True if a component of the key belongs to Penstock's own state.
pub fn is_own(key: &Key) -> bool {
    key.as_bytes().split(|byte| *byte == b'/').any(|part| part.starts_with(OWN_PREFIX))
}

fn is_folder_marker(key: &Key, size: u64) -> bool {
    size == 0 && (key.is_empty() || key.as_bytes().ends_with(b"/"))
}
