// SPDX-License-Identifier: Apache-2.0
//! Resumable download of a large object in parts. If a stage is killed, a later stage continues the download.
//!
//! Stored bytes are written at their offsets in `HASH.part` (`part_transfer`); `HASH.done` lists each part with its
//! CRC. The next run accepts a part only if its bytes still have that CRC. During the download, neither file is synced,
//! because data that a power failure destroys are fetched again. When all parts are present, the whole object is
//! verified, and then decompressed or compressed into a new file. If neither is needed, the data file itself is synced
//! and renamed. If this sync fails, the parts are removed, because the page cache would show data that the disk does
//! not have.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use penstock_codec::{Codec, checksum, gzip_size_hint};
use penstock_store::owned::{self, OwnedFile, Proof};
use penstock_store::{Meta, Version, cheapest};
use penstock_types::{Digest, Error, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use crate::blocking::blocking;
use crate::commit::{Finished, temporary_name};
use crate::dest_dir::{open_direct, open_own, reserve};
use crate::digests::{ContentDigest, StoredDigests, Verified};
use crate::parallel_decode::ParallelDecoder;
use crate::plan::{Item, PART_BYTES};
use crate::progress::Progress;
use crate::source_reader::DamageRetry;
use crate::to_folder::context::DownloadContext;
use crate::to_folder::part_files::{Part, PartialDownload};
use crate::to_folder::part_transfer::{Arrived, PartTransfer, range_of};
use crate::to_folder::sink::Sink;
use penstock_dataset::detect_codec::HEAD_BYTES;
use penstock_dataset::manifest::Entry;

/// Maximum size of a list of parts in bytes. Penstock does not write a larger file (a part takes about 30 bytes).
const MAX_STATE: u64 = 64 << 20;

/// Identity of the object to which the parts belong. If the identity differs, all parts are fetched again.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    source: String,
    size: u64,
    version: Option<Version>,
    modified_ms: Option<i64>,
    part_bytes: u64,
}

pub(crate) async fn make(context: &Arc<DownloadContext>, item: &Item, entry: &Entry) -> Result<Finished> {
    let names = Arc::new(["part", "done"].map(|kind| temporary_name(&item.target, kind)));
    let mut retry = DamageRetry::new(&context.reader, entry);
    let mut asked: Option<WholeMeta> = None;
    loop {
        let (partial, missing) = {
            let (context, item, entry, names) = (context.clone(), item.clone(), entry.clone(), names.clone());
            blocking(move || open(&context, &item, &entry, &names)).await?
        };
        let partial = Arc::new(partial);
        let transfer = PartTransfer::new(context, item, entry, &partial);
        let (known, arrived) = if transfer.comes_whole(&missing) {
            let arrived = transfer.whole().await?;
            (WholeMeta::default(), Some(arrived))
        } else {
            if asked.is_none() {
                asked = Some(known_of(context, item, entry).await?);
            }
            transfer.parts(missing).await?;
            (asked.clone().unwrap_or_default(), None)
        };
        let core = context.cores.clone().acquire_owned().await.map_err(|_| Error::Interrupted)?;
        let finished = {
            let (context, item, entry) = (context.clone(), item.clone(), entry.clone());
            let partial = partial.clone();
            blocking(move || {
                let large = ResumableDownload { context: &context, item, entry: &entry, partial: &partial };
                Ok(match arrived {
                    Some(arrived) => large.arrived(arrived, core),
                    None => large.in_parts(known, core),
                })
            })
            .await?
        };
        match finished {
            Err((error @ Error::Corrupt { .. }, seen)) => {
                partial.files().remove();
                retry.again(error, seen)?;
            }
            Err((error, _)) => return Err(error),
            Ok(finished) => return Ok(finished),
        }
    }
}

/// Checksums and Content-Encoding of the whole object.
#[derive(Debug, Clone, Default)]
struct WholeMeta {
    digests: Vec<Digest>,
    encoding: Option<String>,
}

impl WholeMeta {
    fn of(entry: &Entry, meta: Meta) -> Self {
        let mut digests = entry.digests.clone();
        digests.extend(meta.digests.into_iter().filter(|digest| !entry.digests.contains(digest)));
        Self { digests, encoding: meta.encoding }
    }
}

