// SPDX-License-Identifier: Apache-2.0
//! Creates a manifest from a store listing. Skips keys that are not objects of the dataset: Penstock's own state and
//! folder markers. Opens no object.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use penstock_store::{Meta, ObjectRef, Store, StoreSettings, read_whole};
use penstock_types::{Deadline, Error, Key, Metrics, Result, Scheme, Url, with_separators};
use serde::Deserialize;

use super::{Entry, Manifest};
use crate::glob::split_glob;
use crate::key_filter::KeyFilter;
use crate::key_names::last_component;
use crate::url_list::UrlList;

/// Name prefix of Penstock's own state (journal, manifest, locks), which is never part of a dataset.
pub const OWN_PREFIX: &[u8] = b".penstock";

/// Manifest that a stage or a writer stores in the folder of its dataset.
const OWN_MANIFEST: &[u8] = b".penstock/manifest.json";

/// Settings that a writer stores in the folder before the first shard. The writer stores the manifest after the last
/// shard.
const OWN_WRITE: &[u8] = b".penstock/write/settings.json";

/// Penstock's own state in a folder of a listing.
#[derive(Default)]
struct Own {
    manifest: Option<Meta>,
    has_writer: bool,
}

/// Folders with Penstock's own state, by key. A key is empty or ends with a slash.
type OwnFolders = BTreeMap<Key, Own>;

/// Maximum number of manifests that are read with a listing.
const MAX_OWN: usize = 1000;

/// Maximum number of manifests that are read concurrently.
const READS_IN_FLIGHT: usize = 16;

/// Maximum size of a manifest that is read with a listing. Larger manifests are ignored.
const MAX_OWN_BYTES: u64 = 64 << 20;

/// Lists all objects under `prefix` (a folder or one object) once, and returns a manifest. Opens no object: codec and
/// format come from the names. Skips Penstock's own state in any folder, and empty objects that mark folders.
///
/// `url` is the URL that the user wrote; the manifest's URL is the folder of `url`. Returns `NotFound` if no object
/// exists.
pub async fn index(store: &dyn Store, prefix: &Key, url: &Url, deadline: Deadline) -> Result<Manifest> {
    index_selected(store, prefix, url, &KeyFilter::default(), deadline).await
}

/// Like [`index`], but lists only the objects that `select` selects. If the patterns have a literal prefix, the store
/// lists only keys with that prefix.
pub async fn index_selected(
    store: &dyn Store,
    prefix: &Key,
    url: &Url,
    select: &KeyFilter,
    deadline: Deadline,
) -> Result<Manifest> {
    index_and_own(store, prefix, url, select, &mut OwnFolders::new(), deadline).await
}

/// Like [`index`], but also reads the manifests in the folder and its subfolders. If an object is unchanged since a
/// manifest was written, its record count is taken from that manifest. If a writer stored default fields, returns them
/// as JSON. Ignores a manifest that cannot be parsed, because the dataset can be read without it.
///
/// Returns `Config` if a writer did not complete a dataset, and `Corrupt` if an object of a writer's manifest is
/// missing or has another size. If `selects` does not select Penstock's own state, these checks are skipped, because a
/// pattern such as `*.tar` selects a part of the dataset on purpose.
pub async fn index_written(
    store: &dyn Store,
    prefix: &Key,
    url: &Url,
    selects: impl Fn(&Key) -> bool,
    deadline: Deadline,
) -> Result<(Manifest, Option<String>)> {
    let mut own = OwnFolders::new();
    let mut listed = index_and_own(store, prefix, url, &KeyFilter::default(), &mut own, deadline).await?;
    let is_whole = |folder: &Key| selects(&folder.join(OWN_WRITE));
    if let Some((folder, _)) =
        own.iter().find(|(folder, own)| own.manifest.is_none() && own.has_writer && is_whole(folder))
    {
        let place = if folder.is_empty() { url.to_string() } else { format!("{}{folder}", listed.url) };
        let problem =
            "is not complete: its writer stopped before the manifest; run the same write again to complete it";
        return Err(Error::config("dataset", format!("{place} {problem}")));
    }
    let manifests = own_manifests(store, own, deadline).await?;
    let present: HashMap<&Key, u64> = listed.objects.iter().map(|entry| (&entry.key, entry.size)).collect();
    for written in manifests.iter().filter(|written| written.fields.is_some() && is_whole(&written.folder)) {
        written.check(&present, &listed.url)?;
    }
    let known: HashMap<Key, (&Entry, bool)> = manifests
        .iter()
        .flat_map(|written| {
            let is_same_place = written.is_at(&listed.url);
            written.manifest.objects.iter().map(move |entry| (written.key(entry), (entry, is_same_place)))
        })
        .collect();
    // If the datasets in all subfolders have the same fields, the whole dataset has these fields.
    let fields = match manifests.first() {
        Some(written)
            if written.folder.is_empty()
                || manifests.iter().all(|other| other.fields == written.fields)
                    && present.keys().all(|key| !selects(key) || known.contains_key(*key)) =>
        {
            written.fields.clone()
        }
        _ => None,
    };
    for entry in &mut listed.objects {
        let Some((known, is_same_place)) = known.get(&entry.key).filter(|(known, _)| known.size == entry.size) else {
            continue;
        };
        // In another location, a copy of the dataset has different object versions. Versions are therefore compared
        // only in the same location.
        if !is_same_place || entry.version.is_none() || known.version.is_none() || known.version == entry.version {
            entry.records = known.records;
        }
    }
    Ok((listed, fields))
}

