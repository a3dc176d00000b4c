// SPDX-License-Identifier: Apache-2.0
//! Inventory of a destination, read from the manifests and journals there. The manifests list the files that must
//! exist; the journals describe each file and its source.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use penstock_codec::Codec;
use penstock_store::Version;
use penstock_types::{Digest, Key, Result, Url};
use serde::{Deserialize, Serialize};

use crate::dest_dir::{DestDir, names_in, open_to_read};
use crate::journal::{LastStage, Line, scan};
use crate::status_record::FOLDER;
use penstock_dataset::manifest::{Entry, Manifest, ManifestFormat, Origin, is_own, write};

/// Description of one file at the time when a stage finished it.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub target: Key,
    pub size: u64,
    pub digests: Vec<Digest>,
    pub mtime_ns: i64,
    pub origin: Option<Origin>,
    /// URL of the source folder, to which the origin's key is relative.
    pub source: Option<String>,
    /// mtime of the source object, if the store has no versions.
    pub modified_s: Option<f64>,
    /// True if the stage was run with `--decompress`.
    pub decompress: bool,
    /// Journal that contains the record.
    pub journal: String,
}

/// One manifest of a destination.
#[derive(Debug)]
pub(crate) struct Document {
    /// File name, relative to `.penstock`.
    name: String,
    pub format: ManifestFormat,
    /// Share of the manifest: `0-of-4`, or `0-of-4-SOURCE` if the manifest `0-of-4` belongs to another source.
    pub node: String,
    /// Launch part of the name, such as `of-4`, which is the same for all manifests of one launch.
    launch: String,
    pub manifest: Manifest,
    /// Version of the object that contains the manifest, if the store has versions.
    pub version: Option<Version>,
}

/// Parsed file name of a manifest in `.penstock`.
struct Named<'a> {
    format: ManifestFormat,
    node: &'a str,
}

impl<'a> Named<'a> {
    /// Parses a file name; `None` if a manifest cannot have this name.
    fn parse(name: &'a str) -> Option<Self> {
        let (stem, suffix) = name.rsplit_once('.')?;
        let format = match suffix {
            "json" => ManifestFormat::Json,
            "parquet" => ManifestFormat::Parquet,
            _ => return None,
        };
        let node = match stem.strip_prefix("manifest")? {
            "" => "0-of-1",
            node => node.strip_prefix('-')?,
        };
        Some(Self { format, node })
    }

    fn document(&self, name: &str, manifest: Manifest) -> Document {
        let launch = self.node.split_once('-').map_or("", |(_, nodes)| nodes).to_owned();
        let (name, node) = (name.to_owned(), self.node.to_owned());
        Document { name, format: self.format, node, launch, manifest, version: None }
    }
}

/// File name in `.penstock` of the manifest of a share. `node` is `0-of-4`, or `0-of-4-SOURCE` for a share of one
/// source.
pub(crate) fn manifest_name(node: &str, format: ManifestFormat) -> String {
    match node {
        "0-of-1" => format!("manifest.{}", format.name()),
        _ => format!("manifest-{node}.{}", format.name()),
    }
}

/// Returns the share (`0-of-4`) from the node part of a manifest name, which may also contain a source.
pub(crate) fn share_of(node: &str) -> &str {
    node.match_indices('-').nth(2).map_or(node, |(end, _)| &node[..end])
}

/// True if `name` is the file name of a manifest in `.penstock`.
pub(crate) fn is_manifest_name(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| Named::parse(name).is_some())
}

impl Document {
    /// Returns the manifest's share if some objects of the share failed; otherwise `None`.
    pub fn unfinished(&self) -> Option<Unfinished> {
        let Manifest { source, failed, .. } = &self.manifest;
        let (source, share) = (source.clone().unwrap_or_default(), share_of(&self.node).to_owned());
        (*failed > 0).then_some(Unfinished { source, share, failed: Some(*failed) })
    }

    /// Parses the manifest with this file name in `.penstock`; `None` if a manifest cannot have this name.
    pub fn parse(name: &[u8], bytes: &[u8], place: &str) -> Option<Result<Self>> {
        let name = std::str::from_utf8(name).ok()?;
        let named = Named::parse(name)?;
        Some(Manifest::from_bytes(bytes, place).map(|manifest| named.document(name, manifest)))
    }
}