/// Returns the checksums and the Content-Encoding of the whole object. If the listing lacks them, requests them with
/// one more request. Part requests cannot replace this request: their responses have no checksum of the whole object,
/// and a resumed run may have no part to request.
async fn known_of(context: &DownloadContext, item: &Item, entry: &Entry) -> Result<WholeMeta> {
    let has_digest = cheapest(&entry.digests).is_some() || !context.reader.source.store.capabilities().checksums;
    let is_settled = !context.options.decompress || item.decode != Codec::None || entry.encoding.is_some();
    match has_digest && is_settled {
        true => Ok(WholeMeta { digests: entry.digests.clone(), encoding: entry.encoding.clone() }),
        false => Ok(WholeMeta::of(entry, context.reader.head(entry).await?)),
    }
}

/// Opens the two files, verifies the parts in the data file, and returns the missing parts.
fn open(
    context: &DownloadContext,
    item: &Item,
    entry: &Entry,
    names: &[String; 2],
) -> Result<(PartialDownload, Vec<u64>)> {
    let [data_name, state_name] = names;
    let io = |error: std::io::Error| context.dest_dir.io_error(item.target.as_bytes(), &error, entry.size);
    let head = Head {
        source: context.reader.place(entry),
        size: entry.size,
        version: entry.version.clone(),
        modified_ms: entry.modified_s.map(|seconds| (seconds * 1e3).round() as i64),
        part_bytes: PART_BYTES,
    };
    let held = OwnedFile::lock(&context.parts, data_name).map_err(|error| context.not_locked(item, entry, &error))?;
    let data = held.file();
    let mut state = open_own(&context.parts, state_name).map_err(io)?;
    let parts = entry.size.div_ceil(PART_BYTES);
    let mut have = vec![false; usize::try_from(parts).map_err(|_| Error::bug("more parts than the address space"))?];
    if state.metadata().map_err(io)?.len() <= MAX_STATE {
        let mut lines = BufReader::new(&state).lines();
        let same =
            lines.next().and_then(std::result::Result::ok).and_then(|text| serde_json::from_str::<Head>(&text).ok());
        if same.as_ref() == Some(&head) {
            let mut bytes = vec![0; PART_BYTES as usize];
            for part in
                lines.map_while(std::result::Result::ok).filter_map(|text| serde_json::from_str::<Part>(&text).ok())
            {
                if part.at >= parts || have[part.at as usize] {
                    continue;
                }
                let range = range_of(entry, &(part.at..part.at + 1));
                let bytes = &mut bytes[..range.len as usize];
                if data.read_exact_at(bytes, range.start).is_ok() && checksum::crc32c(bytes) == part.crc {
                    have[part.at as usize] = true;
                    Progress::add(&context.reader.progress.resumed_bytes, range.len);
                }
            }
        }
    }
    if !have.contains(&true) {
        // No part is valid: begin with empty files.
        held.clear().map_err(io)?;
        owned::set_len(&state, 0, Proof::Covered).map_err(io)?;
        state.rewind().map_err(io)?;
        let mut text = serde_json::to_vec(&head).map_err(|error| Error::bug(error.to_string()))?;
        text.push(b'\n');
        state.write_all(&text).map_err(io)?;
    } else {
        // End an incomplete last line, so that it does not merge with the next one.
        state.seek(SeekFrom::End(0)).map_err(io)?;
        state.write_all(b"\n").map_err(io)?;
    }
    held.set_len(entry.size).map_err(io)?;
    reserve(data, entry.size).map_err(io)?;
    let direct = if context.is_direct { open_direct(&context.parts, data_name).map_err(io)? } else { None };
    let missing = (0..parts).filter(|&at| !have[at as usize]).collect();
    Ok((PartialDownload { data: Arc::new(held), direct, state, state_name: state_name.clone() }, missing))
}

/// A finished file, or an error with the digests of the stored bytes.
type Outcome = Result<Finished, (Error, Vec<Digest>)>;

/// A large object whose parts are all on disk, but not yet in a synced file.
struct ResumableDownload<'a> {
    context: &'a DownloadContext,
    item: Item,
    entry: &'a Entry,
    partial: &'a PartialDownload,
}

