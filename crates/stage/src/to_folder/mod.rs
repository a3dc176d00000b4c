// SPDX-License-Identifier: Apache-2.0
//! Stages into a folder: finds the objects that are missing, downloads them and writes the new manifest.

pub(crate) mod concurrent_downloads;
pub(crate) mod context;
pub(crate) mod manifests;
pub(crate) mod multipart_download;
pub(crate) mod part_files;
pub(crate) mod part_transfer;
pub(crate) mod remaining_work;
pub(crate) mod sink;
pub(crate) mod small_object;
pub(crate) mod write_buffer;

use std::sync::Arc;

use penstock_codec::{Codec, strip_suffix};
use penstock_store::owned::{self, Proof};
use penstock_types::{Error, Result, Url, unix_now};

use crate::atomic_replace::replace_own_with;
use crate::blocking::blocking;
use crate::context::{StageContext, StateDir};
use crate::dest_dir::DestDir;
use crate::journal::Journal;
use crate::plan::Item;
use crate::progress::Failure;
use crate::request::StageRequest;
use crate::to_folder::concurrent_downloads::Workers;
use crate::to_folder::manifests::manifest_name;
use crate::to_folder::remaining_work::{RemainingWork, remaining_work, sweep};
use penstock_dataset::manifest::{Entry, Head, Manifest, ManifestFormat, write};

/// Copies the objects to the folder; returns the path of the manifest.
pub(crate) async fn transfer(context: StageContext<'_>) -> Result<String> {
    let StageContext { request, from: source, manifest, plan, site, progress, deadline, cancelled } = context;
    let options = &request.options;
    let node = format!("{}-of-{}", options.node, options.nodes);
    let work = {
        let (StateDir { dest_dir, folder }, node, url) = (site.clone(), node.clone(), source.url.clone());
        let (progress, manifest) = (progress.clone(), Arc::new(manifest));
        let options = options.clone();
        blocking(move || remaining_work(&dest_dir, &folder, &node, &url, &progress, manifest, plan, &options)).await?
    };
    let RemainingWork { journal, parts, missing, done, manifest } = work;
    let workers = Workers {
        source,
        dest_dir: site.dest_dir.clone(),
        parts: parts.clone(),
        journal,
        options: options.clone(),
        cores: request.cores,
        progress: progress.clone(),
        deadline,
    };
    let source_url = workers.source.url.clone();
    let mut journal = workers.work(&manifest, &missing, cancelled).await?;
    let failures: Vec<Failure> = progress.failures().into_iter().map(|(failure, _)| failure).collect();
    let share = (options.node, options.nodes);
    blocking(move || {
        if failures.is_empty() {
            sweep(&parts, share.1 == 1, missing.iter().chain(&done));
        }
        site.write_residue(share, &source_url, &failures)?;
        let items: Vec<&Item> = missing.iter().chain(&done).collect();
        let failed = failures.len() as u64;
        let recorded = record_staged(&site.dest_dir, &journal, &manifest, items, &source_url, share, failed)?;
        journal.end_stage(failed)?;
        Ok(recorded)
    })
    .await
}

/// Writes the manifest of the destination's current content and returns its path. For each file, the manifest holds the
/// digests of the source object and of the file. Journal lines are read one by one, so that they are never all in
/// memory.
fn record_staged(
    dest_dir: &DestDir,
    journal: &Journal,
    source: &Manifest,
    mut items: Vec<&Item>,
    source_url: &str,
    share: (u32, u32),
    failed: u64,
) -> Result<String> {
    items.sort_unstable_by(|a, b| {
        (strip_suffix(a.target.as_bytes()), &a.target).cmp(&(strip_suffix(b.target.as_bytes()), &b.target))
    });
    let url = Url::from_path(dest_dir.path())
        .map_or_else(|_| dest_dir.path().display().to_string(), |url| url.as_folder().to_string());
    let format = ManifestFormat::for_objects(items.len());
    let head = Head { url: &url, source: Some(source_url), created_s: unix_now().as_secs_f64(), failed };
    let entries = items.iter().filter_map(|item| {
        let line = journal.line(&item.target)?;
        let from = &source.objects[item.object];
        line.is_of(from).then(|| {
            Ok(Entry {
                modified_s: Some(line.mtime_ns as f64 / 1e9),
                records: from.records,
                // An object that was copied unchanged still has its Content-Encoding.
                encoding: line.origin.encoding.clone().filter(|_| line.origin.decoded == Codec::None),
                digests: line.digests,
                origin: Some(Box::new(line.origin)),
                ..Entry::new(item.target.clone(), line.size)
            })
        })
    });
    let own = Arc::new(dest_dir.make_folder(b".penstock")?);
    let share = format!("{}-of-{}", share.0, share.1);
    let name = manifest_name(&share, format);
    let place = dest_dir.place(format!(".penstock/{name}").as_bytes());
    let io = |error: &std::io::Error| dest_dir.io_error(name.as_bytes(), error, 0);
    replace_own_with(&own, &name, io, |file| write(file, format, &head, entries, &place))?;
    // An earlier stage with more or fewer objects may have left a manifest in the other format.
    for other in [ManifestFormat::Json, ManifestFormat::Parquet].into_iter().filter(|other| *other != format) {
        owned::remove_file(&own, manifest_name(&share, other), Proof::Covered).map_err(|errno| io(&errno.into()))?;
    }
    Ok(place)
}

/// Returns an error if a local destination is inside its source, because each run would then list the files of the
/// previous run.
pub(crate) fn check_apart(request: &StageRequest) -> Result<()> {
    let Some(source) = request.source.to_path().and_then(|path| path.canonicalize().ok()) else { return Ok(()) };
    let mut existing = request.destination.as_path();
    let destination = loop {
        match (existing.canonicalize(), existing.parent()) {
            (Ok(path), _) => break path,
            (Err(_), Some(parent)) => existing = parent,
            (Err(_), None) => return Ok(()),
        }
    };
    if source.is_dir() && destination.starts_with(&source) {
        return Err(Error::config(
            "destination",
            format!("{} is inside its source, {}", request.destination.display(), source.display()),
        ));
    }
    Ok(())
}
