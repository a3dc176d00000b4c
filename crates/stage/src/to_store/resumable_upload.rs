// SPDX-License-Identifier: Apache-2.0
//! Streams a large object to a store: reads the object in order and writes it in parts. If the stage is killed, a later
//! stage need not send finished parts again. Only a few parts are in memory, whatever the size of the object.
//!
//! On resume, a part is not sent again if the store already holds it and its content is unchanged. Such a part is not
//! even read again in one case: the object is copied unchanged, the source supports range reads, and the source reports
//! only the digests CRC-32C, XXH3 or SHA-1. In all other cases, the object is read again from its beginning, because
//! the digest or the codec needs all bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use penstock_codec::checksum::crc32c;
use penstock_codec::{Codec, StreamDecoder};
use penstock_store::{Part, PartSpec, combined};
use penstock_types::{Algorithm, ByteRange, Digest, Error, Result};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::blocking::blocking;
use crate::compress::AsyncCompressor;
use crate::digests::StoredDigests;
use crate::plan::PART_BYTES;
use crate::progress::Progress;
use crate::to_store::multipart::{MultipartUpload, PartSink, value};
use crate::to_store::target::PART;
use crate::to_store::upload_types::{UploadContext, UploadItem, Written};
use penstock_dataset::manifest::Entry;

/// Number of first bytes of an object that are read to choose the transform.
const LOOK: u64 = crate::compress::TRIED as u64;

/// Number of stored bytes that are decompressed before the output size is checked. These bytes decompress to at most 4
/// MiB for gzip and 128 MiB for zstd.
const STEP: usize = 4 << 10;

/// Reads an object in order, in a background task that ends when the reader is dropped.
struct Reader {
    pieces: mpsc::Receiver<Result<Bytes>>,
    _task: JoinSet<()>,
}

impl Reader {
    fn start(context: &Arc<UploadContext>, entry: &Entry, most: usize) -> Self {
        let (send, pieces) = mpsc::channel(2);
        let (context, entry) = (context.clone(), entry.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            if !context.reader.has_ranges() {
                if let Err(error) = whole(&context, &entry, &send).await {
                    let _ = send.send(Err(error)).await;
                }
                return;
            }
            let starts = (0..entry.size.div_ceil(PART_BYTES)).map(|at| at * PART_BYTES);
            let mut reads = stream::iter(starts)
                .map(|start| context.reader.range(&entry, ByteRange::new(start, PART_BYTES.min(entry.size - start))))
                .buffered(most);
            while let Some(piece) = reads.next().await {
                let is_end = piece.is_err();
                if send.send(piece).await.is_err() || is_end {
                    return;
                }
            }
        });
        Self { pieces, _task: task }
    }
}

/// Reads the whole object from a store without range reads. Sends the object in pieces as the bytes arrive.
async fn whole(context: &UploadContext, entry: &Entry, send: &mpsc::Sender<Result<Bytes>>) -> Result<()> {
    let mut got = context.reader.get(entry, ByteRange::WHOLE).await?;
    let mut piece = BytesMut::new();
    while let Some(bytes) = context.reader.next(&mut got).await? {
        piece.extend_from_slice(&bytes);
        if piece.len() as u64 >= PART_BYTES && send.send(Ok(piece.split().freeze())).await.is_err() {
            return Ok(());
        }
    }
    if !piece.is_empty() {
        let _ = send.send(Ok(piece.freeze())).await;
    }
    Ok(())
}

pub(crate) async fn send(context: &Arc<UploadContext>, upload: &UploadItem, entry: &Entry) -> Result<Written> {
    let meta = context.reader.head(entry).await?;
    let mut promised = entry.digests.clone();
    promised.extend(meta.digests.iter().filter(|digest| !entry.digests.contains(digest)).cloned());
    let head = match context.reader.has_ranges() {
        true => context.reader.range(entry, ByteRange::new(0, LOOK.min(entry.size))).await?,
        // A store without range reads would return the whole object here, and the object is read below. Choose the
        // transform by name only.
        false => Bytes::new(),
    };
    let change = {
        let (context, item, entry, encoding) =
            (context.clone(), upload.item.clone(), entry.clone(), meta.encoding.clone());
        blocking(move || Ok(context.change(&item, &entry, encoding, &head))).await?
    };
    // If the store loses the upload, the upload is tried once more before the object fails.
    for is_last in [false, true] {
        let mut upload = MultipartUpload::start(context, upload, entry, &change, &promised).await?;
        match upload.carry().await {
            Err(Error::NotFound { place }) if !is_last && place == context.target_place(&change.item) => {
                upload.forget().await;
            }
            // This upload cannot be resumed: an object from another source exists, or the source has changed.
            Err(
                error @ (Error::Precondition { .. }
                | Error::Corrupt { .. }
                | Error::Changed { .. }
                | Error::KeyRefused { .. }),
            ) => {
                upload.forget().await;
                return Err(error);
            }
            other => return other,
        }
    }
    Err(Error::bug("an upload was lost twice, but the loss was reported once"))
}

/// Decompresses about one part of content from `piece`, and returns the rest of `piece`. Without this limit, a hostile
/// piece could use up the memory.
fn inflate_some(
    inflater: &mut StreamDecoder,
    piece: Bytes,
    stored: &mut StoredDigests,
) -> Result<(Vec<Bytes>, Option<Bytes>)> {
    let (mut contents, mut content, mut rest) = (Vec::new(), BytesMut::new(), piece);
    while !rest.is_empty() && contents.is_empty() {
        let step = rest.split_to(rest.len().min(STEP));
        stored.update(&step);
        inflater.push(&step, &mut |bytes| {
            content.extend_from_slice(bytes);
            if content.len() >= PART as usize {
                contents.push(content.split().freeze());
            }
            Ok(())
        })?;
    }
    contents.push(content.freeze());
    Ok((contents, Some(rest).filter(|rest| !rest.is_empty())))
}