/// All records of a destination, and the shares that are unfinished.
pub(crate) struct Inventory {
    /// Records of all files, sorted by target.
    pub records: Vec<Record>,
    pub unfinished: Vec<Unfinished>,
}

/// A node's share of a source, if the last stage of the share did not complete it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// Source of the share.
    pub source: String,
    /// Node and number of nodes, for example `0-of-4`.
    pub share: String,
    /// Number of objects that could not be staged. `None` if the stage is still running, was killed or interrupted, or
    /// ended with an error.
    pub failed: Option<u64>,
}

/// Reads all records of a destination; `None` if no stage has written to the destination.
pub(crate) fn read(dest_dir: &DestDir) -> Result<Option<Inventory>> {
    let documents = documents(dest_dir)?;
    let (mut lines, stages) = journal_lines(dest_dir)?;
    if documents.is_empty() && lines.is_empty() && stages.is_empty() {
        return Ok(None);
    }
    let has_manifest = !documents.is_empty();
    let mut records: HashMap<Key, Record> = HashMap::new();
    for Document { node, manifest, .. } in documents {
        for entry in manifest.objects {
            let record = match lines.remove(&entry.key) {
                Some(record) => record,
                None if records.contains_key(&entry.key) => continue,
                None => Record {
                    target: entry.key.clone(),
                    size: entry.size,
                    digests: entry.digests,
                    mtime_ns: (entry.modified_s.unwrap_or_default() * 1e9) as i64,
                    modified_s: None,
                    decompress: entry.origin.as_ref().is_some_and(|origin| origin.decoded != Codec::None),
                    origin: entry.origin.map(|origin| *origin),
                    source: manifest.source.clone(),
                    journal: format!("journal-{}.jsonl", share_of(&node)),
                },
            };
            records.insert(entry.key, record);
        }
    }
    for (target, record) in lines {
        // A file that only a journal lists may have been deleted on purpose. If the file exists, its content must be
        // correct.
        if !has_manifest || dest_dir.state(target.as_bytes())?.is_some() {
            records.insert(target, record);
        }
    }
    let mut records: Vec<Record> = records.into_values().filter(|record| !is_own(&record.target)).collect();
    records.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(Some(Inventory { records, unfinished: unfinished(&stages) }))
}

/// Shares with missing objects. If a later launch of the same source on another number of nodes is complete, the later
/// launch replaces the earlier ones.
fn unfinished(stages: &[LastStage]) -> Vec<Unfinished> {
    let nodes = |stage: &LastStage| stage.share.split_once("-of-").map(|(_, nodes)| nodes.to_owned());
    let is_replaced = |stage: &LastStage| {
        stages.iter().any(|later| {
            let is_later = later.turn > stage.turn && later.failed == Some(0);
            is_later && later.source == stage.source && nodes(later) != nodes(stage)
        })
    };
    let open = stages.iter().filter(|stage| stage.failed != Some(0) && !is_replaced(stage)).cloned();
    open.map(|LastStage { share, source, failed, .. }| Unfinished { source, share, failed }).collect()
}

/// Manifest of a folder into which `penstock stage` copied, with the shares of all nodes; `None` for any other folder.
pub fn recorded_manifest(folder: &Path) -> Result<Option<Manifest>> {
    let dest_dir = DestDir::open_existing(folder)?;
    let Some(Inventory { records, .. }) = read(&dest_dir)? else { return Ok(None) };
    let source = records.first().and_then(|record| record.source.clone());
    let is_one = records.iter().all(|record| record.source == source);
    let objects = records
        .into_iter()
        .map(|record| Entry {
            modified_s: Some(record.mtime_ns as f64 / 1e9),
            digests: record.digests,
            origin: record.origin.map(Box::new),
            ..Entry::new(record.target, record.size)
        })
        .collect();
    let url = Url::from_path(folder).map_or_else(|_| folder.display().to_string(), |url| url.as_folder().to_string());
    Ok(Some(Manifest { source: source.filter(|_| is_one), ..Manifest::new(url, objects) }))
}