/// A manifest in a folder of a listing.
struct Written {
    folder: Key,
    manifest: Manifest,
    fields: Option<String>,
}

impl Written {
    /// Key of an object, relative to the listing.
    fn key(&self, entry: &Entry) -> Key {
        self.folder.join(entry.key.as_bytes())
    }

    /// True if the manifest was written in the folder that `url` lists, and was not copied from another folder.
    fn is_at(&self, url: &str) -> bool {
        self.manifest.url == format!("{url}{}", self.folder)
    }
}

impl Written {
    /// Returns `Corrupt` if an object is missing or has another size. `present` holds the objects in the listing of
    /// `url`, with their sizes.
    fn check(&self, present: &HashMap<&Key, u64>, url: &str) -> Result<()> {
        let objects = &self.manifest.objects;
        let differs = |entry: &&Entry| present.get(&self.key(entry)) != Some(&entry.size);
        let mut differing = objects.iter().filter(differs);
        let Some(first) = differing.next() else { return Ok(()) };
        let (others, folder) = (differing.count(), format!("{url}{}", self.folder));
        let Some(&size) = present.get(&self.key(first)) else {
            let missing = objects.iter().filter(|entry| !present.contains_key(&self.key(entry))).count();
            let mut problem =
                format!("lacks {missing} of the {} objects in its manifest; the first is {}", objects.len(), first.key);
            if !self.is_at(url) {
                // A copy may lack objects on purpose.
                problem.push_str(
                    "; copy them too or, to read only the others, delete the copy of .penstock/manifest.json",
                );
            }
            return Err(Error::corrupt(folder, problem));
        };
        let more = if others > 0 { format!(" ({others} more objects differ)") } else { String::new() };
        let (size, stated) = (with_separators(size), with_separators(first.size));
        let problem = format!("has {size} bytes, but the manifest of its dataset states {stated}{more}");
        Err(Error::corrupt(format!("{folder}{}", first.key), problem))
    }
}

/// Reads the manifests of folders, ordered by folder. Leaves out manifests that cannot be parsed or have disappeared.
async fn own_manifests(store: &dyn Store, own: OwnFolders, deadline: Deadline) -> Result<Vec<Written>> {
    let found = own.into_iter().filter_map(|(folder, own)| Some((folder, own.manifest?)));
    stream::iter(found.filter(|(_, meta)| meta.size <= MAX_OWN_BYTES).take(MAX_OWN))
        .map(|(folder, meta)| async move {
            let object = ObjectRef { key: meta.key, version: meta.version };
            let json = match read_whole(store, &object, None, deadline).await {
                Ok((_, json)) => json,
                Err(Error::NotFound { .. } | Error::Changed { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            let manifest = Manifest::from_json(&json, "the manifest of the dataset").ok();
            Ok(manifest.map(|manifest| Written { folder, manifest, fields: written_fields(&json) }))
        })
        .buffered(READS_IN_FLIGHT)
        .try_filter_map(|written| async { Ok(written) })
        .try_collect()
        .await
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
    own: &mut OwnFolders,
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
                if let Some(folder) = folder_of(&key, OWN_MANIFEST) {
                    own.entry(folder).or_default().manifest = Some(meta);
                } else if let Some(folder) = folder_of(&key, OWN_WRITE) {
                    own.entry(folder).or_default().has_writer = true;
                } else if !is_own(&key) && !is_folder_marker(&key, meta.size) && select.takes(&key) {
                    objects.push(Entry::of_meta(key, meta));
                }
            }
            Ok(None) => break,
            // `prefix` may name a single object rather than a folder. The `head` request below checks whether the
            // object exists.
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

/// Folder that contains the file `file` of Penstock's own state. `None` if `key` is the key of another object.
fn folder_of(key: &Key, file: &[u8]) -> Option<Key> {
    let folder = key.as_bytes().strip_suffix(file)?;
    (folder.is_empty() || folder.ends_with(b"/")).then(|| Key::new(folder.to_vec()))
}

/// True if a component of the key belongs to Penstock's own state.
pub fn is_own(key: &Key) -> bool {
    key.as_bytes().split(|byte| *byte == b'/').any(|part| part.starts_with(OWN_PREFIX))
}

fn is_folder_marker(key: &Key, size: u64) -> bool {
    size == 0 && (key.is_empty() || key.as_bytes().ends_with(b"/"))
}
