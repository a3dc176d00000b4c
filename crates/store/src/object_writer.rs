// SPDX-License-Identifier: Apache-2.0
//! Writes a large object of known size sequentially. If the store supports multipart uploads, several parts are sent
//! concurrently. Otherwise, the object is sent in one request. The object does not become visible before `finish`.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use penstock_types::{Deadline, Error, Key, Result, with_separators};
use tokio::task::JoinSet;

use crate::checksum::crc32c;
use crate::{Meta, Part, PartSpec, PutOptions, Store, UploadId, combined, place};

/// Target size of a part in bytes. At this size, the latency of a request is small compared with its transfer time.
const PART_BYTES: u64 = 16 << 20;

/// Maximum number of parts in flight. In addition, the writer buffers the part that is being filled.
const IN_FLIGHT: usize = 4;

/// Sequential writer of one object.
#[derive(Debug)]
pub struct ObjectWriter {
    store: Arc<dyn Store>,
    key: Key,
    size: u64,
    part_bytes: u64,
    options: PutOptions,
    deadline: Deadline,
    /// Upload ID; `None` until the first part is full.
    upload: Option<UploadId>,
    buffer: BytesMut,
    /// Number of bytes before those in the buffer.
    sent: u64,
    next: u32,
    under_way: JoinSet<Result<Part>>,
    parts: Vec<Part>,
}

impl ObjectWriter {
    /// Creates a writer for an object of `size` bytes without sending a request.
    pub fn new(store: Arc<dyn Store>, key: Key, size: u64, options: PutOptions, deadline: Deadline) -> Self {
        // Without multipart uploads, the whole object is one part.
        let part_bytes = store.multipart().map_or(u64::MAX, |uploads| uploads.limits().part_bytes(PART_BYTES, size));
        Self {
            store,
            key,
            size,
            part_bytes,
            options,
            deadline,
            upload: None,
            buffer: BytesMut::new(),
            sent: 0,
            next: 0,
            under_way: JoinSet::new(),
            parts: Vec::new(),
        }
    }

    /// Appends bytes. Waits while too many parts are in flight.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        if self.sent + self.buffer.len() as u64 + bytes.len() as u64 > self.size {
            return Err(self.bug("more bytes than stated"));
        }
        while !bytes.is_empty() {
            let room = (self.part_bytes - self.buffer.len() as u64).min(bytes.len() as u64) as usize;
            self.buffer.extend_from_slice(&bytes[..room]);
            bytes = &bytes[room..];
            // `finish` sends the last part, because the last part completes the upload in some stores.
            if self.buffer.len() as u64 == self.part_bytes && self.sent + self.part_bytes < self.size {
                self.send(None).await?;
            }
        }
        Ok(())
    }

    /// Completes the object.
    pub async fn finish(mut self) -> Result<Meta> {
        if self.sent + self.buffer.len() as u64 != self.size {
            return Err(self.bug("fewer bytes than stated"));
        }
        if self.upload.is_none() {
            let whole = self.buffer.split().freeze();
            return self.store.put(&self.key, vec![whole], &self.options, self.deadline).await;
        }
        match self.complete().await {
            Ok(meta) => Ok(meta),
            Err(error) => {
                self.abort().await;
                Err(error)
            }
        }
    }

    async fn complete(&mut self) -> Result<Meta> {
        self.wait_below(1).await?;
        let last = Part {
            number: self.next,
            offset: self.sent,
            size: self.buffer.len() as u64,
            crc32c: crc32c(&self.buffer),
            tag: String::new(),
        };
        self.parts.sort_by_key(|part| part.number);
        let all: Vec<Part> = self.parts.iter().cloned().chain([last]).collect();
        let whole = combined(&all);
        let ends = whole.as_ref().map(|digest| digest.value.iter().fold(0, |crc, byte| crc << 8 | u32::from(*byte)));
        self.send(ends).await?;
        self.wait_below(1).await?;
        self.parts.sort_by_key(|part| part.number);
        let Some((uploads, id)) = self.store.multipart().zip(self.upload.as_ref()) else {
            return Err(self.bug("no upload"));
        };
        let whole: Vec<_> = whole.into_iter().collect();
        uploads.complete(&self.key, id, &self.parts, &whole, &self.options, self.deadline).await
    }

    /// Aborts the upload and deletes its parts. Ignores errors, because the store itself eventually deletes the parts.
    pub async fn abort(mut self) {
        self.under_way.shutdown().await;
        if let Some((uploads, id)) = self.store.multipart().zip(self.upload.as_ref()) {
            let _ = uploads.abort(&self.key, id, self.deadline).await;
        }
    }

    async fn send(&mut self, ends: Option<u32>) -> Result<()> {
        let Some(uploads) = self.store.multipart() else { return Err(self.bug("no multipart uploads")) };
        if self.upload.is_none() {
            self.upload = Some(uploads.create(&self.key, &self.options, self.deadline).await?);
        }
        let most = if uploads.limits().is_ordered { 1 } else { IN_FLIGHT };
        self.wait_below(most).await?;
        let Some(id) = self.upload.clone() else { return Err(self.bug("no upload")) };
        let bytes: Bytes = self.buffer.split().freeze();
        let at = PartSpec { number: self.next, offset: self.sent, ends };
        self.next += 1;
        self.sent += bytes.len() as u64;
        let (store, key, deadline) = (self.store.clone(), self.key.clone(), self.deadline);
        self.under_way.spawn(async move {
            let Some(uploads) = store.multipart() else { return Err(Error::bug("no multipart uploads")) };
            uploads.put_part(&key, &id, &at, vec![bytes], deadline).await
        });
        Ok(())
    }

    /// Waits until fewer than `most` parts are in flight.
    async fn wait_below(&mut self, most: usize) -> Result<()> {
        while self.under_way.len() >= most {
            match self.under_way.join_next().await {
                Some(done) => self.parts.push(done.map_err(|problem| Error::bug(problem.to_string()))??),
                None => break,
            }
        }
        Ok(())
    }

    fn bug(&self, problem: &str) -> Error {
        let have = with_separators(self.sent + self.buffer.len() as u64);
        let want = with_separators(self.size);
        Error::bug(format!("{}: {problem} ({have} of {want})", place(self.store.root(), &self.key)))
    }
}