/// Applies `change` to every manifest entry. `change` returns true if it changed the entry. Rewrites the manifests in
/// which an entry changed.
pub(crate) fn amend(dest_dir: &DestDir, mut change: impl FnMut(&mut Entry) -> bool) -> Result<()> {
    let Some(own) = dest_dir.folder(b".penstock")?.map(Arc::new) else { return Ok(()) };
    for mut document in documents(dest_dir)? {
        let changed = document.manifest.objects.iter_mut().map(&mut change).fold(false, |any, one| any | one);
        if changed {
            let Document { name, format, manifest, .. } = &document;
            let io = |error: &std::io::Error| dest_dir.io_error(name.as_bytes(), error, 0);
            let place = dest_dir.place(name.as_bytes());
            let entries = manifest.objects.iter().map(Ok);
            crate::atomic_replace::replace_own_with(&own, name, io, |file| {
                write(file, *format, &manifest.head(), entries, &place)
            })?;
        }
    }
    Ok(())
}

/// Reads the manifests of the last launch of each source. Manifests of earlier launches on another number of nodes are
/// outdated.
fn documents(dest_dir: &DestDir) -> Result<Vec<Document>> {
    let Some(own) = dest_dir.folder(b".penstock")? else { return Ok(Vec::new()) };
    let io = |error: std::io::Error| dest_dir.io_error(b".penstock", &error, 0);
    let mut found = Vec::new();
    for name in names_in(&own).map_err(io)? {
        let Some(named) = Named::parse(&name) else { continue };
        let place = dest_dir.place(format!(".penstock/{name}").as_bytes());
        let manifest = Manifest::read(open_to_read(&own, &name).map_err(io)?, &place)?;
        found.push(named.document(&name, manifest));
    }
    Ok(latest(found))
}

/// Retains the manifests of the last launch of each source, the latest first. If two manifests list the same file, the
/// first one wins.
pub(crate) fn latest(mut found: Vec<Document>) -> Vec<Document> {
    let mut last: HashMap<Option<String>, (f64, String)> = HashMap::new();
    for Document { launch, manifest, .. } in &found {
        let newest = last.entry(manifest.source.clone()).or_insert((f64::MIN, String::new()));
        if manifest.created_s > newest.0 {
            *newest = (manifest.created_s, launch.clone());
        }
    }
    found.retain(|document| last.get(&document.manifest.source).is_some_and(|(_, launch)| *launch == document.launch));
    found.sort_by(|a, b| b.manifest.created_s.total_cmp(&a.manifest.created_s));
    found
}

/// Returns the last journal line about each file (over all sources), and the last stage of each source and share.
fn journal_lines(dest_dir: &DestDir) -> Result<(HashMap<Key, Record>, Vec<LastStage>)> {
    let Some(folder) = dest_dir.folder(FOLDER.as_bytes())? else { return Ok(Default::default()) };
    let mut stages = Vec::new();
    let mut records: HashMap<Key, Record> = HashMap::new();
    for name in journals(dest_dir, &folder)? {
        let file = open_to_read(&folder, &name).map_err(|error| dest_dir.io_error(name.as_bytes(), &error, 0))?;
        let last = scan(&file, &name, |source, line| {
            // Within one journal, later lines are newer. A line in the journal of another node may be older or newer.
            let holds =
                records.get(&line.target).is_none_or(|known| known.journal == name || known.mtime_ns <= line.mtime_ns);
            if line.is_retracted() {
                records.remove(&line.target);
            } else if holds {
                let Line { target, size, mtime_ns, digests, origin, modified_s, decompress, version: _ } = line;
                let (source, journal, origin) = (Some(source.to_owned()), name.clone(), Some(origin));
                let record =
                    Record { target, size, digests, mtime_ns, origin, source, modified_s, decompress, journal };
                records.insert(record.target.clone(), record);
            }
        })
        .map_err(|error| dest_dir.io_error(name.as_bytes(), &error, 0))?;
        stages.extend(last);
    }
    Ok((records, stages))
}

fn journals(dest_dir: &DestDir, folder: &OwnedFd) -> Result<Vec<String>> {
    let names = names_in(folder).map_err(|error| dest_dir.io_error(FOLDER.as_bytes(), &error, 0))?;
    Ok(names.into_iter().filter(|name| name.starts_with("journal-")).collect())
}