impl ResumableDownload<'_> {
    /// Finishes an object that was downloaded in one read. The digests of the object were computed during the read.
    fn arrived(mut self, arrived: Arrived, core: OwnedSemaphorePermit) -> Outcome {
        let Arrived { stored, head, meta } = arrived;
        let digests = stored.digests();
        let seen =
            meta.and_then(|meta| self.context.reader.verified(self.entry, &stored, &meta).map(|seen| (seen, meta)));
        let (seen, meta) = seen.map_err(|error| (error, digests.clone()))?;
        self.settle(meta.encoding.as_deref(), &head);
        match self.is_copy() {
            true => self.adopt(seen, stored.seal, core).map_err(|error| (error, digests)),
            false => self.change(WholeMeta::of(self.entry, meta), core),
        }
    }

    /// Finishes an object whose parts arrived separately. Some parts may have arrived in an earlier run.
    fn in_parts(mut self, known: WholeMeta, core: OwnedSemaphorePermit) -> Outcome {
        let mut head = [0; HEAD_BYTES];
        let head = &mut head[..HEAD_BYTES.min(self.entry.size as usize)];
        self.partial.data.file().read_exact_at(head, 0).map_err(|error| (self.io(error), Vec::new()))?;
        self.settle(known.encoding.as_deref(), head);
        if !self.is_copy() {
            return self.change(known, core);
        }
        let mut stored = StoredDigests::new(&known.digests);
        let done = self
            .read(|piece| {
                stored.update(piece);
                Ok(())
            })
            .and_then(|()| self.seen(&stored, &known))
            .and_then(|seen| self.adopt(seen, stored.seal.clone(), core));
        done.map_err(|error| (error, stored.digests()))
    }

    fn settle(&mut self, encoding: Option<&str>, head: &[u8]) {
        self.item = self.item.with_detected_codec(self.context.options.decompress, encoding, head);
    }

    fn is_copy(&self) -> bool {
        self.item.decode == Codec::None && self.context.compression_of(self.entry).is_none()
    }

    fn io(&self, error: std::io::Error) -> Error {
        self.context.dest_dir.io_error(self.item.target.as_bytes(), &error, self.entry.size)
    }

    /// Reads all stored bytes from disk and passes them to `take`, in order.
    fn read(&self, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut reader = self.partial.data.file();
        reader.rewind().map_err(|error| self.io(error))?;
        let mut piece = vec![0; 1 << 20];
        let mut left = self.entry.size;
        while left > 0 {
            let want = left.min(piece.len() as u64) as usize;
            reader.read_exact(&mut piece[..want]).map_err(|error| self.io(error))?;
            take(&piece[..want])?;
            left -= want as u64;
        }
        Ok(())
    }

    /// Verifies the stored bytes against the known digests of the whole object.
    fn seen(&self, stored: &StoredDigests, known: &WholeMeta) -> Result<Verified> {
        let have = stored.digests();
        let checked = self.context.reader.check(self.entry, &have, &known.digests)?;
        Ok(Verified { digests: have[..2].to_vec(), checked, encoding: known.encoding.clone() })
    }

    /// Uses the data file of the parts as the final file. Releases the core before the sync, which does not need a
    /// core.
    fn adopt(&self, seen: Verified, seal: ContentDigest, core: OwnedSemaphorePermit) -> Result<Finished> {
        drop(core);
        // After a failed write-back, the page cache still shows the data as written, and the next sync succeeds. Remove
        // the files, so that a later run does not trust them.
        self.partial.data.file().sync_all().map_err(|error| {
            self.partial.files().remove();
            self.io(error)
        })?;
        let line = self.context.line(&self.item, self.entry, self.partial.data.file(), seen, seal)?;
        Ok(Finished { line, temporary: self.partial.data.clone(), parts: Some(self.partial.files()) })
    }

    /// Decompresses, compresses or recompresses the parts, and writes the final file.
    fn change(&self, known: WholeMeta, core: OwnedSemaphorePermit) -> Outcome {
        let Self { context, item, entry, partial, .. } = self;
        let mut stored = StoredDigests::new(&known.digests);
        let temporary = temporary_name(&item.target, "tmp");
        let mut seen = None;
        let result = context.write_file(item, entry, &temporary, core, |_, file| {
            let mut sink = Sink::new(context, item, file).pressing(context.compression_of(entry));
            if item.decode == Codec::None {
                self.read(|piece| {
                    stored.update(piece);
                    sink.take(piece)
                })?;
                seen = Some(self.seen(&stored, &known)?);
                return sink.finish();
            }
            let hint = inflated_hint(item.decode, partial.data.file(), entry.size).map_err(|error| self.io(error))?;
            if entry.size.saturating_add(hint) <= context.max_whole {
                let mut bytes = Vec::with_capacity(entry.size as usize);
                self.read(|piece| {
                    stored.update(piece);
                    bytes.extend_from_slice(piece);
                    Ok(())
                })?;
                seen = Some(self.seen(&stored, &known)?);
                context.inflate_stored(item, entry, &bytes, &mut sink)?;
                return sink.finish();
            }
            let limit = context.options.inflated_limit(item.decode, entry.size);
            let place = context.reader.place(entry);
            let mut apart = ParallelDecoder::new(item.decode, limit, &place, context.cpu_budget());
            let mut damage = None;
            self.read(|piece| {
                stored.update(piece);
                // After damage, only the digests of the rest are computed, because the digests decide whether to read
                // again.
                if damage.is_none() {
                    match apart.push(piece, &mut |content| sink.take(content)) {
                        Err(error @ Error::Corrupt { .. }) => damage = Some(error),
                        other => return other,
                    }
                }
                Ok(())
            })?;
            seen = Some(self.seen(&stored, &known)?);
            match damage {
                Some(error) => return Err(error),
                None => apart.finish(&mut |content| sink.take(content))?,
            };
            sink.finish()
        });
        let line = result.and_then(|(file, seal)| {
            let seen = seen.ok_or_else(|| Error::bug("a file was written before its bytes were verified"))?;
            let line = context.line(item, entry, file.file(), seen, seal)?;
            Ok(Finished { line, temporary: Arc::new(file), parts: Some(partial.files()) })
        });
        line.map_err(|error| (error, stored.digests()))
    }
}

