// SPDX-License-Identifier: Apache-2.0
//! Finds the work that earlier stages into a folder did not complete, so that a stage resumes, and checks the free
//! space.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use penstock_codec::{Codec, gzip_size_hint};
use penstock_store::owned::OwnedFile;
use penstock_types::{Error, Result, Url};
use rustix::fs::{Mode, OFlags};

use crate::commit::{adopt_left_behind, is_temporary_name, temporary_name};
use crate::dest_dir::{DestDir, allocated_at, names_in};
use crate::journal::{Journal, Line};
use crate::plan::{Item, PART_BYTES, StageOptions, StagePlan};
use crate::progress::Progress;
use crate::status_record::FOLDER;
use penstock_dataset::detect_codec::{HEAD_BYTES, detect};
use penstock_dataset::manifest::{CodecSource, Entry, Manifest};

/// Maximum ratio of content to stored bytes in the estimate of the disk space. This ratio replaces a higher one that a
/// gzip trailer states.
const HONEST_RATIO: u64 = 32;

/// Objects that earlier runs finished, and objects that remain.
pub(crate) struct RemainingWork {
    pub journal: Journal,
    pub parts: Arc<OwnedFd>,
    pub missing: Vec<Item>,
    pub done: Vec<Item>,
    pub manifest: Arc<Manifest>,
}

/// True if a stage with this setting of `--decompress` would write the same file. In most cases, the name decides. If
/// the name shows no codec, an earlier stage may have stored the object under this name either compressed or
/// decompressed. The content then decides.
fn is_as_asked(dest_dir: &DestDir, line: &Line, decompress: bool) -> bool {
    if line.decompress == decompress || line.origin.codec_source == Some(CodecSource::Suffix) {
        return true;
    }
    if !decompress {
        return line.origin.decoded == Codec::None;
    }
    let mut head = [0; HEAD_BYTES];
    let read = dest_dir.open_file(line.target.as_bytes()).map(|file| file.read_at(&mut head, 0));
    match read {
        Ok(Ok(read)) => detect(line.target.as_bytes(), line.origin.encoding.as_deref(), &head[..read]).is_none(),
        _ => true, // missing or incomplete file: the caller detects this next
    }
}

/// Decompressed size that the trailer of a local gzip file states. For a remote store, the size is unknown until the
/// file is written, because reading the trailer would need one request per object. A damaged file may state any size,
/// so the result is limited to a ratio that occurs in real data.
fn trailer_of(folder: Option<&Path>, item: &Item, entry: &Entry) -> Option<u64> {
    if item.decode != Codec::Gzip {
        return None;
    }
    // NONBLOCK: without it, opening a FIFO would block until another process opens its other end.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let path = folder?.join(OsStr::from_bytes(entry.key.as_bytes()));
    let file: std::fs::File = rustix::fs::open(path, flags, Mode::empty()).ok()?.into();
    let mut last = [0; 4];
    file.read_exact_at(&mut last, entry.size.checked_sub(4)?).ok()?;
    Some(gzip_size_hint(last).min(entry.size.saturating_mul(HONEST_RATIO)))
}