impl MultipartUpload<'_> {
    async fn carry(&mut self) -> Result<Written> {
        if let Some(written) = self.finished.take() {
            return Ok(written);
        }
        let can_skip = self.change.is_copy()
            && self.context.reader.has_ranges()
            && self
                .promised
                .iter()
                .all(|digest| matches!(digest.algorithm, Algorithm::Crc32c | Algorithm::Xxh3 | Algorithm::Sha1));
        match &self.hold {
            PartSink::Parts { held, .. } if can_skip && !held.is_empty() => self.carry_missing().await,
            _ => self.carry_all().await,
        }
    }

    /// Reads and sends the whole object, in order.
    async fn carry_all(&mut self) -> Result<Written> {
        let mut reader = Reader::start(self.context, self.entry, self.reads);
        let mut stored = StoredDigests::new(self.promised);
        let place = self.context.reader.place(self.entry);
        let (decode, limit) =
            (self.change.item.decode, self.context.options.inflated_limit(self.change.item.decode, self.entry.size));
        let mut inflater = (decode != Codec::None).then(|| StreamDecoder::new(decode, limit, &place));
        let mut compressor = match self.change.compression {
            Some(compression) => {
                Some(AsyncCompressor::new(compression, self.context.cores.clone(), self.context.threads)?)
            }
            None => None,
        };
        let mut read = 0u64;
        while let Some(piece) = reader.pieces.recv().await {
            let piece = piece?;
            read += piece.len() as u64;
            let mut left = Some(piece);
            while let Some(piece) = left {
                let work = move || -> Result<_> {
                    let Some(mut inflater) = inflater else {
                        stored.update(&piece);
                        return Ok((vec![piece], stored, None, None));
                    };
                    let (contents, rest) = inflate_some(&mut inflater, piece, &mut stored)?;
                    Ok((contents, stored, Some(inflater), rest))
                };
                let contents;
                (contents, stored, inflater, left) = self.context.on_core(work).await?;
                for content in contents {
                    match &mut compressor {
                        Some(compressor) => {
                            for bytes in compressor.push(content).await? {
                                self.write(bytes).await?;
                            }
                        }
                        None => self.write(content).await?,
                    }
                }
            }
        }
        if read != self.entry.size {
            let problem = format!("ended early (want {} bytes, have {read} bytes)", self.entry.size);
            return Err(Error::corrupt(place, problem));
        }
        if let Some(inflater) = inflater {
            inflater.finish()?;
        }
        if let Some(compressor) = compressor {
            for bytes in compressor.finish().await? {
                self.write(bytes).await?;
            }
        }
        // Verify the digests before the object is completed from these bytes.
        let have = stored.digests();
        let checked = self.context.reader.check(self.entry, &have, self.promised)?;
        self.finish(have[..2].to_vec(), checked).await
    }

    /// Reads and sends only the parts that the store does not have. Used for objects that are copied unchanged.
    async fn carry_missing(&mut self) -> Result<Written> {
        let PartSink::Parts { held, .. } = &mut self.hold else { return Err(Error::bug("parts without an upload")) };
        let held = std::mem::take(held);
        let count = self.entry.size.div_ceil(self.part_bytes) as u32;
        let of = |number: u32| {
            let start = u64::from(number) * self.part_bytes;
            ByteRange::new(start, self.part_bytes.min(self.entry.size - start))
        };
        let fits = |part: &Part| {
            part.number < count && part.offset == of(part.number).start && part.size == of(part.number).len
        };
        let held: BTreeMap<u32, Part> = held.into_iter().filter(|(_, part)| fits(part)).collect();
        for part in held.values() {
            Progress::add(&self.context.reader.progress.resumed_bytes, part.size);
        }
        let missing: Vec<(u32, ByteRange)> =
            (0..count).filter(|number| !held.contains_key(number)).map(|number| (number, of(number))).collect();
        self.parts.extend(held.into_values());
        let is_ordered = self.limits.is_some_and(|limits| limits.is_ordered);
        for (number, whole) in missing {
            let starts = (0..whole.len.div_ceil(PART_BYTES)).map(|at| at * PART_BYTES);
            let ranges = starts.map(|at| ByteRange::new(whole.start + at, PART_BYTES.min(whole.len - at)));
            let (context, entry) = (self.context, self.entry);
            let bytes: Vec<Bytes> = stream::iter(ranges)
                .map(|wanted| context.reader.range(entry, wanted))
                .buffered(self.reads)
                .try_collect()
                .await?;
            let mut ends = None;
            if number + 1 == count && is_ordered {
                // The last part carries the CRC of the whole object. Verify this CRC before the part is sent.
                self.parts.sort_by_key(|part| part.number);
                let last = Part {
                    number,
                    offset: whole.start,
                    size: whole.len,
                    crc32c: crc32c(&bytes.concat()),
                    tag: String::new(),
                };
                let all: Vec<Part> = self.parts.iter().cloned().chain([last]).collect();
                let crc = combined(&all).into_iter().collect::<Vec<_>>();
                self.context.reader.check(self.entry, &crc, self.promised)?;
                ends = crc.first().and_then(value);
            }
            self.spawn_part(PartSpec { number, offset: whole.start, ends }, bytes).await?;
        }
        self.join(0).await?;
        self.parts.sort_by_key(|part| part.number);
        let digests: Vec<Digest> = combined(&self.parts).into_iter().collect();
        let checked = self.context.reader.check(self.entry, &digests, self.promised)?;
        self.complete(digests.clone(), checked, digests, self.entry.size).await
    }
}