/// Estimates the content size from gzip's trailer; for other codecs, by a fixed factor. The estimate only selects the
/// method; it does not determine how much memory is reserved.
fn inflated_hint(codec: Codec, data: &File, size: u64) -> std::io::Result<u64> {
    if codec != Codec::Gzip || size < 4 {
        return Ok(size.saturating_mul(4));
    }
    let mut last = [0; 4];
    data.read_exact_at(&mut last, size - 4)?;
    Ok(gzip_size_hint(last).max(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dest_dir::DestDir;
    use crate::to_folder::write_buffer::{WRITE_BUFFER_BYTES, WriteBuffer};

    #[test]
    fn partial_holds_the_same_bytes_past_the_page_cache_and_through_it() {
        let body: Vec<u8> = (0..WRITE_BUFFER_BYTES + 4096 + 77).map(|at| ((at * 31) >> 7) as u8).collect();
        for is_direct in [false, true] {
            // Not in /tmp, which may be an in-memory file system that does not support O_DIRECT.
            let inside = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let folder = DestDir::open(inside.path()).unwrap().make_folder(b"p").unwrap();
            let folder = Arc::new(folder);
            let data = Arc::new(OwnedFile::lock(&folder, "data").unwrap());
            data.set_len(body.len() as u64).unwrap();
            reserve(data.file(), body.len() as u64).unwrap();
            let direct = if is_direct { open_direct(&folder, "data").unwrap() } else { None };
            let state = open_own(&folder, "state").unwrap();
            let partial = PartialDownload { data, direct, state, state_name: "state".to_owned() };
            let mut at = 0;
            while at < body.len() {
                let mut piece = WriteBuffer::new().unwrap();
                let took = piece.fill(&body[at..]);
                let part = (at + took == body.len()).then_some(Part { at: 0, crc: 5 });
                partial.write(&piece, at as u64, part).unwrap();
                at += took;
            }
            partial.data.file().sync_all().unwrap();
            assert!(std::fs::read(inside.path().join("p/data")).unwrap() == body);
            assert_eq!(std::fs::read_to_string(inside.path().join("p/state")).unwrap(), "{\"at\":0,\"crc\":5}\n");
        }
    }
}