#[expect(clippy::too_many_arguments, reason = "one caller; a struct would only rename the list")]
pub(crate) fn remaining_work(
    dest_dir: &DestDir,
    folder: &OwnedFd,
    node: &str,
    source: &str,
    progress: &Progress,
    manifest: Arc<Manifest>,
    plan: StagePlan,
    options: &StageOptions,
) -> Result<RemainingWork> {
    let place = dest_dir.place(FOLDER.as_bytes());
    let mut journal = Journal::open(folder, &format!("journal-{node}.jsonl"), source, &place)?;
    journal.begin_stage()?;
    let parts = Arc::new(dest_dir.make_folder(format!("{FOLDER}/parts").as_bytes())?);
    let folder_of_source = source.parse::<Url>().ok().and_then(|url| url.to_path());
    let (mut missing, mut done, mut need) = (Vec::new(), Vec::new(), 0u64);
    let mut foreign = Vec::new();
    for item in plan.items {
        let entry = &manifest.objects[item.object];
        let known = journal.line(&item.target).filter(|line| line.is_of(entry));
        let transform_id = options.compression.and_then(|_| options.transform_id());
        let is_asked =
            |line: &&Line| line.origin.transform == transform_id && is_as_asked(dest_dir, line, options.decompress);
        let stands = match known.as_ref().filter(is_asked) {
            None => false,
            Some(line) if dest_dir.state(item.target.as_bytes())? == Some(line.state()) => true,
            Some(line) => match ["tmp", "part"].map(|kind| temporary_name(&item.target, kind)) {
                [small, large] => {
                    adopt_left_behind(dest_dir, &parts, &small, line).unwrap_or(false)
                        || adopt_left_behind(dest_dir, &parts, &large, line).unwrap_or(false)
                }
            },
        };
        if stands {
            progress.skip(entry.size);
            done.push(item);
        } else {
            if journal.knows(&item.target) {
                let names = ["tmp", "part"].map(|kind| temporary_name(&item.target, kind));
                let removed = dest_dir.remove_linked(&parts, [&names[0], &names[1]], item.target.as_bytes());
                // A folder on the path is a link. Ignore this error here, because the object will fail with the same
                // error.
                removed.or_else(|error| if matches!(error, Error::KeyRefused { .. }) { Ok(()) } else { Err(error) })?;
            }
            // Parts of a large object that are already on disk do not need further space.
            let there = match entry.size > PART_BYTES {
                true => allocated_at(&parts, &temporary_name(&item.target, "part")),
                false => 0,
            };
            // If an earlier stage finished the file, the size is known. Otherwise, the stored size is used as the
            // minimum.
            let size = match &known {
                Some(line) => line.size,
                None => trailer_of(folder_of_source.as_deref(), &item, entry).unwrap_or(0),
            };
            let size = size.max(entry.size);
            need = need.saturating_add(size.saturating_sub(there));
            if !options.overwrite
                && !journal.knows(&item.target)
                && let Some(what) = dest_dir.in_place_of(item.target.as_bytes())?
            {
                foreign.push((item.target.clone(), what));
            }
            missing.push(item);
        }
    }
    if let Some((first, what)) = foreign.first() {
        let others = match foreign.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        return Err(Error::Precondition {
            place: dest_dir.place(first.as_bytes()),
            reason: format!("{what} that was not staged from {source} already exists{others}"),
        });
    }
    let free = dest_dir.free_bytes()?;
    if need > free {
        return Err(Error::NoSpace { place: dest_dir.path().display().to_string(), need, free });
    }
    Ok(RemainingWork { journal, parts, missing, done, manifest })
}

/// Removes files that killed runs left behind. If other nodes share the folder, only files of finished objects are
/// removed; otherwise, files of any object are removed. Does not remove files that another process has locked, or files
/// whose names Penstock did not create.
pub(crate) fn sweep<'a>(parts: &Arc<OwnedFd>, is_alone: bool, items: impl Iterator<Item = &'a Item>) {
    let Ok(mut left) = names_in(parts) else { return };
    left.retain(|name| is_temporary_name(name));
    if !is_alone && !left.is_empty() {
        let ours: HashSet<String> = items.map(|item| temporary_name(&item.target, "")).collect();
        left.retain(|name| name.rfind('.').is_some_and(|dot| ours.contains(&name[..=dot])));
    }
    for name in left {
        // The lock on the data file also covers the list of parts.
        let data = name.strip_suffix(".done").map(|stem| format!("{stem}.part"));
        let covering = data.map(|data| OwnedFile::lock_existing(parts, &data));
        let is_held =
            covering.as_ref().is_some_and(|lock| matches!(lock, Err(error) if error.kind() == ErrorKind::WouldBlock));
        if let (false, Ok(file)) = (is_held, OwnedFile::lock_existing(parts, &name)) {
            file.remove();
        }
    }
}
