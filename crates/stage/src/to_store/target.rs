// SPDX-License-Identifier: Apache-2.0
//! A destination store: its URL and client, the target names of objects, and the plan.
//!
//! `existing` finds the objects that already exist, `upload_object` uploads objects, and `manifests` reads and writes
//! the manifests in the store.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_codec::{Codec, strip_suffix};
use penstock_store::{AdaptiveLimit, LimitStore, Store, StoreSettings};
use penstock_types::{Error, Key, Metrics, Result, Scheme, Url};

use crate::plan::{Item, PART_BYTES, StageOptions, StagePlan};
use penstock_dataset::manifest::{CodecSource, Manifest, is_own};
use penstock_dataset::{Division, SharePlan};

/// Maximum size of an object that is read into memory and written in one request.
pub(crate) const SMALL: u64 = 16 << 20;

/// Default part size for larger objects.
pub(crate) const PART: u64 = 16 << 20;

/// Maximum key length of the supported stores, in bytes.
const MAX_KEY: usize = 1024;

/// An opened destination store.
#[derive(Clone)]
pub(crate) struct Target {
    pub store: Arc<dyn Store>,
    pub prefix: Key,
    pub url: String,
}

impl Target {
    /// Opens a store for reading.
    pub fn to(url: &Url, settings: &StoreSettings, metrics: &Arc<Metrics>) -> Result<Self> {
        let folder = url.as_folder();
        let opened = penstock_store::open(&folder, settings, metrics.clone())?;
        Ok(Self { store: opened.store, prefix: opened.prefix, url: folder.to_string() })
    }

    /// Applies the rate and concurrency limits of `governor` to the store.
    pub fn governed(self, governor: &Arc<AdaptiveLimit>) -> Self {
        Self { store: Arc::new(LimitStore::new(self.store, governor.clone())), ..self }
    }

    /// Opens a store for writing.
    pub fn open(
        url: &Url,
        settings: &StoreSettings,
        metrics: &Arc<Metrics>,
        governor: &Arc<AdaptiveLimit>,
    ) -> Result<Self> {
        let opened = Self::to(url, settings, metrics)?.governed(governor);
        let folder = &opened.url;
        if !opened.store.capabilities().put {
            return Err(Error::Unsupported {
                what: format!("staging to {folder}"),
                by: format!("{}://", url.scheme.name()),
            });
        }
        Ok(opened)
    }

    pub fn key(&self, target: &Key) -> Key {
        self.prefix.join(target.as_bytes())
    }
}

/// True if the store records a Content-Encoding. The name of a compressed object then needs no suffix.
pub(crate) fn keeps_names(scheme: Scheme) -> bool {
    match scheme {
        Scheme::S3 | Scheme::Azure | Scheme::Gcs | Scheme::Memory => true,
        Scheme::File | Scheme::Hdfs | Scheme::Http | Scheme::Https | Scheme::Hub => false,
    }
}

/// Plans a stage to a store. Accepts any key that the store allows; rejects duplicate targets.
pub(crate) fn plan(manifest: &Manifest, options: &StageOptions, url: &Url) -> Result<StagePlan> {
    if options.node >= options.nodes {
        return Err(Error::config(
            "--node",
            format!("must be less than --nodes, {} (got {})", options.nodes, options.node),
        ));
    }
    let place = url.as_folder().to_string();
    let refuse = |key: &Key, reason: String| Error::KeyRefused { key: key.to_string(), place: place.clone(), reason };
    let mut names: HashMap<Key, usize> = HashMap::with_capacity(manifest.objects.len());
    let mut items = Vec::with_capacity(manifest.objects.len());
    for (at, entry) in manifest.objects.iter().enumerate() {
        let decode = if options.decompress { entry.codec } else { Codec::None };
        let mut target = entry.key.clone();
        if decode != Codec::None && Codec::of_name(entry.key.as_bytes()) == decode {
            target = Key::new(strip_suffix(entry.key.as_bytes()).to_vec());
        }
        if let Some(compression) = options.compression_of(entry).filter(|_| !keeps_names(url.scheme)) {
            target = target.join(compression.codec.suffix().as_bytes());
        }
        match target.as_bytes() {
            b"" => return Err(refuse(&entry.key, "the key is empty".to_owned())),
            _ if is_own(&target) => {
                let reason = "names that begin with .penstock are reserved for Penstock";
                return Err(refuse(&entry.key, reason.to_owned()));
            }
            bytes if url.key.as_bytes().len() + bytes.len() > MAX_KEY => {
                return Err(refuse(&entry.key, format!("the key with its prefix is longer than {MAX_KEY} bytes")));
            }
            _ => {}
        }
        if let Some(other) = names.insert(target.clone(), at) {
            let other = &manifest.objects[other].key;
            return Err(refuse(&entry.key, format!("`{other}` would become the same object, `{target}`")));
        }
        items.push(Item {
            object: at,
            target,
            decode,
            codec_source: (decode != Codec::None).then_some(CodecSource::Suffix),
        });
    }
    drop(names);
    let division = Division { decompress: options.decompress, ..options.division.clone() };
    let shares = SharePlan::divide(manifest, options.nodes, &division)?;
    let items: Vec<Item> = shares.share(options.node).into_iter().map(|at| items[at].clone()).collect();
    // A small object needs one read and one write. A larger object needs one read and one write per part, and four more
    // requests. Two reads return the version and the first bytes; two writes begin and end the upload.
    let requests = |at: usize, _| match manifest.objects[at].size {
        ..=SMALL => 2,
        size => size.div_ceil(PART_BYTES) + 2 + size.div_ceil(PART) + 2,
    };
    Ok(StagePlan::of(items, &shares, options.node, requests))
}

/// Returns an error if a destination is inside its source, because each run would then list the objects of the previous
/// run.
pub(crate) fn check_apart(source: &Url, url: &Url) -> Result<()> {
    let (inner, outer) = (url.as_folder(), source.as_folder());
    let same = source.scheme == url.scheme && source.authority == url.authority;
    match same && inner.key.strip_prefix(&outer.key).is_some() {
        true => Err(Error::config("destination", format!("{inner} is inside its source, {outer}"))),
        false => Ok(()),
    }
}

impl StageOptions {
    /// Sets the options from the transform identifier. Inverse of [`StageOptions::transform_id`].
    pub(crate) fn apply_transform(&mut self, transform: Option<&str>) -> Result<()> {
        let odd = || Error::config("manifest", format!("`{}` is not a valid transform", transform.unwrap_or_default()));
        for step in transform.into_iter().flat_map(|transform| transform.split(',')) {
            match step.split_once(':') {
                None if step == "decompress" => self.decompress = true,
                Some((codec, level)) => {
                    let level = level.parse().map_err(|_| odd())?;
                    self.compression = Some(crate::compress::Compression::new(codec.parse()?, Some(level))?);
                }
                None => return Err(odd()),
            }
        }
        Ok(())
    }
}
